"""Structural check of a batch's records that decodes no record, fast enough to run on every produce.

Each record begins with its length. The chain of lengths must end exactly at the end of the batch, after exactly as many
records as the header states. Inside a record only the timestamp delta is read, which follows the length and a byte of
attributes: the largest delta shows whether the header states the batch's largest timestamp.

A record takes one iteration of a Python loop, which is as short as possible: tables decode lengths of one and two
bytes; a length that is not in the tables raises an exception inside the loop and is decoded completely afterwards.
Successive records usually have the same length. A run of them is compared in C: the length bytes of k records are one
strided slice of the batch.

Usually a single byte of a timestamp delta is compared. The caller passes the delta that it expects to be the largest.
If its encoding has n bytes, byte n of any larger delta is not below byte n of the expected one; only the deltas of
records with such a byte are decoded.
"""

from __future__ import annotations

import sys
from itertools import repeat
from struct import Struct
from struct import error as StructError  # noqa: N812 - see record_batch

from odradek.protocol.batches.compression import Buffer, decompress
from odradek.protocol.batches.record_batch import (
    CODEC_MASK,
    RECORD_BATCH_OVERHEAD,
    InvalidRecordError,
    decode_codec,
    read_header,
)

MAX_DECOMPRESSED_BYTES = 100 * 1024 * 1024
"""Maximum decompressed size of a batch: the default of socket.request.max.bytes, which limits uncompressed batches."""

# Attributes, timestamp delta, offset delta, key length, value length and header count: a byte each.
_MIN_BODY_BYTES = 6
_MAX_LENGTH_BYTES = 5
# From byte 22 on: low byte of the attributes, record count, the first two bytes of the records.
_PEEK_POSITION = 22
_peek = Struct(">B34xiBB").unpack_from

# The distance from a record to the next one. None, and an index past the end of _HIGH, raise before the position is
# changed: they stand for lengths that are negative, too short, over-long or of more than two bytes.
_TABLES_MAX_STRIDE_BYTES = 2**13 + 1
_ONE_BYTE = [
    None if byte & 1 or byte >> 1 < _MIN_BODY_BYTES else (byte >> 1) + 1 for byte in range(128)
]
_LOW = [None if byte & 1 or byte < 128 else (byte & 0x7F) // 2 + 2 for byte in range(256)]
_HIGH = [None, *(byte << 6 for byte in range(1, 128))]

_FEW = 24
# Number of records that are compared first as a run; it grows while records have the same length.
_FIRST_RUN = 16
_RUN_GROWTH = 8
# Records that are followed one by one before a run is tried again. The number grows with each failure.
_FIRST_HOPS = 64
_MAX_HOPS = 4096
# Indexing bytes is twice as fast as indexing a memoryview. Up to this stride a copy takes less time than it saves. Each
# copy is a window that fits into the processor's cache.
_WINDOW_BYTES = 32 * 1024
_WINDOW_MAX_STRIDE_BYTES = 768
# A strided slice of bytes is ten times as fast as one of a memoryview. Up to this stride a copy takes less time than
# it saves.
_COPIED_STRIDE_BYTES = 384
_MAX_RUN_TRIED = 1024

# Timestamp deltas are compared zigzag-encoded: negative deltas are odd numbers; even numbers sort as their deltas do.
_MAX_DELTA_BYTES = 8
_MAX_EXPECTED_DELTA = 1 << 7 * _MAX_DELTA_BYTES - 2
_NEVER = 256
_BELOW = [bytes(range(threshold)) for threshold in range(_NEVER + 1)]
_ODD = bytes(range(1, 256, 2))
_CONTINUED = bytes(range(128, 256))
_SIGNIFICANCE = range(8) if sys.byteorder == "little" else range(7, -1, -1)


class IncompleteRecordError(InvalidRecordError):
    """The data ends before or within the record at `position`; `remaining` records are missing."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message)
        self.position = position
        self.remaining = 0


class LargestDelta:
    """The largest timestamp delta of the records so far, or an expected delta that none of them has reached.

    A record has no larger delta if the byte `ahead` bytes after the first byte of its delta is below `threshold`.
    """

    __slots__ = ("ahead", "is_reached", "is_unknown", "threshold", "zigzag")

    def __init__(self, expected: int) -> None:
        self.is_reached = self.is_unknown = False
        self.zigzag = self.threshold = zigzag = min(expected, _MAX_EXPECTED_DELTA) << 1
        self.ahead = 0
        if zigzag >= 128:
            self._watch_last_byte()

    def _watch_last_byte(self) -> None:
        self.ahead = (self.zigzag.bit_length() - 1) // 7
        self.threshold = self.zigzag >> 7 * self.ahead

    @property
    def value(self) -> int | None:
        """The delta; None if the expected delta was not reached, or a delta has more than 8 bytes."""
        return self.zigzag >> 1 if self.is_reached and not self.is_unknown else None

    def consider(self, data: bytes | memoryview, at: int) -> None:
        """Compare with the delta at `at`. Raises IndexError if the data ends within it."""
        zigzag = shift = 0
        while (byte := data[at]) >= 128:
            zigzag |= (byte & 0x7F) << shift
            shift += 7
            at += 1
            if shift == 7 * _MAX_DELTA_BYTES:
                self.give_up()
                return
        self._take(zigzag | byte << shift)

    def consider_value(self, delta: int) -> None:
        """Compare with a decoded delta."""
        if -_MAX_EXPECTED_DELTA <= delta <= _MAX_EXPECTED_DELTA:
            self._take(delta << 1 ^ delta >> 63)
        else:
            self.give_up()

    def _take(self, zigzag: int) -> None:
        if zigzag >= self.zigzag and not zigzag & 1 and not self.is_unknown:
            self.is_reached = True
            self.zigzag = zigzag
            # An equal delta of a single byte need not be considered again.
            self.threshold = zigzag + 1
            if zigzag >= 128:
                self._watch_last_byte()

    def give_up(self) -> None:
        self.is_unknown = True
        self.ahead, self.threshold = 0, _NEVER

    def consider_run(self, records: bytes | memoryview, at: int, count: int, stride_bytes: int) -> None:
        """Compare with the deltas of records of the same length; the first delta is at `at`."""
        if count == 1:
            self.consider(records, at)
            return
        column = _column(records, at + self.ahead, count, stride_bytes)
        if len(column) == count and not column.translate(None, _BELOW[self.threshold]):
            return
        firsts = column if self.ahead == 0 else _column(records, at, count, stride_bytes)
        if firsts.isascii():
            self._consider_single_bytes(firsts)
        elif firsts.translate(None, _CONTINUED) or not self._consider_numbers(records, at, count, stride_bytes):
            for position in range(at, at + count * stride_bytes, stride_bytes):
                self.consider(records, position)

    def _consider_single_bytes(self, deltas: bytes) -> None:
        while self.ahead == 0 and (rest := deltas.translate(None, _BELOW[self.threshold] + _ODD)):
            deltas = rest
            self.consider(rest, len(rest) - 1)

    def _consider_numbers(self, records: bytes | memoryview, at: int, count: int, stride_bytes: int) -> bool:
        """Compare with deltas of the same number of bytes; return False if the numbers differ or the largest is odd.

        The encoded bytes are compared as 64-bit integers, with the last byte as the most significant.
        """
        numbers = bytearray(8 * count)
        for index in range(_MAX_DELTA_BYTES):
            column = _column(records, at + index, count, stride_bytes)
            if len(column) < count:
                return False
            numbers[_SIGNIFICANCE[index] :: 8] = column
            if column.isascii():
                greatest = max(memoryview(numbers).cast("Q"))
                if not greatest & 1:
                    self.consider(greatest.to_bytes(8, "little"), 0)
                return not greatest & 1
            if column.translate(None, _CONTINUED):
                return False
        return False


def _column(records: bytes | memoryview, start: int, count: int, stride_bytes: int) -> bytes:
    """Return one byte of each of `count` records of the same length; fewer if the data ends before."""
    return bytes(records[start : start + (count - 1) * stride_bytes + 1 : stride_bytes])


def check_record_chain(
    batch: Buffer, expected_delta: int = 0, max_bytes: int = MAX_DECOMPRESSED_BYTES
) -> int | None:
    """Check that the chain of record lengths covers the batch's record bytes exactly and matches its record count.

    `batch` is exactly one batch. Compressed records are decompressed first. Returns the largest timestamp delta; None
    if all are below `expected_delta` (>= 0), or one has more than 8 bytes. Raises InvalidRecordError if the check
    fails, and CompressionError if the records cannot be decompressed into `max_bytes`.
    """
    try:
        attributes, count, first, second = _peek(batch, _PEEK_POSITION)
    except StructError as error:
        if len(batch) == RECORD_BATCH_OVERHEAD and read_header(batch).record_count == 0:
            return None
        raise InvalidRecordError(f"batch of {len(batch)} bytes is too short") from error
    if attributes & CODEC_MASK:
        records = memoryview(batch)[RECORD_BATCH_OVERHEAD:]
        return check_records(decompress(decode_codec(attributes), records, max_bytes), count, expected_delta)[1]
    if count == 1 and not first & 1:
        # The most frequent batch by far has one record with a length of one or two bytes and delta 0.
        if first < 128:
            if first >= 2 * _MIN_BODY_BYTES and 62 + (first >> 1) == len(batch) and not batch[63]:
                return None if expected_delta else 0
        elif 0 < second < 128 and (second << 6) + (first >> 1) - 1 == len(batch) and not batch[64]:
            return None if expected_delta else 0
    data = batch if isinstance(batch, bytes) else memoryview(batch)
    end = len(data)
    if 0 < count <= _FEW and _follow_few(data, RECORD_BATCH_OVERHEAD, count, expected_delta << 1) == end:
        return expected_delta
    largest = LargestDelta(expected_delta)
    _check_count(count, end - RECORD_BATCH_OVERHEAD)
    position = follow_records(data, RECORD_BATCH_OVERHEAD, count, largest)
    if position != end:
        raise InvalidRecordError(f"{end - position} bytes left after {count} records")
    return largest.value


def check_records(data: bytes | memoryview, count: int, expected_delta: int = 0) -> tuple[int, int | None]:
    """Check records as `check_record_chain` does; `data` begins with the first record.

    Returns the position of the last record and the largest timestamp delta.
    """
    largest = LargestDelta(expected_delta)
    _check_count(count, len(data))
    last = follow_records(data, 0, max(0, count - 1), largest)
    position = _hop_with_care(data, last, largest) if count else 0
    if position != len(data):
        raise InvalidRecordError(f"{len(data) - position} bytes left after {count} records")
    return last, largest.value


def _check_count(count: int, size_bytes: int) -> None:
    if not 0 <= count * (_MIN_BODY_BYTES + 1) <= size_bytes:
        raise InvalidRecordError(f"{count} records in {size_bytes} bytes")


def _follow_few(data: bytes | memoryview, position: int, count: int, expected: int) -> int:
    """Return the position after `count` records whose largest delta is `expected`, a zigzag-encoded single byte.

    Returns -1 if the largest delta is another one, or if a record's length is not in the tables.
    """
    one_byte, low, high = _ONE_BYTE, _LOW, _HIGH
    threshold = expected
    try:
        for _ in repeat(None, count):
            byte = data[position]
            if byte < 128:
                delta = data[position + 2]
                position += one_byte[byte]  # type: ignore[operator]
            else:
                delta = data[position + 3]
                position += low[byte] + high[data[position + 1]]  # type: ignore[operator]
            if delta >= threshold:
                if delta > expected or delta > 127:
                    return -1
                threshold = expected + 1
    except (IndexError, TypeError):
        return -1
    return position if threshold > expected else -1


def follow_records(data: bytes | memoryview, position: int, count: int, largest: LargestDelta) -> int:
    """Return the position after `count` records. Raises InvalidRecordError; IncompleteRecordError if the data ends."""
    if count <= _FEW:
        # The search for a run would take more time than it saves.
        return _hop(data, position, count, (len(data) - position) // (count or 1), largest)
    hops = _FIRST_HOPS
    remaining = count
    while remaining:
        try:
            run, stride_bytes = _follow_run(data, position, remaining, largest)
        except IncompleteRecordError as error:
            error.remaining = remaining
            raise
        position += run * stride_bytes
        remaining -= run
        if run >= _FIRST_RUN:
            # The next run often begins at the end of this one: a length grows by a byte with the offset delta.
            hops = _FIRST_HOPS
            continue
        hops = min(hops * 4, _MAX_HOPS)
        step = min(remaining, hops)
        remaining -= step
        try:
            position = _hop(data, position, step, stride_bytes, largest)
        except IncompleteRecordError as error:
            error.remaining += remaining
            raise
    return position


def _follow_run(
    data: bytes | memoryview, position: int, remaining: int, largest: LargestDelta
) -> tuple[int, int]:
    """Return the number of records from `position` on that have the length of the first, and its stride.

    The returned run may be shorter than the actual one: it is an optimization only.
    """
    stride_bytes, length_bytes = _read_stride(data, position)
    length = bytes(data[position : position + length_bytes])
    most = min(remaining, (len(data) - position) // stride_bytes)
    run = 0
    tried = _FIRST_RUN
    while run < most:
        tried = min(tried, most - run)
        start = position + run * stride_bytes
        records = data[start : start + tried * stride_bytes]
        if stride_bytes <= _COPIED_STRIDE_BYTES:
            records = bytes(records)
        matched = tried
        for index in range(length_bytes):
            byte = length[index : index + 1]
            column = _column(records, index, tried, stride_bytes)
            if column != byte * tried:
                matched = min(matched, tried - len(column.lstrip(byte)))
        if matched:
            largest.consider_run(records, length_bytes + 1, matched, stride_bytes)
        run += matched
        if matched < tried:
            break
        tried = min(tried * _RUN_GROWTH, _MAX_RUN_TRIED)
    return run, stride_bytes


def _hop(
    data: bytes | memoryview, position: int, count: int, stride_bytes: int, largest: LargestDelta
) -> int:
    """Return the position after `count` records, followed one by one. `stride_bytes` is the estimated usual stride."""
    if stride_bytes > _TABLES_MAX_STRIDE_BYTES:
        for remaining in range(count, 0, -1):
            position = _hop_counted(data, position, remaining, largest)
        return position
    one_byte, low, high = _ONE_BYTE, _LOW, _HIGH
    window_bytes = _WINDOW_BYTES if stride_bytes <= _WINDOW_MAX_STRIDE_BYTES else len(data)
    window = data
    start = 0
    while count:
        if isinstance(data, memoryview) and (start + len(window) - position < _MAX_LENGTH_BYTES or window is data):
            window = data if window_bytes == len(data) else bytes(data[position : position + window_bytes])
            start = 0 if window is data else position
        here = position - start
        # Position of the compared byte in a record with a length of one byte, and of two bytes.
        after_one, after_two, threshold = 2 + largest.ahead, 3 + largest.ahead, largest.threshold
        steps = repeat(None, count)
        try:
            for _ in steps:
                byte = window[here]
                if byte < 128:
                    if window[here + after_one] >= threshold:
                        largest.consider(window, here + 2)
                        after_one, after_two, threshold = 2 + largest.ahead, 3 + largest.ahead, largest.threshold
                    here += one_byte[byte]  # type: ignore[operator]
                else:
                    after = here + low[byte] + high[window[here + 1]]  # type: ignore[operator]
                    if window[here + after_two] >= threshold:
                        largest.consider(window, here + 3)
                        after_one, after_two, threshold = 2 + largest.ahead, 3 + largest.ahead, largest.threshold
                    here = after
            return start + here
        except (IndexError, TypeError):
            count = steps.__length_hint__()
            position = _hop_counted(data, start + here, count + 1, largest)
    return position


def _hop_counted(data: bytes | memoryview, position: int, remaining: int, largest: LargestDelta) -> int:
    try:
        return _hop_with_care(data, position, largest)
    except IncompleteRecordError as error:
        error.remaining = remaining
        raise


def _hop_with_care(data: bytes | memoryview, position: int, largest: LargestDelta) -> int:
    stride_bytes, length_bytes = _read_stride(data, position)
    try:
        largest.consider(data, position + length_bytes + 1)
    except IndexError:
        largest.give_up()
    return position + stride_bytes


def _read_stride(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """Return the distance to the next record and the size of the length field. Raises InvalidRecordError."""
    raw = 0
    for index, byte in enumerate(data[position : position + _MAX_LENGTH_BYTES]):
        raw |= (byte & 0x7F) << 7 * index
        if byte < 128:
            body_bytes = (raw & 0xFFFFFFFF) >> 1
            stride_bytes = index + 1 + body_bytes
            if raw & 1 or body_bytes < _MIN_BODY_BYTES:
                raise InvalidRecordError(f"record at byte {position} has an invalid length")
            if stride_bytes > len(data) - position:
                raise IncompleteRecordError(
                    f"record at byte {position} states {body_bytes} bytes where {len(data) - position} remain", position
                )
            return stride_bytes, index + 1
    message = f"no record length at byte {position} of {len(data)}"
    if len(data) - position < _MAX_LENGTH_BYTES:
        raise IncompleteRecordError(message, position)
    raise InvalidRecordError(message)
