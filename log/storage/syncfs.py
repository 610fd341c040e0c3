"""syncfs(2): everything that was written to a file system, made durable in one call.

A stop that syncs thousands of files one after the other takes seconds; the journal of a file system takes all of them
at once. Linux reports failed writes to the caller from version 5.8 on only, so an older one does not count. Nor does a
file system that has writes of its own to report, or to make: overlayfs reports none that failed in the file system
below it, FUSE does not have its server sync, and up to version 5.16 nobody is told of what a file system reports.
"""

import os
import re
from collections.abc import Callable
from functools import cache

_FIRST_VERSION = (5, 8)
_EXT4, _XFS, _BTRFS, _F2FS, _TMPFS = 0xEF53, 0x58465342, 0x9123683E, 0xF2F52010, 0x01021994
_REPORTING = frozenset({_EXT4, _XFS, _BTRFS, _F2FS, _TMPFS})
"""They write through the page cache to a disk of theirs: every failure is noted where syncfs finds it."""
_STATFS_BYTES = 256
"""More than a `struct statfs` has, which begins with the type."""


def sync_file_system_of(fd: int) -> bool:
    """Sync the file system that an open file lies in; False if it cannot be done, or a write has failed. Blocks."""
    syncfs = _syncfs()
    return syncfs is not None and file_system_type(fd) in _REPORTING and syncfs(fd) == 0


def file_system_type(fd: int) -> int:
    """Return the number that Linux has for the file system of an open file; -1 if it is unknown."""
    import ctypes

    found = ctypes.create_string_buffer(_STATFS_BYTES)
    return ctypes.c_long.from_buffer(found).value if ctypes.CDLL(None).fstatfs(fd, found) == 0 else -1


@cache
def _syncfs() -> Callable[[int], int] | None:
    version = re.match(r"(\d+)\.(\d+)", os.uname().release)
    if os.uname().sysname != "Linux" or version is None or (int(version[1]), int(version[2])) < _FIRST_VERSION:
        return None
    try:
        import ctypes

        function: Callable[[int], int] = ctypes.CDLL(None).syncfs
    except (ImportError, OSError, AttributeError):
        return None
    return function
