"""State of one idempotent or transactional producer in a partition (KIP-98).

It consists of the epoch, the last ten batches, by which a repeated batch is recognized, and the first offset of the
open transaction.
"""

from collections.abc import Iterable
from struct import Struct
from typing import Final, NamedTuple

NO_SEQUENCE: Final = -1
NO_EPOCH: Final = -1
NO_OFFSET: Final = -1
RETAINED_BATCHES: Final = 10
"""Twice as many as in Apache Kafka. A producer has at most five batches in flight on a connection, but after a change
of the leader the Java producer sends five new ones while five wait for their repetition. If those were forgotten, they
would be out of order, and the producer would write them a second time in a new epoch."""

BATCH_METADATA: Final = Struct("=iqiq")
"""The encoding of a BatchMetadata."""
_pack_batch = BATCH_METADATA.pack
_BATCH_BYTES: Final = BATCH_METADATA.size
BATCHES_BYTES: Final = RETAINED_BATCHES * _BATCH_BYTES
NO_BATCHES: Final = b"\xff" * BATCHES_BYTES
"""The encoding of no batches: all fields are -1."""


class BatchMetadata(NamedTuple):
    """The fields of an appended batch that the response to a duplicate needs."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


class ProducerEntry:
    """One producer id. `transaction_start` is the first offset of its open transaction, -1 if none is open.

    `packed_batches` are the last batches, encoded, the newest at the end: an append takes one `pack` and creates no
    object that stays.
    """

    __slots__ = (
        "coordinator_epoch",
        "epoch",
        "last_sequence",
        "last_timestamp",
        "packed_batches",
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
        packed_batches: bytes = NO_BATCHES,
    ) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.last_sequence = last_sequence
        self.last_timestamp = last_timestamp
        self.coordinator_epoch = coordinator_epoch
        self.transaction_start = transaction_start
        self.packed_batches = packed_batches

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, and remove the batches of another epoch."""
        if epoch != self.epoch:
            self.epoch = epoch
            self.packed_batches = NO_BATCHES
            self.last_sequence = NO_SEQUENCE

    def add(self, epoch: int, last_sequence: int, last_offset: int, offset_delta: int, timestamp: int) -> None:
        """Record an appended batch."""
        if epoch != self.epoch:
            self.set_epoch(epoch)
        packed = _pack_batch(last_sequence, last_offset, offset_delta, timestamp)
        self.packed_batches = self.packed_batches[_BATCH_BYTES:] + packed
        self.last_sequence = last_sequence
        self.last_timestamp = timestamp

    @property
    def has_batches(self) -> bool:
        """Return whether a batch of the epoch was appended."""
        return self.packed_batches != NO_BATCHES

    def find_batch(self, last_sequence: int) -> BatchMetadata | None:
        """Return the batch of the epoch that ends with this sequence, if it is among the retained ones."""
        for fields in BATCH_METADATA.iter_unpack(self.packed_batches):
            if fields[0] == last_sequence and fields[1] >= 0:
                return BatchMetadata._make(fields)
        return None

    @property
    def batches(self) -> list[BatchMetadata]:
        """The last batches of the epoch, oldest first."""
        batches = map(BatchMetadata._make, BATCH_METADATA.iter_unpack(self.packed_batches))
        return [batch for batch in batches if batch.last_offset >= 0]

    @batches.setter
    def batches(self, batches: Iterable[BatchMetadata]) -> None:
        self.packed_batches = b"".join([_pack_batch(*batch) for batch in batches]).rjust(BATCHES_BYTES, b"\xff")
