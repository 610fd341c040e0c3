"""Changes of a log's start and end: DeleteRecords, truncation, and a new start.

A truncation first reads the producers at the new end, in steps, and then changes the log in one step. It is made
durable by a flush, before the next append. Otherwise a power loss could restore truncated batches with the leader
epochs of their replacements, or behind their replacements.

Sources: KIP-107 (DeleteRecords), KIP-101 (truncation by leader epoch).
"""

from bisect import bisect_right
from collections.abc import Callable, Generator

from odradek.log.deletion import SegmentDeletion
from odradek.log.flush import LogFlusher
from odradek.log.producers import replay as producer_replay
from odradek.log.producers.state import ProducerState
from odradek.log.roll import SegmentRoller
from odradek.log.segments.segment import Segment
from odradek.log.segments.segment_files import DeletedSegment
from odradek.log.state import GapAtEnd, LogState, UnsyncedTruncation
from odradek.protocol.errors import ErrorCode, KafkaError


class LogTruncation:
    """Truncates one log."""

    __slots__ = ("_deletion", "_flusher", "_log", "_roller")

    def __init__(self, log: LogState, roller: SegmentRoller, flusher: LogFlusher, deletion: SegmentDeletion) -> None:
        self._log = log
        self._roller = roller
        self._flusher = flusher
        self._deletion = deletion

    def delete_records_before(self, offset: int) -> int:
        """Advance the log's start to `offset`, or to the high watermark for -1, and return the new start.

        Segments wholly before it are deleted by the next `delete_old_segments`. Raises KafkaError: OFFSET_OUT_OF_RANGE
        above the high watermark, POLICY_VIOLATION for a topic that is compacted only.
        """
        log = self._log
        log.raise_if_failed()
        if log.config.compacts and not log.config.deletes:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, "records of a compacted topic cannot be deleted")
        if offset == -1:
            offset = log.high_watermark
        if offset < 0 or offset > log.high_watermark:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} is above the high watermark {log.high_watermark}"
            )
        log.advance_log_start(offset)
        return log.log_start_offset

    def truncate_in_steps(
        self, offset: int, now_ms: int, write_checkpoints: Callable[[], None]
    ) -> Generator[None, None, list[DeletedSegment]]:
        """Remove all batches that reach `offset`, in steps. Return the removed segments, for `remove_deleted`.

        The last step changes the log, the others read it. `write_checkpoints` and a flush then make the result durable
        (`LogState.unsynced_truncation`). Raises LogDirFailure; ShortageError, with the log unchanged.
        """
        log = self._log
        log.raise_if_failed()
        if offset >= log.log_end_offset:
            self._truncate_epochs()
            return []
        while not self._leaves_nothing(offset):
            before = log.log_start_offset, log.log_end_offset
            start_offset = min(log.log_start_offset, offset)
            producers = yield from self._find_producers(start_offset, offset, now_ms)
            log.raise_if_failed()
            if before == (log.log_start_offset, log.log_end_offset):
                return self._truncate_to(offset, producers, now_ms, write_checkpoints)
        # Batches that remain below the log's start may have higher leader epochs than the batches appended next.
        return self.start_over(offset, now_ms, write_checkpoints)

    def _leaves_nothing(self, offset: int) -> bool:
        """Return whether a truncation to `offset` removes all batches at or above the log's start."""
        log = self._log
        return offset < log.bases[0] or log.bases[0] < offset <= log.log_start_offset

    def _truncate_epochs(self) -> None:
        """Remove leader epochs that begin at the log's end."""
        log = self._log
        log.leader_epochs.truncate_from_end(log.log_end_offset)
        try:
            log.unless_full(log.write_epochs)
        except OSError as error:
            raise log.fail("truncate", error) from error

    def _find_producers(
        self, start_offset: int, end_offset: int, now_ms: int
    ) -> Generator[None, None, ProducerState]:
        log = self._log
        try:
            return (
                yield from producer_replay.find_earlier(
                    log.producer_state, log.segments, start_offset, end_offset, now_ms
                )
            )
        except OSError as error:
            raise log.refuse_or_fail("truncate", error) from error

    def _truncate_to(
        self, offset: int, producers: ProducerState, now_ms: int, write_checkpoints: Callable[[], None]
    ) -> list[DeletedSegment]:
        log = self._log
        self._begin()
        try:
            deleted = self._drop(log.segments[bisect_right(log.bases, offset) :])
            log.unsynced_segments = [s for s in log.unsynced_segments if s is not log.active]
            log.active.truncate_to(offset, now_ms)
            batches_end = log.active.next_offset()
            log.gap_at_end = GapAtEnd(batches_end, offset) if batches_end < offset else None
            log.unsynced_truncation = UnsyncedTruncation(log.active, write_checkpoints)
            log.log_start_offset = min(log.log_start_offset, offset)
            self._set_end(offset)
            log.leader_epochs.truncate_from_end(offset)
            log.producer_state.replace(producers)
            log.producer_state.high_watermark_advanced(log.high_watermark)
        except OSError as error:
            raise log.fail("truncate", error) from error
        return deleted

    def start_over(
        self, offset: int, now_ms: int, write_checkpoints: Callable[[], None]
    ) -> list[DeletedSegment]:
        """Remove all segments; the empty log starts and ends at `offset`. Return them, for `remove_deleted`.

        Durable as in `truncate_in_steps`. Raises LogDirFailure; ShortageError, with the log unchanged.
        """
        log = self._log
        log.raise_if_failed()
        try:
            start = self._roller.prepare_start(offset, now_ms)
        except OSError as error:
            raise log.refuse_or_fail("truncate", error) from error
        self._begin()
        try:
            deleted = [segment.mark_deleted() for segment in reversed(log.segments)]
            log.unsynced_segments.clear()
            start.rename("")
            log.active = start
            log.gap_at_end = None
            log.unsynced_truncation = UnsyncedTruncation(log.active, write_checkpoints)
            log.segments[:] = [log.active]
            log.bases[:] = [offset]
            log.leader_epochs.clear()
            log.producer_state.truncate_fully(offset)
        except OSError as error:
            raise log.fail("truncate", error) from error
        log.log_start_offset = offset
        self._set_end(offset)
        return deleted

    def _begin(self) -> None:
        """Prepare for a truncation: the files change, and unwritten snapshots may contain truncated batches."""
        log = self._log
        log.untouched_end = None
        if log.unsynced_truncation is not None:
            log.unsynced_truncation.keep_file()
        self._flusher.cancel_snapshots()

    def _set_end(self, offset: int) -> None:
        log = self._log
        log.log_end_offset = offset
        self._flusher.lower_targets(offset)
        log.flushed_offset = min(log.flushed_offset, offset)
        if log.high_watermark > offset or log.high_watermark < log.log_start_offset:
            log.high_watermark = offset

    def _drop(self, segments: list[Segment]) -> list[DeletedSegment]:
        """Remove segments, the last first, so that a crash in between leaves no gap."""
        log = self._log
        deleted = []
        log.unsynced_segments = [s for s in log.unsynced_segments if s not in segments]
        for segment in reversed(segments):
            index = log.bases.index(segment.base_offset)
            marked = segment.mark_deleted()
            del log.segments[index], log.bases[index]
            deleted.append(self._deletion.with_snapshot(marked))
        log.active = log.segments[-1]
        return deleted
