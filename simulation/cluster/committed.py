"""Committed batches: those below a leader's high watermark. Every replica in sync has them, and they never change.

Source: Kafka documentation ("Replication"), KIP-101.
"""

from bisect import bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from odradek.log.partition_log import PartitionLog

TopicIdPartition = tuple[bytes, int]
"""Topic id and partition index."""


class CommittedBatch(NamedTuple):
    """The identity of a batch at its base offset."""

    last_offset: int
    leader_epoch: int
    checksum: int


class _Verified:
    """A replica's log, and the offset up to which it has been compared."""

    __slots__ = ("log", "offset")

    def __init__(self, log: "PartitionLog") -> None:
        self.log = log
        self.offset = log.log_start_offset


class CommittedBatches:
    """The committed batches of all partitions without compaction."""

    def __init__(self) -> None:
        self._ends: dict[TopicIdPartition, int] = {}
        self._batches: dict[TopicIdPartition, dict[int, CommittedBatch]] = {}
        self._verified: dict[tuple[str, TopicIdPartition], _Verified] = {}

    def end(self, partition: TopicIdPartition) -> int:
        """Return the highest high watermark that a leader has had."""
        return self._ends.get(partition, 0)

    def commit(self, partition: TopicIdPartition, high_watermark: int) -> None:
        """Record the high watermark of a leader."""
        if high_watermark > self.end(partition):
            self._ends[partition] = high_watermark

    def compare(self, broker: str, partition: TopicIdPartition, log: "PartitionLog", end: int) -> Iterator[str]:
        """Report batches of a replica below `end` that are missing, or differ from those of replicas compared before.

        end: an offset up to which the partition is committed. Logs of compacted topics are not compared.
        """
        if log.config.compacts:
            return
        verified = self._verified.get((broker, partition))
        if verified is None or verified.log is not log:
            verified = self._verified[broker, partition] = _Verified(log)
        if log.log_end_offset < verified.offset:
            yield f"truncated to {log.log_end_offset}, below the committed offset {verified.offset}"
            verified.offset = log.log_end_offset
        if verified.offset >= end:
            return
        known = self._batches.setdefault(partition, {})
        expected = max(verified.offset, log.log_start_offset)
        for base_offset, batch in _read(log, expected, end):
            if base_offset > expected:
                yield f"the batch at {expected} is missing"
            elif known.setdefault(base_offset, batch) != batch:
                yield f"the batch at {base_offset} is {batch}, committed is {known[base_offset]}"
            expected = batch.last_offset + 1
        verified.offset = max(expected, verified.offset)


def _read(log: "PartitionLog", start: int, end: int) -> Iterator[tuple[int, CommittedBatch]]:
    """Iterate over base offsets and batches: those that end at or after `start` and before `end`.

    The iteration ends at the first read that fails.
    """
    first = bisect_right(log.segments, start, key=lambda segment: segment.base_offset) - 1
    for segment in log.segments[max(0, first) :]:
        if segment.base_offset >= end:
            return
        try:
            for _, header in segment.headers(segment.offset_index.floor_position(start)):
                if header.last_offset >= end:
                    return
                if header.last_offset >= start:
                    yield (
                        header.base_offset,
                        CommittedBatch(header.last_offset, header.partition_leader_epoch, header.crc),
                    )
        except OSError:
            return
