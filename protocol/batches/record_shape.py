"""Check of a single record's layout, and its deltas, without an object for the record.

Source: Kafka documentation, "Record".
"""

from __future__ import annotations

from typing import Final

from odradek.protocol.batches.compression import Buffer
from odradek.protocol.batches.record_batch import InvalidRecordError
from odradek.protocol.batches.record_chain import IncompleteRecordError

MAX_HEADERS: Final = 1000
"""Maximum number of headers of a record that is checked at once: each takes about half a microsecond."""
MAX_VARINT_BYTES: Final = 10


class StepLimitError(Exception):
    """Work would take more than about two milliseconds, and has to be done in steps.

    position: position of the record with too many headers, if that is the cause; `RecordStream` reads it in steps
    """

    def __init__(self, position: int = 0) -> None:
        super().__init__()
        self.position = position


def check_record(records: Buffer, position: int) -> tuple[int, int, bool, int]:
    """Return timestamp delta, offset delta, whether the record has a key, and the position after the record.

    Raises InvalidRecordError unless the fields fill the record's length exactly, IncompleteRecordError if the record is
    longer than the data, StepLimitError.
    """
    return open_record(records, position, MAX_HEADERS)[:4]


def open_record(records: Buffer, position: int, max_headers: int) -> tuple[int, int, bool, int, int]:
    """Check a record with at most `max_headers` headers as `check_record` does; also return the header count."""
    try:
        length, start = read_varint(records, position)
    except IndexError:
        raise IncompleteRecordError("a record is incomplete", position) from None
    end = start + length
    if length < 0:
        raise InvalidRecordError(f"a record has {length} bytes")
    if end > len(records):
        raise IncompleteRecordError("a record is longer than its batch", position)
    try:
        timestamp_delta, at = read_varint(records, start + 1)
        offset_delta, at = read_varint(records, at)
        key_bytes, at = read_varint(records, at)
        at += max(0, key_bytes)
        value_bytes, at = read_varint(records, at)
        at += max(0, value_bytes)
        headers, at = read_varint(records, at)
        if headers:
            if headers < 0 or headers > end - at:
                raise InvalidRecordError(f"a record states {headers} headers")
            if headers > max_headers or headers > MAX_HEADERS:
                raise StepLimitError(position)
            for _ in range(headers):
                name_bytes, at = read_varint(records, at)
                if name_bytes < 0:
                    raise InvalidRecordError("a header has no name")
                header_bytes, at = read_varint(records, at + name_bytes)
                at += max(0, header_bytes)
    except IndexError:
        raise InvalidRecordError("a record is incomplete") from None
    if at != end:
        raise InvalidRecordError(f"a record of {length} bytes has {at - start} bytes of content")
    return timestamp_delta, offset_delta, key_bytes >= 0, end, headers


def read_varint(buffer: Buffer, position: int) -> tuple[int, int]:
    """Return a zigzag varint of up to 64 bits and the position after it. Raises IndexError if it is truncated."""
    byte = buffer[position]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    value, shift = byte & 0x7F, 7
    while True:
        position += 1
        byte = buffer[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position + 1
        shift += 7
        if shift > 63:
            raise InvalidRecordError("a varint is longer than 10 bytes")
