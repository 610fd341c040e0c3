"""Replacement of adjacent segments by a compacted one."""

from odradek.log.deletion import SegmentDeletion
from odradek.log.segments.segment import Segment
from odradek.log.segments.segment_files import SWAP_SUFFIX, DeletedSegment, remove_segment_files
from odradek.log.state import LogState


class SegmentReplacement:
    """Puts compacted segments into one log."""

    __slots__ = ("_deletion", "_log")

    def __init__(self, log: LogState, deletion: SegmentDeletion) -> None:
        self._log = log
        self._deletion = deletion

    def begin_replacement(self, replacement: Segment, replaced: list[Segment]) -> None:
        """Replace adjacent segments by a compacted one, which is complete and synced under the suffix .cleaned.

        The caller then calls `retire_replaced` for each of them, oldest first, and `finish_replacement`. After a crash
        in between, the next start completes or reverts the change. Raises LogDirFailure; ShortageError, with the log
        unchanged.
        """
        log = self._log
        log.raise_if_failed()
        log.untouched_end = None
        try:
            first = log.bases.index(replaced[0].base_offset)
            replacement.rename(SWAP_SUFFIX)
        except OSError as error:
            # With that name it would replace segments when the log is opened next.
            try:
                remove_segment_files(log.fs, log.directory, replacement.base_offset, SWAP_SUFFIX)
            except OSError as left:
                raise log.fail("compaction", left) from error
            raise log.refuse_or_fail("compaction", error) from error
        log.segments[first : first + len(replaced)] = [replacement]
        log.bases[first : first + len(replaced)] = [replacement.base_offset]

    def retire_replaced(self, segment: Segment, replacement: Segment) -> DeletedSegment:
        """Rename the files of a replaced segment. Raises LogDirFailure; ShortageError: it can be retried."""
        try:
            marked = segment.mark_deleted()
            return marked if segment.base_offset == replacement.base_offset else self._deletion.with_snapshot(marked)
        except OSError as error:
            raise self._log.refuse_or_fail("compaction", error) from error

    def finish_replacement(self, replacement: Segment) -> None:
        """Give the replacement its final name, unless it was deleted meanwhile. Raises as `retire_replaced`."""
        try:
            if replacement.suffix == SWAP_SUFFIX:
                replacement.rename("")
        except OSError as error:
            raise self._log.refuse_or_fail("compaction", error) from error
