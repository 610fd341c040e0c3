"""Construction of record batches: for internal topics, compaction, markers, recompression and tests.

Sources: Kafka documentation, "Record Batch"; KIP-98, KIP-390 (levels), KIP-534 (delete horizon).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from odradek.protocol.batches.compression import Buffer, Codec, DecompressedTooLargeError, compress, decompress
from odradek.protocol.batches.crc import crc32c
from odradek.protocol.batches.record_batch import (
    ATTRIBUTES_POSITION,
    CODEC_MASK,
    CONTROL_FLAG,
    CRC_POSITION,
    CURRENT_MAGIC,
    DELETE_HORIZON_FLAG,
    HEADER,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD,
    MAX_TIMESTAMP_POSITION,
    NO_PARTITION_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    RECORD_BATCH_OVERHEAD,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    read_header,
    wrap_int64,
)
from odradek.protocol.batches.record_chain import MAX_DECOMPRESSED_BYTES

if TYPE_CHECKING:
    from odradek.protocol.batches.record_reader import Record

HeaderPairs = Sequence[tuple[str, bytes | None]]
RecordFields = tuple[int, bytes | None, bytes | None, HeaderPairs]
"""Timestamp in ms, key, value, headers."""

_UINT32 = Struct(">I")
_INT64 = Struct(">q")
_NULL = b"\x01"


def build_batch(
    records: Iterable[RecordFields],
    *,
    base_offset: int = 0,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    partition_leader_epoch: int = NO_PARTITION_LEADER_EPOCH,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    control: bool = False,
    log_append_time: int | None = None,
    delete_horizon_ms: int | None = None,
) -> bytes:
    """Return a batch of `records` at consecutive offsets from `base_offset`.

    `log_append_time` sets the LogAppendTime bit and is the timestamp of every record. `delete_horizon_ms` sets the
    delete horizon. Raises CompressionError for an unknown codec or level, and DecompressedTooLargeError for records
    that exceed MAX_DECOMPRESSED_BYTES and are to be compressed.
    """
    numbered = ((delta, *fields) for delta, fields in enumerate(records))
    payload, count, first_timestamp, max_timestamp = _encode(numbered, delete_horizon_ms)
    attributes = _attributes(transactional, control, log_append_time, delete_horizon_ms)
    header = BatchHeader(
        base_offset=base_offset,
        batch_length=0,
        partition_leader_epoch=partition_leader_epoch,
        magic=CURRENT_MAGIC,
        crc=0,
        attributes=attributes,
        last_offset_delta=count - 1,
        base_timestamp=first_timestamp,
        max_timestamp=max_timestamp if log_append_time is None else log_append_time,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=count,
    )
    return _assemble(header, codec, payload, level)


def build_plain_batch(
    records: Sequence[tuple[bytes, bytes | None, Any]],
    timestamp_ms: int,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
) -> bytes:
    """Build a batch of (key, value, ignored) tuples without headers; all records have the same timestamp.

    The batch is transactional if `producer_id` is set.
    """
    small = _SMALL_VARINTS
    parts: list[bytes] = []
    for offset_delta, (key, value, _) in enumerate(records):
        delta = small[offset_delta] if offset_delta < _SMALL else _varint(offset_delta)
        key_bytes = small[len(key)] if len(key) < _SMALL else _varint(len(key))
        if value is None:
            value_bytes, value = _NULL, b""
        else:
            value_bytes = small[len(value)] if len(value) < _SMALL else _varint(len(value))
        # Attributes, timestamp delta (both before the offset delta) and header count (at the end) are a zero byte each.
        size = 3 + len(delta) + len(key_bytes) + len(key) + len(value_bytes) + len(value)
        parts += (
            small[size] if size < _SMALL else _varint(size), b"\0\0", delta, key_bytes, key, value_bytes, value, b"\0"
        )  # fmt: skip
    header = BatchHeader(
        base_offset=0,
        batch_length=0,
        partition_leader_epoch=NO_PARTITION_LEADER_EPOCH,
        magic=CURRENT_MAGIC,
        crc=0,
        attributes=0 if producer_id == NO_PRODUCER_ID else TRANSACTIONAL_FLAG,
        last_offset_delta=len(records) - 1,
        base_timestamp=timestamp_ms,
        max_timestamp=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=NO_SEQUENCE,
        record_count=len(records),
    )
    return _assemble(header, Codec.NONE, b"".join(parts), None)


def rebuild_batch(
    header: BatchHeader,
    records: Iterable[Record],
    *,
    delete_horizon_ms: int | None = None,
    level: int | None = None,
) -> bytes:
    """Return the batch of `header` with only `records`, which keep their offsets: the result of compaction.

    First and last offset, leader epoch, producer fields, codec and timestamp type are kept. Base and maximum timestamp
    become those of the remaining records; with LogAppendTime the maximum is kept. `delete_horizon_ms` sets the delete
    horizon; a horizon that is already set is kept if it is None. Without records the result is `empty_batch`. Raises
    DecompressedTooLargeError for records that exceed MAX_DECOMPRESSED_BYTES: another base timestamp can make deltas
    longer.
    """
    if delete_horizon_ms is None:
        delete_horizon_ms = header.delete_horizon_ms
    fields = (
        (record.offset - header.base_offset, record.timestamp, record.key, record.value, record.headers)
        for record in records
    )
    payload, count, first_timestamp, max_timestamp = _encode(fields, delete_horizon_ms)
    if count == 0:
        return empty_batch(header)
    attributes = header.attributes & ~DELETE_HORIZON_FLAG
    rebuilt = header._replace(
        attributes=attributes | (0 if delete_horizon_ms is None else DELETE_HORIZON_FLAG),
        base_timestamp=first_timestamp,
        max_timestamp=header.max_timestamp if header.is_log_append_time else max_timestamp,
        record_count=count,
    )
    return _assemble(rebuilt, header.codec, payload, level)


def empty_batch(header: BatchHeader) -> bytes:
    """Return a batch without records that keeps the offsets, sequence and maximum timestamp of `header`.

    Compaction writes it to keep the last sequence of an active producer, or the last offset of a segment.
    """
    kept_flags = LOG_APPEND_TIME_FLAG | TRANSACTIONAL_FLAG | CONTROL_FLAG
    emptied = header._replace(
        attributes=header.attributes & kept_flags, base_timestamp=NO_TIMESTAMP, record_count=0
    )
    return _assemble(emptied, Codec.NONE, b"", None)


def recompress(
    batch: Buffer, codec: Codec, level: int | None = None, max_bytes: int = MAX_DECOMPRESSED_BYTES
) -> bytes:
    """Return the batch with its records compressed by another codec.

    Only length, codec and CRC change; the other header fields and the record bytes are kept. Raises CompressionError
    if the records cannot be decompressed into `max_bytes` or the level does not exist, and DecompressedTooLargeError if
    they have more bytes than that and are to be compressed.
    """
    header = read_header(batch)
    payload = decompress(header.codec, memoryview(batch)[RECORD_BATCH_OVERHEAD:], max_bytes)
    return _assemble(header, codec, payload, level)


def stamp_log_append_time(batch: bytearray | memoryview, timestamp_ms: int) -> None:
    """Set, in place, the LogAppendTime bit and the maximum timestamp of a batch, and update its CRC.

    Base timestamp and record deltas are kept, as in Kafka: readers ignore them if the bit is set.
    """
    attributes = batch[ATTRIBUTES_POSITION + 1] | LOG_APPEND_TIME_FLAG
    stamp_timestamps(batch, attributes, timestamp_ms)


def stamp_timestamps(batch: bytearray | memoryview, attributes: int, max_timestamp: int) -> None:
    """Set, in place, the low byte of a batch's attributes and its maximum timestamp in ms, and update its CRC."""
    batch[ATTRIBUTES_POSITION + 1] = attributes
    _INT64.pack_into(batch, MAX_TIMESTAMP_POSITION, max_timestamp)
    with memoryview(batch) as view, view[ATTRIBUTES_POSITION:] as checked:
        _UINT32.pack_into(batch, CRC_POSITION, crc32c(checked))


def _attributes(
    transactional: bool, control: bool, log_append_time: int | None, delete_horizon_ms: int | None
) -> int:
    return (
        (TRANSACTIONAL_FLAG if transactional else 0)
        | (CONTROL_FLAG if control else 0)
        | (0 if log_append_time is None else LOG_APPEND_TIME_FLAG)
        | (0 if delete_horizon_ms is None else DELETE_HORIZON_FLAG)
    )


def _assemble(header: BatchHeader, codec: Codec, payload: bytes, level: int | None) -> bytes:
    """Compress the payload and return header and payload as one batch; sets length, codec bits and CRC."""
    compressed = compress_records(codec, payload, level)
    batch = bytearray(RECORD_BATCH_OVERHEAD + len(compressed))
    sized = header._replace(
        batch_length=len(batch) - LOG_OVERHEAD, crc=0, attributes=header.attributes & ~CODEC_MASK | codec
    )
    HEADER.pack_into(batch, 0, *sized)
    batch[RECORD_BATCH_OVERHEAD:] = compressed
    with memoryview(batch) as view, view[ATTRIBUTES_POSITION:] as checked:
        _UINT32.pack_into(batch, CRC_POSITION, crc32c(checked))
    return bytes(batch)


def compress_records(codec: Codec, payload: bytes, level: int | None = None) -> bytes:
    """Compress the record bytes of a batch. Raises DecompressedTooLargeError above MAX_DECOMPRESSED_BYTES."""
    if codec and len(payload) > MAX_DECOMPRESSED_BYTES:
        raise DecompressedTooLargeError(
            f"{len(payload)} bytes of records exceed the limit of {MAX_DECOMPRESSED_BYTES} for compressed batches"
        )
    return compress(codec, payload, level)


def _encode(
    records: Iterable[tuple[int, int, bytes | None, bytes | None, HeaderPairs]],
    base_timestamp: int | None,
) -> tuple[bytes, int, int, int]:
    """Encode (offset delta, timestamp, key, value, headers) tuples.

    Returns record bytes, count, base timestamp and maximum timestamp. The base timestamp defaults to that of the first
    record, and is NO_TIMESTAMP without records.
    """
    output = bytearray()
    max_timestamp = NO_TIMESTAMP
    count = 0
    for offset_delta, timestamp, key, value, headers in records:
        if base_timestamp is None:
            base_timestamp = timestamp
        max_timestamp = max(max_timestamp, timestamp)
        count += 1
        body = bytearray(1)
        put_varint(body, wrap_int64(timestamp - base_timestamp))
        put_varint(body, offset_delta)
        _put_bytes(body, key)
        _put_bytes(body, value)
        put_varint(body, len(headers))
        for header_key, header_value in headers:
            _put_bytes(body, header_key.encode("utf-8", "surrogateescape"))
            _put_bytes(body, header_value)
        put_varint(output, len(body))
        output += body
    return bytes(output), count, NO_TIMESTAMP if base_timestamp is None else base_timestamp, max_timestamp


def _put_bytes(output: bytearray, data: bytes | None) -> None:
    if data is None:
        output += _NULL
    else:
        put_varint(output, len(data))
        output += data


def put_varint(output: bytearray, value: int) -> None:
    """Append a zigzag varint or varlong; both encodings of a value are equal."""
    raw = (value << 1 ^ value >> 63) & 0xFFFFFFFFFFFFFFFF
    while raw > 127:
        output.append(raw & 0x7F | 0x80)
        raw >>= 7
    output.append(raw)


def _varint(value: int) -> bytes:
    output = bytearray()
    put_varint(output, value)
    return bytes(output)


_SMALL: Final = 512
_SMALL_VARINTS: Final = tuple(map(_varint, range(_SMALL)))
