"""What goes on behind the logs of a broker: retention, flushing, checkpoints, deferred removal, compaction.

Small steps at their times, with whatever blocks given to a thread; a directory that fails goes offline.
"""

import logging
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from odradek.log.background.shared_write import SharedWrite
from odradek.log.background.tasks import Done, Job, RunInThread, Schedule, Sweep
from odradek.log.compaction.cleaner import Cleaner
from odradek.log.compaction.run import Worker
from odradek.log.config import LogConfig
from odradek.log.partition_log import PartitionLog
from odradek.log.producer_expiry import ProducerExpiry
from odradek.log.removals import Removals
from odradek.log.retention import MOST_AT_ONCE
from odradek.log.segment_age import AgeVerifier
from odradek.log.segments.segment import DeletedSegment
from odradek.log.storage.checkpoint_file import Offsets
from odradek.log.storage.checkpoints import (
    CLEANER_OFFSETS_FILE,
    HIGH_WATERMARKS_FILE,
    LOG_START_OFFSETS_FILE,
    RECOVERY_POINTS_FILE,
)
from odradek.log.storage.filesystem import (
    FileSystem,
    LogDirFailure,
    ShortageError,
    is_disk_full,
    is_exhausted,
    is_shortage,
)
from odradek.log.storage.log_directory import LogDirectory
from odradek.properties import INT64_MAX
from odradek.protocol.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

Key = tuple[str, int]
"""Topic and partition."""

_FLUSH_SWEEP_MS = 1_000
_CHECKPOINT_AFTER_ROLL_MS = 1_000
_ROOM_CHECK_MS = 5_000
_ROOM_BYTES = 1 << 20
_VISITS_PER_STEP = 200
_NEXT_DELETION_MS = 10
"""Between two steps that delete segments of one log."""


class LogManagerSettings(NamedTuple):
    """The broker's properties that the manager heeds, under their names in snake case."""

    log_retention_check_interval_ms: int = 300_000
    log_initial_task_delay_ms: int = 30_000
    log_flush_scheduler_interval_ms: int = INT64_MAX
    log_flush_offset_checkpoint_interval_ms: int = 60_000
    log_flush_start_offset_checkpoint_interval_ms: int = 60_000
    replica_high_watermark_checkpoint_interval_ms: int = 5_000
    producer_id_expiration_ms: int = 86_400_000
    producer_id_expiration_check_interval_ms: int = 600_000
    num_recovery_threads_per_data_dir: int = 2
    log_cleaner_enable: bool = True
    log_cleaner_threads: int = 1
    log_cleaner_backoff_ms: int = 15_000
    log_cleaner_dedupe_buffer_size: int = 134_217_728
    log_cleaner_io_buffer_size: int = 524_288
    log_cleaner_io_buffer_load_factor: float = 0.9
    log_cleaner_io_max_bytes_per_second: float = float("inf")

    @classmethod
    def of(cls, config: object) -> "LogManagerSettings":
        """From an object that has the broker's properties as attributes."""
        return cls(**{name: getattr(config, name) for name in cls._fields})


class LogSize(NamedTuple):
    topic: str
    partition: int
    size_bytes: int


class DirectoryDescription(NamedTuple):
    """What DescribeLogDirs tells of a directory (KIP-113, KIP-827). Sizes are -1 where unknown."""

    path: str
    error_code: ErrorCode
    logs: list[LogSize]
    total_bytes: int
    usable_bytes: int


class LogUpkeep:
    """The base of LogManager: its directories and logs, and the work behind them.

    Everything is called in one thread, and what blocks is given to `run_in_thread`; compactions, which take long and
    sleep to keep to their rate, go to threads of their own by `run_compaction`.
    """

    def __init__(
        self,
        fs: FileSystem,
        directories: Sequence[str],
        default_config: LogConfig,
        settings: LogManagerSettings,
        run_in_thread: RunInThread,
        on_directory_failure: Callable[[str, list[Key]], None],
        *,
        monotonic: Callable[[], float],
        sleep: Callable[[float], None],
        start_compaction_worker: Callable[[bool], Worker] | None,
        run_compaction: RunInThread | None,
    ) -> None:
        paths = [path if path == "/" else path.rstrip("/") for path in directories]
        if len(set(paths)) < len(paths):
            raise ValueError(f"log.dirs names a directory twice: {','.join(paths)}")
        self.fs = fs
        self.directories = {path: LogDirectory(fs, path) for path in paths}
        self.default_config = default_config
        self.settings = settings
        self._monotonic = monotonic
        self.schedule = Schedule(monotonic)
        self.cleaner = Cleaner(
            fs,
            self,
            settings,
            run_compaction or run_in_thread,
            monotonic=monotonic,
            sleep=sleep,
            start_worker=start_compaction_worker,
        )
        self._run_in_thread = run_in_thread
        self._log_start_writes = {path: self._log_start_write(path) for path in paths}
        self._age_verifier = AgeVerifier(run_in_thread, self._apply_retention, monotonic, sleep)
        self._on_directory_failure = on_directory_failure
        self._logs: dict[Key, PartitionLog] = {}
        # What is there and not served, and where: in a directory that is offline, or damaged.
        self._offline: dict[Key, str] = {}
        self._flushing: dict[PartitionLog, list[Done]] = {}
        self._moved: set[str] = set()
        # Logs with more segments to delete, for which a next step is scheduled.
        self._deleting: set[PartitionLog] = set()
        self._cleaning: Job | None = None
        self._has_noted_exhaustion = False
        self._removals = Removals(run_in_thread, self._removal_failed)

    def all_logs(self) -> list[PartitionLog]:
        return list(self._logs.values())

    def serves(self, log: PartitionLog) -> bool:
        """Return whether the log is there; false for one that was deleted, also if another has its name now."""
        return self._logs.get((log.topic, log.partition)) is log

    # Directories

    def _online(self) -> list[LogDirectory]:
        return [directory for directory in self.directories.values() if directory.failure is None]

    @property
    def online_directories(self) -> list[str]:
        return [directory.path for directory in self._online()]

    def fail_directory(self, path: str, error: Exception) -> None:
        """Take a directory offline, for good: its partitions answer E56 until the broker is started again.

        If merely a resource is short, it stays: what was refused is tried again, by whoever wants it.
        """
        directory = self.directories[path]
        if directory.failure is not None:
            return
        if is_disk_full(error):
            self._note_full(directory, error)
            return
        if is_exhausted(error):
            self._note_exhaustion(error)
            return
        directory.failure = error
        logger.error("log directory is offline path=%s error=%s", path, error)
        lost = [key for key, log in self._logs.items() if log.log_directory == path]
        for key in lost:
            log = self._logs.pop(key)
            if log.failure is None:
                log.state.failure = LogDirFailure(path, f"{path} is offline")
            self._offline[key] = log.directory
        self._on_directory_failure(path, lost)

    def _note_full(self, directory: LogDirectory, error: Exception) -> None:
        """Say it once, and once more when there is room again."""
        if directory.is_full:
            return
        directory.is_full = True
        logger.error(
            "no room left in a log directory: writes are refused until there is; free some, or lower retention.ms or "
            "retention.bytes of large topics path=%s error=%s",
            directory.path,
            error,
        )

    def _note_exhaustion(self, error: Exception) -> None:
        """Log it once in each period of `_ROOM_CHECK_MS` in which it happens."""
        if not self._has_noted_exhaustion:
            self._has_noted_exhaustion = True
            logger.error(
                "no file descriptor or no memory left: what needs it is refused or put off; close connections or raise "
                "the limits (ulimit -n) error=%s",
                error,
            )

    def _look_for_room(self, now_ms: int) -> bool:
        self._has_noted_exhaustion = False
        self._removals.retry()
        for directory in self._online():
            if not directory.is_full:
                continue
            with suppress(OSError):
                usable_bytes = self.fs.space_bytes(directory.path)[1]
                if usable_bytes >= _ROOM_BYTES:
                    directory.is_full = False
                    path = directory.path
                    logger.info("there is room again in a log directory path=%s usable_bytes=%d", path, usable_bytes)
        return False

    def describe_directories(
        self, partitions: Iterable[Key] | None = None
    ) -> Generator[None, None, list[DirectoryDescription]]:
        """Describe every directory, with the sizes of its logs or of those asked for; a generator of steps."""
        wanted: set[Key] = set()
        for number, key in enumerate(partitions or (), 1):
            if key in self._logs:
                wanted.add(key)
            if number % _VISITS_PER_STEP == 0:
                yield
        sizes: dict[str, list[LogSize]] = {path: [] for path in self.directories}
        for number, (key, log) in enumerate(list(self._logs.items()), 1):
            if (partitions is None or key in wanted) and self._logs.get(key) is log:
                sizes[log.log_directory].append(LogSize(log.topic, log.partition, log.size_bytes))
            if number % _VISITS_PER_STEP == 0:
                yield
        return [self._describe(directory, sizes[directory.path]) for directory in self.directories.values()]

    def _describe(self, directory: LogDirectory, logs: list[LogSize]) -> DirectoryDescription:
        if directory.failure is not None:
            return DirectoryDescription(directory.path, ErrorCode.KAFKA_STORAGE_ERROR, [], -1, -1)
        try:
            total_bytes, usable_bytes = self.fs.space_bytes(directory.path)
        except OSError:
            total_bytes = usable_bytes = -1
        return DirectoryDescription(directory.path, ErrorCode.NONE, logs, total_bytes, usable_bytes)

    # Background work

    def run_due(self, now_ms: int) -> int:
        """Do the small steps that are due; in how many ms to come again. `now_ms` is the wall clock."""
        return self.schedule.run_due(now_ms)

    def _plan(self) -> None:
        settings, add = self.settings, self.schedule.add
        start_ms = settings.log_initial_task_delay_ms

        def sweep(visit: Callable[[PartitionLog, int], None]) -> Sweep[PartitionLog]:
            def visit_served(log: PartitionLog, now_ms: int) -> None:
                if self.serves(log):
                    visit(log, now_ms)

            return Sweep(self.all_logs, visit_served, _VISITS_PER_STEP, self._monotonic)

        add(sweep(self._apply_retention), settings.log_retention_check_interval_ms, start_ms)
        flush_ms = min(_FLUSH_SWEEP_MS, settings.log_flush_scheduler_interval_ms)
        add(sweep(self._flush_if_due), flush_ms, flush_ms)
        for file_name, interval_ms in (
            (RECOVERY_POINTS_FILE, settings.log_flush_offset_checkpoint_interval_ms),
            (LOG_START_OFFSETS_FILE, settings.log_flush_start_offset_checkpoint_interval_ms),
            (HIGH_WATERMARKS_FILE, settings.replica_high_watermark_checkpoint_interval_ms),
        ):
            first_ms = interval_ms if file_name == HIGH_WATERMARKS_FILE else start_ms
            add(self._checkpoint_step(file_name), interval_ms, first_ms)
        add(self._look_for_room, _ROOM_CHECK_MS, _ROOM_CHECK_MS)
        expiry_ms = settings.producer_id_expiration_check_interval_ms
        add(ProducerExpiry(self.all_logs, self.schedule.monotonic_ms), expiry_ms, expiry_ms)
        if settings.log_cleaner_enable:
            backoff_ms = self.cleaner.backoff_ms
            self._cleaning = add(self.cleaner.step, backoff_ms, backoff_ms)

    def _run(self, path: str, work: Callable[[], None], done: Callable[[], None] | None = None) -> None:
        """Let a thread do something in a log directory, which goes offline if it fails."""

        def finish(error: Exception | None) -> None:
            if error is not None:
                self._background_failed(path, error)
            elif done is not None:
                done()

        self._run_in_thread(work, finish)

    def _remove(self, path: str, remove: Callable[[], None]) -> None:
        """Let a thread remove something in a log directory; where a resource for that is short, later again."""
        if self.directories[path].failure is None:
            self._removals.add(path, remove)

    def _removal_failed(self, path: str, error: Exception) -> bool:
        """Return whether to try again when there may be room."""
        self._background_failed(path, error)
        return is_shortage(error)

    def _background_failed(self, path: str, error: Exception) -> None:
        if isinstance(error, OSError | LogDirFailure | ShortageError):
            self.fail_directory(path, error)
        else:
            logger.error("background work failed directory=%s", path, exc_info=error)

    def _apply_retention(self, log: PartitionLog, now_ms: int) -> None:
        """For logs that are not compacted; the cleaner sees to the others. A deleted log is left alone."""
        if log.failure is not None or not self.serves(log):
            return
        is_cleaned = log.config.compacts and self.settings.log_cleaner_enable
        if not is_cleaned and not self.cleaner.is_running((log.topic, log.partition)):
            self.delete_old_segments(log, now_ms)

    def delete_old_segments(self, log: PartitionLog, now_ms: int) -> bool:
        """Apply a log's start and retention, a few segments at a time; return whether more are deleted soon.

        The files go after file.delete.delay.ms.
        """
        try:
            deleted = log.delete_old_segments(now_ms)
        except (LogDirFailure, ShortageError) as failure:
            self.fail_directory(log.log_directory, failure)
            return False
        self.remove_later(log, deleted)
        if log.doubtful_segment is not None:
            self._age_verifier.add(log, log.doubtful_segment, now_ms)
        # If the disk refused one of them, the next check of retention tries again.
        has_more = len(deleted) == MOST_AT_ONCE
        if has_more:
            self._delete_more_soon(log, now_ms)
        return has_more

    def _delete_more_soon(self, log: PartitionLog, now_ms: int) -> None:
        if log in self._deleting:
            return
        self._deleting.add(log)

        def delete_more() -> None:
            self._deleting.discard(log)
            is_compacting = self.cleaner.is_running((log.topic, log.partition))
            if log.failure is None and self.serves(log) and not is_compacting:
                self.delete_old_segments(log, now_ms)

        self.schedule.once(_NEXT_DELETION_MS, delete_more)

    def _remove_tree_later(self, path: str, delay_ms: int) -> None:
        def remove() -> None:
            try:
                self.fs.remove_tree(path)
            except FileNotFoundError:
                return
            logger.info("removed directory=%s", path)

        self.schedule.once(delay_ms, lambda: self._remove(path.rpartition("/")[0], remove))

    def remove_later(self, log: PartitionLog, deleted: list[DeletedSegment]) -> None:
        """Remove the files of segments that were deleted, after file.delete.delay.ms."""
        if deleted:
            logger.info("deleted segments log=%s count=%d log_start=%d", log, len(deleted), log.log_start_offset)
            delay_ms = log.config.file_delete_delay_ms
            self.schedule.once(delay_ms, lambda: self._remove(log.log_directory, lambda: log.remove_deleted(deleted)))

    def flush(self, log: PartitionLog, done: Done = lambda error: None) -> None:
        """Sync what the log holds now, in a thread; then call `done`, with the failure if there was one.

        While a sync of this log is under way, all who come share the next one.
        """
        waiting = self._flushing.get(log)
        if waiting is not None:
            waiting.append(done)
        else:
            self._flush(log, None, [done])

    def _flush(self, log: PartitionLog, target_offset: int | None, served: list[Done]) -> None:
        task = None
        failure: KafkaError | None = None
        if not self.serves(log):
            # The files of a deleted log may be gone, which is no failure of the disk.
            failure = log.failure or KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{log!r} was deleted")
        else:
            try:
                task = log.prepare_flush(target_offset)
            except LogDirFailure as error:
                failure = error
                self.fail_directory(log.log_directory, error)
        if task is None:
            for done in served:
                done(failure)
            return
        self._flushing[log] = []

        def finish(error: Exception | None) -> None:
            if error is not None:
                if isinstance(error, ShortageError):
                    log.abandon_flush(task)
                self._background_failed(log.log_directory, error)
            else:
                log.finish_flush(task, self.schedule.monotonic_ms())
                if task.sealed_segments:
                    self._checkpoint_recovery_point_soon(log.log_directory)
            waiting = self._flushing.pop(log)
            if waiting:
                self._flush(log, None, waiting)
            for done in served:
                done(error or log.failure)

        self._run_in_thread(task.run, finish)

    def _checkpoint_recovery_point_soon(self, path: str) -> None:
        """A segment was rolled and is on the disk: a start after a crash need not read it, if it knows in time."""
        if path in self._moved:
            return
        self._moved.add(path)

        def write() -> None:
            self._moved.discard(path)
            directory = self.directories[path]
            if directory.failure is None:
                self._checkpoint(directory, RECOVERY_POINTS_FILE)

        self.schedule.once(_CHECKPOINT_AFTER_ROLL_MS, write)

    def _flush_if_due(self, log: PartitionLog, now_ms: int) -> None:
        if log in self._flushing or log.failure is not None:
            return
        target = log.flush_due_offset(self.schedule.monotonic_ms())
        if target is not None:
            self._flush(log, target, [])

    def _checkpoint_step(self, file_name: str) -> Callable[[int], bool]:
        def step(now_ms: int) -> bool:
            for directory in self._online():
                self._checkpoint(directory, file_name)
            return False

        return step

    def _prepare_checkpoint(self, path: str, file_name: str) -> Callable[[], None] | None:
        """Return the write that saves a checkpoint's present content, for any thread; None if the file has it."""
        return self.directories[path].prepare_checkpoint(file_name, self._offsets(file_name, path))

    def _checkpoint(self, directory: LogDirectory, file_name: str) -> None:
        write = self._prepare_checkpoint(directory.path, file_name)
        if write is not None:
            self._run(directory.path, write)

    def record_recovery_point(self, log: PartitionLog, offset: int, done: Done) -> None:
        """For the cleaner: make the log durable up to `offset`, and its recovery point; then call `done`."""

        def flushed(error: Exception | None) -> None:
            if error is not None:
                done(error)
                return
            write = self._prepare_checkpoint(log.log_directory, RECOVERY_POINTS_FILE)
            self._run_in_thread(write or (lambda: None), done)

        if log.recovery_point < offset:
            self.flush(log, flushed)
        else:
            flushed(None)

    def checkpoint_cleaned(self, path: str, done: Callable[[], None]) -> None:
        """For the cleaner: write its checkpoint of a directory."""

        def finish(error: Exception | None) -> None:
            done()
            if error is not None:
                self._background_failed(path, error)

        write = self._prepare_checkpoint(path, CLEANER_OFFSETS_FILE)
        self._run_in_thread(write or (lambda: None), finish)

    def _log_start_write(self, path: str) -> SharedWrite:
        prepare = partial(self._prepare_checkpoint, path, LOG_START_OFFSETS_FILE)
        return SharedWrite(prepare, self._run_in_thread, lambda error: self._background_failed(path, error))

    def checkpoint_log_starts(self, path: str, done: Done) -> None:
        """Make the starts of a directory's logs durable, in a thread; then call `done`, with the failure if it failed.

        One write serves all who call before it begins. After a failure the starts remain as they are, and the next
        checkpoint saves them if the directory is still online.
        """
        directory = self.directories[path]
        self._log_start_writes[path].request(lambda error: done(error or directory.failure))

    def clean_soon(self) -> None:
        """For the cleaner: let it look for more to do."""
        if self._cleaning is not None:
            self._cleaning.due_ms = 0

    def update_settings(self, settings: LogManagerSettings) -> None:
        """The broker's properties changed while it runs: take on those that may change so."""
        if settings == self.settings:
            return
        self.settings = settings
        for log in self._logs.values():
            log.producer_state.expiration_ms = settings.producer_id_expiration_ms
        if self._cleaning is not None:
            self.cleaner.update_settings(settings)
            self._cleaning.interval_ms = self.cleaner.backoff_ms
            self.clean_soon()

    def _offsets(self, file_name: str, path: str) -> Offsets:
        """Return the present content of a checkpoint file. A damaged log keeps its entry until it is repaired."""
        offsets = self._offsets_of_served(file_name, path)
        for key, directory in self._offline.items():
            if directory.rpartition("/")[0] == path and key not in offsets:
                entry = self.directories[path].recorded_offset(file_name, key)
                if entry is not None:
                    offsets[key] = entry
        return offsets

    def _offsets_of_served(self, file_name: str, path: str) -> Offsets:
        logs = [
            (key, log) for key, log in self._logs.items() if len(self.directories) == 1 or log.log_directory == path
        ]
        if file_name == RECOVERY_POINTS_FILE:
            return {key: log.recovery_point for key, log in logs}
        if file_name == HIGH_WATERMARKS_FILE:
            return {key: log.high_watermark for key, log in logs}
        if file_name == CLEANER_OFFSETS_FILE:
            cleaned = self.cleaner.offsets
            return {key: cleaned[key] for key, _ in logs if key in cleaned}
        # Apache Kafka leaves out starts that equal the first segment's. After a power loss the removal of the segments
        # before it may be undone.
        return {key: log.log_start_offset for key, log in logs if log.log_start_offset > 0}
