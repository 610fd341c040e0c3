"""syncfs(2): everything that was written to a file system, made durable in one call.

A stop that syncs thousands of files one after the other takes seconds; the journal of a file system takes all of them
at once. Linux reports failed writes to the caller from version 5.8 on only, so an older one does not count.
"""

import os
import re
from collections.abc import Callable
from functools import cache

_FIRST_VERSION = (5, 8)


def sync_file_system_of(fd: int) -> bool:
    """Sync the file system that an open file lies in; False if it cannot be done, or a write has failed. Blocks."""
    syncfs = _syncfs()
    return syncfs is not None and syncfs(fd) == 0


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
