"""Opening of all logs at start.

Directories are classified by their names and topic ids first. Logs to serve are then opened, in several threads if the
last stop was not clean, and registered in this one.
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

from odradek.log.background.tasks import RunAll, Schedule
from odradek.log.config import LogConfig
from odradek.log.management.checkpoint_task import OffsetCheckpoints
from odradek.log.management.log_directories import LogDirectories
from odradek.log.management.log_table import Key, LogTable
from odradek.log.management.retirement import LogRetirement
from odradek.log.management.settings import LogManagerSettings
from odradek.log.partition_log import PartitionLog
from odradek.log.recovery import DamagedLogError, RecoveryReport, open_partition_log
from odradek.log.storage.checkpoint_file import Offsets
from odradek.log.storage.checkpoints import (
    CLEANER_OFFSETS_FILE,
    HIGH_WATERMARKS_FILE,
    LOG_START_OFFSETS_FILE,
    RECOVERY_POINTS_FILE,
    REPLACED_REPLICA_FILE,
    MalformedFileError,
)
from odradek.log.storage.filesystem import (
    DiskFullError,
    ExhaustedError,
    FileSystem,
    LogDirFailure,
    ShortageError,
    remove_if_exists,
    storage_error,
)
from odradek.log.storage.found_directories import DirectoryKind, KnownPartitions, classify_directory, format_names
from odradek.log.storage.log_directory import (
    ALL_CHECKPOINTS,
    DELETE_SUFFIX,
    FUTURE_SUFFIX,
    LogDirectory,
    PartitionDirectory,
    partition_name,
    read_topic_id,
)
from odradek.protocol.types import ZERO_UUID

logger = logging.getLogger(__name__)

_NO_LIMIT: Final = 2**63 - 1
"""An offset above all logs."""


class DuplicateLogError(Exception):
    """A partition is in two log directories, and their topic ids do not decide between them; str is one line."""


class ReplacedLogError(Exception):
    """A log may have been replaced by one in an offline log directory (`moves.move`); str contains the remedy."""


class _LogToOpen(NamedTuple):
    """A directory to open as a log. `stored_topic_id` is None for a partition to adopt: the metadata lacks it."""

    directory: LogDirectory
    key: Key
    path: str
    stored_topic_id: bytes | None
    offsets: dict[str, Offsets]


class FoundFutureLog(NamedTuple):
    """The directory of a future log, and the offsets of its checkpoints. `cleaned_to` is None if it has none."""

    key: Key
    path: str
    log_start_offset: int
    recovery_point: int
    cleaned_to: int | None


class _LoadedLog(NamedTuple):
    """Result of opening one log. Without `log` and `failure` it was not opened, because it belongs to another topic.

    `is_marked`: the log has the mark of a move that has not replaced it
    `has_new_point`: the start must write the recovery point, the high watermark and `cleaned_to` to the checkpoints.
    """

    key: Key
    path: str
    log: PartitionLog | None
    topic_id: bytes | None
    cleaned_to: int | None
    failure: Exception | None
    report: RecoveryReport
    is_marked: bool = False
    has_new_point: bool = False


class LogLoader:
    """Opens all logs, once.

    `has_found_strays` is set if there were partitions that the cluster does not have. `future_logs` is set to the
    directories of future logs, which are not opened. `cleaned` receives the offsets up to which logs are compacted.
    """

    def __init__(
        self,
        fs: FileSystem,
        table: LogTable,
        log_dirs: LogDirectories,
        checkpoints: OffsetCheckpoints,
        retirement: LogRetirement,
        cleaned: dict[Key, int],
        schedule: Schedule,
        settings: LogManagerSettings,
        config_of: Callable[[str], LogConfig],
        choose_jitter_ms: Callable[[int], int],
    ) -> None:
        self._fs = fs
        self._table = table
        self._log_dirs = log_dirs
        self._checkpoints = checkpoints
        self._retirement = retirement
        self._cleaned = cleaned
        self._schedule = schedule
        self._settings = settings
        self._config_of = config_of
        self._choose_jitter_ms = choose_jitter_ms
        self.has_found_strays = False
        self.future_logs: list[FoundFutureLog] = []
        self._is_clean = True
        self._found: list[_LogToOpen] = []
        # Directories of replaced logs, and those of the logs that replaced them.
        self._replaced: list[tuple[_LogToOpen, _LogToOpen]] = []
        self._offsets: list[dict[str, Offsets]] = []
        self._strays: list[tuple[str, Key]] = []
        self._loaded: list[_LoadedLog] = []

    def load(self, now_ms: int, known: KnownPartitions, file_delete_delay_ms: int, run_all: RunAll) -> None:
        """Open all logs of the directories that are online. Blocks. Raises DuplicateLogError, ExhaustedError."""
        self._find(known, file_delete_delay_ms)
        self._find_replaced()
        directory_count = len(self._log_dirs.by_path)
        threads = 1 if self._is_clean else self._settings.num_recovery_threads_per_data_dir * directory_count
        started_ms = self._schedule.monotonic_ms()
        run_all([self._make_opener(found, now_ms) for found in self._found], threads)
        report = RecoveryReport()
        # Threads finish in any order.
        for loaded in sorted(self._loaded, key=lambda one: one.path):
            self._register(loaded)
            report.add(loaded.report)
        # Not before: of two logs of one partition, which prevent the start, the mark shows the older one.
        for loaded in self._loaded:
            if loaded.is_marked:
                self._remove_mark(loaded)
        changed = {loaded.path.rpartition("/")[0] for loaded in self._loaded if loaded.has_new_point}
        for path in sorted(changed):
            self._write_checkpoints(self._log_dirs.by_path[path])
        for replaced, new in self._replaced:
            self._remove_replaced(replaced, new, file_delete_delay_ms)
        for path, key in self._strays:
            self._retirement.rename_stray(path, key)
        self.has_found_strays = bool(self._strays)
        logger.info("loaded logs count=%d clean=%s", len(self._table.logs), self._is_clean)
        if report.segments:
            logger.info(
                "recovered logs=%d segments=%d verified_bytes=%d removed_bytes=%d removed_segments=%d ms=%d",
                report.logs,
                report.segments,
                report.verified_bytes,
                report.removed_bytes,
                report.removed_segments,
                self._schedule.monotonic_ms() - started_ms,
            )

    # Find

    def _find(self, known: KnownPartitions, file_delete_delay_ms: int) -> None:
        """List the directories and read the checkpoints."""
        foreign: list[str] = []
        for directory in self._log_dirs.online():
            try:
                found = [(entry, self._classify(directory, entry, known)) for entry in directory.begin_load()]
                offsets = {name: directory.read_offsets(name) for name in ALL_CHECKPOINTS}
            except LogDirFailure as failure:
                self._log_dirs.fail(directory.path, failure)
                continue
            self._offsets.append(offsets)
            self._is_clean = self._is_clean and directory.was_clean
            for entry, kind in found:
                path = f"{directory.path}/{entry.name}"
                key = (entry.topic, entry.partition)
                if entry.suffix == DELETE_SUFFIX:
                    self._retirement.remove_tree_later(path, file_delete_delay_ms)
                elif entry.suffix == FUTURE_SUFFIX:
                    self.future_logs.append(_find_future_log(key, path, offsets))
                elif entry.suffix:
                    logger.warning("not serving a stray directory, which may be removed directory=%s", path)
                elif kind is DirectoryKind.PARTITION:
                    self._found.append(_LogToOpen(directory, key, path, known.topic_id(*key), offsets))
                elif kind is DirectoryKind.STRAY:
                    self._strays.append((path, key))
                else:
                    foreign.append(path)
        if foreign:
            logger.warning(
                "directories that are not partitions are left unchanged count=%d: %s",
                len(foreign),
                format_names(foreign),
            )

    def _find_replaced(self) -> None:
        """Find the directories of logs that moves have replaced: a crash can prevent or undo their removal.

        Both directories have the same topic id. The one without the mark is complete and durable.
        """
        by_key: dict[Key, list[_LogToOpen]] = {}
        for found in self._found:
            by_key.setdefault(found.key, []).append(found)
        for several in by_key.values():
            if len(several) == 1:
                continue
            new = [found for found in several if not self._is_marked(found)]
            topic_ids = {self._read_found_id(found) for found in several}
            # A topic from before Kafka 2.8 has none.
            is_failed = any(found.directory.failure is not None for found in several)
            if len(new) != 1 or len(topic_ids) > 1 or is_failed:
                continue
            for found in several:
                if found is not new[0]:
                    self._found.remove(found)
                    self._replaced.append((found, new[0]))

    def _is_marked(self, found: _LogToOpen) -> bool:
        return self._fs.exists(f"{found.path}/{REPLACED_REPLICA_FILE}")

    def _read_found_id(self, found: _LogToOpen) -> bytes | None:
        """Read the topic id of a directory. A failure takes the log directory offline."""
        try:
            return read_topic_id(self._fs, found.path, is_clean=False)
        except OSError as error:
            self._log_dirs.fail(found.directory.path, found.directory.failed("opening", error))
            return None

    def _remove_replaced(self, replaced: _LogToOpen, new: _LogToOpen, file_delete_delay_ms: int) -> None:
        """Remove the directory of a replaced log if the new one is served, with a durable name."""
        log = self._table.logs.get(new.key)
        if log is None or log.directory != new.path:
            text = "keeping a replica that was moved, because the new one cannot be served from=%s to=%s"
            logger.error(text, replaced.path, new.path)
            return
        try:
            self._fs.sync_directory(new.directory.path)
        except OSError as error:
            self._log_dirs.fail(new.directory.path, new.directory.failed("syncing", error))
            return
        logger.info("removing a replica that was moved from=%s to=%s", replaced.path, new.path)
        with suppress(LogDirFailure, ShortageError):
            renamed = self._retirement.rename(replaced.path, replaced.key, DELETE_SUFFIX)
            self._retirement.remove_tree_later(renamed, file_delete_delay_ms)

    def _check_marked(self, found: _LogToOpen) -> None:
        """Raise ReplacedLogError if a move may have replaced a marked log by one in an offline log directory."""
        offline = [path for path, directory in self._log_dirs.by_path.items() if directory.failure is not None]
        if offline:
            raise ReplacedLogError(
                f"a move may have replaced the log by one in {', '.join(offline)}; repair that log directory, or "
                "remove it from log.dirs"
            )
        if found.key not in {future.key for future in self.future_logs}:
            logger.warning(
                "serving a replica although a move may have replaced it: no log directory has the new one, whose last "
                "records are lost directory=%s",
                found.path,
            )

    def _remove_mark(self, loaded: _LoadedLog) -> None:
        """Remove the mark of a log if it is served. Raises ExhaustedError; other failures fail the directory."""
        log = self._table.logs.get(loaded.key)
        if log is None or log.directory != loaded.path:
            return
        try:
            remove_if_exists(self._fs, f"{log.directory}/{REPLACED_REPLICA_FILE}")
            self._fs.sync_directory(log.directory)
        except OSError as error:
            failure = storage_error(log.log_directory, f"loading {log.directory} failed: {error}", error)
            if isinstance(failure, ExhaustedError):
                raise failure from error
            self._log_dirs.fail(log.log_directory, failure)

    def _classify(self, directory: LogDirectory, entry: PartitionDirectory, known: KnownPartitions) -> DirectoryKind:
        if entry.suffix:
            return DirectoryKind.OTHER
        try:
            return classify_directory(self._fs, f"{directory.path}/{entry.name}", entry, known)
        except OSError as error:
            raise directory.failed("opening", error) from error

    # Open

    def _make_opener(self, found: _LogToOpen, now_ms: int) -> Callable[[], None]:
        """Return a function for any thread that opens one log and appends the result to `_loaded`."""
        config = self._config_of(found.key[0])

        def open_log() -> None:
            self._loaded.append(self._open(found, config, now_ms))

        return open_log

    def _open(self, found: _LogToOpen, config: LogConfig, now_ms: int) -> _LoadedLog:
        directory, key, path, stored_topic_id, offsets = found
        topic_id = log = new_cleaned_to = None
        is_marked = False
        high_watermark = offsets[HIGH_WATERMARKS_FILE].get(key, 0)
        failure: Exception | None = None
        report = RecoveryReport()
        try:
            topic_id = read_topic_id(self._fs, path, is_clean=directory.was_clean)
            if stored_topic_id not in (None, ZERO_UUID, topic_id) and topic_id is not None:
                return _LoadedLog(key, path, None, topic_id, None, None, report)
            is_marked = self._is_marked(found)
            if is_marked:
                self._check_marked(found)
            log = open_partition_log(
                self._fs,
                path,
                *key,
                config,
                now_ms=now_ms,
                monotonic_ms=self._schedule.monotonic_ms(),
                is_clean=directory.was_clean,
                log_start_offset=offsets[LOG_START_OFFSETS_FILE].get(key, 0),
                recovery_point=offsets[RECOVERY_POINTS_FILE].get(key, 0),
                cleaned_to=self._find_gap_limit(found),
                producer_expiration_ms=self._settings.producer_id_expiration_ms,
                choose_jitter_ms=self._choose_jitter_ms,
                report=report,
            )
            log.update_high_watermark(high_watermark)
            if not directory.was_clean:
                log.mark_name_unsynced()
            new_cleaned_to = self._attribute_gaps(found, config, log, report)
        except (LogDirFailure, DamagedLogError, MalformedFileError, ReplacedLogError, ExhaustedError) as error:
            failure = error
        except OSError as error:
            failure = storage_error(directory.path, f"loading {path} failed: {error}", error)
        except DiskFullError as error:
            failure = _disk_full_at_start(directory, error)
        cleaned_to = offsets[CLEANER_OFFSETS_FILE].get(key) if new_cleaned_to is None else new_cleaned_to
        has_new_point = new_cleaned_to is not None
        if log is not None:
            # A log that ends below its high watermark was truncated, or lost batches; others may follow.
            has_new_point = has_new_point or log.log_end_offset < high_watermark
            if cleaned_to is not None and log.log_end_offset < cleaned_to:
                # They are not compacted, and a gap among them is a loss.
                cleaned_to, has_new_point = log.log_end_offset, True
        return _LoadedLog(key, path, log, topic_id, cleaned_to, failure, report, is_marked, has_new_point)

    def _attribute_gaps(
        self, found: _LogToOpen, config: LogConfig, log: PartitionLog, report: RecoveryReport
    ) -> int | None:
        """Attribute the gaps of a log to compaction if the next recovery would otherwise truncate the log at one.

        Return the new compacted offset; None if it remains. Flushes the log if that is necessary before it is read.
        """
        directory, key, _, stored_topic_id, offsets = found
        cleaned_to = offsets[CLEANER_OFFSETS_FILE].get(key, 0)
        is_unknown = stored_topic_id is None or key not in offsets[RECOVERY_POINTS_FILE]
        new_cleaned_to = None
        if is_unknown and (gaps_end := log.end_of_gaps()):
            # No checkpoint attributes these gaps to compaction.
            new_cleaned_to = max(cleaned_to, gaps_end)
        if new_cleaned_to is not None or (config.flush_before_acks and not directory.was_clean):
            # The found data may be in memory only, and is about to be read.
            log.flush(self._schedule.monotonic_ms())
        if report.segments > 0 and log.recovery_point < offsets[RECOVERY_POINTS_FILE].get(key, 0):
            # Rebuilt indexes are not durable yet, and the stored recovery point may be above them, from a close. The
            # next recovery would truncate the log at the gaps between the two.
            new_cleaned_to = max(cleaned_to, log.end_of_gaps())
        return new_cleaned_to

    def _find_gap_limit(self, found: _LogToOpen) -> int:
        """Return the offset below which missing offsets may result from compaction, and are not a lost end.

        It is unlimited for a log with an unknown history: one to adopt, and one in a directory that no broker has used.
        A log without a recovery point is new, or was moved from another log directory: there, nothing was missing below
        its recovery point.
        """
        directory, key, _, stored_topic_id, offsets = found
        if stored_topic_id is None or directory.is_new:
            return _NO_LIMIT
        if key in offsets[RECOVERY_POINTS_FILE]:
            return offsets[CLEANER_OFFSETS_FILE].get(key, 0)
        names = (CLEANER_OFFSETS_FILE, RECOVERY_POINTS_FILE)
        return max(others[name].get(key, 0) for others in self._offsets for name in names)

    # Register

    def _register(self, loaded: _LoadedLog) -> None:
        table, key = self._table, loaded.key
        directory = self._log_dirs.by_path[loaded.path.rpartition("/")[0]]
        if loaded.log is None and loaded.failure is None:
            self._retirement.rename_stray(loaded.path, key)
            return
        if isinstance(loaded.failure, DamagedLogError | MalformedFileError | ReplacedLogError):
            logger.error("partition is not served log=%s why=%s", loaded.path, loaded.failure)
        elif loaded.failure is not None:
            if isinstance(loaded.failure, ExhaustedError):
                raise loaded.failure
            self._log_dirs.fail(directory.path, loaded.failure)
        if loaded.topic_id is not None:
            table.topic_ids[key] = loaded.topic_id
        if loaded.log is None or directory.failure is not None:
            table.offline[key] = loaded.path
            return
        other = table.logs.get(key)
        if other is not None:
            if self._is_unused(loaded.log, beside=other):
                self._retirement.rename_stray(loaded.path, key)
                return
            if not self._is_unused(other, beside=loaded.log):
                raise DuplicateLogError(
                    f"partition {partition_name(*key)} is in {other.directory} and in {loaded.log.directory}; "
                    "remove the one that is out of date"
                )
            table.log_counts[other.log_directory] -= 1
            self._retirement.rename_stray(other.directory, key)
        table.add(key, loaded.log)
        if loaded.cleaned_to is not None:
            self._cleaned[key] = loaded.cleaned_to

    def _is_unused(self, log: PartitionLog, *, beside: PartitionLog) -> bool:
        """Return whether a log was created and never used, because its topic was deleted while it was offline."""

        def has_topic_id(log: PartitionLog) -> bool:
            return read_topic_id(self._fs, log.directory, is_clean=False) is not None

        return log.log_end_offset == 0 and not has_topic_id(log) and has_topic_id(beside)

    def _write_checkpoints(self, directory: LogDirectory) -> None:
        """Make the recovery points and high watermarks of opened logs durable.

        Raises ExhaustedError; other failures fail the directory.
        """
        try:
            for file_name in (CLEANER_OFFSETS_FILE, RECOVERY_POINTS_FILE, HIGH_WATERMARKS_FILE):
                self._checkpoints.write_now(directory, file_name)
        except DiskFullError as error:
            self._log_dirs.fail(directory.path, _disk_full_at_start(directory, error))
        except LogDirFailure as error:
            self._log_dirs.fail(directory.path, error)


def _find_future_log(key: Key, path: str, offsets: dict[str, Offsets]) -> FoundFutureLog:
    starts, points = offsets[LOG_START_OFFSETS_FILE], offsets[RECOVERY_POINTS_FILE]
    return FoundFutureLog(key, path, starts.get(key, 0), points.get(key, 0), offsets[CLEANER_OFFSETS_FILE].get(key))


def _disk_full_at_start(directory: LogDirectory, error: DiskFullError) -> LogDirFailure:
    """Return the error for a full disk at start: repairs must be written before any log is served."""
    return LogDirFailure(directory.path, f"{error.message}; free disk space and start again")
