"""Division of a byte stream into length-prefixed frames.

A frame is returned with its four length bytes, so that the usual case, a read that contains exactly one frame, needs no
copy. A frame that arrives in pieces is collected in one buffer, which is at most an eighth larger than the bytes that
have arrived: a length field alone allocates no memory, and neither does the number of pieces.
"""

from typing import Final

from odradek.protocol.types import DecodeError

SIZE_BYTES = 4
"""Size of the length prefix; the content of a frame follows it."""

API_KEY_POSITION: Final = SIZE_BYTES + 1
"""Position of the second byte of a request's API key; the first byte is 0, as no API has a key above 255."""

NO_API_KEY: Final = 256
"""API key of a frame that is too short to have one."""

_COPY_LIMIT_BYTES = 65536

_HTTP_METHODS: Final = (b"GET ", b"POST", b"HEAD", b"PUT ", b"DELE", b"OPTI", b"PATC", b"CONN", b"TRAC", b"PRI ")
"""The first four bytes of HTTP requests; PRI is HTTP/2."""

_TLS_HANDSHAKE: Final = b"\x16\x03"
"""A TLS record's type and the first byte of its version."""


class FrameError(DecodeError):
    """An invalid length field; the connection has to be closed.

    frames: the complete frames before the invalid one in the data that was fed
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.frames: list[bytes | memoryview] = []


class FrameSplitter:
    """Divides a stream into frames of at most `max_frame_bytes` content (Kafka: `socket.request.max.bytes`).

    max_frame_bytes: may be changed; counts for frames whose length has not arrived
    """

    __slots__ = ("_held", "_wanted_bytes", "max_frame_bytes")

    def __init__(self, max_frame_bytes: int) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._held = bytearray()
        self._wanted_bytes = SIZE_BYTES

    @property
    def missing_bytes(self) -> int:
        """Bytes of the incomplete frame that have not arrived; 0 without an incomplete frame or before its length."""
        held_bytes = len(self._held)
        return self._wanted_bytes - held_bytes if held_bytes >= SIZE_BYTES else 0

    def is_whole_frame(self, data: bytes) -> bool:
        """Return whether `data`, as the next piece, is exactly one frame, so that `feed` would return it unchanged."""
        content_bytes = len(data) - SIZE_BYTES
        return (
            0 <= content_bytes <= self.max_frame_bytes
            and not self._held
            and int.from_bytes(data[:SIZE_BYTES], "big") == content_bytes
        )

    def clear(self) -> None:
        """Drop the incomplete frame at the end of the stream."""
        self._held = bytearray()
        self._wanted_bytes = SIZE_BYTES

    def feed(self, data: bytes) -> list[bytes | memoryview]:
        """Return the frames that `data` completes, each with its length prefix. Raises `FrameError`."""
        frames: list[bytes | memoryview] = []
        start, size = 0, len(data)
        held = self._held
        if held:
            if len(held) < SIZE_BYTES:
                start = SIZE_BYTES - len(held)
                held += data[:start]
                if len(held) < SIZE_BYTES:
                    return frames
                content_bytes = int.from_bytes(held, "big", signed=True)
                if not 0 <= content_bytes <= self.max_frame_bytes:
                    raise _frame_error(bytes(held), self.max_frame_bytes, frames)
                self._wanted_bytes = SIZE_BYTES + content_bytes
            end = start + self._wanted_bytes - len(held)
            held += data if not start and end >= size else memoryview(data)[start:end]
            if end > size:
                return frames
            frames.append(self._take_held())
            start = end
        elif self.is_whole_frame(data):
            return [data]
        return self._split(data, start, size, frames)

    def _take_held(self) -> bytes | memoryview:
        held = self._held
        self.clear()
        return bytes(held) if len(held) <= _COPY_LIMIT_BYTES else memoryview(held)

    def _split(
        self, data: bytes, start: int, size: int, frames: list[bytes | memoryview]
    ) -> list[bytes | memoryview]:
        """Add the frames from `start` on, and hold the rest of `data`."""
        most_bytes = self.max_frame_bytes
        while size - start >= SIZE_BYTES:
            content_bytes = int.from_bytes(data[start : start + SIZE_BYTES], "big", signed=True)
            if not 0 <= content_bytes <= most_bytes:
                raise _frame_error(data[start : start + SIZE_BYTES], most_bytes, frames)
            end = start + SIZE_BYTES + content_bytes
            if end > size:
                self._wanted_bytes = end - start
                break
            frames.append(data[start:end] if end - start <= _COPY_LIMIT_BYTES else memoryview(data)[start:end])
            start = end
        if start < size:
            self._held += memoryview(data)[start:]
        return frames


def _frame_error(size_field: bytes, most_bytes: int, frames: list[bytes | memoryview]) -> FrameError:
    """Return the error for an invalid length field, which for another protocol is its first four bytes."""
    content_bytes = int.from_bytes(size_field, "big", signed=True)
    if size_field in _HTTP_METHODS:
        error = FrameError("received an HTTP request instead of a Kafka request")
    elif size_field.startswith(_TLS_HANDSHAKE):
        error = FrameError("received a TLS handshake instead of a Kafka request")
    elif content_bytes < 0:
        error = FrameError(f"negative frame size {content_bytes}")
    else:
        error = FrameError(f"frame of {content_bytes} bytes, at most {most_bytes} are allowed")
    error.frames = frames
    return error
