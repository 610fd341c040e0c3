"""Batches of idempotent producers that were refused on a connection, and are to be repeated before later ones.

A producer sends several requests without waiting for responses. If this broker begins to lead the partition after it
refused the first of them, the second one leaves a gap. A partition without state of the producer accepts any first
sequence, so the second batch would be appended, and librdkafka then regards the first as acknowledged, too. A partition
with such state would respond with OUT_OF_ORDER_SEQUENCE_NUMBER, after which librdkafka repeats batches of all
partitions in a new epoch, also those that other leaders have appended. Therefore later batches get the error of the
first one until that is repeated.
"""

from typing import TYPE_CHECKING, Final

from odradek.protocol.batches.record_batch import (
    CURRENT_MAGIC,
    MAGIC_POSITION,
    PRODUCER,
    PRODUCER_POSITION,
    RECORD_BATCH_OVERHEAD,
)
from odradek.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from odradek.log.producers.state import ProducerState

RETRIABLE: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
"""Errors after which a producer repeats a batch, and which a later batch may not get."""

MOST_LATER_BATCHES: Final = 4
"""A producer has at most five batches of a partition in flight."""

_MOST_REFUSALS: Final = 1000
_MOST_CHECKS: Final = 1000
"""So many batches after the last refusal no request is in flight that was sent before its response."""

_Key = tuple[str | bytes, int, int]
"""Topic name or id, partition index, producer id."""


class _Refusal:
    """A refused batch. `remaining`: number of later batches that may still be refused because of it."""

    __slots__ = ("code", "epoch", "remaining", "sequence")

    def __init__(self, epoch: int, sequence: int, code: ErrorCode) -> None:
        self.epoch = epoch
        self.sequence = sequence
        self.code = code
        self.remaining = MOST_LATER_BATCHES


class RefusedBatches:
    """The refused batches of one connection. It is false while there are none."""

    __slots__ = ("_checks_left", "_refusals")

    def __init__(self) -> None:
        self._refusals: dict[_Key, _Refusal] = {}
        self._checks_left = 0

    def __bool__(self) -> bool:
        return bool(self._refusals)

    def record(self, topic: str | bytes, index: int, records: memoryview, code: ErrorCode) -> None:
        """Record a batch that got a RETRIABLE error, unless an earlier one of its producer is recorded."""
        producer_id, epoch, sequence = _read_producer(records)
        if producer_id < 0:
            return
        known = self._refusals.get((topic, index, producer_id))
        if known is not None and known.epoch == epoch and _is_later(sequence, known.sequence):
            return
        if len(self._refusals) < _MOST_REFUSALS:
            self._refusals[topic, index, producer_id] = _Refusal(epoch, sequence, code)
            self._checks_left = _MOST_CHECKS

    def check(self, topic: str | bytes, index: int, records: memoryview, producers: "ProducerState") -> None:
        """Check that a batch does not follow one that is to be repeated first. Raises the KafkaError of that one.

        producers: of the partition, which has the refused batch if another leader appended it
        """
        self._checks_left -= 1
        if self._checks_left < 0:
            self._refusals.clear()
        producer_id, epoch, sequence = _read_producer(records)
        refusal = self._refusals.get((topic, index, producer_id))
        if refusal is None:
            return
        if (
            refusal.remaining
            and epoch == refusal.epoch
            and _is_later(sequence, refusal.sequence)
            and producers.has_gap_before(producer_id, epoch, sequence)
        ):
            refusal.remaining -= 1
            raise KafkaError(
                refusal.code,
                f"sequence {sequence} of producer {producer_id} follows {refusal.sequence}, which was refused",
            )
        del self._refusals[topic, index, producer_id]


def _read_producer(records: memoryview) -> tuple[int, int, int]:
    """Return producer id, epoch and base sequence; the id is -1 if there is none."""
    if len(records) < RECORD_BATCH_OVERHEAD or records[MAGIC_POSITION] != CURRENT_MAGIC:
        return -1, -1, -1
    found: tuple[int, int, int] = PRODUCER.unpack_from(records, PRODUCER_POSITION)
    return found


def _is_later(sequence: int, other: int) -> bool:
    """Return whether a sequence follows another one; after the largest follows 0."""
    return 0 < (sequence - other) & 0x7FFFFFFF < 1 << 30
