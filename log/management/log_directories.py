"""The log directories of a broker: which are online, and the failures that take one offline.

Source: KIP-112 (a failed directory takes only its own partitions offline), KIP-113 and KIP-827 (DescribeLogDirs).
"""

import logging
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from odradek.log.background.tasks import RunInThread
from odradek.log.management.log_table import Key, LogTable
from odradek.log.storage.filesystem import FileSystem, LogDirFailure, ShortageError, is_disk_full, is_exhausted
from odradek.log.storage.log_directory import LogDirectory
from odradek.protocol.errors import ErrorCode

logger = logging.getLogger(__name__)

ROOM_CHECK_MS = 5_000
_ROOM_BYTES = 1 << 20
_VISITS_PER_STEP = 200


class AllLogDirsFailed(Exception):  # noqa: N818 - a state, not an error of one call
    """No log directory can be used; str has the reason for each, on one line."""


class LogSize(NamedTuple):
    """Size of a log, and the number of offsets that a future log lacks."""

    topic: str
    partition: int
    size_bytes: int
    offset_lag: int = 0
    is_future: bool = False


class DirectoryDescription(NamedTuple):
    """A log directory in a response to DescribeLogDirs. Sizes are -1 where unknown."""

    path: str
    error_code: ErrorCode
    logs: list[LogSize]
    total_bytes: int
    usable_bytes: int


class LogDirectories:
    """The log directories, by path. `on_failure(path, partitions)` is called when one goes offline."""

    def __init__(
        self,
        fs: FileSystem,
        paths: Sequence[str],
        table: LogTable,
        run_in_thread: RunInThread,
        on_failure: Callable[[str, list[Key]], None],
    ) -> None:
        self.by_path = {path: LogDirectory(fs, path) for path in paths}
        self.on_failure = on_failure
        self._fs = fs
        self._table = table
        self._run_in_thread = run_in_thread
        self._has_logged_exhaustion = False

    def online(self) -> list[LogDirectory]:
        return [directory for directory in self.by_path.values() if directory.failure is None]

    def raise_if_none_is_online(self) -> None:
        """Raise AllLogDirsFailed if no log directory is online."""
        if not self.online():
            reasons = "; ".join(str(directory.failure) for directory in self.by_path.values())
            raise AllLogDirsFailed(f"no log directory can be used: {reasons}")

    # Failures

    def fail(self, path: str, error: Exception) -> None:
        """Take a directory offline until the broker restarts. If only a resource is short, log that instead."""
        directory = self.by_path[path]
        if directory.failure is not None:
            return
        if is_disk_full(error):
            self._log_full(directory, error)
            return
        if is_exhausted(error):
            self._log_exhaustion(error)
            return
        directory.failure = error
        logger.error("log directory is offline path=%s error=%s", path, error)
        table = self._table
        lost = [key for key, log in table.logs.items() if log.log_directory == path]
        for key in lost:
            log = table.logs.pop(key)
            if log.failure is None:
                log.state.failure = LogDirFailure(path, f"{path} is offline")
            table.offline[key] = log.directory
        self.on_failure(path, lost)

    def guard(self, directory: LogDirectory, action: Callable[[], None]) -> None:
        """Run `action`. If it raises LogDirFailure, take the directory offline."""
        try:
            action()
        except LogDirFailure as failure:
            self.fail(directory.path, failure)

    def work_failed(self, path: str, error: Exception) -> None:
        """Report an error of background work in a directory."""
        if isinstance(error, OSError | LogDirFailure | ShortageError):
            self.fail(path, error)
        else:
            logger.error("background work failed directory=%s", path, exc_info=error)

    def run(self, path: str, work: Callable[[], None]) -> None:
        """Run `work` in a thread. If it fails, the directory goes offline."""

        def finish(error: Exception | None) -> None:
            if error is not None:
                self.work_failed(path, error)

        self._run_in_thread(work, finish)

    # Lost logs

    @property
    def may_lack_logs(self) -> bool:
        """True if a directory was new at this start, or at an earlier one since which logs have remained missing."""
        return any(directory.may_lack_logs for directory in self.online())

    def find_lost_logs(self, missing: Collection[Key]) -> Collection[Key]:
        """Return those of the missing logs that may have been lost with a disk; forget earlier ones if there are none.

        `missing` are the partitions without a log that were assigned to this broker before its start. They are returned
        if directories `may_lack_logs`. Otherwise they were not created before the last stop, or their directory is not
        in log.dirs any more.
        """
        if not missing:
            self.forget_lost_logs()
        return missing if self.may_lack_logs else ()

    def forget_lost_logs(self) -> None:
        """Regard all logs as present from the next start on."""
        for directory in self.online():
            try:
                directory.forget_missing_logs()
            except (LogDirFailure, ShortageError) as error:
                self.fail(directory.path, error)

    # Shortages

    def _log_full(self, directory: LogDirectory, error: Exception) -> None:
        """Log a full directory once, until it has free space again."""
        if directory.is_full:
            return
        directory.is_full = True
        logger.error(
            "log directory is full: writes are refused until space is free; free disk space, or lower retention.ms or "
            "retention.bytes of large topics path=%s error=%s",
            directory.path,
            error,
        )

    def _log_exhaustion(self, error: Exception) -> None:
        """Log a shortage once between two checks for free resources."""
        if not self._has_logged_exhaustion:
            self._has_logged_exhaustion = True
            logger.error(
                "no file descriptor or memory is available: requests that need them are refused, background work is "
                "postponed; close connections or raise the limits (ulimit -n) error=%s",
                error,
            )

    def check_room(self, retry: Callable[[], None]) -> None:
        """Retry work that a shortage prevented, and log which full directories have free space again."""
        self._has_logged_exhaustion = False
        retry()
        for directory in self.online():
            if not directory.is_full:
                continue
            with suppress(OSError):
                usable_bytes = self._fs.space_bytes(directory.path)[1]
                if usable_bytes >= _ROOM_BYTES:
                    directory.is_full = False
                    path = directory.path
                    logger.info("log directory has free space again path=%s usable_bytes=%d", path, usable_bytes)

    # Description

    def describe(self, partitions: Iterable[Key] | None = None) -> Generator[None, None, list[DirectoryDescription]]:
        """Describe every directory, with the sizes of all its logs or of those in `partitions`, in steps."""
        logs = self._table.logs
        wanted: set[Key] = set()
        for number, key in enumerate(partitions or (), 1):
            if key in logs:
                wanted.add(key)
            if number % _VISITS_PER_STEP == 0:
                yield
        sizes: dict[str, list[LogSize]] = {path: [] for path in self.by_path}
        for number, (key, log) in enumerate(list(logs.items()), 1):
            if (partitions is None or key in wanted) and logs.get(key) is log:
                sizes[log.log_directory].append(LogSize(log.topic, log.partition, log.size_bytes))
            if number % _VISITS_PER_STEP == 0:
                yield
        for key, future in self._table.future_logs.items():
            current = logs.get(key)
            if current is not None and (partitions is None or key in wanted):
                lag = current.log_end_offset - future.log_end_offset
                sizes[future.log_directory].append(LogSize(*key, future.size_bytes, lag, True))
        return [self._describe(directory, sizes[directory.path]) for directory in self.by_path.values()]

    def _describe(self, directory: LogDirectory, logs: list[LogSize]) -> DirectoryDescription:
        if directory.failure is not None:
            return DirectoryDescription(directory.path, ErrorCode.KAFKA_STORAGE_ERROR, [], -1, -1)
        try:
            total_bytes, usable_bytes = self._fs.space_bytes(directory.path)
        except OSError:
            total_bytes = usable_bytes = -1
        return DirectoryDescription(directory.path, ErrorCode.NONE, logs, total_bytes, usable_bytes)
