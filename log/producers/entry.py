"""State of one producer that numbers its batches, in a partition (KIP-98).

Its epoch, its last five batches, to recognize one that is sent again, and the first offset of its open transaction.
"""

from collections.abc import Iterable
from struct import Struct
from typing import Final, NamedTuple

NO_SEQUENCE: Final = -1
NO_EPOCH: Final = -1
NO_OFFSET: Final = -1
RETAINED_BATCHES: Final = 5
"""The largest number of batches that a producer may have in flight."""

MARK: Final = Struct("=iqiq")
"""A BatchMark, encoded."""
_pack_mark = MARK.pack
_MARK_BYTES: Final = MARK.size
MARKS_BYTES: Final = RETAINED_BATCHES * _MARK_BYTES
NO_MARKS: Final = b"\xff" * MARKS_BYTES
"""No batch: all fields of all marks are -1."""


class BatchMark(NamedTuple):
    """The fields of an appended batch that are needed to answer a duplicate."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


class ProducerEntry:
    """One producer id. `transaction_start` is the first offset of its open transaction, -1 if none is open.

    `marks` are its last batches, encoded, the newest at the end; an append costs one `pack` and no permanent object.
    """

    __slots__ = (
        "coordinator_epoch",
        "epoch",
        "last_sequence",
        "last_timestamp",
        "marks",
        "producer_id",
        "transaction_start",
    )

    def __init__(
        self,
        producer_id: int,
        epoch: int = NO_EPOCH,
        last_sequence: int = NO_SEQUENCE,
        last_timestamp: int = -1,
        coordinator_epoch: int = -1,
        transaction_start: int = NO_OFFSET,
        marks: bytes = NO_MARKS,
    ) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.last_sequence = last_sequence
        self.last_timestamp = last_timestamp
        self.coordinator_epoch = coordinator_epoch
        self.transaction_start = transaction_start
        self.marks = marks

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, and remove the batches of another epoch."""
        if epoch != self.epoch:
            self.epoch = epoch
            self.marks = NO_MARKS
            self.last_sequence = NO_SEQUENCE

    def add(self, epoch: int, last_sequence: int, last_offset: int, offset_delta: int, timestamp: int) -> None:
        """Record an appended batch."""
        if epoch != self.epoch:
            self.set_epoch(epoch)
        self.marks = self.marks[_MARK_BYTES:] + _pack_mark(last_sequence, last_offset, offset_delta, timestamp)
        self.last_sequence = last_sequence
        self.last_timestamp = timestamp

    @property
    def has_batches(self) -> bool:
        """Return whether a batch of its epoch was appended."""
        return self.marks != NO_MARKS

    def find_batch(self, last_sequence: int) -> BatchMark | None:
        """Return the batch of its epoch that ends with this sequence, if it is among the last ones."""
        for fields in MARK.iter_unpack(self.marks):
            if fields[0] == last_sequence and fields[1] >= 0:
                return BatchMark._make(fields)
        return None

    @property
    def batches(self) -> list[BatchMark]:
        """The last batches of its epoch, oldest first."""
        return [mark for mark in map(BatchMark._make, MARK.iter_unpack(self.marks)) if mark.last_offset >= 0]

    @batches.setter
    def batches(self, batches: Iterable[BatchMark]) -> None:
        self.marks = b"".join([_pack_mark(*mark) for mark in batches]).rjust(MARKS_BYTES, b"\xff")
