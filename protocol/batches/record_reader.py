"""Decoding of record batches to one object per record, where the content of records is needed.

Produce and fetch leave records closed; `record_chain` checks them.

Source: Kafka documentation, "Record"; varints are zigzag-encoded as in Protocol Buffers.
"""

from __future__ import annotations

from collections.abc import Iterator

from odradek.protocol.batches.compression import Buffer, decompress
from odradek.protocol.batches.record_batch import (
    RECORD_BATCH_OVERHEAD,
    BatchHeader,
    InvalidRecordError,
    read_header,
    wrap_int64,
)
from odradek.protocol.batches.record_chain import MAX_DECOMPRESSED_BYTES

Headers = tuple[tuple[str, bytes | None], ...]

_UINT32_MASK = 0xFFFFFFFF
_UINT64_MASK = (1 << 64) - 1
_VARINT_BYTES = 5
_VARLONG_BYTES = 10
_LEAST_RECORD_BYTES = 7


class Record:
    """A record: absolute offset, timestamp in ms, key and value (None is null), headers in their order.

    Bytes of a header key that are not UTF-8 are kept as surrogate escapes, so that the key can be written unchanged.
    """

    __slots__ = ("headers", "key", "offset", "timestamp", "value")

    def __init__(
        self, offset: int, timestamp: int, key: bytes | None, value: bytes | None, headers: Headers = ()
    ) -> None:
        self.offset = offset
        self.timestamp = timestamp
        self.key = key
        self.value = value
        self.headers = headers

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Record):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in Record.__slots__)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return (
            f"Record(offset={self.offset}, timestamp={self.timestamp}, key={self.key!r}, value={self.value!r}, "
            f"headers={self.headers!r})"
        )


def iter_records(batch: Buffer, max_bytes: int = MAX_DECOMPRESSED_BYTES) -> Iterator[Record]:
    """Iterate over the records of exactly one batch; each is checked when it is decoded.

    Raises, possibly after some records: InvalidRecordError for any violation of the format, including bytes behind the
    last record; CompressionError if the records cannot be decompressed into `max_bytes`.
    """
    header = read_header(batch)
    count = header.record_count
    if header.codec:
        data = decompress(header.codec, memoryview(batch)[RECORD_BATCH_OVERHEAD:], max_bytes)
        position = 0
    else:
        data = bytes(batch)
        position = RECORD_BATCH_OVERHEAD
    if not 0 <= count * _LEAST_RECORD_BYTES <= len(data) - position:
        raise InvalidRecordError(f"{count} records in {len(data) - position} bytes")
    for _ in range(count):
        try:
            record, position = _read_record(data, position, header)
        except IndexError as error:
            raise InvalidRecordError(f"record at byte {position} is truncated") from error
        yield record
    if position != len(data):
        raise InvalidRecordError(f"{len(data) - position} bytes left after {count} records")


def _read_record(data: bytes, position: int, header: BatchHeader) -> tuple[Record, int]:
    body_bytes, position = _read_varint(data, position)
    end = position + body_bytes
    if body_bytes < 0 or end > len(data):
        raise InvalidRecordError(f"record at byte {position} states {body_bytes} bytes of {len(data) - position}")
    # The first byte, attributes, is unused.
    timestamp_delta, position = _read_varlong(data, position + 1)
    offset_delta, position = _read_varint(data, position)
    key, position = _read_bytes(data, position, end)
    value, position = _read_bytes(data, position, end)
    header_count, position = _read_varint(data, position)
    headers: Headers = ()
    if header_count:
        headers, position = _read_headers(data, position, end, header_count)
    if position != end:
        raise InvalidRecordError(f"record states {body_bytes} bytes but its fields end {end - position} before")
    timestamp = wrap_int64(header.base_timestamp + timestamp_delta)
    if header.is_log_append_time:
        timestamp = header.max_timestamp
    return Record(wrap_int64(header.base_offset + offset_delta), timestamp, key, value, headers), position


def _read_headers(data: bytes, position: int, end: int, count: int) -> tuple[Headers, int]:
    if not 0 <= count <= end - position:
        raise InvalidRecordError(f"{count} record headers in {end - position} bytes")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        key, position = _read_bytes(data, position, end)
        if key is None:
            raise InvalidRecordError("record header with a null key")
        value, position = _read_bytes(data, position, end)
        headers.append((key.decode("utf-8", "surrogateescape"), value))
    return tuple(headers), position


def _read_bytes(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    """Read length-prefixed bytes; any negative length is null."""
    size_bytes, position = _read_varint(data, position)
    if size_bytes < 0:
        return None, position
    stop = position + size_bytes
    if stop > end:
        raise InvalidRecordError(f"field at byte {position} states {size_bytes} bytes where {end - position} remain")
    return data[position:stop], stop


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    byte = data[position]
    if byte < 128:
        return (byte >> 1) ^ -(byte & 1), position + 1
    raw, position = _read_unsigned(data, position, _VARINT_BYTES)
    raw &= _UINT32_MASK
    return (raw >> 1) ^ -(raw & 1), position


def _read_varlong(data: bytes, position: int) -> tuple[int, int]:
    raw, position = _read_unsigned(data, position, _VARLONG_BYTES)
    raw &= _UINT64_MASK
    return (raw >> 1) ^ -(raw & 1), position


def _read_unsigned(data: bytes, position: int, most_bytes: int) -> tuple[int, int]:
    raw = shift = 0
    for position in range(position, position + most_bytes):  # noqa: B020 - starts at the number's position
        byte = data[position]
        raw |= (byte & 0x7F) << shift
        if byte < 128:
            return raw, position + 1
        shift += 7
    raise InvalidRecordError(f"number longer than {most_bytes} bytes before byte {position}")
