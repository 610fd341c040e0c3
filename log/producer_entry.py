"""One producer that numbers its batches, as a partition knows it (KIP-98).

Its epoch, its last five batches, to recognize one that is sent again, and the first offset of its open transaction.
"""

from collections import deque
from typing import Final, NamedTuple

NO_SEQUENCE: Final = -1
NO_EPOCH: Final = -1
NO_OFFSET: Final = -1
RETAINED_BATCHES: Final = 5
"""As many as a producer may have in flight."""


class BatchMark(NamedTuple):
    """A batch that was appended, as far as it is needed to answer the same batch again."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


class ProducerEntry:
    """One producer id. `transaction_start` is the first offset of its open transaction, -1 if none is open."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "last_sequence",
        "last_timestamp",
        "producer_id",
        "transaction_start",
    )

    def __init__(self, producer_id: int) -> None:
        self.producer_id = producer_id
        self.epoch = NO_EPOCH
        self.coordinator_epoch = -1
        self.last_timestamp = -1
        self.last_sequence = NO_SEQUENCE
        self.transaction_start = NO_OFFSET
        self.batches: deque[BatchMark] = deque(maxlen=RETAINED_BATCHES)

    def set_epoch(self, epoch: int) -> None:
        """Batches of another epoch are forgotten."""
        if epoch != self.epoch:
            self.epoch = epoch
            self.batches.clear()
            self.last_sequence = NO_SEQUENCE

    def add(self, epoch: int, mark: BatchMark) -> None:
        if epoch != self.epoch:
            self.set_epoch(epoch)
        self.batches.append(mark)
        self.last_sequence = mark.last_sequence
        self.last_timestamp = mark.timestamp
