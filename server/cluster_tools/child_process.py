"""Start of processes that end with this one."""

import ctypes
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Final

_SIGNAL_OF_DEAD_PARENT: Final = 1


def start_process(command: Sequence[str], output: IO[bytes] | int, directory: Path) -> "subprocess.Popen[bytes]":
    """Start a process that ends with this one, also if the calling thread ends before. Raises OSError.

    It is in a session of its own, so that Ctrl-C reaches this process alone, which stops it. On Linux the kernel kills
    it when the thread that started it ends, so that thread waits for it.
    """
    started: SimpleQueue[subprocess.Popen[bytes] | Exception] = SimpleQueue()

    def work() -> None:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=directory,
                start_new_session=True,
                preexec_fn=_end_with_parent if sys.platform == "linux" else None,
            )
        except Exception as error:
            started.put(error)
            return
        started.put(process)
        process.wait()

    threading.Thread(target=work, name="child-process", daemon=True).start()
    result = started.get()
    if isinstance(result, Exception):
        raise result
    return result


def _end_with_parent() -> None:
    """Let the kernel kill this process when the thread that started it ends."""
    ctypes.CDLL(None).prctl(_SIGNAL_OF_DEAD_PARENT, signal.SIGKILL)
