"""All logs of a broker: the directories they lie in, and the work that goes on behind them.

Sources: Kafka documentation ("Log", "Compaction", "Hardware and OS: application vs. OS flush management"), KIP-112
(a failed directory takes only its own partitions offline), KIP-516 (topic ids).
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from odradek.log import checkpoints, parallel
from odradek.log.background import Done, Job, RunInThread, Schedule, Sweep, run_inline
from odradek.log.checkpoints import (
    CLEANER_OFFSETS_FILE,
    HIGH_WATERMARKS_FILE,
    LOG_START_OFFSETS_FILE,
    RECOVERY_POINTS_FILE,
    MalformedFileError,
)
from odradek.log.cleaner import Cleaner
from odradek.log.config import LogConfig
from odradek.log.filesystem import FileSystem, LogDirFailure
from odradek.log.log_directory import (
    ALL_CHECKPOINTS,
    DELETE_SUFFIX,
    STRAY_SUFFIX,
    InconsistentMetaError,
    LogDirectory,
    Offsets,
    PartitionDirectory,
    marked_name,
    partition_name,
    random_cluster_id,
    read_topic_id,
)
from odradek.log.partition_log import PartitionLog
from odradek.log.recovery import open_partition_log
from odradek.log.segment import DeletedSegment
from odradek.properties import INT64_MAX
from odradek.protocol.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

Key = tuple[str, int]
"""Topic and partition."""

_FLUSH_SWEEP_MS = 1_000
_VISITS_PER_STEP = 200


class AllLogDirsFailed(Exception):  # noqa: N818 - a state, named as in Kafka's documentation
    """No log directory can be used; str says why of each, on one line."""


class DuplicateLogError(Exception):
    """One partition lies in two log directories; str is one readable line."""


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
    log_cleaner_backoff_ms: int = 15_000
    log_cleaner_dedupe_buffer_size: int = 134_217_728
    log_cleaner_io_buffer_load_factor: float = 0.9
    log_cleaner_io_max_bytes_per_second: float = float("inf")

    @classmethod
    def of(cls, config: object) -> "LogManagerSettings":
        """From an object that has the broker's properties as attributes."""
        return cls(**{name: getattr(config, name) for name in cls._fields})


class _Loaded(NamedTuple):
    """What came of opening one log."""

    key: Key
    directory: str
    log: PartitionLog | None
    topic_id: bytes | None
    cleaned_to: int | None
    failure: Exception | None


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


class LogManager:
    """Made, then `open`ed; `run_due` from time to time; `close`d.

    Everything is called in one thread. What blocks is given to `run_in_thread`, except for loading at `open`, which
    uses threads of its own where it pays, and for `close`.

    `directories` are absolute paths. `topic_config` gives a topic's properties, None for a topic it does not know,
    which then has `default_config`. `random_bytes(n)` is the source of ids. `on_directory_failure(path, partitions)`
    is called when a directory goes offline. `monotonic` (seconds) and `sleep` pace compaction, in its thread.
    """

    def __init__(
        self,
        fs: FileSystem,
        directories: Sequence[str],
        default_config: LogConfig,
        topic_config: Callable[[str], LogConfig | None],
        node_id: int,
        *,
        random_bytes: Callable[[int], bytes],
        cluster_id: str | None = None,
        settings: LogManagerSettings | None = None,
        run_in_thread: RunInThread = run_inline,
        choose_jitter_ms: Callable[[int], int] = lambda most_ms: 0,
        on_directory_failure: Callable[[str, list[Key]], None] = lambda path, partitions: None,
        monotonic: Callable[[], float] = lambda: 0.0,
        sleep: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        paths = [path if path == "/" else path.rstrip("/") for path in directories]
        if len(set(paths)) < len(paths):
            raise ValueError(f"log.dirs names a directory twice: {','.join(paths)}")
        self.fs = fs
        self.directories = {path: LogDirectory(fs, path) for path in paths}
        self.default_config = default_config
        self.node_id = node_id
        self.cluster_id = cluster_id
        self.settings = settings or LogManagerSettings()
        self.schedule = Schedule()
        self._topic_config = topic_config
        self._random_bytes = random_bytes
        self._run_in_thread = run_in_thread
        self._choose_jitter_ms = choose_jitter_ms
        self._on_directory_failure = on_directory_failure
        self._logs: dict[Key, PartitionLog] = {}
        self._topic_ids: dict[Key, bytes] = {}
        self._offline: dict[Key, str] = {}
        self._flushing: set[Key] = set()
        self.cleaner = Cleaner(fs, self, self.settings, run_in_thread, monotonic=monotonic, sleep=sleep)
        self._cleaning: Job | None = None

    # Open

    def open(self, now_ms: int) -> None:
        """Lock and load all directories; one that fails is left offline. Blocks.

        Raises LockedError, InconsistentMetaError, DuplicateLogError, AllLogDirsFailed; nothing stays locked then.
        """
        try:
            for directory in self._online():
                self._guarded(directory, directory.lock)
            self._check_identity()
            self._load(now_ms)
            self._raise_if_none_left()
        except BaseException:
            for directory in self.directories.values():
                directory.unlock()
            raise
        self._plan(now_ms)

    def _check_identity(self) -> None:
        metas = {}
        for directory in self._online():
            try:
                metas[directory.path] = directory.read_meta()
            except LogDirFailure as failure:
                self.fail_directory(directory.path, failure)
        self._raise_if_none_left()
        known = sorted({meta.cluster_id for meta in metas.values() if meta is not None and meta.cluster_id})
        if self.cluster_id is None:
            if len(known) > 1:
                raise InconsistentMetaError(f"log.dirs belong to different clusters: {', '.join(known)}")
            self.cluster_id = known[0] if known else random_cluster_id(self._random_uuid)
        for directory in self._online():
            try:
                directory.complete_meta(metas[directory.path], self.cluster_id, self.node_id, self._random_uuid)
            except LogDirFailure as failure:
                self.fail_directory(directory.path, failure)

    def _random_uuid(self) -> bytes:
        value = bytearray(self._random_bytes(16))
        value[6] = value[6] & 0x0F | 0x40
        value[8] = value[8] & 0x3F | 0x80
        return bytes(value)

    def _load(self, now_ms: int) -> None:
        loads: list[Callable[[], None]] = []
        loaded: list[_Loaded] = []
        is_clean = True
        for directory in self._online():
            try:
                found = directory.begin_load()
                offsets = {name: directory.read_offsets(name) for name in ALL_CHECKPOINTS}
            except LogDirFailure as failure:
                self.fail_directory(directory.path, failure)
                continue
            is_clean = is_clean and directory.was_clean
            for entry in found:
                path = f"{directory.path}/{entry.name}"
                if entry.suffix == DELETE_SUFFIX:
                    self._remove_tree_later(path, now_ms + self.default_config.file_delete_delay_ms)
                elif entry.suffix:
                    logger.warning("not serving directory=%s", path)
                else:
                    loads.append(self._loading(directory, entry, offsets, now_ms, loaded))
        threads = 1 if is_clean else self.settings.num_recovery_threads_per_data_dir * len(self.directories)
        parallel.run_all(loads, threads)
        for result in loaded:
            self._take_in(result)
        logger.info("loaded logs count=%d clean=%s", len(self._logs), is_clean)

    def _loading(
        self,
        directory: LogDirectory,
        entry: PartitionDirectory,
        offsets: dict[str, Offsets],
        now_ms: int,
        loaded: "list[_Loaded]",
    ) -> Callable[[], None]:
        """What opens one log, in any thread, and adds the outcome to `loaded`."""
        key = (entry.topic, entry.partition)
        config = self._config_of(entry.topic)
        path = f"{directory.path}/{entry.name}"

        def load() -> None:
            topic_id = log = failure = None
            try:
                topic_id = read_topic_id(self.fs, path)
                log = open_partition_log(
                    self.fs,
                    path,
                    *key,
                    config,
                    now_ms=now_ms,
                    is_clean=directory.was_clean,
                    log_start_offset=offsets[LOG_START_OFFSETS_FILE].get(key, 0),
                    recovery_point=offsets[RECOVERY_POINTS_FILE].get(key, 0),
                    producer_expiration_ms=self.settings.producer_id_expiration_ms,
                    choose_jitter_ms=self._choose_jitter_ms,
                )
                log.update_high_watermark(offsets[HIGH_WATERMARKS_FILE].get(key, 0))
            except (LogDirFailure, MalformedFileError, OSError) as error:
                failure = error
            cleaned_to = offsets[CLEANER_OFFSETS_FILE].get(key)
            loaded.append(_Loaded(key, directory.path, log, topic_id, cleaned_to, failure))

        return load

    def _take_in(self, loaded: "_Loaded") -> None:
        directory = self.directories[loaded.directory]
        if loaded.failure is not None:
            self.fail_directory(directory.path, loaded.failure)
        if loaded.log is None or directory.failure is not None:
            self._offline[loaded.key] = directory.path
            return
        other = self._logs.setdefault(loaded.key, loaded.log)
        if other is not loaded.log:
            raise DuplicateLogError(
                f"partition {partition_name(*loaded.key)} is in {other.directory} and in {loaded.log.directory}; "
                "remove the one that is out of date"
            )
        if loaded.topic_id is not None:
            self._topic_ids[loaded.key] = loaded.topic_id
        if loaded.cleaned_to is not None:
            self.cleaner.offsets[loaded.key] = loaded.cleaned_to

    def _plan(self, now_ms: int) -> None:
        settings, add = self.settings, self.schedule.add
        start_ms = now_ms + settings.log_initial_task_delay_ms

        def sweep(visit: Callable[[PartitionLog, int], None]) -> Sweep[PartitionLog]:
            return Sweep(self.all_logs, visit, _VISITS_PER_STEP)

        add(sweep(self._apply_retention), settings.log_retention_check_interval_ms, start_ms)
        flush_ms = min(_FLUSH_SWEEP_MS, settings.log_flush_scheduler_interval_ms)
        add(sweep(self._flush_if_due), flush_ms, now_ms + flush_ms)
        for file_name, interval_ms in (
            (RECOVERY_POINTS_FILE, settings.log_flush_offset_checkpoint_interval_ms),
            (LOG_START_OFFSETS_FILE, settings.log_flush_start_offset_checkpoint_interval_ms),
            (HIGH_WATERMARKS_FILE, settings.replica_high_watermark_checkpoint_interval_ms),
        ):
            first_ms = now_ms + interval_ms if file_name == HIGH_WATERMARKS_FILE else start_ms
            add(self._checkpoint_step(file_name), interval_ms, first_ms)
        expiry_ms = settings.producer_id_expiration_check_interval_ms
        add(sweep(_expire_producers), expiry_ms, now_ms + expiry_ms)
        if settings.log_cleaner_enable:
            backoff_ms = settings.log_cleaner_backoff_ms
            self._cleaning = add(self.cleaner.step, backoff_ms, now_ms + backoff_ms)

    # Logs

    def get(self, topic: str, partition: int) -> PartitionLog | None:
        """None if there is no such log. Raises KafkaError E56 if it lies in a directory that is offline."""
        log = self._logs.get((topic, partition))
        if log is None and (topic, partition) in self._offline:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log directory of {topic}-{partition} is offline")
        return log

    def all_logs(self) -> list[PartitionLog]:
        return list(self._logs.values())

    def topic_id(self, topic: str, partition: int) -> bytes | None:
        """The topic id in the partition's directory; None if it has none."""
        return self._topic_ids.get((topic, partition))

    def create_log(
        self, topic: str, partition: int, topic_id: bytes | None, now_ms: int, *, is_new: bool = False
    ) -> PartitionLog:
        """The partition's log, made in the directory with the fewest partitions if there is none.

        Unless `is_new`, none is made while a directory is offline, since the log may be there. Raises KafkaError: E56
        for that or if no directory takes it, E103 if the log that is there belongs to another topic id.
        """
        key = (topic, partition)
        log = self.get(topic, partition)
        if log is None:
            if not is_new and any(directory.failure is not None for directory in self.directories.values()):
                raise KafkaError(
                    ErrorCode.KAFKA_STORAGE_ERROR,
                    f"{topic}-{partition} is not created while a log directory is offline: its log may be there",
                )
            log = self._create(topic, partition, now_ms)
        known_id = self._topic_ids.get(key)
        if topic_id is None or topic_id == known_id:
            return log
        if known_id is not None:
            raise KafkaError(
                ErrorCode.INCONSISTENT_TOPIC_ID, f"the log of {topic}-{partition} belongs to another topic id"
            )
        self._store_topic_id(log, topic_id)
        return log

    def _create(self, topic: str, partition: int, now_ms: int) -> PartitionLog:
        counts = dict.fromkeys(self.directories, 0)
        for log in self._logs.values():
            counts[log.log_directory] += 1
        for directory in sorted(self._online(), key=lambda directory: counts[directory.path]):
            try:
                # An entry of a log of that name that was deleted would make a crash cut the new one.
                for file_name in ALL_CHECKPOINTS if directory.has_checkpoint_of((topic, partition)) else ():
                    directory.write_checkpoint(file_name, self._offsets(file_name, directory.path))
                log = open_partition_log(
                    self.fs,
                    f"{directory.path}/{partition_name(topic, partition)}",
                    topic,
                    partition,
                    self._config_of(topic),
                    now_ms=now_ms,
                    is_clean=True,
                    producer_expiration_ms=self.settings.producer_id_expiration_ms,
                    choose_jitter_ms=self._choose_jitter_ms,
                )
            except (LogDirFailure, MalformedFileError) as error:
                self.fail_directory(directory.path, error)
                continue
            self._logs[topic, partition] = log
            self._sync_names(log)
            return log
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"no log directory can take {topic}-{partition}")

    def _store_topic_id(self, log: PartitionLog, topic_id: bytes) -> None:
        try:
            checkpoints.write_partition_metadata(self.fs, log.directory, topic_id, sync=False)
        except OSError as error:
            failure = LogDirFailure(log.log_directory, f"writing partition.metadata failed: {error}")
            self.fail_directory(log.log_directory, failure)
            raise failure from error
        self._topic_ids[log.topic, log.partition] = topic_id
        self._sync_names(log)

    def _sync_names(self, log: PartitionLog) -> None:
        """Make a new directory and its topic id survive a crash of the machine, without waiting for it."""
        path, parent = log.directory, log.log_directory

        def sync() -> None:
            self.fs.sync_path(f"{path}/{checkpoints.PARTITION_METADATA_FILE}")
            self.fs.sync_directory(path)
            self.fs.sync_directory(parent)

        self._run(parent, sync)

    def delete_log(self, topic: str, partition: int, now_ms: int) -> None:
        """Take the log out; its renamed directory goes after file.delete.delay.ms. Raises LogDirFailure."""
        log = self._take_out(topic, partition, DELETE_SUFFIX)
        if log is not None:
            self._remove_tree_later(log.directory, now_ms + log.config.file_delete_delay_ms)

    def mark_stray(self, topic: str, partition: int) -> None:
        """Take out a log that no topic of the cluster has; its renamed directory is kept. Raises LogDirFailure."""
        self._take_out(topic, partition, STRAY_SUFFIX)

    def _take_out(self, topic: str, partition: int, suffix: str) -> PartitionLog | None:
        key = (topic, partition)
        self._offline.pop(key, None)
        log = self._logs.get(key)
        if log is None:
            return None
        parent = log.log_directory
        target = f"{parent}/{marked_name(topic, partition, self._random_bytes(16), suffix)}"
        try:
            self.fs.rename(log.directory, target)
        except OSError as error:
            failure = LogDirFailure(parent, f"renaming {log.directory} failed: {error}")
            self.fail_directory(parent, failure)
            raise failure from error
        log.move(target)
        del self._logs[key]
        self.cleaner.forget(key)
        self._topic_ids.pop(key, None)
        directory = self.directories[parent]
        self._run(parent, lambda: self.fs.sync_directory(parent))
        for file_name in ALL_CHECKPOINTS:
            self._checkpoint(directory, file_name)
        return log

    def _remove_tree_later(self, path: str, due_ms: int) -> None:
        def remove() -> None:
            try:
                self.fs.remove_tree(path)
            except FileNotFoundError:
                return
            logger.info("removed directory=%s", path)

        self.schedule.once(due_ms, lambda: self._run(path.rpartition("/")[0], remove))

    def truncate_to(self, topic: str, partition: int, offset: int, now_ms: int) -> None:
        """Cut the log, and its checkpoints with it, before anything new is appended. Blocks; raises LogDirFailure."""
        log = self._logs[topic, partition]
        self.remove_later(log, self._attempt(log, lambda: log.truncate_to(offset, now_ms)), now_ms)
        self._lower_checkpoints(log, offset)

    def start_over(self, topic: str, partition: int, offset: int, now_ms: int) -> None:
        """Empty the log and let it begin at `offset`. Blocks; raises LogDirFailure."""
        log = self._logs[topic, partition]
        self.remove_later(log, self._attempt(log, lambda: log.start_over(offset, now_ms)), now_ms)
        self._lower_checkpoints(log, offset)

    def _attempt(self, log: PartitionLog, change: Callable[[], list[DeletedSegment]]) -> list[DeletedSegment]:
        try:
            return change()
        except LogDirFailure as failure:
            self.fail_directory(log.log_directory, failure)
            raise

    def _lower_checkpoints(self, log: PartitionLog, offset: int) -> None:
        """What is appended after a truncation must not pass for recovered because of where the log ended before."""
        self.cleaner.truncated((log.topic, log.partition), offset)
        directory = self.directories[log.log_directory]
        try:
            for file_name in (RECOVERY_POINTS_FILE, LOG_START_OFFSETS_FILE, CLEANER_OFFSETS_FILE):
                directory.write_checkpoint(file_name, self._offsets(file_name, directory.path))
        except LogDirFailure as failure:
            self.fail_directory(directory.path, failure)
            raise

    def _config_of(self, topic: str) -> LogConfig:
        return self._topic_config(topic) or self.default_config

    def update_topic_config(self, topic: str) -> None:
        """The topic's properties changed: ask for them again."""
        config = self._config_of(topic)
        for log in self._logs.values():
            if log.topic == topic:
                log.update_config(config)

    def update_default_config(self, default_config: LogConfig) -> None:
        """The broker's defaults for topics changed: all topics' properties are asked for again."""
        self.default_config = default_config
        configs: dict[str, LogConfig] = {}
        for log in self._logs.values():
            if log.topic not in configs:
                configs[log.topic] = self._config_of(log.topic)
            log.update_config(configs[log.topic])

    # Directories

    def _online(self) -> list[LogDirectory]:
        return [directory for directory in self.directories.values() if directory.failure is None]

    @property
    def online_directories(self) -> list[str]:
        return [directory.path for directory in self._online()]

    def _guarded(self, directory: LogDirectory, action: Callable[[], None]) -> None:
        try:
            action()
        except LogDirFailure as failure:
            self.fail_directory(directory.path, failure)

    def _raise_if_none_left(self) -> None:
        if not self._online():
            reasons = "; ".join(str(directory.failure) for directory in self.directories.values())
            raise AllLogDirsFailed(f"no log directory can be used: {reasons}")

    def fail_directory(self, path: str, error: Exception) -> None:
        """Take a directory offline, for good: its partitions answer E56 until the broker is started again."""
        directory = self.directories[path]
        if directory.failure is not None:
            return
        directory.failure = error
        logger.error("log directory is offline path=%s error=%s", path, error)
        lost = [key for key, log in self._logs.items() if log.log_directory == path]
        for key in lost:
            log = self._logs.pop(key)
            if log.failure is None:
                log.failure = LogDirFailure(path, f"{path} is offline")
            self._offline[key] = path
        self._on_directory_failure(path, lost)

    def describe_directories(self, partitions: Iterable[Key] | None = None) -> list[DirectoryDescription]:
        """Every directory with the sizes of its logs, or of those asked for."""
        wanted = None if partitions is None else set(partitions)
        sizes: dict[str, list[LogSize]] = {path: [] for path in self.directories}
        for key, log in self._logs.items():
            if wanted is None or key in wanted:
                sizes[log.log_directory].append(LogSize(log.topic, log.partition, log.size_bytes))
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
        """Do the small steps that are due; when to come again, in ms."""
        return self.schedule.run_due(now_ms)

    def _run(self, path: str, work: Callable[[], None], done: Callable[[], None] | None = None) -> None:
        """Let a thread do something in a log directory, which goes offline if it fails."""

        def finish(error: Exception | None) -> None:
            if error is not None:
                self._background_failed(path, error)
            elif done is not None:
                done()

        self._run_in_thread(work, finish)

    def _background_failed(self, path: str, error: Exception) -> None:
        if isinstance(error, OSError | LogDirFailure):
            self.fail_directory(path, error)
        else:
            logger.error("background work failed directory=%s", path, exc_info=error)

    def _apply_retention(self, log: PartitionLog, now_ms: int) -> None:
        if log.failure is not None or self.cleaner.current == (log.topic, log.partition):
            return
        try:
            deleted = log.delete_old_segments(now_ms)
        except LogDirFailure as failure:
            self.fail_directory(log.log_directory, failure)
            return
        self.remove_later(log, deleted, now_ms)

    def remove_later(self, log: PartitionLog, deleted: list[DeletedSegment], now_ms: int) -> None:
        """Remove the files of segments that were deleted, after file.delete.delay.ms."""
        if deleted:
            logger.info("deleted segments log=%s count=%d log_start=%d", log, len(deleted), log.log_start_offset)
            due_ms = now_ms + log.config.file_delete_delay_ms
            self.schedule.once(due_ms, lambda: self._run(log.log_directory, lambda: log.remove_deleted(deleted)))

    def flush(self, log: PartitionLog, now_ms: int, done: Done | None = None) -> None:
        """Sync what the log holds now, in a thread; then call `done`, with the failure if there was one."""
        try:
            task = log.prepare_flush()
        except LogDirFailure as failure:
            if done is not None:
                done(failure)
            return
        if task is None:
            if done is not None:
                done(None)
            return

        def finish(error: Exception | None) -> None:
            if error is not None:
                self._background_failed(log.log_directory, error)
            else:
                log.finish_flush(task, now_ms)
            if done is not None:
                done(error)

        self._run_in_thread(task.run, finish)

    def _flush_if_due(self, log: PartitionLog, now_ms: int) -> None:
        target = log.flush_due_offset(now_ms)
        key = (log.topic, log.partition)
        if target is None or log.failure is not None or key in self._flushing:
            return
        task = log.prepare_flush(target)
        if task is None:
            return
        self._flushing.add(key)

        def finish(error: Exception | None) -> None:
            self._flushing.discard(key)
            if error is not None:
                self._background_failed(log.log_directory, error)
            else:
                log.finish_flush(task, now_ms)

        self._run_in_thread(task.run, finish)

    def _checkpoint_step(self, file_name: str) -> Callable[[int], bool]:
        def step(now_ms: int) -> bool:
            for directory in self._online():
                self._checkpoint(directory, file_name)
            return False

        return step

    def _checkpoint(self, directory: LogDirectory, file_name: str) -> None:
        write = directory.prepare_checkpoint(file_name, self._offsets(file_name, directory.path))
        if write is not None:
            self._run(directory.path, write)

    def checkpoint_cleaned(self, path: str, done: Callable[[], None]) -> None:
        """For the cleaner, which is done with a log: write its checkpoint, and let it look for the next one."""

        def finish(error: Exception | None) -> None:
            done()
            if error is not None:
                self._background_failed(path, error)
            if self._cleaning is not None:
                self._cleaning.due_ms = 0

        directory = self.directories[path]
        write = directory.prepare_checkpoint(CLEANER_OFFSETS_FILE, self._offsets(CLEANER_OFFSETS_FILE, path))
        self._run_in_thread(write or (lambda: None), finish)

    def _offsets(self, file_name: str, path: str) -> Offsets:
        """What a checkpoint file of a directory is to say now."""
        logs = [(key, log) for key, log in self._logs.items() if log.log_directory == path]
        if file_name == RECOVERY_POINTS_FILE:
            return {key: log.recovery_point for key, log in logs}
        if file_name == HIGH_WATERMARKS_FILE:
            return {key: log.high_watermark for key, log in logs}
        if file_name == CLEANER_OFFSETS_FILE:
            cleaned = self.cleaner.offsets
            return {key: cleaned[key] for key, _ in logs if key in cleaned}
        return {key: log.log_start_offset for key, log in logs if log.log_start_offset > log.segments[0].base_offset}

    # Close

    def close(self, now_ms: int, broker_epoch: int = -1) -> None:
        """Make everything durable and note a clean stop. Blocks."""
        self.cleaner.cancel()
        failures: list[tuple[str, LogDirFailure]] = []
        closings = [_closing(log, now_ms, failures) for log in self._logs.values()]
        parallel.run_all(closings, self.settings.num_recovery_threads_per_data_dir * len(self.directories))
        for path, failure in failures:
            self.fail_directory(path, failure)
        for directory in self._online():
            try:
                for file_name in ALL_CHECKPOINTS:
                    directory.write_checkpoint(file_name, self._offsets(file_name, directory.path))
                directory.mark_clean(broker_epoch)
            except LogDirFailure as failure:
                self.fail_directory(directory.path, failure)
        for directory in self.directories.values():
            directory.unlock()


def _closing(log: PartitionLog, now_ms: int, failures: list[tuple[str, LogDirFailure]]) -> Callable[[], None]:
    def close() -> None:
        try:
            log.close(now_ms)
        except LogDirFailure as failure:
            failures.append((log.log_directory, failure))

    return close


def _expire_producers(log: PartitionLog, now_ms: int) -> None:
    log.producer_state.remove_expired(now_ms)
