"""The operating system's files, for reading only: for tools that read a log directory while a broker may use it."""

import errno
import fcntl
import os
import struct
import sys
from typing import Final, NoReturn

from odradek.log.storage.filesystem import File, FileLock, OsFile, OsFileSystem

_LINUX_FLOCK: Final = struct.Struct("@hhqqi0q")
"""`struct flock` of 64-bit Linux: type, whence, start, length, process."""


class ReadOnlyFileSystem:
    """A file system without changes: each of them raises OSError EROFS. Files are opened for reading only."""

    def __init__(self) -> None:
        self._files = OsFileSystem()

    def open(self, path: str, *, create: bool = False) -> File:
        if create:
            _refuse(path)
        return OsFile(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def exists(self, path: str) -> bool:
        return self._files.exists(path)

    def is_directory(self, path: str) -> bool:
        return self._files.is_directory(path)

    def device(self, path: str) -> int:
        return self._files.device(path)

    def list_names(self, directory: str) -> list[str]:
        return self._files.list_names(directory)

    def size_bytes(self, path: str) -> int:
        return self._files.size_bytes(path)

    def modified_ms(self, path: str) -> int:
        return self._files.modified_ms(path)

    def read_bytes(self, path: str) -> bytes:
        return self._files.read_bytes(path)

    def space_bytes(self, path: str) -> tuple[int, int]:
        return self._files.space_bytes(path)

    def spare_descriptors(self) -> int:
        return self._files.spare_descriptors()

    # Refused

    def make_directory(self, path: str) -> None:
        _refuse(path)

    def rename(self, old: str, new: str) -> None:
        _refuse(old)

    def remove(self, path: str) -> None:
        _refuse(path)

    def remove_tree(self, directory: str) -> None:
        _refuse(directory)

    def set_modified_ms(self, path: str, timestamp_ms: int) -> None:
        _refuse(path)

    def sync_path(self, path: str) -> None:
        _refuse(path)

    def sync_directory(self, path: str) -> None:
        _refuse(path)

    def lock(self, path: str) -> FileLock:
        _refuse(path)


def _refuse(path: str) -> NoReturn:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)


def is_locked(path: str) -> bool:
    """Return whether another process holds the POSIX lock of a lock file; False also if the system cannot report it.

    The lock is not taken, not even for a moment: a broker that starts meanwhile would fail.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        asked = _LINUX_FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        found = fcntl.fcntl(fd, fcntl.F_GETLK, asked)
    except OSError:
        return False
    finally:
        os.close(fd)
    lock_type: int = _LINUX_FLOCK.unpack(found)[0]
    return lock_type != fcntl.F_UNLCK
