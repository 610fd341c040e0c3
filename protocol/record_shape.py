"""Taking one record apart without keeping it: is it laid out as the format says, and what are its deltas?

Source: Kafka documentation, "Record".
"""

from __future__ import annotations

from typing import Final

from odradek.protocol.compression import Buffer
from odradek.protocol.record_batch import InvalidRecordError
from odradek.protocol.record_chain import IncompleteRecordError

MOST_HEADERS: Final = 1000
"""Of a record that is taken apart at once: each header takes about half a microsecond."""
MOST_VARINT_BYTES: Final = 10


class TakesLongError(Exception):
    """The work takes more than about two milliseconds: it has to be done in steps.

    position: of the record that has too many headers, if that is why; `RecordStream` reads it in steps
    """

    def __init__(self, position: int = 0) -> None:
        super().__init__()
        self.position = position


def check_record(records: Buffer, position: int) -> tuple[int, int, bool, int]:
    """Return timestamp delta, offset delta, whether there is a key, and where the record ends.

    Raises InvalidRecordError unless its parts fill its length exactly, IncompleteRecordError if it is longer than the
    data, TakesLongError.
    """
    return open_record(records, position, MOST_HEADERS)[:4]


def open_record(records: Buffer, position: int, most_headers: int) -> tuple[int, int, bool, int, int]:
    """As `check_record`, with the number of headers, of which there may be so many."""
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
                raise InvalidRecordError(f"a record announces {headers} headers")
            if headers > most_headers or headers > MOST_HEADERS:
                raise TakesLongError(position)
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
    """A zigzag varint of up to 64 bits and the position behind it. IndexError if it is cut off."""
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
