"""Compaction in a process of its own, which does not hold up the broker's requests.

Compaction keeps a Python interpreter busy, and a thread that does so takes its turns at the interpreter from the
reactor, however small its slices. Measured on two processors, with slices of 3 ms and breaks of 1 ms: the p99 of a
produce rose from 0.15 ms to 3.6 ms at 400 requests a second, and eight busy connections got a sixth of their requests
through. With a process that runs at idle priority it did not change (0.45 ms and 0.46 ms, on a busier
machine). It also takes the map of keys, which may be large, with it: the broker's memory does not grow.

It is started when a log is due, ends when none is left, and dies with the broker, whose end it reads as the end of
its input. If it dies itself, the log is as it was: files that it wrote have no effect until the broker renames them.

A process that makes no progress (its disk hangs, it was stopped, it never gets a processor) is ended: see worker_pipe.
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

from odradek.log.background.pacing import Throttle
from odradek.log.compaction.run import (
    Cancelled,
    CompactionFailed,
    CompactionRun,
    Job,
    Mapped,
    WorkerLost,
    WorkerStalled,
)
from odradek.log.compaction.worker_pipe import (
    SILENCE_SECONDS,
    Heartbeat,
    SilentProcessError,
    Wait,
    WorkerPipe,
    wait_for,
)
from odradek.log.storage.filesystem import OsFileSystem

logger = logging.getLogger(__name__)

_NICENESS = 10
_PATIENT = "patient"
_PATIENCE_SECONDS = 10.0
_LEAST_SHARE = 0.2
_END_SECONDS = 10.0
_BEGIN, _WRITE = range(2)
_DONE, _DISK_FAILED, _FAILED = range(3)


class ProcessWorker:
    """A Worker whose work a child process does, with the operating system's files."""

    def __init__(
        self, *, is_patient: bool = True, monotonic: Callable[[], float] = time.monotonic, wait: Wait = wait_for
    ) -> None:
        """Start the process. Raises OSError if there can be none.

        A patient one runs at idle priority, and gives up (WorkerLost) if it hardly ever runs.
        """
        command_end, commands = os.pipe()
        try:
            answers, answer_end = os.pipe()
        except OSError:
            os.close(command_end)
            os.close(commands)
            raise
        try:
            self._pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-m", __name__, *([_PATIENT] if is_patient else [])],
                _environment(),
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, command_end, 0),
                    (os.POSIX_SPAWN_DUP2, answer_end, 1),
                ],
            )
        except OSError:
            os.close(commands)
            os.close(answers)
            raise
        finally:
            os.close(command_end)
            os.close(answer_end)
        self._pipe = WorkerPipe(commands, answers, monotonic=monotonic, wait=wait)
        self._is_cancelled = False
        self._has_ended = False
        # `cancel` and `close` may come in two threads, and a process id that was waited for may be another process's.
        self._ending = Lock()

    @property
    def pid(self) -> int:
        return self._pid

    def begin(self, job: Job) -> Mapped:
        return Mapped(*self._ask((_BEGIN, tuple(job))))

    def write(self, bases: tuple[int, ...], producers: bytes) -> None:
        self._ask((_WRITE, (bases, producers)))

    def _ask(self, command: tuple[Any, ...]) -> Any:
        try:
            kind, value = self._pipe.ask(command)
        except SilentProcessError:
            self._kill()
            raise WorkerStalled(
                f"the compaction process pid={self._pid} made no progress for {SILENCE_SECONDS:.0f} s and was killed"
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
                "a killed compaction process does not end since it waits for a disk: check the disks pid=%d", self._pid
            )


def _environment() -> dict[str, str]:
    """Ours, in which the package is found from where this one was."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    given = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{given}" if given else root}


def main() -> None:
    """The child: answer command after command, until there are no more."""
    from queue import SimpleQueue
    from threading import Thread

    # Of the keys that stop a broker in a terminal, the broker alone makes sense.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(_NICENESS)
    is_patient = _PATIENT in sys.argv[1:] and _give_way()
    commands: SimpleQueue[Any] = SimpleQueue()

    def listen() -> None:
        # In a thread, so that the end of the broker ends what is being done as well.
        try:
            while True:
                commands.put(marshal.load(sys.stdin.buffer))
        except BaseException:
            os._exit(0)

    Thread(target=listen, daemon=True).start()
    heartbeat = Heartbeat(sys.stdout.fileno(), time.monotonic)
    child = _Child(is_patient, heartbeat.beat)
    while True:
        kind, value = commands.get()
        try:
            if kind == _BEGIN:
                heartbeat.answer(_DONE, tuple(child.begin(value)))
            else:
                child.write(*value)
                heartbeat.answer(_DONE, None)
        except OSError as error:
            heartbeat.answer(_DISK_FAILED, (error.errno, error.strerror, error.filename))
        except Exception as error:
            heartbeat.answer(_FAILED, f"{type(error).__name__}: {error}")


def _give_way() -> bool:
    """Run at idle priority: a nice process would finish its slice of 3 ms before a woken broker runs.

    Whether that can be had. There is no way back from it for most users, so where it means never, see `_Patience`.
    """
    if sys.platform == "linux":
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
            return True
    return False


class _Patience:
    """Ends the process if it gets too small a share of a processor, for another to be started that is merely nice."""

    def __init__(self) -> None:
        self._slept = 0.0
        self._begin()

    def _begin(self) -> None:
        self._since, self._used, self._slept = time.monotonic(), time.process_time(), 0.0

    def sleep(self, seconds: float) -> None:
        self._slept += seconds
        time.sleep(seconds)

    def check(self) -> None:
        elapsed = time.monotonic() - self._since
        if elapsed >= _PATIENCE_SECONDS:
            if time.process_time() - self._used < _LEAST_SHARE * (elapsed - self._slept):
                os._exit(1)
            self._begin()


class _Child:
    def __init__(self, is_patient: bool, beat: Callable[[], None]) -> None:
        self._is_patient = is_patient
        self._beat = beat
        self._run: CompactionRun | None = None

    def begin(self, fields: tuple[Any, ...]) -> Mapped:
        job = Job(*fields)
        # First, so that there are not two maps of keys.
        self._run = None
        rate = job.bytes_per_second
        if self._is_patient:
            patience = _Patience()

            def check() -> None:
                patience.check()
                self._beat()

            throttle = Throttle(rate, time.monotonic, patience.sleep, check)
        else:
            throttle = Throttle(rate, time.monotonic, time.sleep, self._beat)
        self._run = CompactionRun(OsFileSystem(), job, throttle)
        return self._run.map_keys()

    def write(self, bases: tuple[int, ...], producers: bytes) -> None:
        assert self._run is not None, "begin comes first"
        self._run.write(bases, producers)


if __name__ == "__main__":
    main()
