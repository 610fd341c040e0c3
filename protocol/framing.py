"""Length-prefixed frames out of a byte stream, in whatever pieces it arrives.

A frame is handed out with its four length bytes still in front, so that the usual case, one read that holds exactly
one frame, needs no copy at all. A frame that arrives in pieces grows in one buffer, which is at most an eighth larger
than what has arrived: nothing is allocated from a length alone, and the number of pieces costs no memory.
"""

from typing import Final

from odradek.protocol.types import DecodeError

SIZE_BYTES = 4
"""Where a frame's content begins."""

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
                self._wanted_bytes = self._frame_end(held, 0)
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
        while size - start >= SIZE_BYTES:
            try:
                end = self._frame_end(data, start)
            except FrameError as error:
                error.frames = frames
                raise
            if end > size:
                self._wanted_bytes = end - start
                break
            frames.append(data[start:end] if end - start <= _COPY_LIMIT_BYTES else memoryview(data)[start:end])
            start = end
        if start < size:
            self._held += memoryview(data)[start:]
        return frames

    def _frame_end(self, data: bytes | bytearray, start: int) -> int:
        content_bytes = int.from_bytes(data[start : start + SIZE_BYTES], "big", signed=True)
        if 0 <= content_bytes <= self._max_frame_bytes:
            return start + SIZE_BYTES + content_bytes
        if (protocol := _other_protocol(bytes(data[start : start + SIZE_BYTES]))) is not None:
            raise FrameError(f"looks like {protocol}, not like a Kafka request")
        if content_bytes < 0:
            raise FrameError(f"negative frame size {content_bytes}")
        raise FrameError(f"frame of {content_bytes} bytes, at most {self._max_frame_bytes} are allowed")


def _other_protocol(first_bytes: bytes) -> str | None:
    """Name the protocol of which a stream with these first bytes most likely is."""
    if first_bytes in _HTTP_METHODS:
        return "an HTTP request"
    if first_bytes.startswith(_TLS_HANDSHAKE):
        return "a TLS handshake"
    return None
