"""cachestat(2): how much of a file is in the page cache. Linux has it from 6.5 on."""

import errno
import os
import sys
from collections.abc import Callable
from functools import cache
from typing import Final

_SYSTEM_CALL: Final = 451
"""The number is the same on all processors but Alpha and MIPS, where the call fails."""


def lacks_pages(fd: int, position: int, size_bytes: int) -> bool:
    """Return whether a part of a file is not in the page cache completely; False if the system does not report it.

    Pages that are being read from the disk count as present, and what is behind the end of the file is not missing.
    It is also true for all files of a file system that does not use the page cache. For the reactor thread only.
    """
    count_pages = _count_pages()
    if count_pages is None:
        return False
    page_bytes = _page_bytes()
    first, end = position // page_bytes, (position + size_bytes - 1) // page_bytes + 1
    count = count_pages(fd, position, size_bytes)
    if not 0 <= count < end - first:
        return False
    file_end = (os.fstat(fd).st_size - 1) // page_bytes + 1
    return count < min(end, file_end) - first


@cache
def _page_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE")


@cache
def _count_pages() -> Callable[[int, int, int], int] | None:
    """Return a function that returns the number of pages in the page cache, -1 if the call fails.

    Only one thread may call it: its calls share their arguments and result. None if the system does not have the call,
    or refuses it.
    """
    if sys.platform != "linux":
        return None
    try:
        import ctypes

        call = ctypes.CDLL(None, use_errno=True).syscall
    except (ImportError, OSError, AttributeError):
        return None
    # The part of the file: position and size; then the result, which begins with the number of pages.
    part, result = (ctypes.c_uint64 * 2)(), (ctypes.c_uint64 * 5)()
    part_at, result_at = ctypes.byref(part), ctypes.byref(result)

    def count(fd: int, position: int, size_bytes: int) -> int:
        part[0], part[1] = position, size_bytes
        return result[0] if call(_SYSTEM_CALL, fd, part_at, result_at, 0) == 0 else -1

    # A file for a trial might be missing, or belong to another user, for which the call is refused.
    return count if count(-1, 0, 1) < 0 and ctypes.get_errno() == errno.EBADF else None
