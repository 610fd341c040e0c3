"""Child processes that never outlive the tests."""

import ctypes
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
    """Like Popen; the kernel kills the child when the thread that started it ends, however that comes about."""
    return subprocess.Popen(command, preexec_fn=_die_with_parent, **options)


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now; whoever uses them must be ready to lose the race and take others."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
