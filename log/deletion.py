"""Deletion of segments: by retention and the log's start, and the removal of their files.

Source: KIP-107 (DeleteRecords).
"""

from odradek.log import retention
from odradek.log.roll import SegmentRoller
from odradek.log.segments.segment_files import DELETED_SUFFIX, CorruptSegmentError, DeletedSegment
from odradek.log.state import LogState
from odradek.log.storage.filesystem import is_shortage, remove_if_exists, storage_error


class SegmentDeletion:
    """Removes segments from one log."""

    __slots__ = ("_log", "_roller")

    def __init__(self, log: LogState, roller: SegmentRoller) -> None:
        self._log = log
        self._roller = roller

    def delete_old_segments(self, now_ms: int) -> list[DeletedSegment]:
        """Apply the log's start and retention; the log then starts at the first remaining segment.

        Deletes at most `retention.MAX_SEGMENTS_PER_CALL` segments; after so many, call again: more may be deletable.
        The files are renamed; pass the result to `remove_deleted` after file.delete.delay.ms. Segments whose deletion
        a full disk prevents are deleted by a later call. `doubtful_segment` is set to the segment whose records have to
        be read before retention.ms can be applied to it. Raises LogDirFailure, ShortageError.
        """
        log = self._log
        log.raise_if_failed()
        try:
            count = retention.count_deletable(log, now_ms)
            log.doubtful_segment = retention.find_doubtful(log, count, now_ms)
            if count == len(log.segments):
                rolled = log.unless_full(lambda: self._roller.roll_at(log.log_end_offset, now_ms, is_doomed=True))
                count -= rolled is None
            if count == 0:
                return []
            log.untouched_end = None
            log.advance_log_start(log.bases[count])
            deleted: list[DeletedSegment] = []
            for segment in log.segments[:count]:
                marked = log.unless_full(segment.mark_deleted)
                if marked is None:
                    break
                del log.segments[0], log.bases[0]
                deleted.append(self.with_snapshot(marked))
            left = set(log.segments)
            log.unsynced_segments = [s for s in log.unsynced_segments if s in left]
            return deleted
        except CorruptSegmentError as error:
            # Nothing is deleted: the age of a segment cannot be determined.
            log.damage_error(error)
            return []
        except OSError as error:
            raise log.refuse_or_fail("retention", error) from error

    def with_snapshot(self, deleted: DeletedSegment) -> DeletedSegment:
        """Rename the producer snapshot at a deleted segment's base offset, and add it to the segment's files."""
        log = self._log
        name = log.producer_state.forget_snapshot(deleted.base_offset)
        if name is None:
            return deleted
        path, marked = f"{log.directory}/{name}", name + DELETED_SUFFIX
        try:
            log.fs.rename(path, f"{log.directory}/{marked}")
        except FileNotFoundError:
            return deleted
        except OSError as error:
            if not is_shortage(error):
                raise
            # No space for the longer name: remove the file now, or later with the other files if that fails too.
            if log.unless_full(lambda: remove_if_exists(log.fs, path)) is not None:
                return deleted
            marked = name
        return deleted._replace(names=(*deleted.names, marked))

    def remove_deleted(self, segments: list[DeletedSegment]) -> None:
        """Remove the files of deleted segments. For any thread, since only files are touched.

        Raises LogDirFailure; ShortageError if a resource for a removal is short, which can be retried.
        """
        log = self._log
        try:
            for segment in segments:
                for name in segment.names:
                    remove_if_exists(log.fs, f"{log.directory}/{name}")
        except OSError as error:
            raise storage_error(log.log_directory, f"removing deleted segments failed: {error}", error) from error
