"""Flushes: on request, and when flush.messages, flush.ms or a roll require one. One at a time for each log."""

from collections import Counter
from collections.abc import Callable

from odradek.log.background.histogram import Histogram
from odradek.log.background.shared_write import SharedWrite
from odradek.log.background.tasks import Done, Postponed, RunInThread, Schedule
from odradek.log.flush import LogSync
from odradek.log.management.checkpoint_task import OffsetCheckpoints
from odradek.log.management.log_directories import LogDirectories
from odradek.log.management.log_table import LogTable
from odradek.log.partition_log import PartitionLog
from odradek.log.storage.checkpoints import RECOVERY_POINTS_FILE
from odradek.log.storage.filesystem import LogDirFailure, ShortageError
from odradek.protocol.errors import ErrorCode, KafkaError


class FlushTask:
    """Flushes logs. Callers during a flush of a log share the next one (`SharedWrite`).

    A log is held while another one replaces it: its flushed offset stays, and callers wait for the replacement's flush.

    times: of the flushes, with their wait for a thread
    """

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
        self.times = Histogram()
        self._flushing: dict[PartitionLog, SharedWrite] = {}
        self._held: dict[PartitionLog, list[Done]] = {}
        # Callers whose flushes begin when the checkpoints are written.
        self._truncated: Counter[PartitionLog] = Counter()

    def visit(self, log: PartitionLog, now_ms: int) -> None:
        """Begin a flush if one is due, unless one is in progress."""
        if log in self._flushing or log in self._held or log.failure is not None:
            return
        if log.has_unsynced_truncation:
            self.flush(log)
            return
        target = log.flush_due_offset(self._schedule.monotonic_ms())
        if target is not None:
            self._begin(log, target).request()

    def flush(self, log: PartitionLog, done: Done = lambda error: None) -> None:
        """Sync the log's present content in a thread, then call `done`, with the failure if there was one.

        After a truncation the checkpoints are written first.
        """
        held = self._held.get(log)
        if held is not None:
            held.append(done)
            return
        truncation = log.state.unsynced_truncation

        def written(error: Exception | None) -> None:
            self._truncated[log] -= 1
            if not self._truncated[log]:
                del self._truncated[log]
            sync(error)

        def sync(error: Exception | None) -> None:
            if error is not None:
                done(error)
                return
            if truncation is not None:
                truncation.has_checkpoints = True
            (self._flushing.get(log) or self._begin(log, None)).request(done)

        if truncation is None or truncation.has_checkpoints:
            sync(None)
        else:
            self._truncated[log] += 1
            self._checkpoints.write_truncated(log.log_directory, written)

    def hold(self, log: PartitionLog) -> None:
        """Begin no flush of a log until `release`. The one in progress ends."""
        self._held[log] = []

    def is_flushing(self, log: PartitionLog) -> bool:
        return log in self._flushing or log in self._truncated

    def release(self, log: PartitionLog, served: PartitionLog) -> None:
        """End the hold of `log`; `served`, this log or its replacement, is flushed for those that wait."""
        for done in self._held.pop(log):
            self.flush(served, done)

    def _begin(self, log: PartitionLog, target_offset: int | None) -> SharedWrite:
        """Return the flushes of a log until it is idle again. The first ends at `target_offset`."""
        flush = _LogFlush(
            log, target_offset, self._table, self._log_dirs, self._checkpoints, self._schedule, self.times
        )

        def idle() -> None:
            del self._flushing[log]

        shared = self._flushing[log] = SharedWrite(flush.prepare, self._run_in_thread, flush.ended, idle)
        return shared

    def record_recovery_point(self, log: PartitionLog, offset: int, done: Done) -> None:
        """Make the log durable up to `offset`, and its recovery point; then call `done`.

        `done` gets Postponed if the recovery point remains below `offset`, because a leader epoch began meanwhile; the
        next call makes that durable.
        """

        def flushed(error: Exception | None) -> None:
            if error is not None:
                done(error)
            elif log.recovery_point < offset:
                done(Postponed())
            else:
                self._checkpoints.write_then(log.log_directory, RECOVERY_POINTS_FILE, done)

        if log.recovery_point < offset:
            self.flush(log, flushed)
        else:
            flushed(None)


class _LogFlush:
    """Flushes of one log, one after the other."""

    __slots__ = (
        "_began_ms", "_checkpoints", "_log", "_log_dirs", "_schedule", "_sync", "_table", "_target_offset", "_times",
    )  # fmt: skip

    def __init__(
        self,
        log: PartitionLog,
        target_offset: int | None,
        table: LogTable,
        log_dirs: LogDirectories,
        checkpoints: OffsetCheckpoints,
        schedule: Schedule,
        times: Histogram,
    ) -> None:
        self._log = log
        self._times = times
        self._began_ms = 0
        self._target_offset = target_offset
        self._table = table
        self._log_dirs = log_dirs
        self._checkpoints = checkpoints
        self._schedule = schedule
        self._sync: LogSync | None = None

    def prepare(self) -> Callable[[], None] | None:
        """Return the next sync; None if everything is durable. Raises KafkaError for a failed or deleted log."""
        log = self._log
        if not self._table.serves(log) and self._table.future_logs.get((log.topic, log.partition)) is not log:
            # The files of a deleted log may be missing, which is not a failure of the disk.
            raise log.failure or KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{log!r} was deleted")
        target_offset, self._target_offset = self._target_offset, None
        self._began_ms = self._schedule.monotonic_ms()
        try:
            self._sync = log.prepare_flush(target_offset)
        except LogDirFailure as failure:
            self._log_dirs.fail(log.log_directory, failure)
            raise
        return None if self._sync is None else self._sync.run

    def ended(self, error: Exception | None) -> Exception | None:
        """Record the result of a sync; return the error for the callers that wait for it."""
        log, sync = self._log, self._sync
        assert sync is not None
        ended_ms = self._schedule.monotonic_ms()
        self._times.record((ended_ms - self._began_ms) / 1000)
        if error is None:
            log.finish_flush(sync, ended_ms)
            if sync.sealed_segments:
                self._checkpoints.write_recovery_points_soon(log.log_directory)
        else:
            if isinstance(error, ShortageError):
                log.abandon_flush(sync)
            self._log_dirs.work_failed(log.log_directory, error)
        return error or log.failure
