"""Deletion of old segments, by the start of a log and by retention."""

import logging
from collections.abc import Callable

from odradek.log.background.tasks import RunInThread, Schedule
from odradek.log.management.age_verifier import AgeVerifier
from odradek.log.management.log_directories import LogDirectories
from odradek.log.management.log_table import Key, LogTable
from odradek.log.management.removals import Removals
from odradek.log.partition_log import PartitionLog
from odradek.log.retention import MAX_SEGMENTS_PER_CALL
from odradek.log.segments.segment_files import DeletedSegment
from odradek.log.storage.filesystem import LogDirFailure, ShortageError

logger = logging.getLogger(__name__)

_NEXT_DELETION_MS = 10
"""Delay between two steps that delete segments of one log."""


class RetentionTask:
    """Deletes segments. `is_compacting(key)` returns whether a log is being compacted.

    `cleaner_deletes` is set if the cleaner is enabled: the cleaner deletes the old segments of compacted topics, so
    that no segment is deleted while it is compacted.
    """

    def __init__(
        self,
        table: LogTable,
        log_dirs: LogDirectories,
        schedule: Schedule,
        removals: Removals,
        run_in_thread: RunInThread,
        is_compacting: Callable[[Key], bool],
        *,
        cleaner_deletes: bool,
        monotonic: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self.cleaner_deletes = cleaner_deletes
        self._table = table
        self._log_dirs = log_dirs
        self._schedule = schedule
        self._removals = removals
        self._is_compacting = is_compacting
        self._age_verifier = AgeVerifier(run_in_thread, self.visit, monotonic, sleep)
        # Logs with more segments to delete, for which a next step is scheduled.
        self._deleting: set[PartitionLog] = set()

    def visit(self, log: PartitionLog, now_ms: int) -> None:
        """Apply retention to a log, unless the cleaner applies it or the log was deleted."""
        if log.failure is not None or not self._table.serves(log):
            return
        is_cleaned = log.config.compacts and self.cleaner_deletes
        if not is_cleaned and not self._is_compacting((log.topic, log.partition)):
            self.delete_old_segments(log, now_ms)

    def delete_old_segments(self, log: PartitionLog, now_ms: int) -> bool:
        """Apply a log's start and retention, a few segments at a time; return whether more are deleted soon.

        The files are removed after file.delete.delay.ms.
        """
        try:
            deleted = log.delete_old_segments(now_ms)
        except (LogDirFailure, ShortageError) as failure:
            self._log_dirs.fail(log.log_directory, failure)
            return False
        self.remove_later(log, deleted)
        if log.doubtful_segment is not None:
            self._age_verifier.add(log, log.doubtful_segment, now_ms)
        # If a full disk prevented one of these deletions, the next check of retention tries again.
        has_more = len(deleted) == MAX_SEGMENTS_PER_CALL
        if has_more:
            self._delete_more_soon(log, now_ms)
        return has_more

    def _delete_more_soon(self, log: PartitionLog, now_ms: int) -> None:
        if log in self._deleting:
            return
        self._deleting.add(log)

        def delete_more() -> None:
            self._deleting.discard(log)
            is_compacting = self._is_compacting((log.topic, log.partition))
            if log.failure is None and self._table.serves(log) and not is_compacting:
                self.delete_old_segments(log, now_ms)

        self._schedule.once(_NEXT_DELETION_MS, delete_more)

    def remove_later(self, log: PartitionLog, deleted: list[DeletedSegment]) -> None:
        """Remove the files of deleted segments after file.delete.delay.ms."""
        if deleted:
            logger.info("deleted segments log=%s count=%d log_start=%d", log, len(deleted), log.log_start_offset)
            delay_ms = log.config.file_delete_delay_ms
            self._schedule.once(
                delay_ms, lambda: self._removals.add(log.log_directory, lambda: log.remove_deleted(deleted))
            )
