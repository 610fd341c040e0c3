"""Length-prefixed frames out of a byte stream, in whatever pieces it arrives.

A frame is handed out with its four length bytes still in front, so that the usual case, one read that holds exactly
one frame, needs no copy at all. A frame that arrives in pieces is joined once, when it is whole: nothing is
allocated from a length alone.
"""

from odradek.protocol.types import DecodeError

SIZE_BYTES = 4
"""Where a frame's content begins."""

_COPY_LIMIT_BYTES = 65536


class FrameError(DecodeError):
    """The stream cannot be cut into frames any more; the connection has to be closed.

    frames: those that the same piece of the stream had before; they are sound.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.frames: list[bytes | memoryview] = []


class FrameSplitter:
    """Cuts a stream into frames of at most `max_frame_bytes` content (Kafka: `socket.request.max.bytes`)."""

    __slots__ = ("_held_bytes", "_max_frame_bytes", "_pieces", "_wanted_bytes")

    def __init__(self, max_frame_bytes: int) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._pieces: list[bytes | memoryview] = []
        self._held_bytes = 0
        self._wanted_bytes = SIZE_BYTES

    @property
    def missing_bytes(self) -> int:
        """How much of the frame that has begun is still to come; 0 if none has, or its size is not known yet."""
        return self._wanted_bytes - self._held_bytes if self._held_bytes >= SIZE_BYTES else 0

    def is_whole_frame(self, data: bytes) -> bool:
        """Whether `data`, read next, is exactly one frame, so that `feed` would give it back as it is."""
        content_bytes = len(data) - SIZE_BYTES
        return (
            0 <= content_bytes <= self._max_frame_bytes
            and not self._held_bytes
            and int.from_bytes(data[:SIZE_BYTES], "big") == content_bytes
        )

    def feed(self, data: bytes) -> list[bytes | memoryview]:
        """The frames that `data` completes, each with its length prefix. Raises `FrameError`."""
        size = len(data)
        if self._held_bytes:
            if self._held_bytes + size < self._wanted_bytes:
                self._pieces.append(data)
                self._held_bytes += size
                return []
            data = b"".join((*self._pieces, data))
            size = len(data)
            self._pieces.clear()
            self._held_bytes = 0
            self._wanted_bytes = SIZE_BYTES
        if self.is_whole_frame(data):
            return [data]
        return self._split(data, size)

    def _split(self, data: bytes, size: int) -> list[bytes | memoryview]:
        frames: list[bytes | memoryview] = []
        start = 0
        while size - start >= SIZE_BYTES:
            try:
                end = self._frame_end(data, start)
            except FrameError as error:
                error.frames = frames
                raise
            if end > size:
                break
            frames.append(data[start:end] if end - start <= _COPY_LIMIT_BYTES else memoryview(data)[start:end])
            start = end
        if start < size:
            self._hold(data, start, size)
        return frames

    def _hold(self, data: bytes, start: int, size: int) -> None:
        self._pieces.append(data[start:])
        self._held_bytes = size - start
        self._wanted_bytes = SIZE_BYTES
        if self._held_bytes >= SIZE_BYTES:
            self._wanted_bytes = self._frame_end(data, start) - start

    def _frame_end(self, data: bytes, start: int) -> int:
        content_bytes = int.from_bytes(data[start : start + SIZE_BYTES], "big", signed=True)
        if content_bytes < 0:
            raise FrameError(f"negative frame size {content_bytes}")
        if content_bytes > self._max_frame_bytes:
            raise FrameError(f"frame of {content_bytes} bytes, at most {self._max_frame_bytes} are allowed")
        return start + SIZE_BYTES + content_bytes
