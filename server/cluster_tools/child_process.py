"""Start of processes that end with this one."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Final

_SIGNAL_OF_DEAD_PARENT: Final = 1

# Loaded before the fork: in the child of a process with threads the loader's lock may be held for ever.
_LIBC: Final = ctypes.CDLL(None)


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
                preexec_fn=partial(end_with_parent, os.getpid()) if sys.platform == "linux" else None,
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


def end_with_parent(parent: int) -> None:
    """Make the kernel kill this process when the thread of `parent` that started it ends. Linux only."""
    _LIBC.prctl(_SIGNAL_OF_DEAD_PARENT, signal.SIGKILL)
    if os.getppid() != parent:
        # The parent ended before the call.
        os._exit(1)
