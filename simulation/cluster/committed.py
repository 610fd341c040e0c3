"""Committed batches: those below a leader's high watermark. Every replica in sync has them, and they never change.

After an unclean election this holds for those that the new leader has; each branch has its own batches.

Source: Kafka documentation ("Replication"), KIP-101.
"""

from bisect import bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from odradek.simulation.cluster.branches import Branch

if TYPE_CHECKING:
    from odradek.log.partition_log import PartitionLog


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
        self._ends: dict[Branch, int] = {}
        self._batches: dict[Branch, dict[int, CommittedBatch]] = {}
        self._verified: dict[tuple[str, Branch], _Verified] = {}

    def __contains__(self, branch: Branch) -> bool:
        """Return whether a leader of a branch has been observed."""
        return branch in self._ends

    def end(self, branch: Branch) -> int:
        """Return the highest high watermark that a leader has had."""
        return self._ends.get(branch, 0)

    def begin(self, branch: Branch, log: "PartitionLog") -> int:
        """Begin a branch with the committed batches of the last one that its leader has; return their end."""
        before = next((one for one in branch.earlier if one in self), branch)
        known = self._batches.get(before, {})
        kept = self._batches[branch] = {}
        end = 0
        for base_offset, batch in _read(log, 0, self.end(before)):
            if known.get(base_offset) != batch:
                break
            kept[base_offset] = batch
            end = batch.last_offset + 1
        self._ends[branch] = end
        return end

    def commit(self, branch: Branch, high_watermark: int) -> None:
        """Record the high watermark of a leader."""
        self._ends[branch] = max(high_watermark, self.end(branch))

    def compare(self, broker: str, branch: Branch, log: "PartitionLog", end: int) -> Iterator[str]:
        """Report batches of a replica below `end` that are missing, or differ from those of replicas compared before.

        end: an offset up to which the branch is committed. Logs of compacted topics are not compared.
        """
        if log.config.compacts:
            return
        verified = self._verified.get((broker, branch))
        if verified is None or verified.log is not log:
            verified = self._verified[broker, branch] = _Verified(log)
        if log.log_end_offset < verified.offset:
            yield f"truncated to {log.log_end_offset}, below the committed offset {verified.offset}"
            verified.offset = log.log_end_offset
        if verified.offset >= end:
            return
        known = self._batches.setdefault(branch, {})
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
