"""Child processes that never survive the tests."""

import contextlib
import ctypes
import os
import random
import signal
import socket
import subprocess
from collections.abc import Sequence
from typing import Any

PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def _die_with_parent() -> None:
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def start(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Start a process like Popen; the kernel kills it when the thread that started it ends for any reason."""
    return subprocess.Popen(command, preexec_fn=_die_with_parent, **options)


def freeze(pid: int) -> None:
    """Stop a child with SIGSTOP; return when it is stopped and its system calls have ended."""
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)


def free_ports(count: int) -> list[int]:
    """Return unused ports; the caller must be prepared that another process takes one of them first."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def lasting_port() -> int:
    """Return a port that stays free while its server is down: the kernel uses it for no outgoing connection.

    Otherwise a client that retries may at some point take the port of the stopped server itself.
    """
    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        lowest, highest = map(int, file.read().split())
    ports = [*range(10_000, lowest), *range(highest + 1, 65_536)]
    while True:
        port = random.choice(ports)
        with socket.socket() as tried, contextlib.suppress(OSError):
            tried.bind(("127.0.0.1", port))
            return port
