"""The process of a broker on this machine, found in /proc by the port on which it listens or by its log directories.

The files of a process can be read by its user and by root only.
"""

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from odradek.tools.kafka.connection.wire_client import Address

PROC: Final = Path("/proc")
_LISTENING: Final = "0A"


class BrokerProcess(NamedTuple):
    """A process; `directory` is that in /proc, `files` the targets of its descriptors."""

    pid: int
    name: str
    directory: Path
    files: list[str]


class ProcessSearch(NamedTuple):
    """The process of a broker; None, and the reason, without one."""

    process: BrokerProcess | None
    reason: str = ""


def find_process(
    address: Address,
    log_dirs: Sequence[str],
    is_local: Callable[[str], bool],
    proc: Path = PROC,
) -> ProcessSearch:
    """Return the process that listens on a port of this machine and has files of the log directories open."""
    if not is_local(address.host):
        return ProcessSearch(None, f"{address.host} is not an address of this machine")
    unreadable = 0
    sockets = {f"socket:[{inode}]" for inode in _find_listening(proc, address.port)}
    listening: list[BrokerProcess] = []
    for directory in _iter_processes(proc):
        try:
            process = _read_process(directory)
        except PermissionError:
            unreadable += 1
            continue
        except OSError:
            continue  # the process has ended
        if any(_is_below(file, log_dir) for file in process.files for log_dir in log_dirs):
            return ProcessSearch(process)
        if not sockets.isdisjoint(process.files):
            listening.append(process)
    return ProcessSearch(None, _explain(address, log_dirs, sockets, listening, unreadable))


def _explain(
    address: Address, log_dirs: Sequence[str], sockets: set[str], listening: list[BrokerProcess], unreadable: int
) -> str:
    if listening:
        if not log_dirs:
            return "the broker reports no log directories, by which its process would be recognised"
        names = ", ".join(f"{process.name} (pid {process.pid})" for process in listening)
        return f"{names} listens on port {address.port}, but has no file of the log directories open"
    if not sockets:
        return f"no process of this machine listens on port {address.port}"
    return (
        f"the process that listens on port {address.port} is one of {unreadable} that this user must not read: use sudo"
    )


def is_local_host(host: str) -> bool:
    """True if a name or an address belongs to this machine. Blocks during the name lookup."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return False
    return any(_can_bind(family, address) for family, _, _, _, address in found)


def _can_bind(family: int, address: tuple[str | int | bytes, ...]) -> bool:
    """True if an address is one of this machine's; the port is any free one."""
    with socket.socket(family, socket.SOCK_DGRAM) as opened:
        try:
            opened.bind((address[0], 0, *address[2:]))
        except OSError:
            return False
    return True


def _find_listening(proc: Path, port: int) -> Iterator[str]:
    """Iterate over the inodes of the sockets that listen on a port."""
    for name in ("tcp", "tcp6"):
        try:
            lines = (proc / "net" / name).read_text("ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                yield fields[9]


def _iter_processes(proc: Path) -> Iterator[Path]:
    for name in sorted(os.listdir(proc)):
        if name.isdecimal():
            yield proc / name


def _read_process(directory: Path) -> BrokerProcess:
    """Read a process. Raises OSError."""
    files = []
    # A broker has a file for each partition: paths as texts, because a Path of each takes longer than its link.
    descriptors = f"{directory}/fd"
    for name in os.listdir(descriptors):
        try:
            files.append(os.readlink(f"{descriptors}/{name}"))
        except FileNotFoundError:
            continue  # it was closed
    name = (directory / "comm").read_text("utf-8", "replace").strip()
    return BrokerProcess(int(directory.name), name, directory, files)


def _is_below(file: str, directory: str) -> bool:
    return file.startswith(f"{directory.rstrip('/')}/")
