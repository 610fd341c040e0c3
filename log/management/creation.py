"""Creation of logs, and of the topic ids in their directories (KIP-516)."""

from collections.abc import Callable

from odradek.log.background.tasks import RunInThread, Schedule
from odradek.log.config import LogConfig
from odradek.log.management.checkpoint_task import OffsetCheckpoints
from odradek.log.management.log_directories import LogDirectories
from odradek.log.management.log_table import Key, LogTable
from odradek.log.management.retirement import LogRetirement
from odradek.log.partition_log import PartitionLog
from odradek.log.recovery import DamagedLogError, open_partition_log
from odradek.log.storage import checkpoints
from odradek.log.storage.filesystem import (
    ExhaustedError,
    FileSystem,
    LogDirFailure,
    ShortageError,
    is_exhausted,
    storage_error,
)
from odradek.log.storage.log_directory import (
    ALL_CHECKPOINTS,
    DELETE_SUFFIX,
    STRAY_SUFFIX,
    LogDirectory,
    partition_name,
)
from odradek.log.storage.name_sync import NameSync
from odradek.protocol.errors import ErrorCode, KafkaError


class LogCreation:
    """Creates logs, each in the log directory with the fewest logs."""

    def __init__(
        self,
        fs: FileSystem,
        table: LogTable,
        log_dirs: LogDirectories,
        checkpoints: OffsetCheckpoints,
        retirement: LogRetirement,
        schedule: Schedule,
        run_in_thread: RunInThread,
        choose_jitter_ms: Callable[[int], int],
    ) -> None:
        self._fs = fs
        self._table = table
        self._log_dirs = log_dirs
        self._checkpoints = checkpoints
        self._retirement = retirement
        self._schedule = schedule
        self._run_in_thread = run_in_thread
        self._choose_jitter_ms = choose_jitter_ms
        self._name_syncs = {path: self._name_sync(directory) for path, directory in log_dirs.by_path.items()}

    def create(self, key: Key, config: LogConfig, now_ms: int, producer_expiration_ms: int) -> PartitionLog:
        """Create a log. Raises KAFKA_STORAGE_ERROR if no directory is usable, ShortageError if one may be later."""
        short: ShortageError | None = None
        offline, counts = self._table.offline, self._table.log_counts
        for directory in sorted(self._log_dirs.online(), key=lambda directory: counts[directory.path]):
            try:
                log = self._create_in(directory, key, config, now_ms, producer_expiration_ms)
            except (LogDirFailure, DamagedLogError, ShortageError) as error:
                self._log_dirs.fail(directory.path, error)
                short = error if isinstance(error, ShortageError) else short
                if key in offline or is_exhausted(error):
                    break
                continue
            self._table.add(key, log)
            self._sync_names(log)
            return log
        if short is not None and key not in offline:
            raise short
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"no log directory can take {partition_name(*key)}")

    def _create_in(
        self, directory: LogDirectory, key: Key, config: LogConfig, now_ms: int, producer_expiration_ms: int
    ) -> PartitionLog:
        """Create a log in a log directory. Raises LogDirFailure, DamagedLogError, ShortageError.

        An incomplete log is then removed durably: if the log were created elsewhere, the next start would find it
        twice. If it cannot be removed, the partition is offline, and the next start finds it here.

        An existing directory is never that of the new log: `open` registered all logs, refused ones are offline, and
        deleted or incomplete ones are renamed.
        """
        if self._fs.spare_descriptors() < 1:
            raise ExhaustedError(directory.path, f"no file descriptor is left for the log of {partition_name(*key)}")
        self._remove_checkpoints_of(key, directory)
        path = f"{directory.path}/{partition_name(*key)}"
        if self._fs.exists(path):
            self._retirement.rename(path, key, STRAY_SUFFIX)
        try:
            self._fs.make_directory(path)
        except OSError as error:
            raise storage_error(directory.path, f"making {path} failed: {error}", error) from error
        try:
            return open_partition_log(
                self._fs,
                path,
                *key,
                config,
                now_ms=now_ms,
                monotonic_ms=self._schedule.monotonic_ms(),
                is_clean=True,
                producer_expiration_ms=producer_expiration_ms,
                choose_jitter_ms=self._choose_jitter_ms,
            )
        except (LogDirFailure, DamagedLogError, ShortageError) as error:
            if is_exhausted(error):
                # A removal needs descriptors, a rename does not.
                self._retirement.remove_tree_later(self._retirement.rename(path, key, DELETE_SUFFIX), 0)
                raise
            try:
                self._fs.remove_tree(path)
                self._fs.sync_directory(directory.path)
            except OSError:
                self._table.offline[key] = path
                raise LogDirFailure(directory.path, f"an incomplete log cannot be removed: {error}") from error
            raise

    def _remove_checkpoints_of(self, key: Key, directory: LogDirectory) -> None:
        """Remove entries of a deleted log of that name, durably. Raises LogDirFailure, ShortageError.

        After a crash they would truncate or empty the new log in `directory`. Entries in other directories, which would
        be attributed to the new log as if it had been moved from there, are removed unless a resource is short.
        """
        for other in self._log_dirs.online():
            if not other.may_have_checkpoint_of(key):
                continue
            try:
                for file_name in ALL_CHECKPOINTS:
                    self._checkpoints.write_now(other, file_name)
            except (LogDirFailure, ShortageError) as error:
                if other is directory:
                    raise
                self._log_dirs.fail(other.path, error)

    def store_topic_id(self, log: PartitionLog, topic_id: bytes) -> None:
        """Write the topic id into the log's directory. Raises LogDirFailure, ShortageError."""
        try:
            checkpoints.write_partition_metadata(self._fs, log.directory, topic_id, sync=False)
        except OSError as error:
            failure = storage_error(log.log_directory, f"writing partition.metadata failed: {error}", error)
            self._log_dirs.fail(log.log_directory, failure)
            raise failure from error
        self._table.topic_ids[log.topic, log.partition] = topic_id
        log.directory_unsynced()
        self._sync_names(log)

    def _sync_names(self, log: PartitionLog) -> None:
        """Make a new directory and its topic id survive a crash of the machine, without waiting for it."""
        self._name_syncs[log.log_directory].add(log.directory)

    def _name_sync(self, directory: LogDirectory) -> NameSync:
        def failed(error: Exception) -> None:
            self._log_dirs.work_failed(directory.path, error)

        return NameSync(self._fs, directory, self._run_in_thread, failed)
