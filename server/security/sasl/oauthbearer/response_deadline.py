"""The deadline of a response of an issuer, which is read in a thread."""

import socket
import threading
from contextlib import suppress
from typing import Self


class ResponseDeadline:
    """Ends a connection in the middle of a response that takes too long, also if it arrives byte by byte.

    Then the errors of the socket become TimeoutError.
    """

    def __init__(self, connection: socket.socket, timeout_s: float) -> None:
        self._connection = connection
        self._timeout_s = timeout_s
        self._is_over = False
        self._timer = threading.Timer(timeout_s, self._end)
        self._timer.daemon = True

    def _end(self) -> None:
        self._is_over = True
        with suppress(OSError):
            # The method of SSLSocket ends the encryption first, and then the other thread might send plain text.
            socket.socket.shutdown(self._connection, socket.SHUT_RDWR)

    def check(self) -> None:
        """Raise TimeoutError if the response may be incomplete."""
        if self._is_over:
            raise TimeoutError(f"it did not respond within {self._timeout_s:g} s")

    def __enter__(self) -> Self:
        self._connection.settimeout(None)
        self._timer.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        self._timer.cancel()
        if error is not None:
            self.check()
