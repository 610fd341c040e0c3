"""Creation of logs, and of the topic ids in their directories (KIP-516)."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Final

from odradek.log.background.tasks import RunInThread, Schedule
from odradek.log.config import LogConfig
from odradek.log.empty_log import create_partition_log
from odradek.log.management.checkpoint_task import OffsetCheckpoints
from odradek.log.management.log_directories import LogDirectories
from odradek.log.management.log_table import Key, LogTable
from odradek.log.management.new_log_files import NewLogFiles
from odradek.log.management.retirement import LogRetirement
from odradek.log.partition_log import PartitionLog
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
    DELETE_SUFFIX,
    FUTURE_SUFFIX,
    STRAY_SUFFIX,
    LogDirectory,
    marked_name,
    partition_name,
)
from odradek.log.storage.name_sync import NameSync
from odradek.protocol.errors import ErrorCode, KafkaError

_MAX_PREFERENCES = 10_000
"""Limit of preferred log directories, which clients may set for partitions that are never created."""

_MIN_IN_THREAD: Final = 8
"""Fewer logs are created sooner without a thread."""


class LogCreation:
    """Creates logs, each in its preferred log directory, or in the one with the fewest logs.

    `preferred`: log directories by partition, until the log is created
    """

    def __init__(
        self,
        fs: FileSystem,
        table: LogTable,
        log_dirs: LogDirectories,
        checkpoints: OffsetCheckpoints,
        retirement: LogRetirement,
        schedule: Schedule,
        run_in_thread: RunInThread,
        sleep: Callable[[float], None],
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
        self._files = NewLogFiles(fs, run_in_thread, sleep, self._on_files_failed)
        # Topic ids that are in the directories of logs, and not in the table yet.
        self._written_ids: dict[Key, bytes] = {}
        self.preferred: dict[Key, str] = {}

    def prefer(self, key: Key, path: str) -> None:
        """Create the log of a partition in the log directory `path`. The oldest of too many preferences is dropped."""
        self.preferred.pop(key, None)
        self.preferred[key] = path
        if len(self.preferred) > _MAX_PREFERENCES:
            del self.preferred[next(iter(self.preferred))]

    def prepare(self, key: Key, done: Callable[[], None]) -> bool:
        """Remove old checkpoint entries of the partition, in a thread, then call `done`, also after a failure.

        Return False, without a call of `done`, if `create` has none to remove.
        """
        directories = [one for one in self._log_dirs.online() if one.may_have_checkpoint_of(key)]
        if key in self._table.logs or not directories:
            return False
        remaining = len(directories)

        def removed(error: Exception | None) -> None:
            nonlocal remaining
            remaining -= 1
            if not remaining:
                done()

        for directory in directories:
            self._checkpoints.remove_deleted(directory.path, removed)
        return True

    def make_files(self, keys: Iterable[Key], topic_id: bytes, done: Callable[[], None]) -> bool:
        """Make the files of new logs of a topic in a thread, then call `done`, also after a failure.

        `create` uses them. Return False, without a call of `done`, if `create` should make them: there are few, or a
        log directory is offline.
        """
        online = self._log_dirs.online()
        if len(online) < len(self._log_dirs.by_path):
            return False
        table, made = self._table, self._files.made
        counts = dict(table.log_counts)
        for files in made.values():
            counts[files.path.rpartition("/")[0]] += 1
        paths: dict[Key, str] = {}
        for key in keys:
            is_known = key in table.logs or key in table.offline or key in made
            if is_known or any(directory.may_have_checkpoint_of(key) for directory in online):
                continue
            path = self._candidates(key, counts)[0].path
            counts[path] += 1
            paths[key] = f"{path}/{partition_name(*key)}"
        if len(paths) < _MIN_IN_THREAD:
            return False
        self._files.make(paths, topic_id, done)
        return True

    def discard_files(self) -> None:
        """Remove the files that were made for logs that are not created, because their topic was deleted."""
        for key in list(self._files.made):
            # After a shortage the next call tries again. Until then the files are used if the log is created.
            with suppress(ShortageError):
                self._discard_files_of(key)

    def _discard_files_of(self, key: Key) -> None:
        """Remove the files of a log that is not created. Raises ShortageError; then they remain, for `create`.

        If their log directory has failed, the partition is offline: the next start finds an empty log there, and must
        not find another one elsewhere.
        """
        path = self._files.made[key].path
        directory = self._log_dirs.by_path[path.rpartition("/")[0]]
        if directory.failure is None:
            # A failure takes the log directory offline.
            with suppress(LogDirFailure):
                self._retirement.remove_tree_later(self._retirement.rename(path, key, DELETE_SUFFIX), 0)
        del self._files.made[key]
        if directory.failure is not None:
            self._table.offline[key] = path

    def _on_files_failed(self, key: Key, path: str, error: OSError) -> None:
        """Remove an incomplete directory. The creation of the log fails with the same error, and reports it."""
        directory = self._log_dirs.by_path[path.rpartition("/")[0]]
        failure = storage_error(directory.path, f"creating {path} failed: {error}", error)
        try:
            self._remove_incomplete(directory, path, key, failure)
        except (LogDirFailure, ShortageError) as failed:
            self._log_dirs.fail(directory.path, failed)

    def close(self) -> None:
        """Make and remove no more files in threads."""
        self._files.close()

    def create(self, key: Key, config: LogConfig, now_ms: int, producer_expiration_ms: int) -> PartitionLog:
        """Create a log. Call `store_topic_id` or `sync_names` then.

        Raises KAFKA_STORAGE_ERROR if no directory is usable, ShortageError if one may be later.
        """
        short: ShortageError | None = None
        offline = self._table.offline
        self._check_files(key)
        for directory in self._candidates(key, self._table.log_counts):
            try:
                path = f"{directory.path}/{partition_name(*key)}"
                online = self._log_dirs.online()
                log = self._create_in(directory, path, key, config, now_ms, producer_expiration_ms, online)
            except (LogDirFailure, ShortageError) as error:
                self._log_dirs.fail(directory.path, error)
                short = error if isinstance(error, ShortageError) else short
                if key in offline or key in self._files.made or is_exhausted(error):
                    break
                continue
            self._table.add(key, log)
            self.preferred.pop(key, None)
            return log
        if short is not None and key not in offline:
            raise short
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"no log directory can be used for {partition_name(*key)}")

    def _check_files(self, key: Key) -> None:
        """Discard files that were made in another log directory than is preferred now.

        Raises KAFKA_STORAGE_ERROR if their log directory has failed; ShortageError if they cannot be removed.
        """
        made = self._files.made.get(key)
        if made is None:
            return
        parent = made.path.rpartition("/")[0]
        if self._log_dirs.by_path[parent].failure is not None or self.preferred.get(key, parent) != parent:
            self._discard_files_of(key)
        if key in self._table.offline:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log directory of {made.path} is offline")

    def _candidates(self, key: Key, counts: Mapping[str, int]) -> list[LogDirectory]:
        """Return the log directories in which to try to create a log, in this order.

        counts: number of logs in each log directory
        """
        online = self._log_dirs.online()
        preferred = self.preferred.get(key)
        if preferred is not None:
            return [directory for directory in online if directory.path == preferred]
        made = self._files.made.get(key)
        if made is None:
            return sorted(online, key=lambda directory: counts[directory.path])
        parent = made.path.rpartition("/")[0]
        return sorted(online, key=lambda directory: (directory.path != parent, counts[directory.path]))

    def create_future(
        self, current: PartitionLog, path: str, unique: bytes, now_ms: int, producer_expiration_ms: int
    ) -> PartitionLog:
        """Create an empty future log of `current` in the log directory `path`. Raises LogDirFailure, ShortageError.

        A directory with its later name, that of the partition, belongs to no log and is renamed as stray.
        """
        key = (current.topic, current.partition)
        directory = self._log_dirs.by_path[path]
        final_path = f"{path}/{partition_name(*key)}"
        if self._fs.exists(final_path):
            self._retirement.rename(final_path, key, STRAY_SUFFIX)
        future_path = f"{path}/{marked_name(*key, unique, FUTURE_SUFFIX)}"
        log = self._create_in(
            directory,
            future_path,
            key,
            current.config,
            now_ms,
            producer_expiration_ms,
            [directory],
            current.log_start_offset,
        )
        topic_id = self._table.topic_ids.get(key)
        if topic_id is not None:
            try:
                self._write_topic_id(log, topic_id)
            except ShortageError:
                self._retirement.discard(log)
                raise
        log.mark_name_unsynced()
        self._table.future_logs[key] = log
        return log

    def _create_in(
        self,
        directory: LogDirectory,
        path: str,
        key: Key,
        config: LogConfig,
        now_ms: int,
        producer_expiration_ms: int,
        checked: list[LogDirectory],
        log_start_offset: int = 0,
    ) -> PartitionLog:
        """Create a log in a log directory. Raises LogDirFailure, ShortageError.

        If it raises, the incomplete log is removed durably: otherwise the next start would find two logs if this one is
        created in another directory. If it cannot be removed, the partition is offline until the next start, which
        finds it here.

        Old checkpoint entries of the partition are removed in the directories `checked`. Without `prepare` this syncs
        files in the calling thread, once after the deletion of logs.

        An existing directory at `path` belongs to no log and is renamed as stray: `open` registered all logs, refused
        ones are offline, and deleted or incomplete ones are renamed.
        """
        if self._fs.spare_descriptors() < 1:
            raise ExhaustedError(directory.path, f"no file descriptor is left for the log of {partition_name(*key)}")
        self._remove_checkpoints_of(key, directory, checked)
        made = self._files.take(key, path)
        if made is None:
            self._make_directory(directory, path, key)
        try:
            log = create_partition_log(
                self._fs,
                path,
                *key,
                config,
                now_ms=now_ms,
                monotonic_ms=self._schedule.monotonic_ms(),
                log_start_offset=log_start_offset,
                producer_expiration_ms=producer_expiration_ms,
                choose_jitter_ms=self._choose_jitter_ms,
            )
        except (LogDirFailure, ShortageError) as error:
            self._remove_incomplete(directory, path, key, error)
            raise
        if made is not None:
            self._written_ids[key] = made.topic_id
        return log

    def _make_directory(self, directory: LogDirectory, path: str, key: Key) -> None:
        if self._fs.exists(path):
            self._retirement.rename(path, key, STRAY_SUFFIX)
        try:
            self._fs.make_directory(path)
        except OSError as error:
            raise storage_error(directory.path, f"creating {path} failed: {error}", error) from error

    def _remove_incomplete(
        self, directory: LogDirectory, path: str, key: Key, error: LogDirFailure | ShortageError
    ) -> None:
        """Remove the directory of a log whose creation failed with `error`. Raises LogDirFailure if that fails."""
        if is_exhausted(error):
            # A removal needs descriptors, a rename does not.
            self._retirement.remove_tree_later(self._retirement.rename(path, key, DELETE_SUFFIX), 0)
            return
        try:
            self._fs.remove_tree(path)
            self._fs.sync_directory(directory.path)
        except OSError:
            self._table.offline[key] = path
            raise LogDirFailure(directory.path, f"an incomplete log cannot be removed: {error}") from error

    def _remove_checkpoints_of(self, key: Key, directory: LogDirectory, checked: list[LogDirectory]) -> None:
        """Remove entries of an earlier log of that name, durably. Raises LogDirFailure, ShortageError.

        After a crash they would truncate or empty the new log in `directory`. Entries in other directories, which would
        be attributed to the new log as if it had been moved from there, are removed unless a resource is short.
        """
        for other in checked:
            if not other.may_have_checkpoint_of(key):
                continue
            try:
                self._checkpoints.remove_deleted_now(other.path)
            except (LogDirFailure, ShortageError) as error:
                if other is directory:
                    raise
                self._log_dirs.fail(other.path, error)

    def store_topic_id(self, log: PartitionLog, topic_id: bytes) -> None:
        """Write the topic id into the log's directory. Raises LogDirFailure, ShortageError."""
        key = (log.topic, log.partition)
        if self._written_ids.pop(key, None) != topic_id:
            self._write_topic_id(log, topic_id)
        self._table.topic_ids[key] = topic_id
        log.mark_name_unsynced()
        self.sync_names(log)

    def _write_topic_id(self, log: PartitionLog, topic_id: bytes) -> None:
        try:
            checkpoints.write_partition_metadata(self._fs, log.directory, topic_id, sync=False)
        except OSError as error:
            failure = storage_error(log.log_directory, f"writing partition.metadata failed: {error}", error)
            self._log_dirs.fail(log.log_directory, failure)
            raise failure from error

    def sync_names(self, log: PartitionLog) -> None:
        """Make a new directory and its topic id survive a crash of the machine, without waiting for it."""
        self._name_syncs[log.log_directory].add(log.directory)

    def _name_sync(self, directory: LogDirectory) -> NameSync:
        def failed(error: Exception) -> None:
            self._log_dirs.work_failed(directory.path, error)

        return NameSync(self._fs, directory, self._schedule, self._run_in_thread, failed)
