"""All logs of a broker: their directories, and the background tasks that maintain them.

Sources: Kafka documentation ("Log", "Compaction", "Hardware and OS: application vs. OS flush management"), KIP-112
(a failed directory takes only its own partitions offline), KIP-516 (topic ids).
"""

import logging
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial

from odradek.log.background import parallel
from odradek.log.background.tasks import (
    SHORTAGE_RETRY_MS,
    Done,
    Job,
    RunAll,
    RunInThread,
    Schedule,
    Sweep,
    run_inline,
)
from odradek.log.compaction.cleaner import Cleaner
from odradek.log.compaction.run import Worker
from odradek.log.config import LogConfig
from odradek.log.management.checkpoint_task import CheckpointTask, OffsetCheckpoints
from odradek.log.management.closing import close_logs
from odradek.log.management.creation import LogCreation
from odradek.log.management.flush_task import FlushTask
from odradek.log.management.loading import FoundFutureLog, LogLoader
from odradek.log.management.log_directories import ROOM_CHECK_MS, DirectoryDescription, LogDirectories
from odradek.log.management.log_table import Key, LogTable
from odradek.log.management.producer_expiry import ProducerExpiryTask
from odradek.log.management.producer_id_record import ProducerIdRecord
from odradek.log.management.removals import Removals
from odradek.log.management.retention_task import RetentionTask
from odradek.log.management.retirement import LogRetirement
from odradek.log.management.settings import LogManagerSettings
from odradek.log.moves.found_logs import FutureLogLoader
from odradek.log.moves.move import MoveParts
from odradek.log.moves.replica_moves import ReplicaMoves
from odradek.log.moves.steps import MoveThrottle, NoMoveLimit
from odradek.log.partition_log import PartitionLog
from odradek.log.segments.segment_files import DeletedSegment
from odradek.log.storage.checkpoints import (
    CLEANER_OFFSETS_FILE,
    HIGH_WATERMARKS_FILE,
    LOG_START_OFFSETS_FILE,
    RECOVERY_POINTS_FILE,
)
from odradek.log.storage.filesystem import FileSystem, LogDirFailure, ShortageError, is_shortage
from odradek.log.storage.found_directories import FoundLog, KnownPartitions
from odradek.log.storage.log_directory import (
    ALL_CHECKPOINTS,
    META_VERSION,
    InconsistentMetaError,
    random_cluster_id,
)
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.types import ZERO_UUID

logger = logging.getLogger(__name__)

_FLUSH_SWEEP_MS = 1_000
_VISITS_PER_STEP = 200
_NEXT_MOVE_MS = 100


class LogManager:
    """Facade of a broker's logs. Create it, `open` it, call `run_due` periodically, and `close` it.

    All methods are called in one thread. Syncs and long reads are passed to `run_in_thread`. Exceptions, which block:
    `open` and `close`, which wait for `run_all`; the creation of a log without `prepare_creation`, if its name has
    entries in checkpoints; an append while a truncation is not durable.

    `directories` are absolute paths. `topic_config` returns a topic's properties, None for an unknown topic, which then
    has `default_config`. `random_bytes(n)` is the source of ids. `meta_version` is the version of meta.properties in a
    new directory, which is marked with `may_lack_logs` (`LogDirectories.find_lost_logs`).
    `on_directory_failure(path, partitions)` is called when a directory goes offline, and `on_log_replaced(log)` when a
    move ends and `log`, until then a future log, is served. `monotonic` (seconds) is the clock of background tasks;
    with `sleep` it also paces compaction and the making of files in threads. `now_ms` of the methods is the wall clock.
    `start_compaction_worker` starts a process for compaction; without it all compaction runs in threads.
    `run_compaction` runs compactions in threads of their own, because they take long and sleep to keep to their rate;
    without it they use those of `run_in_thread`.
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
        meta_version: int = META_VERSION,
        may_lack_logs: bool = False,
        settings: LogManagerSettings | None = None,
        run_in_thread: RunInThread = run_inline,
        run_all: RunAll = parallel.run_all,
        choose_jitter_ms: Callable[[int], int] = lambda most_ms: 0,
        on_directory_failure: Callable[[str, list[Key]], None] = lambda path, partitions: None,
        on_log_replaced: Callable[[PartitionLog], None] = lambda log: None,
        move_throttle: MoveThrottle | None = None,
        monotonic: Callable[[], float] = lambda: 0.0,
        sleep: Callable[[float], None] = lambda seconds: None,
        start_compaction_worker: Callable[[bool], Worker] | None = None,
        run_compaction: RunInThread | None = None,
    ) -> None:
        paths = [path if path == "/" else path.rstrip("/") for path in directories]
        if len(set(paths)) < len(paths):
            raise ValueError(f"log.dirs names a directory twice: {','.join(paths)}")
        self.fs = fs
        self.default_config = default_config
        self.node_id = node_id
        self.cluster_id = cluster_id
        self._meta_version = meta_version
        self._may_lack_logs = may_lack_logs
        self.settings = settings or LogManagerSettings()
        self.topic_config = topic_config
        self.has_found_strays = False
        """`open` found partitions that the cluster does not have."""
        self._random_bytes = random_bytes
        self._run_all = run_all
        self._choose_jitter_ms = choose_jitter_ms
        self._monotonic = monotonic
        self._sleep = sleep
        self._cleaning: Job | None = None
        # Logs whose truncation is in progress: a move does not replace them meanwhile.
        self._truncating: set[Key] = set()
        # Where logs are moved as soon as their last move has ended: the paths of the last requests.
        self._next_moves: dict[Key, str] = {}

        self.schedule = Schedule(monotonic)
        self.table = LogTable(paths)
        self._on_directory_failure = on_directory_failure
        self._on_log_replaced = on_log_replaced
        self.log_dirs = LogDirectories(fs, paths, self.table, run_in_thread, self._directory_failed)
        self.directories = self.log_dirs.by_path
        self.cleaner = Cleaner(
            fs,
            self,
            self.settings,
            run_compaction or run_in_thread,
            monotonic=monotonic,
            sleep=sleep,
            start_worker=start_compaction_worker,
        )
        self.checkpoints = OffsetCheckpoints(
            self.table, self.log_dirs, self.schedule, run_in_thread, self.cleaner.offsets
        )
        self._producer_id_record = ProducerIdRecord(self.log_dirs, run_in_thread)
        self._removals = Removals(run_in_thread, self._removal_failed, self._is_online)
        self.retention_task = RetentionTask(
            self.table,
            self.log_dirs,
            self.schedule,
            self._removals,
            run_in_thread,
            self.cleaner.is_running,
            cleaner_deletes=self.settings.log_cleaner_enable,
            monotonic=monotonic,
            sleep=sleep,
        )
        self.flush_task = FlushTask(self.table, self.log_dirs, self.checkpoints, self.schedule, run_in_thread)
        self._retirement = LogRetirement(
            fs,
            self.table,
            self.log_dirs,
            self.checkpoints,
            self._removals,
            self.schedule,
            random_bytes,
            self._forget,
        )
        self._creation = LogCreation(
            fs,
            self.table,
            self.log_dirs,
            self.checkpoints,
            self._retirement,
            self.schedule,
            run_in_thread,
            self._sleep,
            choose_jitter_ms,
        )
        self.moves = ReplicaMoves(self._make_move_parts(move_throttle or NoMoveLimit()), self.schedule, run_in_thread)

    def _make_move_parts(self, throttle: MoveThrottle) -> MoveParts:
        return MoveParts(
            fs=self.fs,
            table=self.table,
            log_dirs=self.log_dirs,
            checkpoints=self.checkpoints,
            retirement=self._retirement,
            flushes=self.flush_task,
            cleaner=self.cleaner,
            throttle=throttle,
            sleep=self._sleep,
            now_ms=lambda: self.schedule.now_ms,
            monotonic_ms=self.schedule.monotonic_ms,
            remove_later=self.remove_later,
            is_truncating=self._truncating.__contains__,
            serve_future=self._serve_future,
        )

    # Open

    def open(self, now_ms: int, known: KnownPartitions | None = None) -> None:
        """Lock and load all directories; one that fails is left offline. Blocks.

        `known` are the cluster's partitions. A log with another topic id, of a deleted topic with that name whose
        directory was offline, is renamed as stray without being opened; so is the log of a partition that does not
        exist, if `known` are complete.

        Raises LockedError, InconsistentMetaError, DuplicateLogError, AllLogDirsFailed; nothing stays locked then.
        """
        known = known or KnownPartitions()
        try:
            for directory in self.log_dirs.online():
                self.log_dirs.guard(directory, directory.lock)
            self._check_identity()
            loader = LogLoader(
                self.fs,
                self.table,
                self.log_dirs,
                self.checkpoints,
                self._retirement,
                self.cleaner.offsets,
                self.schedule,
                self.settings,
                self._config_of,
                self._choose_jitter_ms,
            )
            loader.load(now_ms, known, self.default_config.file_delete_delay_ms, self._run_all)
            self.has_found_strays = loader.has_found_strays
            self._resume_moves(loader.future_logs, known, now_ms)
            self.log_dirs.raise_if_none_is_online()
        except BaseException:
            for directory in self.directories.values():
                directory.unlock()
            raise
        self._schedule_tasks()

    def _resume_moves(self, future_logs: Iterable[FoundFutureLog], known: KnownPartitions, now_ms: int) -> None:
        self.schedule.now_ms = now_ms
        loader = FutureLogLoader(
            self.fs,
            known,
            self.table,
            self.log_dirs,
            self._retirement,
            self.checkpoints,
            self.cleaner.offsets,
            now_ms,
            self.schedule.monotonic_ms(),
            self.settings.producer_id_expiration_ms,
        )
        for found in future_logs:
            loader.load(found, self._config_of(found.key[0]))
        for key in self.table.future_logs:
            self.schedule.once(0, partial(self._resume_move, key))

    def _resume_move(self, key: Key) -> None:
        if key in self.table.future_logs:
            self.moves.begin(key)

    def _check_identity(self) -> None:
        """Check that all directories belong to this broker, and write missing meta.properties."""
        metas = {}
        for directory in self.log_dirs.online():
            try:
                metas[directory.path] = directory.read_meta()
            except LogDirFailure as failure:
                self.log_dirs.fail(directory.path, failure)
        self.log_dirs.raise_if_none_is_online()
        known = sorted({meta.cluster_id for meta in metas.values() if meta is not None and meta.cluster_id})
        if self.cluster_id is None:
            if len(known) > 1:
                raise InconsistentMetaError(f"log.dirs has more than one cluster, {', '.join(known)}; correct log.dirs")
            self.cluster_id = known[0] if known else random_cluster_id(self._random_uuid)
        for directory in self.log_dirs.online():
            try:
                directory.complete_meta(
                    metas[directory.path],
                    self.cluster_id,
                    self.node_id,
                    self._random_uuid,
                    version=self._meta_version,
                    may_lack_logs=self._may_lack_logs,
                )
            except LogDirFailure as failure:
                self.log_dirs.fail(directory.path, failure)

    def _random_uuid(self) -> bytes:
        value = bytearray(self._random_bytes(16))
        value[6] = value[6] & 0x0F | 0x40
        value[8] = value[8] & 0x3F | 0x80
        return bytes(value)

    def _config_of(self, topic: str) -> LogConfig:
        return self.topic_config(topic) or self.default_config

    # Background tasks

    def run_due(self, now_ms: int) -> int:
        """Run the steps of tasks that are due; return the delay to the next call (ms). `now_ms` is the wall clock."""
        return self.schedule.run_due(now_ms)

    def _schedule_tasks(self) -> None:
        settings, add = self.settings, self.schedule.add
        start_ms = settings.log_initial_task_delay_ms
        add(self._sweep(self.retention_task.visit), settings.log_retention_check_interval_ms, start_ms)
        flush_ms = min(_FLUSH_SWEEP_MS, settings.log_flush_scheduler_interval_ms)
        add(self._sweep(self.flush_task.visit), flush_ms, flush_ms)
        for file_name, interval_ms in (
            (RECOVERY_POINTS_FILE, settings.log_flush_offset_checkpoint_interval_ms),
            (LOG_START_OFFSETS_FILE, settings.log_flush_start_offset_checkpoint_interval_ms),
            (HIGH_WATERMARKS_FILE, settings.replica_high_watermark_checkpoint_interval_ms),
        ):
            first_ms = interval_ms if file_name == HIGH_WATERMARKS_FILE else start_ms
            add(CheckpointTask(self.checkpoints, self.log_dirs, file_name), interval_ms, first_ms)
        add(self._check_room, ROOM_CHECK_MS, ROOM_CHECK_MS)
        expiry_ms = settings.producer_id_expiration_check_interval_ms
        add(ProducerExpiryTask(self.all_logs, self.schedule.monotonic_ms), expiry_ms, expiry_ms)
        if settings.log_cleaner_enable:
            backoff_ms = self.cleaner.backoff_ms
            self._cleaning = add(self.cleaner.step, backoff_ms, backoff_ms)

    def _sweep(self, visit: Callable[[PartitionLog, int], None]) -> Sweep[PartitionLog]:
        """Return a step that visits all logs, a few at a time."""

        def visit_served(log: PartitionLog, now_ms: int) -> None:
            if self.table.serves(log):
                visit(log, now_ms)

        return Sweep(self.all_logs, visit_served, _VISITS_PER_STEP, self._monotonic)

    def _check_room(self, now_ms: int) -> bool:
        self.log_dirs.check_room(self._removals.retry)
        return False

    def _is_online(self, path: str) -> bool:
        return self.directories[path].failure is None

    def _removal_failed(self, path: str, error: Exception) -> bool:
        """Return whether to repeat the removal after a shortage."""
        self.log_dirs.work_failed(path, error)
        return is_shortage(error)

    def update_settings(self, settings: LogManagerSettings) -> None:
        """Apply the broker's changed properties, those that may change while it runs."""
        if settings == self.settings:
            return
        self.settings = settings
        self.retention_task.cleaner_deletes = settings.log_cleaner_enable
        for log in self.all_logs():
            log.producer_state.expiration_ms = settings.producer_id_expiration_ms
        if self._cleaning is not None:
            self.cleaner.update_settings(settings)
            self._cleaning.interval_ms = self.cleaner.backoff_ms
            self.clean_soon()

    def clean_soon(self) -> None:
        """Make the cleaner search for due logs immediately."""
        if self._cleaning is not None:
            self._cleaning.due_ms = 0

    # Directories

    @property
    def online_directories(self) -> list[str]:
        return [directory.path for directory in self.log_dirs.online()]

    def raise_if_none_is_online(self) -> None:
        """Raise AllLogDirsFailed if no log directory is online."""
        self.log_dirs.raise_if_none_is_online()

    def forget_lost_logs(self) -> None:
        """Regard all logs as present from the next start on (`LogDirectories.find_lost_logs`)."""
        self.log_dirs.forget_lost_logs()

    def fail_directory(self, path: str, error: Exception) -> None:
        """Take a directory offline until the broker restarts. If only a resource is short, log that instead."""
        self.log_dirs.fail(path, error)

    def describe_directories(
        self, partitions: Iterable[Key] | None = None
    ) -> Generator[None, None, list[DirectoryDescription]]:
        """Describe every directory, with the sizes of its logs or of `partitions`, in steps."""
        return self.log_dirs.describe(partitions)

    def _directory_failed(self, path: str, partitions: list[Key]) -> None:
        self.moves.directory_failed(path)
        self._on_directory_failure(path, partitions)

    # Logs

    def all_logs(self) -> list[PartitionLog]:
        return self.table.all_logs()

    def serves(self, log: PartitionLog) -> bool:
        """Return whether `log` itself is served; false for a deleted log, even if another has its name now."""
        return self.table.serves(log)

    def get(self, topic: str, partition: int) -> PartitionLog | None:
        """Return a log, None if there is none. Raises KafkaError KAFKA_STORAGE_ERROR if it is offline."""
        return self.table.get(topic, partition)

    def found_logs(self) -> list[FoundLog]:
        """Return the partitions that `open` found, including those whose files are damaged."""
        return self.table.found_logs()

    def refused_paths(self) -> list[str]:
        """Return the directories of partitions whose files are damaged, or whose log directory is offline."""
        return self.table.refused_paths()

    def topic_id(self, topic: str, partition: int) -> bytes | None:
        """Return the topic id in the partition's directory; None if it has none."""
        return self.table.topic_ids.get((topic, partition))

    def prepare_creation(self, topic: str, partition: int, done: Callable[[], None]) -> bool:
        """Remove checkpoint entries of a deleted log of this name, in a thread, then call `done`.

        Return False, without a call of `done`, if there are none. `create_log` would remove them, too, but block.
        """
        return self._creation.prepare((topic, partition), done)

    def make_files(
        self, topic: str, partitions: Iterable[int], topic_id: bytes, done: Callable[[], None]
    ) -> bool:
        """Make the files of logs that are about to be created, in a thread, then call `done`.

        Return False, without a call of `done`, if `create_log` should make them itself, as for a topic without an id.
        Call `discard_files` when the logs are created.
        """
        if topic_id == ZERO_UUID:
            return False
        return self._creation.make_files([(topic, partition) for partition in partitions], topic_id, done)

    def discard_files(self) -> None:
        """Remove the files that `make_files` has made for logs that were not created."""
        self._creation.discard_files()

    def create_log(
        self, topic: str, partition: int, topic_id: bytes | None, now_ms: int, *, is_new: bool = False
    ) -> PartitionLog:
        """Return the partition's log; if there is none, create it in the directory with the fewest partitions.

        Unless `is_new`, none is created while a directory is offline, because the log may be there. Raises
        KAFKA_STORAGE_ERROR in this case and if no directory can be used; ShortageError if one may be usable later;
        INCONSISTENT_TOPIC_ID if the log has another topic id. A topic from before Kafka 2.8 has none, or ZERO_UUID,
        until the controller gives it one.
        """
        key = (topic, partition)
        if topic_id == ZERO_UUID:
            topic_id = None
        log = self.get(topic, partition)
        if log is None:
            if not is_new and any(directory.failure is not None for directory in self.directories.values()):
                raise KafkaError(
                    ErrorCode.KAFKA_STORAGE_ERROR,
                    f"{topic}-{partition} is not created while a log directory is offline: its log may be there",
                )
            log = self._creation.create(
                key, self._config_of(topic), now_ms, self.settings.producer_id_expiration_ms
            )
            if topic_id is None:
                self._creation.sync_names(log)
        known_id = self.table.topic_ids.get(key)
        if topic_id is None or topic_id == known_id:
            return log
        if known_id is not None:
            raise KafkaError(
                ErrorCode.INCONSISTENT_TOPIC_ID, f"the log of {topic}-{partition} belongs to another topic id"
            )
        self._creation.store_topic_id(log, topic_id)
        return log

    def move_log(self, topic: str, partition: int, path: str, now_ms: int) -> None:
        """Begin to move a log to the log directory `path`; a move to another directory ends.

        If `path` is the log's own directory, a move ends and none begins. Raises KAFKA_STORAGE_ERROR if the log or any
        log directory is offline, because that may contain a copy; ShortageError.
        """
        key = (topic, partition)
        self.schedule.now_ms = now_ms
        self._next_moves.pop(key, None)
        future = self.table.future_logs.get(key)
        if future is not None and future.log_directory != path:
            self.moves.cancel(key)
        current = self.get(topic, partition)
        if current is None or current.log_directory == path or key in self.table.future_logs:
            return
        if self.moves.is_ending(key):
            # `path` may be the directory that the log has left, which is not removed yet.
            self._move_later(key, path, _NEXT_MOVE_MS)
            return
        if len(self.online_directories) < len(self.directories):
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{topic}-{partition} is not moved while a log directory is offline: a copy may be there",
            )
        expiration_ms = self.settings.producer_id_expiration_ms
        try:
            self._creation.create_future(current, path, self._random_bytes(16), now_ms, expiration_ms)
        except (LogDirFailure, ShortageError) as error:
            self.log_dirs.fail(path, error)
            raise
        self.moves.begin(key)

    def _move_later(self, key: Key, path: str, delay_ms: int) -> None:
        self._next_moves[key] = path
        self.schedule.once(delay_ms, partial(self._move_again, key, path))

    def _move_again(self, key: Key, path: str) -> None:
        """Move a log that could not be moved when that was requested, unless a later request has another directory."""
        if self._next_moves.get(key) != path:
            return
        try:
            self.move_log(*key, path, self.schedule.now_ms)
        except ShortageError as error:
            logger.error(
                "replica is not moved yet; retrying later partition=%s-%d log_directory=%s: %s", *key, path, error
            )
            self._move_later(key, path, SHORTAGE_RETRY_MS)
        except KafkaError as error:
            logger.error("replica is not moved partition=%s-%d log_directory=%s: %s", *key, path, error)

    def prefer_directory(self, topic: str, partition: int, path: str) -> None:
        """Create the log of a partition in the log directory `path`, when that is created."""
        self._creation.prefer((topic, partition), path)

    def _serve_future(self, key: Key) -> None:
        self.table.serve_future(key)
        self._on_log_replaced(self.table.logs[key])

    def delete_log(self, topic: str, partition: int) -> None:
        """Delete a log; its renamed directory is removed after file.delete.delay.ms. Raises LogDirFailure."""
        log = self.table.logs.get((topic, partition))
        config = self.default_config if log is None else log.config
        self._retirement.delete((topic, partition), config.file_delete_delay_ms)

    def _forget(self, key: Key) -> None:
        """Remove the state of a log that is not served any more, and its future log."""
        self.cleaner.forget(key)
        self.moves.deleted(key)
        self._next_moves.pop(key, None)

    def mark_stray(self, topic: str, partition: int) -> None:
        """Stop serving a log that belongs to no topic of the cluster, and rename its directory, which is kept.

        Raises LogDirFailure; ShortageError, after which it is still served.
        """
        self._retirement.mark_stray((topic, partition))

    def truncate_in_steps(
        self, topic: str, partition: int, offset: int, now_ms: int
    ) -> Generator[None, None, None]:
        """Truncate a log, in steps; its next flush makes that durable. Raises LogDirFailure, ShortageError.

        The steps before the last one change nothing. Close the generator if the log must not be truncated any more.
        """
        log = self.table.logs[topic, partition]
        is_shorter = offset < log.log_end_offset
        self._truncating.add((topic, partition))
        try:
            deleted = yield from log.truncate_in_steps(offset, now_ms, self._make_checkpoints_write(log))
        except LogDirFailure as failure:
            self.log_dirs.fail(log.log_directory, failure)
            raise
        finally:
            self._truncating.discard((topic, partition))
        if is_shorter:
            self._truncated(log, deleted)
        else:
            # Leader epochs without batches may have been removed.
            self.moves.truncated((topic, partition), log.log_end_offset)

    def start_over(self, topic: str, partition: int, offset: int, now_ms: int) -> None:
        """Empty a log, which then begins at `offset`; its next flush makes that durable.

        Raises LogDirFailure; ShortageError, with the log unchanged.
        """
        log = self.table.logs[topic, partition]
        try:
            deleted = log.start_over(offset, now_ms, self._make_checkpoints_write(log))
        except LogDirFailure as failure:
            self.log_dirs.fail(log.log_directory, failure)
            raise
        self._truncated(log, deleted)

    def _make_checkpoints_write(self, log: PartitionLog) -> Callable[[], None]:
        return partial(self.checkpoints.write_truncated_now, log.log_directory)

    def _truncated(self, log: PartitionLog, deleted: list[DeletedSegment]) -> None:
        self.remove_later(log, deleted)
        self.cleaner.truncated((log.topic, log.partition), log.log_end_offset)
        self.moves.truncated((log.topic, log.partition), log.log_end_offset)

    def delete_old_segments(self, log: PartitionLog, now_ms: int) -> bool:
        """Apply a log's start and retention, a few segments at a time; return whether more are deleted soon."""
        return self.retention_task.delete_old_segments(log, now_ms)

    def remove_later(self, log: PartitionLog, deleted: list[DeletedSegment]) -> None:
        """Remove the files of deleted segments after file.delete.delay.ms."""
        self.retention_task.remove_later(log, deleted)

    # Durability

    def flush(self, log: PartitionLog, done: Done = lambda error: None) -> None:
        """Sync the log's present content in a thread, then call `done`, with the failure if there was one.

        Callers during a flush of this log share the next one.
        """
        self.flush_task.flush(log, done)

    def record_recovery_point(self, log: PartitionLog, offset: int, done: Done) -> None:
        """Make the log durable up to `offset`, and its recovery point; then call `done`."""
        self.flush_task.record_recovery_point(log, offset, done)

    def checkpoint_cleaned(self, path: str, done: Callable[[], None]) -> None:
        """Write the cleaner's checkpoint of a directory, then call `done`."""

        def finish(error: Exception | None) -> None:
            done()
            if error is not None:
                self.log_dirs.work_failed(path, error)

        self.checkpoints.write_then(path, CLEANER_OFFSETS_FILE, finish)

    def checkpoint_log_starts(self, path: str, done: Done) -> None:
        """Make the starts of a directory's logs durable, then call `done`, with the failure if there was one."""
        self.checkpoints.write_log_starts(path, done)

    def found_producer_id_end(self) -> int:
        """Return the end of the reserved producer ids that the start found in the log directories; 0 for none."""
        return self._producer_id_record.found()

    def record_producer_ids(self, next_id: int, done: Done) -> None:
        """Record durably that all producer ids below `next_id` are reserved, then call `done`.

        The error is that of the last log directory if none has the record.
        """
        self._producer_id_record.record(next_id, done)

    def close(self, monotonic_ms: int, broker_epoch: int = -1, *, has_started: bool = True) -> None:
        """Make everything durable and record a clean stop. Blocks.

        Unless the broker `has_started`, only directories that had the mark of a clean stop at the start get it again:
        after an unclean stop new leader epochs must begin, which may not have happened yet.
        """
        self.cleaner.close()
        self.moves.close()
        self._creation.close()
        threads = self.settings.num_recovery_threads_per_data_dir * len(self.directories)
        failures = close_logs(self.log_dirs.online(), self.all_logs(), monotonic_ms, self._run_all, threads)
        for path, failure in failures:
            self.log_dirs.fail(path, failure)
        unclean = {path for path, _ in failures}
        for directory in self.log_dirs.online():
            try:
                for file_name in ALL_CHECKPOINTS:
                    self.checkpoints.write_now(directory, file_name)
                if directory.path in unclean:
                    logger.error("no space to close all logs: the next start will recover path=%s", directory.path)
                elif has_started:
                    directory.mark_clean(broker_epoch)
                elif directory.was_clean:
                    directory.mark_clean(directory.previous_broker_epoch)
            except LogDirFailure as failure:
                self.log_dirs.fail(directory.path, failure)
            except ShortageError as error:
                logger.error("no space to record a clean stop: the next start will recover error=%s", error)
        for directory in self.directories.values():
            directory.unlock()
