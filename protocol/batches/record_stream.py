"""Records of a large batch, read in steps, with a window of their bytes in memory.

Every generator here yields after at most about half a millisecond of work, or yields a call for a thread
(`streaming.Step`). No object is created per record. Of a record that is larger than the window only the small parts
are read.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Final

from odradek.protocol.batches.record_batch import InvalidRecordError
from odradek.protocol.batches.record_chain import IncompleteRecordError, LargestDelta, follow_records
from odradek.protocol.batches.record_shape import MAX_VARINT_BYTES, StepLimitError, check_record, read_varint
from odradek.protocol.batches.streaming import PIECE_BYTES, Step, StreamPiece, ThreadCall

FOLLOWED_PER_STEP: Final = 4096
"""Records whose lengths are followed in one step; each takes up to 0.1 microseconds."""
OPENED_PER_STEP: Final = 256
"""Records, or headers of a record, that are parsed in one step; each takes about 2 microseconds."""
_DELTAS_MAX_BYTES: Final = 1 + 3 * MAX_VARINT_BYTES
"""Length, attributes, timestamp delta and offset delta."""

RecordDeltas = tuple[int, int, bool]
"""Timestamp delta, offset delta, whether the record has a key."""


class RecordStream:
    """The record bytes of one batch; records are read in order.

    window: the bytes in memory
    position: start of the next record in the window; beyond its end if bytes have to be skipped
    """

    __slots__ = ("_is_at_end", "_pieces", "_start", "position", "window")

    def __init__(self, pieces: Iterator[StreamPiece]) -> None:
        self._pieces = pieces
        self._start = 0
        self._is_at_end = False
        self.window = b""
        self.position = 0

    @property
    def read_bytes(self) -> int:
        """Number of bytes before `position`."""
        return self._start + self.position

    def fill(self) -> Generator[Step, None, bool]:
        """Drop the bytes before `position` and add a piece. Return False at the end of the data."""
        piece = next(self._pieces, None)
        if piece is None:
            self._is_at_end = True
            return False
        if isinstance(piece, ThreadCall):
            yield piece
            return True
        rest = self.window[self.position :]
        dropped_bytes = len(self.window) - len(rest)
        self._start += dropped_bytes
        self.position -= dropped_bytes
        self.window = rest + piece if rest else piece
        yield None
        return True

    def follow(self, count: int, largest: LargestDelta) -> Generator[Step, None, None]:
        """Advance by `count` records; only their lengths and timestamp deltas are read."""
        while count:
            step = min(count, FOLLOWED_PER_STEP)
            try:
                self.position = follow_records(self.window, self.position, step, largest)
            except IncompleteRecordError as error:
                count -= step - error.remaining
                self.position = error.position
                if len(self.window) - self.position < PIECE_BYTES:
                    yield from self._fill_up()
                else:
                    delta_at = read_varint(self.window, self.position)[1] + 1
                    largest.consider(self.window, delta_at)
                    yield from self._read_large()
                    count -= 1
            else:
                count -= step
                yield None

    def read_record(self) -> Generator[Step, None, RecordDeltas]:
        """Parse the next record."""
        while True:
            try:
                timestamp_delta, offset_delta, has_key, self.position = check_record(self.window, self.position)
                return timestamp_delta, offset_delta, has_key
            except StepLimitError:
                return (yield from self._read_large())
            except IncompleteRecordError:
                if len(self.window) - self.position >= PIECE_BYTES:
                    return (yield from self._read_large())
            yield from self._fill_up()

    def fill_deltas(self) -> Generator[Step, None, None]:
        """Extend the window to the next record's length and deltas."""
        while self.lacks_deltas:
            yield from self.fill()

    @property
    def lacks_deltas(self) -> bool:
        """Return whether `fill_deltas` has to be called."""
        return len(self.window) - self.position < _DELTAS_MAX_BYTES and not self._is_at_end

    def expect_end(self) -> Generator[Step, None, None]:
        """Raise InvalidRecordError unless all bytes have been read."""
        while self.position >= len(self.window):
            if not (yield from self.fill()):
                break
        left_bytes = len(self.window) - self.position
        if left_bytes:
            raise InvalidRecordError(
                f"{left_bytes} or more bytes follow the last record"
                if left_bytes > 0
                else f"the last record states {-left_bytes} bytes more than the batch has"
            )

    def _fill_up(self) -> Generator[Step, None, None]:
        if not (yield from self.fill()):
            raise InvalidRecordError(f"the record at byte {self.read_bytes} is longer than its batch")

    def _read_large(self) -> Generator[Step, None, RecordDeltas]:
        length = yield from self._read_varint()
        start = self.read_bytes
        self.position += 1
        timestamp_delta = yield from self._read_varint()
        offset_delta = yield from self._read_varint()
        key_bytes = yield from self._read_varint()
        self.position += max(0, key_bytes)
        value_bytes = yield from self._read_varint()
        self.position += max(0, value_bytes)
        headers = yield from self._read_varint()
        if not 0 <= headers <= start + length - self.read_bytes:
            raise InvalidRecordError(f"a record states {headers} headers")
        for index in range(headers):
            name_bytes = yield from self._read_varint()
            if name_bytes < 0:
                raise InvalidRecordError("a header has no name")
            self.position += name_bytes
            header_bytes = yield from self._read_varint()
            self.position += max(0, header_bytes)
            if index % OPENED_PER_STEP == 0:
                yield None
        if self.read_bytes != start + length:
            raise InvalidRecordError(f"a record of {length} bytes has {self.read_bytes - start} bytes of content")
        return timestamp_delta, offset_delta, key_bytes >= 0

    def _read_varint(self) -> Generator[Step, None, int]:
        while len(self.window) - self.position < MAX_VARINT_BYTES and (yield from self.fill()):
            pass
        try:
            value, self.position = read_varint(self.window, self.position)
        except IndexError:
            raise InvalidRecordError("a record is incomplete") from None
        return value
