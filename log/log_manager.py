"""All logs of a broker: the directories they lie in, and the work that goes on behind them.

Sources: Kafka documentation ("Log", "Compaction", "Hardware and OS: application vs. OS flush management"), KIP-112
(a failed directory takes only its own partitions offline), KIP-516 (topic ids).
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

from odradek.log.background import parallel
from odradek.log.background.tasks import RunAll, RunInThread, run_inline
from odradek.log.closing import close_logs
from odradek.log.compaction.run import Worker
from odradek.log.config import LogConfig
from odradek.log.maintenance import DirectoryDescription, Key, LogManagerSettings, LogSize, LogUpkeep
from odradek.log.partition_log import PartitionLog
from odradek.log.recovery import DamagedLogError, RecoveryReport, open_partition_log
from odradek.log.segments.segment import DeletedSegment
from odradek.log.storage import checkpoints
from odradek.log.storage.checkpoint_file import Offsets
from odradek.log.storage.checkpoints import (
    CLEANER_OFFSETS_FILE,
    HIGH_WATERMARKS_FILE,
    LOG_START_OFFSETS_FILE,
    RECOVERY_POINTS_FILE,
    MalformedFileError,
)
from odradek.log.storage.filesystem import (
    DiskFullError,
    ExhaustedError,
    FileSystem,
    LogDirFailure,
    ShortageError,
    is_exhausted,
    storage_error,
)
from odradek.log.storage.found_directories import FoundLog, KnownPartitions, Verdict, judge, shown
from odradek.log.storage.log_directory import (
    ALL_CHECKPOINTS,
    DELETE_SUFFIX,
    STRAY_SUFFIX,
    InconsistentMetaError,
    LogDirectory,
    PartitionDirectory,
    marked_name,
    partition_name,
    random_cluster_id,
    read_topic_id,
    rename_or_remove,
)
from odradek.log.storage.name_sync import NameSync
from odradek.protocol.errors import ErrorCode, KafkaError

__all__ = [
    "AllLogDirsFailed",
    "DirectoryDescription",
    "DuplicateLogError",
    "LogManager",
    "LogManagerSettings",
    "LogSize",
]

_ANYWHERE: Final = 2**63 - 1
"""An offset beyond every log."""

logger = logging.getLogger(__name__)


_TIDY_INTERVAL_MS = 1_000
"""While a topic of many partitions is deleted, its log directory is tidied so often."""


class AllLogDirsFailed(Exception):  # noqa: N818 - a state, named as in Kafka's documentation
    """No log directory can be used; str says why of each, on one line."""


class DuplicateLogError(Exception):
    """One partition lies in two log directories, and no topic id tells which is it; str is one readable line."""


class _Loaded(NamedTuple):
    """What came of opening one log. Neither `log` nor `failure`: it was not opened, being another topic's."""

    key: Key
    path: str
    log: PartitionLog | None
    topic_id: bytes | None
    cleaned_to: int | None
    failure: Exception | None
    report: RecoveryReport
    has_new_point: bool = False
    """Whether the recovery point must be durable before the partition is adopted."""


class LogManager(LogUpkeep):
    """Made, then `open`ed; `run_due` from time to time; `close`d.

    Everything is called in one thread. What blocks is given to `run_in_thread`, except for loading at `open` and
    `close`, which wait for what `run_all` does.

    `directories` are absolute paths. `topic_config` gives a topic's properties, None for a topic it does not know,
    which then has `default_config`. `random_bytes(n)` is the source of ids. `on_directory_failure(path, partitions)`
    is called when a directory goes offline. `monotonic` (seconds) times the work behind the logs and, with `sleep`,
    paces compaction in a thread; `now_ms` of the methods is the wall clock. `start_compaction_worker` starts a process
    for compaction, without which all of it goes on in threads. `run_compaction` gives compactions threads of
    their own; without it they take those of `run_in_thread`.
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
        run_all: RunAll = parallel.run_all,
        choose_jitter_ms: Callable[[int], int] = lambda most_ms: 0,
        on_directory_failure: Callable[[str, list[Key]], None] = lambda path, partitions: None,
        monotonic: Callable[[], float] = lambda: 0.0,
        sleep: Callable[[float], None] = lambda seconds: None,
        start_compaction_worker: Callable[[bool], Worker] | None = None,
        run_compaction: RunInThread | None = None,
    ) -> None:
        super().__init__(
            fs,
            directories,
            default_config,
            settings or LogManagerSettings(),
            run_in_thread,
            on_directory_failure,
            monotonic=monotonic,
            sleep=sleep,
            start_compaction_worker=start_compaction_worker,
            run_compaction=run_compaction,
        )
        self.node_id = node_id
        self.cluster_id = cluster_id
        self._run_all = run_all
        self._topic_config = topic_config
        self._random_bytes = random_bytes
        self._choose_jitter_ms = choose_jitter_ms
        self._topic_ids: dict[Key, bytes] = {}
        self._log_counts = dict.fromkeys(self.directories, 0)
        self._name_syncs = {path: self._name_sync(directory) for path, directory in self.directories.items()}
        self._untidy: set[str] = set()
        self._tidied_ms: dict[str, int] = {}
        self.has_found_strays = False
        """True if `open` found partitions that the cluster does not have."""

    # Open

    def open(self, now_ms: int, known: KnownPartitions | None = None) -> None:
        """Lock and load all directories; one that fails is left offline. Blocks.

        `known` are the cluster's partitions. A log of another topic id, left from a deleted topic of that name while
        its directory was offline, is renamed as stray, unopened; so is one of a partition that does not exist, if
        `known` are complete.

        Raises LockedError, InconsistentMetaError, DuplicateLogError, AllLogDirsFailed; nothing stays locked then.
        """
        try:
            for directory in self._online():
                self._guarded(directory, directory.lock)
            self._check_identity()
            self._load(now_ms, known or KnownPartitions())
            self.raise_if_none_is_online()
        except BaseException:
            for directory in self.directories.values():
                directory.unlock()
            raise
        self._plan()

    def _check_identity(self) -> None:
        metas = {}
        for directory in self._online():
            try:
                metas[directory.path] = directory.read_meta()
            except LogDirFailure as failure:
                self.fail_directory(directory.path, failure)
        self.raise_if_none_is_online()
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

    def _guarded(self, directory: LogDirectory, action: Callable[[], None]) -> None:
        try:
            action()
        except LogDirFailure as failure:
            self.fail_directory(directory.path, failure)

    def raise_if_none_is_online(self) -> None:
        """Raises AllLogDirsFailed if no log directory is left to work with."""
        if not self._online():
            reasons = "; ".join(str(directory.failure) for directory in self.directories.values())
            raise AllLogDirsFailed(f"no log directory can be used: {reasons}")

    def _load(self, now_ms: int, known: KnownPartitions) -> None:
        loads: list[Callable[[], None]] = []
        strays: list[tuple[str, Key]] = []
        foreign: list[str] = []
        loaded: list[_Loaded] = []
        is_clean = True
        for directory in self._online():
            try:
                found = [(entry, self._judge(directory, entry, known)) for entry in directory.begin_load()]
                offsets = {name: directory.read_offsets(name) for name in ALL_CHECKPOINTS}
            except LogDirFailure as failure:
                self.fail_directory(directory.path, failure)
                continue
            is_clean = is_clean and directory.was_clean
            for entry, verdict in found:
                path = f"{directory.path}/{entry.name}"
                if entry.suffix == DELETE_SUFFIX:
                    self._remove_tree_later(path, self.default_config.file_delete_delay_ms)
                elif entry.suffix:
                    logger.warning("not serving directory=%s", path)
                elif verdict is Verdict.SERVE:
                    topic_id = known.topic_id(entry.topic, entry.partition)
                    loads.append(self._loading(directory, entry, topic_id, offsets, now_ms, loaded))
                elif verdict is Verdict.SET_ASIDE:
                    strays.append((path, (entry.topic, entry.partition)))
                else:
                    foreign.append(path)
        if foreign:
            logger.warning(
                "directories that are no partitions are left alone count=%d: %s", len(foreign), shown(foreign)
            )
        threads = 1 if is_clean else self.settings.num_recovery_threads_per_data_dir * len(self.directories)
        started_s = self._monotonic()
        self._run_all(loads, threads)
        report = RecoveryReport()
        # Threads finish in any order.
        for result in sorted(loaded, key=lambda one: one.path):
            self._take_in(result)
            report.add(result.report)
        for path in {result.path.rpartition("/")[0] for result in loaded if result.has_new_point}:
            self._write_recovery_points(self.directories[path])
        for path, key in strays:
            self._set_aside(path, key)
        self.has_found_strays = bool(strays)
        logger.info("loaded logs count=%d clean=%s", len(self._logs), is_clean)
        if report.segments:
            logger.info(
                "recovered logs=%d segments=%d verified_bytes=%d removed_bytes=%d removed_segments=%d ms=%d",
                report.logs,
                report.segments,
                report.verified_bytes,
                report.removed_bytes,
                report.removed_segments,
                (self._monotonic() - started_s) * 1000,
            )

    def _write_recovery_points(self, directory: LogDirectory) -> None:
        try:
            directory.write_checkpoint(RECOVERY_POINTS_FILE, self._offsets(RECOVERY_POINTS_FILE, directory.path))
        except (LogDirFailure, ShortageError) as error:
            self.fail_directory(directory.path, error)

    def _judge(self, directory: LogDirectory, entry: PartitionDirectory, known: KnownPartitions) -> Verdict:
        if entry.suffix:
            return Verdict.LEAVE
        try:
            return judge(self.fs, f"{directory.path}/{entry.name}", entry, known)
        except OSError as error:
            raise directory.failed("opening", error) from error

    def _set_aside(self, path: str, key: Key) -> None:
        """Rename a directory as stray. A failure takes its log directory offline; a shortage is tried again later."""
        if self.directories[path.rpartition("/")[0]].failure is None:
            with suppress(LogDirFailure, ShortageError):
                self._rename(path, key, STRAY_SUFFIX)

    def _loading(
        self,
        directory: LogDirectory,
        entry: PartitionDirectory,
        stored_topic_id: bytes | None,
        offsets: dict[str, Offsets],
        now_ms: int,
        loaded: "list[_Loaded]",
    ) -> Callable[[], None]:
        """What opens one log, in any thread, and adds the outcome to `loaded`."""
        key = (entry.topic, entry.partition)
        config = self._config_of(entry.topic)
        path = f"{directory.path}/{entry.name}"
        cleaned_to = offsets[CLEANER_OFFSETS_FILE].get(key)
        # The configuration of a partition to adopt is not known: a hole may be compaction's, however far it had come.
        holes_to = _ANYWHERE if stored_topic_id is None else cleaned_to or 0
        stored_point = offsets[RECOVERY_POINTS_FILE].get(key, 0)

        def load() -> None:
            topic_id = log = None
            has_new_point = False
            failure: Exception | None = None
            report = RecoveryReport()
            try:
                topic_id = read_topic_id(self.fs, path, is_clean=directory.was_clean)
                if stored_topic_id is not None and topic_id not in (None, stored_topic_id):
                    loaded.append(_Loaded(key, path, None, topic_id, None, None, report))
                    return
                log = open_partition_log(
                    self.fs,
                    path,
                    *key,
                    config,
                    now_ms=now_ms,
                    monotonic_ms=self.schedule.monotonic_ms(),
                    is_clean=directory.was_clean,
                    log_start_offset=offsets[LOG_START_OFFSETS_FILE].get(key, 0),
                    recovery_point=stored_point,
                    cleaned_to=holes_to,
                    producer_expiration_ms=self.settings.producer_id_expiration_ms,
                    choose_jitter_ms=self._choose_jitter_ms,
                    report=report,
                )
                log.update_high_watermark(offsets[HIGH_WATERMARKS_FILE].get(key, 0))
                if not directory.was_clean:
                    log.directory_unsynced()
                # Once the partition is adopted, recovery would take a hole behind the recovery point for a lost end.
                has_new_point = stored_topic_id is None and log.has_holes()
                if has_new_point or (config.flush_before_acks and not directory.was_clean):
                    # What was found may be in memory only, and is about to be read.
                    log.flush(self.schedule.monotonic_ms())
                # Indexes made anew are not on the disk yet, and the stored point may be that of a close behind them.
                has_new_point = has_new_point or (report.segments > 0 and log.recovery_point < stored_point)
            except (LogDirFailure, DamagedLogError, MalformedFileError, ExhaustedError) as error:
                failure = error
            except OSError as error:
                failure = storage_error(directory.path, f"loading {path} failed: {error}", error)
            except DiskFullError as error:
                # What a start finds has to be set right before anything is served.
                failure = LogDirFailure(directory.path, f"{error.message}; free some and start again")
            loaded.append(_Loaded(key, path, log, topic_id, cleaned_to, failure, report, has_new_point))

        return load

    def _take_in(self, loaded: "_Loaded") -> None:
        directory = self.directories[loaded.path.rpartition("/")[0]]
        if loaded.log is None and loaded.failure is None:
            self._set_aside(loaded.path, loaded.key)
            return
        if isinstance(loaded.failure, DamagedLogError | MalformedFileError):
            logger.error("partition is not served log=%s why=%s", loaded.path, loaded.failure)
        elif loaded.failure is not None:
            if isinstance(loaded.failure, ExhaustedError):
                raise loaded.failure
            self.fail_directory(directory.path, loaded.failure)
        if loaded.topic_id is not None:
            self._topic_ids[loaded.key] = loaded.topic_id
        if loaded.log is None or directory.failure is not None:
            self._offline[loaded.key] = loaded.path
            return
        other = self._logs.get(loaded.key)
        if other is not None:
            if self._is_unused(loaded.log, beside=other):
                self._set_aside(loaded.path, loaded.key)
                return
            if not self._is_unused(other, beside=loaded.log):
                raise DuplicateLogError(
                    f"partition {partition_name(*loaded.key)} is in {other.directory} and in {loaded.log.directory}; "
                    "remove the one that is out of date"
                )
            self._log_counts[other.log_directory] -= 1
            self._set_aside(other.directory, loaded.key)
        self._add_log(loaded.key, loaded.log)
        if loaded.cleaned_to is not None:
            self.cleaner.offsets[loaded.key] = loaded.cleaned_to

    def _is_unused(self, log: PartitionLog, *, beside: PartitionLog) -> bool:
        """Return whether a log was made and never used, as its topic was deleted while its directory was offline."""

        def has_topic_id(log: PartitionLog) -> bool:
            return read_topic_id(self.fs, log.directory, is_clean=False) is not None

        return log.log_end_offset == 0 and not has_topic_id(log) and has_topic_id(beside)

    # Logs

    def get(self, topic: str, partition: int) -> PartitionLog | None:
        """None if there is no such log. Raises KafkaError E56 if it lies in a directory that is offline."""
        log = self._logs.get((topic, partition))
        if log is None and (topic, partition) in self._offline:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log directory of {topic}-{partition} is offline")
        return log

    def found_logs(self) -> list[FoundLog]:
        """The partitions that `open` found, those included whose files are damaged."""
        return [
            FoundLog(*key, self._topic_ids.get(key), -1 if log is None else log.leader_epochs.latest_epoch)
            for key in (*self._logs, *self._offline)
            for log in [self._logs.get(key)]
        ]

    def topic_id(self, topic: str, partition: int) -> bytes | None:
        """The topic id in the partition's directory; None if it has none."""
        return self._topic_ids.get((topic, partition))

    def create_log(
        self, topic: str, partition: int, topic_id: bytes | None, now_ms: int, *, is_new: bool = False
    ) -> PartitionLog:
        """The partition's log, made in the directory with the fewest partitions if there is none.

        Unless `is_new`, none is made while a directory is offline, since the log may be there. Raises KafkaError: E56
        for that or if no directory takes it (ShortageError if one will when it has room), E103 if the log that is
        there belongs to another topic id.
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
        short: ShortageError | None = None
        key = (topic, partition)
        for directory in sorted(self._online(), key=lambda directory: self._log_counts[directory.path]):
            try:
                log = self._create_in(directory, key, now_ms)
            except (LogDirFailure, DamagedLogError, ShortageError) as error:
                self.fail_directory(directory.path, error)
                short = error if isinstance(error, ShortageError) else short
                if key in self._offline or is_exhausted(error):
                    break
                continue
            self._add_log(key, log)
            self._sync_names(log)
            return log
        if short is not None and key not in self._offline:
            raise short
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"no log directory can take {topic}-{partition}")

    def _add_log(self, key: Key, log: PartitionLog) -> None:
        self._logs[key] = log
        self._log_counts[log.log_directory] += 1

    def _create_in(self, directory: LogDirectory, key: Key, now_ms: int) -> PartitionLog:
        """Raises LogDirFailure, DamagedLogError, ShortageError.

        What was half made is gone then, durably: if the log were made elsewhere, the next start would find it twice. If
        it cannot be removed, the partition is offline, and that start finds it here.

        What is there already is never the new log: `open` took in all there was, what it refused is offline, and what
        is deleted or half made does not keep the name.
        """
        if self.fs.spare_descriptors() < 1:
            raise ExhaustedError(directory.path, f"no file descriptor is left for the log of {key[0]}-{key[1]}")
        # After a crash an entry of a deleted log of that name would cut or empty the new one.
        for file_name in ALL_CHECKPOINTS if directory.may_have_checkpoint_of(key) else ():
            directory.write_checkpoint(file_name, self._offsets(file_name, directory.path))
        path = f"{directory.path}/{partition_name(*key)}"
        if self.fs.exists(path):
            self._rename(path, key, STRAY_SUFFIX)
        try:
            self.fs.make_directory(path)
        except OSError as error:
            raise storage_error(directory.path, f"making {path} failed: {error}", error) from error
        try:
            return open_partition_log(
                self.fs,
                path,
                *key,
                self._config_of(key[0]),
                now_ms=now_ms,
                monotonic_ms=self.schedule.monotonic_ms(),
                is_clean=True,
                producer_expiration_ms=self.settings.producer_id_expiration_ms,
                choose_jitter_ms=self._choose_jitter_ms,
            )
        except (LogDirFailure, DamagedLogError, ShortageError) as error:
            if is_exhausted(error):
                # A removal takes descriptors, a change of the name does not.
                self._remove_tree_later(self._rename(path, key, DELETE_SUFFIX), 0)
                raise
            try:
                self.fs.remove_tree(path)
                self.fs.sync_directory(directory.path)
            except OSError:
                self._offline[key] = path
                raise LogDirFailure(directory.path, f"a log is half made and cannot be removed: {error}") from error
            raise

    def _store_topic_id(self, log: PartitionLog, topic_id: bytes) -> None:
        try:
            checkpoints.write_partition_metadata(self.fs, log.directory, topic_id, sync=False)
        except OSError as error:
            failure = storage_error(log.log_directory, f"writing partition.metadata failed: {error}", error)
            self.fail_directory(log.log_directory, failure)
            raise failure from error
        self._topic_ids[log.topic, log.partition] = topic_id
        log.directory_unsynced()
        self._sync_names(log)

    def _sync_names(self, log: PartitionLog) -> None:
        """Make a new directory and its topic id survive a crash of the machine, without waiting for it."""
        self._name_syncs[log.log_directory].add(log.directory)

    def _name_sync(self, directory: LogDirectory) -> NameSync:
        path = directory.path
        return NameSync(self.fs, directory, self._run_in_thread, lambda error: self._background_failed(path, error))

    def delete_log(self, topic: str, partition: int) -> None:
        """Take the log out; its renamed directory goes after file.delete.delay.ms. Raises LogDirFailure.

        A log that is not served, since its files are damaged, goes as well. One in a directory that is offline is only
        forgotten; the start that finds it again tells it by its topic id.
        """
        log = self._logs.get((topic, partition))
        config = self.default_config if log is None else log.config
        delay_ms = config.file_delete_delay_ms
        self._take_out(topic, partition, DELETE_SUFFIX, lambda path: self._remove_tree_later(path, delay_ms))

    def mark_stray(self, topic: str, partition: int) -> None:
        """Take out a log that no topic of the cluster has; its renamed directory is kept.

        Raises LogDirFailure; ShortageError, and then it is still there.
        """
        self._take_out(topic, partition, STRAY_SUFFIX, lambda path: None)

    def _take_out(self, topic: str, partition: int, suffix: str, renamed: Callable[[str], None]) -> None:
        """Rename a log's directory: beside a log that is served there may be a damaged one in another log directory.

        `renamed` is called with each new name. What is refused goes first: where it has no room for another name, a
        stray log stays as a whole, to be tried again.
        """
        key = (topic, partition)
        failure: LogDirFailure | ShortageError | None = None
        refused = self._offline.get(key)
        if refused is not None and self.directories[refused.rpartition("/")[0]].failure is None:
            try:
                renamed(self._rename(refused, key, suffix))
                del self._offline[key]
            except LogDirFailure as error:
                failure = error
            except ShortageError as error:
                if suffix == STRAY_SUFFIX:
                    raise
                failure = error
        log = self._logs.get(key)
        if log is not None:
            try:
                path = self._rename(log.directory, key, suffix)
            except LogDirFailure as error:
                failure = error
            else:
                log.move(path)
                del self._logs[key]
                self._log_counts[log.log_directory] -= 1
                renamed(path)
        if not isinstance(failure, ShortageError):
            # What lies in a directory that is offline, perhaps since now, is no matter of the next topic of that name.
            self._forget(key)
        if failure is not None:
            raise failure

    def _forget(self, key: Key) -> None:
        self._offline.pop(key, None)
        self._topic_ids.pop(key, None)
        self.cleaner.forget(key)

    def _rename(self, path: str, key: Key, suffix: str) -> str:
        """Let a partition's directory have a name that is not served.

        Raises LogDirFailure, with it offline; ShortageError if it stays where it is, which what is deleted never does.
        """
        parent = path.rpartition("/")[0]
        target = f"{parent}/{marked_name(*key, self._random_bytes(16), suffix)}"
        try:
            if suffix == DELETE_SUFFIX:
                rename_or_remove(self.fs, path, target)
            else:
                self.fs.rename(path, target)
        except OSError as error:
            failure = storage_error(parent, f"renaming {path} failed: {error}", error)
            if isinstance(failure, LogDirFailure):
                self.fail_directory(parent, failure)
            raise failure from error
        if suffix == STRAY_SUFFIX:
            logger.warning(
                "renamed a partition that the cluster does not have as stray; it is kept, and may be removed "
                "directory=%s renamed=%s",
                path,
                target,
            )
        self._tidy_later(self.directories[parent])
        return target

    def _tidy_later(self, directory: LogDirectory) -> None:
        """Sync a directory that logs were taken out of, and drop them from its checkpoints: once for many of them."""
        if directory.path in self._untidy:
            return
        self._untidy.add(directory.path)
        since_ms = self.schedule.monotonic_ms() - self._tidied_ms.get(directory.path, -_TIDY_INTERVAL_MS)
        delay_ms = max(0, _TIDY_INTERVAL_MS - since_ms)

        def sync() -> None:
            self._untidy.discard(directory.path)
            self._tidied_ms[directory.path] = self.schedule.monotonic_ms()
            self._run(directory.path, lambda: self.fs.sync_directory(directory.path))

        self.schedule.once(delay_ms, sync)
        for file_name in ALL_CHECKPOINTS:
            self.schedule.once(delay_ms, partial(self._checkpoint, directory, file_name))

    def truncate_to(self, topic: str, partition: int, offset: int, now_ms: int) -> None:
        """Cut the log, and its checkpoints with it, before anything new is appended. Blocks; raises LogDirFailure."""
        log = self._logs[topic, partition]
        self.remove_later(log, self._attempt(log, lambda: log.truncate_to(offset, now_ms)))
        self._lower_checkpoints(log, offset)

    def start_over(self, topic: str, partition: int, offset: int, now_ms: int) -> None:
        """Empty the log and let it begin at `offset`. Blocks; raises LogDirFailure."""
        log = self._logs[topic, partition]
        self.remove_later(log, self._attempt(log, lambda: log.start_over(offset, now_ms)))
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

    # Close

    def close(self, monotonic_ms: int, broker_epoch: int = -1) -> None:
        """Make everything durable and note a clean stop. Blocks."""
        self.cleaner.close()
        threads = self.settings.num_recovery_threads_per_data_dir * len(self.directories)
        failures = close_logs(self._online(), list(self._logs.values()), monotonic_ms, self._run_all, threads)
        for path, failure in failures:
            self.fail_directory(path, failure)
        unclean = {path for path, _ in failures}
        for directory in self._online():
            try:
                for file_name in ALL_CHECKPOINTS:
                    directory.write_checkpoint(file_name, self._offsets(file_name, directory.path))
                if directory.path in unclean:
                    logger.error("no room to close all logs: the next start will recover path=%s", directory.path)
                else:
                    directory.mark_clean(broker_epoch)
            except LogDirFailure as failure:
                self.fail_directory(directory.path, failure)
            except ShortageError as error:
                logger.error("no room to note a clean stop: the next start will recover error=%s", error)
        for directory in self.directories.values():
            directory.unlock()
