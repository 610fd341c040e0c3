"""File descriptors of the process: how many it may open, and how many it has.

Every segment keeps one open, every connection one. Some are kept back (`reserve`): for what opens a file for a moment,
such as indexes, snapshots, checkpoints, compactions and imports.
"""

import os
import resource
from typing import Final

from odradek.properties import INT32_MAX

MOST_RESERVED: Final = 128
_OPEN_DIRECTORIES: Final = ("/proc/self/fd", "/dev/fd")


def limit() -> int:
    """The soft limit of the process (`ulimit -n`)."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return INT32_MAX if soft == resource.RLIM_INFINITY else soft


def raise_limit() -> None:
    """Raise the soft limit to the hard limit, as the JVM does for Apache Kafka."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # Darwin refuses more than it can give; the limit stays as it is then.
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError):
            return


def reserve() -> int:
    """Descriptors that are kept back for short use: an eighth of the limit, up to MOST_RESERVED."""
    return min(MOST_RESERVED, limit() // 8)


def count_open() -> int:
    """Descriptors that are open. A microsecond from Linux 6.2 on; before, a microsecond for each of them."""
    for directory in _OPEN_DIRECTORIES:
        try:
            # Linux 6.2 and later give the number as the size of the directory.
            return os.stat(directory).st_size or len(os.listdir(directory)) - 1
        except FileNotFoundError:
            continue
        except OSError:
            # The listing needs a descriptor itself.
            return limit()
    return 0


def spare() -> int:
    """Descriptors that may be opened to be kept, beyond the reserve; not positive if there are none."""
    return limit() - reserve() - count_open()
