"""Messages between the broker and a compaction process: values of `marshal` over two pipes.

That is enough between two processes of one interpreter. The broker's end bounds the time for which the process may be
silent; the process sends a heartbeat from its own work, so one that hangs is silent.
"""

import marshal
import os
import select
from collections.abc import Callable
from struct import Struct
from typing import Any, Final

SILENCE_SECONDS: Final = 300.0
"""A process that is silent for longer makes no progress. The longest step of a compaction without a heartbeat is the
sync of 64 MiB, for which a disk of 0.3 MiB/s takes less."""

_HEARTBEAT_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 1.0
_LENGTH: Final = Struct(">I")
_READ_BYTES: Final = 65_536

Wait = Callable[[int, int, float], bool]
"""Wait until a poll event is there for a descriptor, at most so many seconds; whether it is."""


class SilentProcessError(Exception):
    """The process sent nothing, and took nothing, for SILENCE_SECONDS."""


def wait_for(fd: int, event: int, seconds: float) -> bool:
    """A Wait of the operating system."""
    poller = select.poll()
    poller.register(fd, event)
    return bool(poller.poll(seconds * 1000))


class WorkerPipe:
    """The broker's end: `ask` sends a command and returns its answer. Blocks; one call at a time."""

    def __init__(self, commands: int, answers: int, *, monotonic: Callable[[], float], wait: Wait) -> None:
        self._commands = commands
        self._answers = answers
        self._monotonic = monotonic
        self._wait = wait
        self._received = bytearray()
        self._heard = monotonic()
        os.set_blocking(commands, False)

    def ask(self, command: tuple[Any, ...]) -> tuple[int, Any]:
        """Raises OSError, EOFError or ValueError if the process is gone, SilentProcessError if it makes no progress."""
        self._heard = self._monotonic()
        self._send(memoryview(marshal.dumps(command)))
        while True:
            message = self._take_message()
            if message is None:
                self._await(self._answers, select.POLLIN)
                self._receive()
            elif message != b"":
                kind, value = marshal.loads(message)
                return kind, value

    def _send(self, data: memoryview) -> None:
        while data:
            try:
                data = data[os.write(self._commands, data) :]
            except BlockingIOError:
                self._await(self._commands, select.POLLOUT)
            else:
                self._heard = self._monotonic()

    def _await(self, fd: int, event: int) -> None:
        while not self._wait(fd, event, _POLL_SECONDS):
            if self._monotonic() - self._heard >= SILENCE_SECONDS:
                raise SilentProcessError

    def _receive(self) -> None:
        data = os.read(self._answers, _READ_BYTES)
        if not data:
            raise EOFError
        self._received += data
        self._heard = self._monotonic()

    def _take_message(self) -> bytes | None:
        received = self._received
        if len(received) < _LENGTH.size:
            return None
        end = _LENGTH.size + _LENGTH.unpack_from(received)[0]
        if len(received) < end:
            return None
        message = bytes(received[_LENGTH.size : end])
        del received[:end]
        return message

    def await_end(self, seconds: float) -> bool:
        """Return whether the process, which was killed, has ended, and with it its end of the pipes."""
        deadline = self._monotonic() + seconds
        while self._monotonic() < deadline:
            if self._wait(self._answers, select.POLLIN, _POLL_SECONDS):
                try:
                    self._receive()
                except (EOFError, OSError):
                    return True
                self._received.clear()
        return False

    def close(self) -> None:
        os.close(self._commands)
        os.close(self._answers)


class Heartbeat:
    """The process's end of the answers, a descriptor. `beat` is called often by the work itself."""

    def __init__(self, answers: int, monotonic: Callable[[], float]) -> None:
        self._answers = answers
        self._monotonic = monotonic
        self._sent = monotonic()

    def beat(self) -> None:
        if self._monotonic() - self._sent >= _HEARTBEAT_SECONDS:
            self._write(b"")

    def answer(self, kind: int, value: Any) -> None:
        self._write(marshal.dumps((kind, value)))

    def _write(self, message: bytes) -> None:
        data = memoryview(_LENGTH.pack(len(message)) + message)
        while data:
            data = data[os.write(self._answers, data) :]
        self._sent = self._monotonic()
