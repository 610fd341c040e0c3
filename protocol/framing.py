"""Length-prefixed frames out of a byte stream, in whatever pieces it arrives.

A frame is handed out with its four length bytes still in front, so that the usual case, one read that holds exactly
one frame, needs no copy at all. A frame that arrives in pieces grows in one buffer, which is at most an eighth larger
than what has arrived: nothing is allocated from a length alone, and the number of pieces costs no memory.
"""

from typing import Final

from odradek.protocol.types import DecodeError

SIZE_BYTES = 4
"""Where a frame's content begins."""

API_KEY_AT: Final = SIZE_BYTES + 1
"""Where the second byte of a request's API key is; the first is 0, as no API has a key above 255."""

NO_API_KEY: Final = 256
"""In place of the API key of a frame that is too short to have one."""

_COPY_LIMIT_BYTES = 65536

_HTTP_METHODS: Final = (b"GET ", b"POST", b"HEAD", b"PUT ", b"DELE", b"OPTI", b"PATC", b"CONN", b"TRAC", b"PRI ")
"""The first four bytes of HTTP requests; PRI is HTTP/2."""

_TLS_HANDSHAKE: Final = b"\x16\x03"
"""A TLS record's type and the first byte of its version."""


class FrameError(DecodeError):
    """The stream cannot be cut into frames any more; the connection has to be closed.

    frames: those that the same piece of the stream had before; they are sound.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.frames: list[bytes | memoryview] = []


class FrameSplitter:
    """Cuts a stream into frames of at most `max_frame_bytes` content (Kafka: `socket.request.max.bytes`)."""

    __slots__ = ("_held", "_max_frame_bytes", "_wanted_bytes")

    def __init__(self, max_frame_bytes: int) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._held = bytearray()
        self._wanted_bytes = SIZE_BYTES

    @property
    def missing_bytes(self) -> int:
        """How much of the frame that has begun is still to come; 0 if none has, or its size is not known yet."""
        held_bytes = len(self._held)
        return self._wanted_bytes - held_bytes if held_bytes >= SIZE_BYTES else 0

    def is_whole_frame(self, data: bytes) -> bool:
        """Whether `data`, read next, is exactly one frame, so that `feed` would give it back as it is."""
        content_bytes = len(data) - SIZE_BYTES
        return (
            0 <= content_bytes <= self._max_frame_bytes
            and not self._held
            and int.from_bytes(data[:SIZE_BYTES], "big") == content_bytes
        )

    def clear(self) -> None:
        """Drop the frame that has begun: the stream is over."""
        self._held = bytearray()
        self._wanted_bytes = SIZE_BYTES

    def feed(self, data: bytes) -> list[bytes | memoryview]:
        """The frames that `data` completes, each with its length prefix. Raises `FrameError`."""
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
                if not 0 <= content_bytes <= self._max_frame_bytes:
                    raise _frame_error(bytes(held), self._max_frame_bytes, frames)
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
        """Add the frames from `start` on, and hold what is left of `data`."""
        most_bytes = self._max_frame_bytes
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
    """Return the error for a size that no frame has. Of another protocol it is the first four bytes."""
    content_bytes = int.from_bytes(size_field, "big", signed=True)
    if size_field in _HTTP_METHODS:
        error = FrameError("looks like an HTTP request, not like a Kafka request")
    elif size_field.startswith(_TLS_HANDSHAKE):
        error = FrameError("looks like a TLS handshake, not like a Kafka request")
    elif content_bytes < 0:
        error = FrameError(f"negative frame size {content_bytes}")
    else:
        error = FrameError(f"frame of {content_bytes} bytes, at most {most_bytes} are allowed")
    error.frames = frames
    return error
