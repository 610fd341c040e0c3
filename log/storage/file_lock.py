"""The lock file of a log directory. Through it the file system reports failed writes, and is synced as a whole."""

import fcntl
import os
from threading import Lock
from typing import ClassVar

from odradek.log.storage.syncfs import sync_file_system_of


class LockedError(Exception):
    """A lock file is held by another process (or by another part of this one)."""


class OsLock:
    """A POSIX record lock, the kind that Java's FileChannel.tryLock takes, so Apache Kafka sees it and we see Kafka's.

    Such locks do not exclude the process that holds them, hence the set of paths held here.
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
        # The descriptor has been open since the start, so that the system reports every failure since then. It does so
        # once: after that no success means anything, nor does that of another thread meanwhile.
        with self._sync_lock:
            self._has_failed = self._has_failed or not sync_file_system_of(self._fd)
            return not self._has_failed

    def release(self) -> None:
        if self._path in self._held:
            self._held.discard(self._path)
            os.close(self._fd)
