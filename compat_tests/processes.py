"""Child processes that never survive the tests."""

import os
import signal
import socket
import subprocess
from collections.abc import Sequence
from functools import partial
from typing import Any

from odradek.ports import PortReservation
from odradek.server.cluster_tools.child_process import end_with_parent
from odradek.server.cluster_tools.zookeeper_server import find_ports

_reservations: list[PortReservation] = []


def lasting_port() -> int:
    """Return a port for a server that sets SO_REUSEADDR, reserved until this process ends.

    A client, or another process of the tests that looks for a port, may take any other before the server starts, or
    while it is down.
    """
    return lasting_ports(1)[0]


def lasting_ports(count: int) -> list[int]:
    """Return different ports like `lasting_port`."""
    found = [PortReservation(port) for port in find_ports(count)]
    _reservations.extend(found)
    return [reservation.port for reservation in found]


def lasting_series(count: int) -> int:
    """Return the first of consecutive ports like `lasting_port`; its last digit is 1, and `count` is at most 9."""
    while True:
        for first in find_ports(200):
            ports = range(first, first + count)
            if first % 10 == 1 and all(map(_is_free, ports)):
                _reservations.extend(map(PortReservation, ports))
                return first


def _is_free(port: int) -> bool:
    with socket.socket() as tried:
        try:
            tried.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def start(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Start a process like Popen; the kernel kills it when the thread that started it ends for any reason."""
    return subprocess.Popen(command, preexec_fn=partial(end_with_parent, os.getpid()), **options)


def freeze(pid: int) -> None:
    """Stop a child with SIGSTOP; return when it is stopped and its system calls have ended."""
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
