"""Checks of a batch's header, and of its records against the header."""

from collections.abc import Iterator
from typing import Final

from odradek.protocol.batches.compression import CompressionError, decompress
from odradek.protocol.batches.record_batch import (
    CONTROL_FLAG,
    LOG_APPEND_TIME_FLAG,
    NO_TIMESTAMP,
    RECORD_BATCH_OVERHEAD,
    InvalidRecordError,
    decode_codec,
    wrap_int64,
)
from odradek.protocol.batches.record_chain import MAX_DECOMPRESSED_BYTES
from odradek.protocol.batches.record_shape import read_varint
from odradek.tools.logs.findings import Severity

_LEAST_RECORD_BYTES: Final = 7
_LEAST_TAIL_BYTES: Final = 3
"""Key length, value length and header count, a byte each."""
_MAX_DELTA: Final = 1 << 64

Flaw = tuple[Severity, str]


def find_header_flaws(fields: tuple[int, ...]) -> Iterator[Flaw]:
    """Yield the flaws of a batch's header that need no other batch and no record."""
    last_delta, max_timestamp, producer_id, epoch, count = fields[6], fields[8], fields[9], fields[10], fields[12]
    if last_delta < 0:
        yield Severity.ERROR, f"the last offset delta is {last_delta}"
    elif not 0 <= count <= last_delta + 1:
        yield Severity.ERROR, f"the header states {count} records for {last_delta + 1} offsets"
    if producer_id >= 0 and epoch < 0:
        yield Severity.ERROR, f"producer {producer_id} has epoch {epoch}"
    if max_timestamp < -1:
        yield Severity.WARNING, f"the largest timestamp is {max_timestamp}"
    if fields[5] & CONTROL_FLAG and count > 1 and producer_id >= 0:
        yield Severity.ERROR, f"a transaction marker has {count} records"


def find_record_flaws(fields: tuple[int, ...], batch: memoryview) -> Iterator[Flaw]:
    """Yield the flaws of a batch's records: their structure, offsets and timestamps."""
    attributes, last_delta, count = fields[5], fields[6], fields[12]
    try:
        records = decompress(decode_codec(attributes), batch[RECORD_BATCH_OVERHEAD:], MAX_DECOMPRESSED_BYTES)
        if not 0 <= count * _LEAST_RECORD_BYTES <= len(records):
            raise InvalidRecordError(f"{count} records in {len(records)} bytes")
        problem, largest = _follow_records(records, count, last_delta)
    except (InvalidRecordError, CompressionError) as error:
        problem, largest = f"the records cannot be read: {error}", None
    if problem is not None:
        yield Severity.ERROR, problem
    elif count and largest is not None and not attributes & LOG_APPEND_TIME_FLAG:
        timestamp = wrap_int64(fields[7] + largest)
        if max(timestamp, NO_TIMESTAMP) != fields[8]:
            yield Severity.WARNING, f"the header has the largest timestamp {fields[8]}, the records have {timestamp}"


def _follow_records(records: bytes, count: int, last_delta: int) -> tuple[str | None, int | None]:
    """Return the first flaw of the records' offsets, and the largest timestamp delta. Raises InvalidRecordError.

    Only the fields before the key are decoded: lengths, timestamp deltas and offset deltas. Numbers of one or two
    bytes are decoded in the loop, because a call would take longer than all other steps of a record.
    """
    position, expected, largest = 0, 0, -_MAX_DELTA
    is_complete = count == last_delta + 1
    try:
        for _ in range(count):
            first, second = records[position], records[position + 1]
            if first < 128:
                length, at = (first >> 1) ^ -(first & 1), position + 2
            else:
                length, at = read_varint(records, position)
                at += 1
            position = at - 1 + length
            first, second = records[at], records[at + 1]
            if first < 128:
                timestamp_delta, at = (first >> 1) ^ -(first & 1), at + 1
            else:
                timestamp_delta, at = read_varint(records, at)
            first, second = records[at], records[at + 1]
            if first < 128:
                offset_delta, at = (first >> 1) ^ -(first & 1), at + 1
            elif second < 128:
                number = first & 0x7F | second << 7
                offset_delta, at = (number >> 1) ^ -(number & 1), at + 2
            else:
                offset_delta, at = read_varint(records, at)
            if offset_delta != expected and (is_complete or not expected <= offset_delta <= last_delta):
                return _describe_offset(offset_delta, expected, last_delta), None
            expected = offset_delta + 1
            if timestamp_delta > largest:
                largest = timestamp_delta
            if at + _LEAST_TAIL_BYTES > position:
                raise InvalidRecordError(f"the record at offset delta {offset_delta} has {length} bytes")
    except IndexError:
        raise InvalidRecordError("a record is incomplete") from None
    if position != len(records):
        raise InvalidRecordError(f"the records end at byte {position} of {len(records)}")
    return None, largest


def _describe_offset(offset_delta: int, expected: int, last_delta: int) -> str:
    return f"a record has offset delta {offset_delta}, expected from {expected} to {last_delta}"
