"""A structural check of a batch's records that opens none of them, fast enough to run on every produce.

Each record starts with its length. Hopping from length to length must end exactly where the batch ends, after
exactly as many records as the header states. What is inside a record is not looked at.

A hop costs one turn of a Python loop, so the loop is as short as can be: lengths of one and two bytes go through
tables, and whatever the tables do not hold raises inside the loop and is then looked at with care. Where
successive records have the same length, as they mostly have, a whole run is compared at once in C: the length
bytes of k records are one strided slice of the batch.
"""

from __future__ import annotations

from itertools import repeat
from struct import Struct
from struct import error as StructError  # noqa: N812 - see record_batch

from odradek.protocol.compression import Buffer, decompress
from odradek.protocol.record_batch import (
    CODEC_MASK,
    RECORD_BATCH_OVERHEAD,
    InvalidRecordError,
    codec_of,
    read_header,
)

MAX_DECOMPRESSED_BYTES = 100 * 1024 * 1024
"""What a compressed batch may hold: as much as a request may carry uncompressed (socket.request.max.bytes)."""

# Attributes, timestamp delta, offset delta, key length, value length and header count: a byte each.
_MIN_BODY_BYTES = 6
_MAX_LENGTH_BYTES = 5
# From byte 22: low byte of the attributes, record count, the first two bytes of the records.
_PEEK_POSITION = 22
_peek = Struct(">B34xiBB").unpack_from

# What to add to the position of a record to reach the next one. None, and an index past the end of _HIGH, raise
# before the position is changed: negative, too short, over-long and longer lengths.
_TABLES_MAX_STRIDE_BYTES = 2**13 + 1
_ONE_BYTE = [
    None if byte & 1 or byte >> 1 < _MIN_BODY_BYTES else (byte >> 1) + 1 for byte in range(128)
]
_LOW = [None if byte & 1 or byte < 128 else (byte & 0x7F) // 2 + 2 for byte in range(256)]
_HIGH = [None, *(byte << 6 for byte in range(1, 128))]

_FEW = 24
# A run is tried on this many records, then on ever more while it holds.
_RUN_FIRST = 16
_RUN_GROWTH = 8
# How many records are hopped over one by one before a run is tried again: more after each failure.
_HOPS_FIRST = 64
_HOPS_MOST = 4096
# Indexing bytes is twice as fast as indexing a memoryview. Up to this distance between two lengths, that is worth
# a copy, made window by window so that it stays in the processor's cache.
_WINDOW_BYTES = 32 * 1024
_WINDOW_MAX_STRIDE_BYTES = 768


def check_record_chain(batch: Buffer, max_bytes: int = MAX_DECOMPRESSED_BYTES) -> None:
    """Check that the record lengths chain exactly over the batch's record bytes and give its record count.

    `batch` is exactly one batch. Compressed records are decompressed first. Raises InvalidRecordError if the chain
    is broken; CompressionError if the records cannot be decompressed into at most `max_bytes`.
    """
    try:
        attributes, count, first, second = _peek(batch, _PEEK_POSITION)
    except StructError as error:
        if len(batch) == RECORD_BATCH_OVERHEAD and read_header(batch).record_count == 0:
            return
        raise InvalidRecordError(f"batch of {len(batch)} bytes is too short") from error
    if attributes & CODEC_MASK:
        records = memoryview(batch)[RECORD_BATCH_OVERHEAD:]
        _check_chain(decompress(codec_of(attributes), records, max_bytes), 0, count)
        return
    if count == 1 and not first & 1:
        # By far the most frequent batch of all has one record with a length of one or two bytes.
        if first < 128:
            if first >= 2 * _MIN_BODY_BYTES and 62 + (first >> 1) == len(batch):
                return
        elif 0 < second < 128 and (second << 6) + (first >> 1) - 1 == len(batch):
            return
    _check_chain(batch if isinstance(batch, bytes) else memoryview(batch), RECORD_BATCH_OVERHEAD, count)


def _check_chain(data: bytes | memoryview, position: int, count: int) -> None:
    end = len(data)
    if not 0 <= count * (_MIN_BODY_BYTES + 1) <= end - position:
        raise InvalidRecordError(f"{count} records in {end - position} bytes")
    hops = _HOPS_FIRST
    remaining = count
    if count <= _FEW:
        # A run would not pay for being looked for.
        position = _hop(data, position, count, (end - position) // (count or 1))
        remaining = 0
    while remaining:
        run, stride_bytes = _uniform_run(data, position, remaining)
        position += run * stride_bytes
        remaining -= run
        hops = _HOPS_FIRST if run >= _RUN_FIRST else min(hops * 4, _HOPS_MOST)
        step = min(remaining, hops)
        position = _hop(data, position, step, stride_bytes)
        remaining -= step
    if position != end:
        raise InvalidRecordError(f"{end - position} bytes left after {count} records")


def _uniform_run(data: bytes | memoryview, position: int, remaining: int) -> tuple[int, int]:
    """How many records from `position` on have the length of the first, by the first few bytes or more; its stride.

    The run may be cut short: it is a short cut, not a promise.
    """
    stride_bytes, length_bytes = _read_stride(data, position)
    most = min(remaining, (len(data) - position) // stride_bytes)
    run = 1
    tried = _RUN_FIRST
    while run < most:
        tried = min(tried, most - run)
        start = position + run * stride_bytes
        matched = tried
        for index in range(length_bytes):
            byte = data[position + index : position + index + 1]
            column = bytes(data[start + index : start + index + (tried - 1) * stride_bytes + 1 : stride_bytes])
            if column != bytes(byte) * tried:
                matched = min(matched, tried - len(column.lstrip(byte)))
        run += matched
        if matched < tried:
            break
        tried *= _RUN_GROWTH
    return run, stride_bytes


def _hop(data: bytes | memoryview, position: int, count: int, stride_bytes: int) -> int:
    """The position after `count` more records, found record by record. `stride_bytes` is a guess of the usual one."""
    if stride_bytes > _TABLES_MAX_STRIDE_BYTES:
        for _ in repeat(None, count):
            position += _read_stride(data, position)[0]
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
        steps = repeat(None, count)
        try:
            for _ in steps:
                byte = window[here]
                here += one_byte[byte] if byte < 128 else low[byte] + high[window[here + 1]]  # type: ignore[operator]
            return start + here
        except (IndexError, TypeError):
            position = start + here
            count = steps.__length_hint__()
            position += _read_stride(data, position)[0]
    return position


def _read_stride(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """Bytes from this record to the next, and how many of them are the length. Raises InvalidRecordError."""
    raw = 0
    for index, byte in enumerate(data[position : position + _MAX_LENGTH_BYTES]):
        raw |= (byte & 0x7F) << 7 * index
        if byte < 128:
            body_bytes = (raw & 0xFFFFFFFF) >> 1
            stride_bytes = index + 1 + body_bytes
            if raw & 1 or body_bytes < _MIN_BODY_BYTES:
                raise InvalidRecordError(f"record at byte {position} has no valid length")
            if stride_bytes > len(data) - position:
                raise InvalidRecordError(
                    f"record at byte {position} states {body_bytes} bytes where {len(data) - position} remain"
                )
            return stride_bytes, index + 1
    raise InvalidRecordError(f"no record length at byte {position} of {len(data)}")
