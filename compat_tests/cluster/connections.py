"""The TCP connections of processes, from /proc (Linux)."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

ESTABLISHED = "01"


def find_remote_ports(pid: int) -> set[int]:
    """Return the ports to which a process is connected over IPv4."""
    own = set(list_sockets(pid))
    ports = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, _, remote, state, *_, inode = line.split()[:10]
        if state == ESTABLISHED and inode in own:
            ports.add(int(remote.rpartition(":")[2], 16))
    return ports


def list_sockets(pid: int) -> Iterator[str]:
    """Iterate over the inodes of a process's sockets. Raises OSError if the process has ended, or is not accessible."""
    for file in os.scandir(f"/proc/{pid}/fd"):
        # It may be closed meanwhile.
        with contextlib.suppress(OSError):
            target = os.readlink(file.path)
            if target.startswith("socket:["):
                yield target.removeprefix("socket:[").removesuffix("]")
