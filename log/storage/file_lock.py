"""Lock file of a log directory. Its descriptor is also used to sync the whole file system."""

import fcntl
import os
from threading import Lock
from typing import ClassVar

from odradek.log.storage.syncfs import sync_file_system_of


class LockedError(Exception):
    """Another process, or another object in this process, holds the lock file."""


class OsLock:
    """A POSIX record lock, as taken by Java's FileChannel.tryLock, so that it works between Odradek and Apache Kafka.

    Such a lock does not exclude its own process, so the paths that this process has locked are recorded in `_held`.
    """

    _held: ClassVar[set[str]] = set()

    def __init__(self, path: str) -> None:
        self._path = os.path.realpath(path)
        if self._path in self._held:
            raise LockedError(path)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            os.close(self._fd)
            raise LockedError(path) from None
        except OSError:
            os.close(self._fd)
            raise
        self._held.add(self._path)
        self._has_failed = False
        self._sync_lock = Lock()

    def sync_file_system(self) -> bool:
        # The descriptor has been open since the start, so the system reports every failed write since then. It reports
        # a failure once only; a later success, or one in another thread meanwhile, does not mean that all is durable.
        with self._sync_lock:
            self._has_failed = self._has_failed or not sync_file_system_of(self._fd)
            return not self._has_failed

    def release(self) -> None:
        if self._path in self._held:
            self._held.discard(self._path)
            os.close(self._fd)
