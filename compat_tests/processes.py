"""Child processes that never survive the tests."""

import os
import signal
import socket
import subprocess
from collections.abc import Sequence
from functools import partial
from typing import Any

from odradek.server.cluster_tools.child_process import end_with_parent
from odradek.server.cluster_tools.zookeeper_server import find_port

lasting_port = find_port
"""Return a port for a server that is restarted: a client that retries may take any other while the server is down."""


def start(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Start a process like Popen; the kernel kills it when the thread that started it ends for any reason."""
    return subprocess.Popen(command, preexec_fn=partial(end_with_parent, os.getpid()), **options)


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
