"""The pid lock: only one process at a time runs or resets a pipeline. The operating system releases it when the process
ends.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FILE = "running"
_TRIES = 10
_RETRY_PAUSE_S = 0.05


class AlreadyRunningError(Exception):
    """Another process holds the lock; `process` is its id, None if it is unknown."""

    def __init__(self, state_folder: Path, process: int | None) -> None:
        by = f" as process {process}" if process is not None else ""
        super().__init__(f"the pipeline with state in {state_folder} is already running{by}; stop it first")
        self.process = process


@contextmanager
def hold_lock(state_folder: Path) -> Iterator[None]:
    """Hold the lock while the block runs. Raises AlreadyRunningError, OSError."""
    state_folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(state_folder / FILE, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        # `find_holder` of another process may hold the lock for a moment.
        for tries_left in reversed(range(_TRIES)):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not tries_left:
                    raise AlreadyRunningError(state_folder, _read_process(descriptor)) from None
                time.sleep(_RETRY_PAUSE_S)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def find_holder(state_folder: Path) -> int | None:
    """Return the process that holds the lock, 0 if its id is unknown; None if no process holds it."""
    try:
        descriptor = os.open(state_folder / FILE, os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read_process(descriptor) or 0
    finally:
        os.close(descriptor)
    return None


def _read_process(descriptor: int) -> int | None:
    text = os.pread(descriptor, 20, 0).strip()
    return int(text) if text.isdigit() else None
