"""Rolling: the decision to begin a new segment, and the change to it."""

import errno
import logging
import os
from collections.abc import Callable

from odradek.log.segments.segment import Segment
from odradek.log.segments.segment_files import MAX_RELATIVE_OFFSET, remove_segment_files
from odradek.log.state import LogState
from odradek.log.storage.filesystem import TEMPORARY_SUFFIX
from odradek.protocol.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)


class SegmentRoller:
    """Begins the segments of one log. `choose_jitter_ms(most)` spreads rolls by time over segment.jitter.ms."""

    __slots__ = ("_choose_jitter_ms", "_reverted_bases", "_state")

    def __init__(self, state: LogState, choose_jitter_ms: Callable[[int], int]) -> None:
        self._state = state
        self._choose_jitter_ms = choose_jitter_ms
        # The base offsets of reverted segments whose files may still exist.
        self._reverted_bases: set[int] = set()

    def roll(self, now_ms: int) -> Segment:
        """Begin a new segment after the last batch. An empty active segment is returned unchanged.

        Raises LogDirFailure, ShortageError.
        """
        self._state.raise_if_failed()
        try:
            return self.roll_at(self._state.next_base_offset, now_ms)
        except OSError as error:
            raise self._state.refuse_or_fail("roll", error) from error

    def roll_at(self, base_offset: int, now_ms: int, *, is_doomed: bool = False) -> Segment:
        """Begin a segment at `base_offset`, which is at least `next_base_offset`. Raises OSError.

        `is_doomed`: the active segment is about to be deleted, so its indexes need not be complete, and a truncation of
        it need not be durable.
        """
        log = self._state
        # The file may end in truncated batches, behind which a crash would find the next segment.
        assert is_doomed or log.unsynced_truncation is None, "the last truncation is not durable"
        if base_offset == log.active.base_offset:
            return log.active
        self._check_descriptors()
        if is_doomed:
            log.unless_full(log.active.seal)
        else:
            log.active.seal()
        remove_segment_files(log.fs, log.directory, base_offset)
        self._remove_reverted(base_offset)
        log.untouched_end = None
        segment = self._new_segment(base_offset, now_ms)
        # From here on the roll is final; before, a roll without space can be retried.
        log.unsynced_segments.append(log.active)
        log.segments.append(segment)
        log.bases.append(base_offset)
        log.active = segment
        self._snapshot_producers(base_offset)
        logger.debug("rolled segment directory=%s base_offset=%d", log.directory, base_offset)
        return segment

    def revert_far_roll(self) -> None:
        """Continue with the last segment, if the batch for which a far one was begun was refused.

        The files of the far segment are removed. If there is no space for that, the next start removes them, or a roll
        at their offset or above. Raises LogDirFailure.
        """
        log, base_offset = self._state, self._state.active.base_offset
        if base_offset <= log.log_end_offset:
            return
        log.segments.pop()
        log.bases.pop()
        log.active = log.segments[-1]
        log.unsynced_segments.pop()
        log.unwritten_snapshots = [one for one in log.unwritten_snapshots if one.offset != base_offset]
        log.unsynced_paths.discard(log.producer_state.snapshot_path(base_offset))
        self._reverted_bases.add(base_offset)
        try:
            log.unless_full(lambda: log.producer_state.revert_to(log.log_end_offset))
            log.unless_full(lambda: self._remove_reverted(base_offset))
        except OSError as error:
            raise log.fail("roll", error) from error
        logger.debug("reverted roll directory=%s base_offset=%d", log.directory, base_offset)

    def _remove_reverted(self, up_to_offset: int) -> None:
        """Remove the files of reverted segments, up to that at `up_to_offset`. Raises OSError.

        Recovery would take the next segment for one behind a lost end, if an empty one was before it.
        """
        for base_offset in [one for one in self._reverted_bases if one <= up_to_offset]:
            remove_segment_files(self._state.fs, self._state.directory, base_offset)
            self._reverted_bases.remove(base_offset)

    def _snapshot_producers(self, base_offset: int) -> None:
        log, state = self._state, self._state.producer_state
        state.end_offset = base_offset
        if state.is_large:
            log.unwritten_snapshots.append(state.copy_snapshot())
        elif log.unless_full(lambda: state.take_snapshot(sync=False)) is not None:
            log.unsynced_paths.add(state.snapshot_path(base_offset))

    def _check_descriptors(self) -> None:
        if self._state.fs.spare_descriptors() < 1:
            raise OSError(errno.EMFILE, f"{os.strerror(errno.EMFILE)} (the remaining ones are reserved for short use)")

    def prepare_start(self, base_offset: int, now_ms: int) -> Segment:
        """Create the only segment of a log that starts over. It has no effect before it is renamed. Raises OSError."""
        self._check_descriptors()
        return self._new_segment(base_offset, now_ms, TEMPORARY_SUFFIX)

    def _new_segment(self, base_offset: int, now_ms: int, suffix: str = "") -> Segment:
        """Create the files of a segment. Raises OSError."""
        log = self._state
        jitter_ms = min(log.config.segment_jitter_ms, log.max_segment_ms)
        return Segment(
            log.fs,
            log.directory,
            base_offset,
            log.config,
            now_ms=now_ms,
            fresh=True,
            roll_jitter_ms=self._choose_jitter_ms(jitter_ms) if jitter_ms else 0,
            suffix=suffix,
        )

    def segment_for(
        self, size_bytes: int, first_offset: int, last_offset: int, max_timestamp: int, now_ms: int
    ) -> Segment:
        """Return the segment for an append: the active one, or a new one if size, indexes, offsets or age require it.

        Raises OSError; KafkaError RECORD_LIST_TOO_LARGE.
        """
        log = self._state
        segment = log.active
        if size_bytes > log.segment_limit_bytes:
            raise KafkaError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"{size_bytes} bytes do not fit a segment of {log.segment_limit_bytes}",
            )
        if (
            segment.size_bytes + size_bytes > log.segment_limit_bytes
            or segment.indexes_full
            or last_offset - segment.base_offset > MAX_RELATIVE_OFFSET
            or (
                # A quick comparison, true of few segments; `first_timestamp` may have to be read.
                max_timestamp - segment.roll_timestamp > log.max_segment_ms - segment.roll_jitter_ms
                and self._is_old(segment, max_timestamp, now_ms)
            )
        ):
            if last_offset - segment.base_offset > MAX_RELATIVE_OFFSET:
                self._sync_before_gap(segment)
            # Not at the batch if it follows a gap: if its append fails, another batch may begin in the gap.
            base_offset = log.next_base_offset
            is_reachable = last_offset - base_offset <= MAX_RELATIVE_OFFSET
            return self.roll_at(base_offset if is_reachable else first_offset, now_ms)
        return segment

    def _sync_before_gap(self, segment: Segment) -> None:
        """Sync the last segment: recovery cannot distinguish a lost end from a gap that no segment can span.

        Once in 2^31 offsets this may take some milliseconds of the log's thread. A failure is one of the disk, also for
        lack of space: unsynced batches may be lost, and the next sync would succeed. Raises LogDirFailure.
        """
        try:
            segment.file.sync()
        except OSError as error:
            raise self._state.fail("roll", error) from error

    def _is_old(self, segment: Segment, max_timestamp: int, now_ms: int) -> bool:
        """Return whether segment.ms has passed: by the records' timestamps, or by the clock if the first has none."""
        if segment.size_bytes == 0:
            return False
        first = segment.first_timestamp
        age_ms = max_timestamp - first if first >= 0 else now_ms - segment.created_ms
        return age_ms > self._state.max_segment_ms - segment.roll_jitter_ms
