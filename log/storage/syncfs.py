"""syncfs(2): makes all writes to a file system durable in one call.

On a stop, thousands of fsync calls take seconds, one syncfs call takes a single commit of the file system's journal. It
is used only where it reports failed writes. That requires Linux 5.8 or later, and a file system that writes through the
page cache to its own device: overlayfs does not report failed writes of the file system below it, FUSE does not make
its server sync, and up to Linux 5.16 errors that a file system itself returns are discarded.
"""

import os
import re
from collections.abc import Callable
from functools import cache

_MIN_LINUX_VERSION = (5, 8)
_EXT4, _XFS, _BTRFS, _F2FS, _TMPFS = 0xEF53, 0x58465342, 0x9123683E, 0xF2F52010, 0x01021994
_SUPPORTED_TYPES = frozenset({_EXT4, _XFS, _BTRFS, _F2FS, _TMPFS})
"""File systems that write through the page cache to their own device, so that syncfs reports every failed write."""
_STATFS_BYTES = 256
"""Larger than `struct statfs`, whose first field is the type."""


def sync_file_system_of(fd: int) -> bool:
    """Sync the file system of an open file. Return False if that is not supported or a write has failed. Blocks."""
    syncfs = _syncfs()
    return syncfs is not None and file_system_type(fd) in _SUPPORTED_TYPES and syncfs(fd) == 0


def file_system_type(fd: int) -> int:
    """Return the type of an open file's file system (`f_type` in statfs(2)); -1 if it cannot be determined."""
    import ctypes

    statfs = ctypes.create_string_buffer(_STATFS_BYTES)
    return ctypes.c_long.from_buffer(statfs).value if ctypes.CDLL(None).fstatfs(fd, statfs) == 0 else -1


@cache
def _syncfs() -> Callable[[int], int] | None:
    version = re.match(r"(\d+)\.(\d+)", os.uname().release)
    if os.uname().sysname != "Linux" or version is None or (int(version[1]), int(version[2])) < _MIN_LINUX_VERSION:
        return None
    try:
        import ctypes

        function: Callable[[int], int] = ctypes.CDLL(None).syncfs
    except (ImportError, OSError, AttributeError):
        return None
    return function
