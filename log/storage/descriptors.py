"""File descriptors of the process: the limit, the number of open ones, and a reserve.

Every segment and every connection keeps a descriptor open. The reserve is for files that are opened briefly: indexes,
snapshots, checkpoints, compacted segments and Python modules.
"""

import os
import resource
from typing import Final

from odradek.properties import INT32_MAX

MAX_RESERVED: Final = 128
_OPEN_DIRECTORIES: Final = ("/proc/self/fd", "/dev/fd")


def limit() -> int:
    """Return the soft limit of the process (`ulimit -n`)."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return INT32_MAX if soft == resource.RLIM_INFINITY else soft


def raise_limit() -> None:
    """Raise the soft limit to the hard limit, as the JVM does for Apache Kafka."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # Darwin rejects a hard limit above the kernel's maximum. The soft limit is unchanged then.
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError):
            return


def reserve() -> int:
    """Return the number of descriptors reserved for short use: an eighth of the limit, at most MAX_RESERVED."""
    return min(MAX_RESERVED, limit() // 8)


def count_open() -> int:
    """Return the number of open descriptors. Takes a microsecond from Linux 6.2 on, before that one per descriptor."""
    for directory in _OPEN_DIRECTORIES:
        try:
            # From Linux 6.2 on, the size of the directory is the number of descriptors.
            return os.stat(directory).st_size or len(os.listdir(directory)) - 1
        except FileNotFoundError:
            continue
        except OSError:
            # The listing itself needs a descriptor, and there is none left.
            return limit()
    return 0


def spare() -> int:
    """Return the number of descriptors that may still be opened for long use; zero or negative if there are none."""
    return limit() - reserve() - count_open()
