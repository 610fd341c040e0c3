"""Flushes: on request, and when flush.messages, flush.ms or a roll require one. One at a time for each log."""

from odradek.log.background.tasks import Done, RunInThread, Schedule
from odradek.log.management.checkpoint_task import OffsetCheckpoints
from odradek.log.management.log_directories import LogDirectories
from odradek.log.management.log_table import LogTable
from odradek.log.partition_log import PartitionLog
from odradek.log.storage.checkpoints import RECOVERY_POINTS_FILE
from odradek.log.storage.filesystem import LogDirFailure, ShortageError
from odradek.protocol.errors import ErrorCode, KafkaError


class FlushTask:
    """Flushes logs. Callers that come during a flush of a log share the next one."""

    def __init__(
        self,
        table: LogTable,
        log_dirs: LogDirectories,
        checkpoints: OffsetCheckpoints,
        schedule: Schedule,
        run_in_thread: RunInThread,
    ) -> None:
        self._table = table
        self._log_dirs = log_dirs
        self._checkpoints = checkpoints
        self._schedule = schedule
        self._run_in_thread = run_in_thread
        self._flushing: dict[PartitionLog, list[Done]] = {}

    def visit(self, log: PartitionLog, now_ms: int) -> None:
        """Begin a flush if one is due, unless one is under way."""
        if log in self._flushing or log.failure is not None:
            return
        target = log.flush_due_offset(self._schedule.monotonic_ms())
        if target is not None:
            self._flush(log, target, [])

    def flush(self, log: PartitionLog, done: Done = lambda error: None) -> None:
        """Sync the log's present content in a thread, then call `done`, with the failure if there was one."""
        waiting = self._flushing.get(log)
        if waiting is not None:
            waiting.append(done)
        else:
            self._flush(log, None, [done])

    def _flush(self, log: PartitionLog, target_offset: int | None, served: list[Done]) -> None:
        task = None
        failure: KafkaError | None = None
        if not self._table.serves(log):
            # The files of a deleted log may be gone, which is no failure of the disk.
            failure = log.failure or KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{log!r} was deleted")
        else:
            try:
                task = log.prepare_flush(target_offset)
            except LogDirFailure as error:
                failure = error
                self._log_dirs.fail(log.log_directory, error)
        if task is None:
            for done in served:
                done(failure)
            return
        self._flushing[log] = []

        def finish(error: Exception | None) -> None:
            if error is not None:
                if isinstance(error, ShortageError):
                    log.abandon_flush(task)
                self._log_dirs.work_failed(log.log_directory, error)
            else:
                log.finish_flush(task, self._schedule.monotonic_ms())
                if task.sealed_segments:
                    self._checkpoints.write_recovery_points_soon(log.log_directory)
            waiting = self._flushing.pop(log)
            if waiting:
                self._flush(log, None, waiting)
            for done in served:
                done(error or log.failure)

        self._run_in_thread(task.run, finish)

    def record_recovery_point(self, log: PartitionLog, offset: int, done: Done) -> None:
        """Make the log durable up to `offset`, and its recovery point; then call `done`."""

        def flushed(error: Exception | None) -> None:
            if error is not None:
                done(error)
            else:
                self._checkpoints.write_then(log.log_directory, RECOVERY_POINTS_FILE, done)

        if log.recovery_point < offset:
            self.flush(log, flushed)
        else:
            flushed(None)
