"""Compaction in a child process, so that it does not delay the broker's requests.

A compaction thread would compete with the reactor for the interpreter's lock. Measured on two processors, with breaks
of 1 ms after every 3 ms: the p99 latency of a produce rose from 0.15 ms to 3.6 ms at 400 requests/s, and the throughput
of eight busy connections fell to a sixth. With a process at idle priority the p99 did not change (0.45 ms and 0.46 ms,
on a busier machine). The offset map, which may be large, is in the memory of the process.

The process is started when a log is due and ended when none is left. When the broker exits, the process reads the end
of its input and exits too. If the process ends unexpectedly, the log is unchanged: the files that it wrote have no
effect until the broker renames them. The broker kills a process that makes no progress, because its disk does not
respond, it was stopped, or it gets no processor time (see `worker_pipe`).
"""

import logging
import marshal
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import Any

from odradek.log.background.pacing import RateLimiter
from odradek.log.compaction.run import (
    Cancelled,
    CompactionFailed,
    CompactionJob,
    CompactionRun,
    MappedKeys,
    WorkerLost,
    WorkerStalled,
)
from odradek.log.compaction.worker_pipe import (
    STALL_TIMEOUT_SECONDS,
    ProcessStalledError,
    ResponsePipe,
    Wait,
    WorkerPipe,
    wait_for,
)
from odradek.log.storage.filesystem import OsFileSystem

logger = logging.getLogger(__name__)

_NICENESS = 10
_IDLE_PRIORITY = "idle-priority"
_STARVATION_CHECK_SECONDS = 10.0
_MIN_CPU_SHARE = 0.2
_END_SECONDS = 10.0
_BEGIN, _WRITE = range(2)
_DONE, _DISK_FAILED, _FAILED = range(3)


class ProcessWorker:
    """A Worker that runs in a child process, with the operating system's files."""

    def __init__(
        self, *, is_idle_priority: bool = True, monotonic: Callable[[], float] = time.monotonic, wait: Wait = wait_for
    ) -> None:
        """Start the process. Raises OSError if it cannot be started.

        A process at idle priority exits (WorkerLost) if it gets too little processor time.
        """
        command_end, commands = os.pipe()
        try:
            responses, response_end = os.pipe()
        except OSError:
            os.close(command_end)
            os.close(commands)
            raise
        try:
            self._pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-m", __name__, *([_IDLE_PRIORITY] if is_idle_priority else [])],
                _environment(),
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, command_end, 0),
                    (os.POSIX_SPAWN_DUP2, response_end, 1),
                ],
            )
        except OSError:
            os.close(commands)
            os.close(responses)
            raise
        finally:
            os.close(command_end)
            os.close(response_end)
        self._pipe = WorkerPipe(commands, responses, monotonic=monotonic, wait=wait)
        self._is_cancelled = False
        self._has_ended = False
        # `cancel` and `close` may run in two threads; after waitpid the process id may belong to another process.
        self._ending = Lock()

    @property
    def pid(self) -> int:
        return self._pid

    def begin(self, job: CompactionJob) -> MappedKeys:
        return MappedKeys(*self._call((_BEGIN, tuple(job))))

    def write(self, bases: tuple[int, ...], producers: bytes) -> None:
        self._call((_WRITE, (bases, producers)))

    def _call(self, command: tuple[Any, ...]) -> Any:
        try:
            kind, value = self._pipe.call(command)
        except ProcessStalledError:
            self._kill()
            raise WorkerStalled(
                f"the compaction process pid={self._pid} made no progress for {STALL_TIMEOUT_SECONDS:.0f} s "
                "and was killed"
            ) from None
        except (OSError, EOFError, ValueError, TypeError) as error:
            if self._is_cancelled:
                raise Cancelled from error
            raise WorkerLost(f"the compaction process pid={self._pid} ended unexpectedly") from error
        if kind == _DISK_FAILED:
            raise OSError(*value)
        if kind == _FAILED:
            raise CompactionFailed(value)
        return value

    def cancel(self) -> None:
        self._is_cancelled = True
        self._kill()

    def _kill(self) -> None:
        with self._ending:
            if not self._has_ended:
                os.kill(self._pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill the process and wait for its end. Blocks for up to _END_SECONDS."""
        if self._has_ended:
            return
        self._kill()
        has_ended = self._pipe.await_end(_END_SECONDS)
        with self._ending:
            self._has_ended = True
            if has_ended:
                os.waitpid(self._pid, 0)
        self._pipe.close()
        if not has_ended:
            logger.warning(
                "a killed compaction process has not ended, probably because a disk does not respond: check the disks "
                "pid=%d",
                self._pid,
            )


def _environment() -> dict[str, str]:
    """Return the broker's environment, with the directory that contains the package `odradek` first in PYTHONPATH."""
    root = os.path.dirname(os.path.abspath(__file__))
    for _ in range(3):
        root = os.path.dirname(root)
    given = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{given}" if given else root}


def main() -> None:
    """Run the child process: execute commands until the broker closes its end of the pipe."""
    from queue import SimpleQueue
    from threading import Thread

    # Ctrl+C in a terminal interrupts this process as well; the broker ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(_NICENESS)
    is_idle_priority = _IDLE_PRIORITY in sys.argv[1:] and _set_idle_priority()
    commands: SimpleQueue[Any] = SimpleQueue()

    def read_commands() -> None:
        # In a thread, so that the process also exits during a command when the broker exits.
        try:
            while True:
                commands.put(marshal.load(sys.stdin.buffer))
        except BaseException:
            os._exit(0)

    Thread(target=read_commands, daemon=True).start()
    responses = ResponsePipe(sys.stdout.fileno(), time.monotonic)
    child = _Child(is_idle_priority, responses.heartbeat)
    while True:
        kind, value = commands.get()
        try:
            if kind == _BEGIN:
                responses.respond(_DONE, tuple(child.begin(value)))
            else:
                child.write(*value)
                responses.respond(_DONE, None)
        except OSError as error:
            responses.respond(_DISK_FAILED, (error.errno, error.strerror, error.filename))
        except Exception as error:
            responses.respond(_FAILED, f"{type(error).__name__}: {error}")


def _set_idle_priority() -> bool:
    """Set the scheduling policy SCHED_IDLE; return whether that is possible.

    With a high nice value alone, the process would finish its time slice of 3 ms before a woken broker runs. Most users
    may not leave the policy again, so `_StarvationCheck` ends a process that it starves.
    """
    if sys.platform == "linux":
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
            return True
    return False


class _StarvationCheck:
    """Ends the process if it gets too little processor time; the broker then starts one with normal scheduling."""

    def __init__(self) -> None:
        self._slept_s = 0.0
        self._begin()

    def _begin(self) -> None:
        self._since_s, self._used_s, self._slept_s = time.monotonic(), time.process_time(), 0.0

    def sleep(self, seconds: float) -> None:
        """Sleep; this time does not count."""
        self._slept_s += seconds
        time.sleep(seconds)

    def check(self) -> None:
        """End the process if its share of the processor in the last period was too small."""
        elapsed_s = time.monotonic() - self._since_s
        if elapsed_s >= _STARVATION_CHECK_SECONDS:
            if time.process_time() - self._used_s < _MIN_CPU_SHARE * (elapsed_s - self._slept_s):
                os._exit(1)
            self._begin()


class _Child:
    """Executes the commands of the child process."""

    def __init__(self, is_idle_priority: bool, heartbeat: Callable[[], None]) -> None:
        self._is_idle_priority = is_idle_priority
        self._heartbeat = heartbeat
        self._run: CompactionRun | None = None

    def begin(self, fields: tuple[Any, ...]) -> MappedKeys:
        job = CompactionJob(*fields)
        # Release the previous offset map before the next one is allocated.
        self._run = None
        rate = job.bytes_per_second
        if self._is_idle_priority:
            starvation = _StarvationCheck()

            def check() -> None:
                starvation.check()
                self._heartbeat()

            limiter = RateLimiter(rate, time.monotonic, starvation.sleep, check)
        else:
            limiter = RateLimiter(rate, time.monotonic, time.sleep, self._heartbeat)
        self._run = CompactionRun(OsFileSystem(), job, limiter)
        return self._run.map_keys()

    def write(self, bases: tuple[int, ...], producers: bytes) -> None:
        assert self._run is not None, "begin must be called first"
        self._run.write(bases, producers)


if __name__ == "__main__":
    main()
