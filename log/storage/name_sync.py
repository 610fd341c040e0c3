"""Sync of the directories of new partitions, in a thread: one sync for all that are created at about the same time."""

from collections.abc import Callable, Iterable
from typing import Final

from odradek.log.background.shared_write import SharedWrite
from odradek.log.background.tasks import RunInThread, Schedule
from odradek.log.storage.checkpoints import PARTITION_METADATA_FILE
from odradek.log.storage.filesystem import FileSystem
from odradek.log.storage.log_directory import LogDirectory

_MIN_FOR_SYNCFS: Final = 16
"""From this many directories on, one sync of the whole file system is faster than a sync of each."""

SYNC_INTERVAL_MS: Final = 500
"""Minimum time between the starts of two syncs.

The creation of a directory waits for a sync of its file system that is in progress. Without this interval there would
always be one while many logs are created.
"""


class NameSync:
    """Makes the names and topic ids of new partitions in one log directory durable, in the background.

    Nothing waits for it: a flush of a new log, and a stop, sync the log's name themselves. `failed` is called with the
    error of a failed sync.
    """

    __slots__ = ("_directory", "_failed", "_fs", "_next_ms", "_schedule", "_waiting", "_write")

    def __init__(
        self,
        fs: FileSystem,
        directory: LogDirectory,
        schedule: Schedule,
        run_in_thread: RunInThread,
        failed: Callable[[Exception], None],
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._schedule = schedule
        self._failed = failed
        self._waiting: dict[str, None] = {}
        # Time from which on the next sync may start.
        self._next_ms = schedule.monotonic_ms()
        self._write = SharedWrite(self._prepare, run_in_thread, self._ended)

    def add(self, path: str) -> None:
        """Sync a partition's directory, without waiting for it."""
        is_first = not self._waiting
        self._waiting[path] = None
        if is_first:
            delay_ms = self._next_ms - self._schedule.monotonic_ms()
            if delay_ms <= 0:
                self._begin()
            else:
                self._schedule.once(delay_ms, self._begin)

    def _begin(self) -> None:
        self._next_ms = self._schedule.monotonic_ms() + SYNC_INTERVAL_MS
        self._write.request(_ignore)

    def _prepare(self) -> Callable[[], None] | None:
        if not self._waiting or self._directory.failure is not None:
            return None
        paths, self._waiting = self._waiting, {}
        return lambda: self._sync(paths)

    def _ended(self, error: Exception | None) -> None:
        if error is not None:
            self._failed(error)

    def _sync(self, paths: Iterable[str]) -> None:
        paths = list(paths)
        if len(paths) >= _MIN_FOR_SYNCFS and self._directory.sync_file_system():
            return
        for path in paths:
            self._fs.sync_path(f"{path}/{PARTITION_METADATA_FILE}")
            self._fs.sync_directory(path)
        self._fs.sync_directory(self._directory.path)


def _ignore(error: Exception | None) -> None:
    pass
