"""Making new directories of partitions durable in a thread, as many at once as have come to be meanwhile."""

from collections.abc import Callable, Iterable
from typing import Final

from odradek.log.background.tasks import RunInThread
from odradek.log.storage.checkpoints import PARTITION_METADATA_FILE
from odradek.log.storage.filesystem import FileSystem
from odradek.log.storage.log_directory import LogDirectory

_MANY: Final = 16
"""From so many on, syncing the whole file system takes less than syncing each directory."""


class NameSync:
    """The directories in one log directory whose names and topic ids are to survive a crash of the machine soon.

    One piece of work is with a thread at a time. `failed` is called with the error of one that failed.
    """

    __slots__ = ("_directory", "_failed", "_fs", "_is_running", "_run_in_thread", "_waiting")

    def __init__(
        self, fs: FileSystem, directory: LogDirectory, run_in_thread: RunInThread, failed: Callable[[Exception], None]
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._run_in_thread = run_in_thread
        self._failed = failed
        self._waiting: dict[str, None] = {}
        self._is_running = False

    def add(self, path: str) -> None:
        """Have a partition's directory synced, without waiting for it."""
        self._waiting[path] = None
        if not self._is_running:
            self._begin()

    def _begin(self) -> None:
        paths, self._waiting = self._waiting, {}
        self._is_running = True

        def finish(error: Exception | None) -> None:
            self._is_running = False
            if error is not None:
                self._failed(error)
            if self._waiting and self._directory.failure is None:
                self._begin()

        self._run_in_thread(lambda: self._sync(paths), finish)

    def _sync(self, paths: Iterable[str]) -> None:
        paths = list(paths)
        if len(paths) >= _MANY and self._directory.sync_file_system():
            return
        for path in paths:
            self._fs.sync_path(f"{path}/{PARTITION_METADATA_FILE}")
            self._fs.sync_directory(path)
        self._fs.sync_directory(self._directory.path)
