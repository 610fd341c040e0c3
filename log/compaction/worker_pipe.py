"""Messages between the broker and a compaction process: `marshal` values over two pipes.

Both processes run the same interpreter, which `marshal` requires. The process sends heartbeats from within its work, so
that a process that hangs sends none; the broker bounds the time without a message.
"""

import marshal
import os
import select
from collections.abc import Callable
from struct import Struct
from typing import Any, Final

STALL_TIMEOUT_SECONDS: Final = 300.0
"""Maximum time without a message from the process.

The longest step without a heartbeat is the sync of 64 MiB, which takes less time even at 0.3 MiB/s.
"""

_HEARTBEAT_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 1.0
_LENGTH: Final = Struct(">I")
_READ_BYTES: Final = 65_536

Wait = Callable[[int, int, float], bool]
"""Wait for a poll event of a descriptor, at most so many seconds; return whether it occurred."""


class ProcessStalledError(Exception):
    """The process neither sent nor read anything for STALL_TIMEOUT_SECONDS."""


def wait_for(fd: int, event: int, seconds: float) -> bool:
    """Implement Wait with poll(2)."""
    poller = select.poll()
    poller.register(fd, event)
    return bool(poller.poll(seconds * 1000))


class WorkerPipe:
    """The broker's end: `call` sends a command and returns the response. Blocks; one call at a time."""

    def __init__(self, commands: int, responses: int, *, monotonic: Callable[[], float], wait: Wait) -> None:
        self._commands = commands
        self._responses = responses
        self._monotonic = monotonic
        self._wait = wait
        self._received = bytearray()
        self._last_progress_s = monotonic()
        os.set_blocking(commands, False)

    def call(self, command: tuple[Any, ...]) -> tuple[int, Any]:
        """Send a command and return the kind and value of the response.

        Raises OSError, EOFError or ValueError if the process has ended, ProcessStalledError if it makes no progress.
        """
        self._last_progress_s = self._monotonic()
        self._send(memoryview(marshal.dumps(command)))
        while True:
            message = self._take_message()
            if message is None:
                self._await(self._responses, select.POLLIN)
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
                self._last_progress_s = self._monotonic()

    def _await(self, fd: int, event: int) -> None:
        while not self._wait(fd, event, _POLL_SECONDS):
            if self._monotonic() - self._last_progress_s >= STALL_TIMEOUT_SECONDS:
                raise ProcessStalledError

    def _receive(self) -> None:
        data = os.read(self._responses, _READ_BYTES)
        if not data:
            raise EOFError
        self._received += data
        self._last_progress_s = self._monotonic()

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
        """Wait at most `seconds` until a killed process has ended, which closes its pipes; return whether it has."""
        deadline_s = self._monotonic() + seconds
        while self._monotonic() < deadline_s:
            if self._wait(self._responses, select.POLLIN, _POLL_SECONDS):
                try:
                    self._receive()
                except (EOFError, OSError):
                    return True
                self._received.clear()
        return False

    def close(self) -> None:
        os.close(self._commands)
        os.close(self._responses)


class ResponsePipe:
    """The process's end: sends responses and heartbeats. `heartbeat` is called often by the work itself."""

    def __init__(self, responses: int, monotonic: Callable[[], float]) -> None:
        self._responses = responses
        self._monotonic = monotonic
        self._sent_s = monotonic()

    def heartbeat(self) -> None:
        """Send a heartbeat if nothing was sent for _HEARTBEAT_SECONDS."""
        if self._monotonic() - self._sent_s >= _HEARTBEAT_SECONDS:
            self._write(b"")

    def respond(self, kind: int, value: Any) -> None:
        self._write(marshal.dumps((kind, value)))

    def _write(self, message: bytes) -> None:
        data = memoryview(_LENGTH.pack(len(message)) + message)
        while data:
            data = data[os.write(self._responses, data) :]
        self._sent_s = self._monotonic()
