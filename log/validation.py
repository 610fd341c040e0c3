"""What a batch must satisfy before it is appended, in Apache Kafka's order and with its errors.

Batches stay closed where they can. Of the records of a batch the lengths are followed from the first to the last and
the timestamps read on the way; the first and the last record are taken apart. All are only in small batches, and where
a rule needs each: keys on a compacted topic, a lower bound for timestamps.

The largest timestamp in the header of a stored batch is that of its records, whatever the client stated. Retention,
rolling, the time index and ListOffsets rely on it.
"""

from enum import IntEnum
from typing import NamedTuple

from odradek.log.config import LogConfig
from odradek.properties import INT64_MAX
from odradek.protocol.compression import Codec, CompressionError, DecompressedTooLargeError, decompress
from odradek.protocol.crc import crc32c
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.record_batch import (
    ATTRIBUTES_POSITION,
    CODEC_MASK,
    HEADER,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD,
    NO_TIMESTAMP,
    RECORD_BATCH_OVERHEAD,
    BatchHeader,
    InvalidRecordError,
    read_header,
    wrap_int64,
)
from odradek.protocol.record_chain import MAX_DECOMPRESSED_BYTES, check_records
from odradek.protocol.records import build_batch, iter_records, recompress

_MAGIC_AT = 16
_MIN_DECLARED_LENGTH = 14
_ZSTD_SINCE_VERSION = 7
# Up to this many records, each is taken apart: it costs less than following the lengths saves.
FEW_RECORDS = 4
_KEY_AND_VALUE = (0, 1)

TARGET_CODECS = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}


class Origin(IntEnum):
    """Who asks for an append: it says how much is checked."""

    CLIENT = 0
    COORDINATOR = 1
    REPLICATION = 2


class RejectedRecordsError(KafkaError):
    """Single records break a rule; `record_errors` has (index in the batch, what is wrong) for each (KIP-467)."""

    def __init__(self, code: ErrorCode, message: str, record_errors: list[tuple[int, str]]) -> None:
        super().__init__(code, message)
        self.record_errors = record_errors


class NotOneBatchError(KafkaError):
    """What was sent for a partition is not one batch that its version of Produce allows; the log was not looked at."""


class CheckedBatch(NamedTuple):
    """A batch fit to be appended once its base offset and leader epoch are stamped.

    The first 16 bytes of `head` are those to be stamped; `head` and `rest` together are the batch.
    """

    header: BatchHeader
    head: bytes | memoryview
    rest: bytes | memoryview


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, message)


def split_batches(records: memoryview) -> list[memoryview]:
    """The whole batches in what was sent; an incomplete one at the end is ignored.

    Raises KafkaError CORRUPT_MESSAGE for a length or a magic that no batch has.
    """
    batches = []
    position, end = 0, len(records)
    while end - position >= LOG_OVERHEAD:
        length = int.from_bytes(records[position + 8 : position + 12], "big", signed=True)
        if length < _MIN_DECLARED_LENGTH:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"batch length {length} is below the smallest possible")
        if end - position <= _MAGIC_AT:
            break
        magic = records[position + _MAGIC_AT]
        if magic > 2:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"unknown magic {magic}")
        if end - position < LOG_OVERHEAD + length:
            break
        batches.append(records[position : position + LOG_OVERHEAD + length])
        position += LOG_OVERHEAD + length
    return batches


def produced_batches(records: memoryview, origin: Origin, produce_version: int) -> list[memoryview]:
    """`split_batches` and what holds for them together: at least one, of magic 2; from a client exactly one."""
    batches = split_batches(records)
    if not batches:
        raise NotOneBatchError(ErrorCode.INVALID_RECORD, "there is no complete record batch")
    if any(batch[_MAGIC_AT] != 2 for batch in batches):
        raise NotOneBatchError(ErrorCode.INVALID_RECORD, "only record batches of magic 2 are accepted")
    if origin == Origin.CLIENT:
        if len(batches) > 1:
            raise NotOneBatchError(
                ErrorCode.INVALID_RECORD, "there is more than one record batch for the partition"
            )
        zstd = len(batches[0]) > 22 and batches[0][22] & CODEC_MASK == Codec.ZSTD
        if zstd and produce_version < _ZSTD_SINCE_VERSION:
            raise NotOneBatchError(
                ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce version 7 or later"
            )
    return batches


def check_shallow(batch: memoryview, config: LogConfig, origin: Origin) -> BatchHeader:
    """The checks that need only the header and the checksum. Raises KafkaError."""
    if len(batch) < RECORD_BATCH_OVERHEAD:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"a batch of {len(batch)} bytes has no whole header")
    header = read_header(batch)
    if origin == Origin.CLIENT and header.base_offset != 0:
        raise _invalid(f"the base offset of a produced batch must be 0, not {header.base_offset}")
    if origin != Origin.REPLICATION and len(batch) > config.max_message_bytes:
        raise too_large(len(batch), config)
    if crc32c(batch[ATTRIBUTES_POSITION:]) != header.crc:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "the checksum of the batch does not match its content")
    return header


def too_large(size_bytes: int, config: LogConfig) -> KafkaError:
    return KafkaError(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"the batch has {size_bytes} bytes, max.message.bytes allows {config.max_message_bytes}",
    )


def check_batch(batch: memoryview, config: LogConfig, origin: Origin, now_ms: int) -> CheckedBatch:
    """All checks of one batch that a leader appends, but those of its producer's state. Raises KafkaError.

    The result differs from the input where the topic has another codec or LogAppendTime, the header states a wrong
    largest timestamp, or the offset deltas are not 0, 1, 2...
    """
    header = check_shallow(batch, config, origin)
    codec = header.attributes & CODEC_MASK
    if codec > Codec.ZSTD:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"unknown compression codec {codec}")
    if origin == Origin.CLIENT:
        _check_client_header(header)
    target = TARGET_CODECS.get(config.compression_type, Codec(codec))
    if header.is_control and codec == Codec.NONE:
        target = Codec.NONE
    if origin == Origin.COORDINATOR and codec == target == Codec.NONE:
        # Made by this broker a moment ago.
        return _stamped(batch, header, header.max_timestamp, config, now_ms)
    max_timestamp, is_numbered = check_batch_records(header, batch, codec, config, now_ms)
    if not is_numbered or target != codec:
        batch = _rewritten(batch, header, target, config, must_renumber=not is_numbered)
        header = read_header(batch)
    return _stamped(batch, header, max_timestamp, config, now_ms)


def _check_client_header(header: BatchHeader) -> None:
    if header.last_offset_delta < 0 or header.record_count <= 0:
        raise _invalid(f"{header.record_count} records with last offset delta {header.last_offset_delta}")
    if header.record_count != header.last_offset_delta + 1:
        raise _invalid(f"{header.record_count} records do not fit last offset delta {header.last_offset_delta}")
    if header.is_control:
        raise _invalid("clients must not write control records")
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise _invalid(f"sequence {header.base_sequence} of producer {header.producer_id} is negative")


def _decompressed(codec: int, payload: memoryview) -> memoryview:
    try:
        return memoryview(decompress(Codec(codec), payload, MAX_DECOMPRESSED_BYTES))
    except DecompressedTooLargeError as error:
        raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f"the batch is too large decompressed: {error}") from None
    except CompressionError as error:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"the batch cannot be decompressed: {error}") from None


def _level(codec: Codec, config: LogConfig) -> int | None:
    if codec == Codec.GZIP:
        return config.compression_gzip_level
    if codec == Codec.LZ4:
        return config.compression_lz4_level
    return config.compression_zstd_level if codec == Codec.ZSTD else None


def _rewritten(
    batch: memoryview, header: BatchHeader, target: Codec, config: LogConfig, *, must_renumber: bool
) -> memoryview:
    """The batch in the codec it is stored in, with offset deltas 0, 1, 2... if it has others.

    Old clients write others in compressed batches. In plain ones too they would make consumers skip records, and
    compaction keep a value whose tombstone it drops; Apache Kafka stores those as they are. Raises KafkaError
    MESSAGE_TOO_LARGE for a batch above max.message.bytes, and for records that have become too large to be decompressed
    again.
    """
    try:
        if must_renumber:
            source = bytearray(batch)
            # The timestamps that were checked, also if the client states that there is one for all records.
            source[ATTRIBUTES_POSITION + 1] &= ~LOG_APPEND_TIME_FLAG
            rewritten = build_batch(
                ((record.timestamp, record.key, record.value, record.headers) for record in iter_records(source)),
                codec=target,
                level=_level(target, config),
                producer_id=header.producer_id,
                producer_epoch=header.producer_epoch,
                base_sequence=header.base_sequence,
                transactional=header.is_transactional,
            )
        else:
            rewritten = recompress(batch, target, _level(target, config))
    except DecompressedTooLargeError as error:
        raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f"the batch cannot be stored: {error}") from None
    except InvalidRecordError as error:
        raise _invalid(str(error)) from None
    if len(rewritten) > config.max_message_bytes:
        raise too_large(len(rewritten), config)
    return memoryview(rewritten)


def _stamped(
    batch: memoryview, header: BatchHeader, max_timestamp: int, config: LogConfig, now_ms: int
) -> CheckedBatch:
    """Give the header the timestamp type and largest timestamp it must have, and a checksum to match."""
    attributes = header.attributes & ~LOG_APPEND_TIME_FLAG
    if config.message_timestamp_type == "LogAppendTime":
        attributes |= LOG_APPEND_TIME_FLAG
        max_timestamp = now_ms
    if attributes == header.attributes and max_timestamp == header.max_timestamp:
        return CheckedBatch(header, batch[:RECORD_BATCH_OVERHEAD], batch[RECORD_BATCH_OVERHEAD:])
    header = header._replace(attributes=attributes, max_timestamp=max_timestamp)
    rest = batch[RECORD_BATCH_OVERHEAD:]
    checksum = crc32c(rest, crc32c(HEADER.pack(*header)[ATTRIBUTES_POSITION:]))
    header = header._replace(crc=checksum)
    return CheckedBatch(header, HEADER.pack(*header), rest)


def check_batch_records(
    header: BatchHeader, batch: memoryview, codec: int, config: LogConfig, now_ms: int
) -> tuple[int, bool]:
    """Check the records in a batch. Raises KafkaError INVALID_RECORD, INVALID_TIMESTAMP or MESSAGE_TOO_LARGE.

    Returns the largest timestamp, and whether the records have offset deltas 0, 1, 2..., as far as they were opened.
    """
    records = batch[RECORD_BATCH_OVERHEAD:]
    if codec != Codec.NONE:
        records = _decompressed(codec, records)
    client_set_type = bool(header.attributes & LOG_APPEND_TIME_FLAG)
    if header.record_count > FEW_RECORDS and not (client_set_type or config.compacts):
        last, largest_delta = _follow_records(header, records)
        offset_deltas = check_record(records, 0)[1], check_record(records, last)[1]
        is_numbered = offset_deltas == (0, header.last_offset_delta)
        if config.message_timestamp_type == "LogAppendTime":
            return header.max_timestamp, is_numbered
        # Otherwise some may lie below the lower bound, or be a sum that leaves the 64 bits.
        if largest_delta is not None and header.base_timestamp >= NO_TIMESTAMP:
            max_timestamp = header.base_timestamp + largest_delta
            if (
                max_timestamp <= min(now_ms + config.message_timestamp_after_max_ms, INT64_MAX)
                and config.message_timestamp_before_max_ms == INT64_MAX
            ):
                return max_timestamp, is_numbered
    return _check_each_record(header, records, config, now_ms, client_set_type)


def _follow_records(header: BatchHeader, records: memoryview) -> tuple[int, int | None]:
    """The position of the last record, and the largest timestamp delta if it can be told without opening each."""
    try:
        last, largest_delta = check_records(
            records, header.record_count, max(0, header.max_timestamp - header.base_timestamp)
        )
        if largest_delta is None:
            # The header states a later timestamp than any record has.
            last, largest_delta = check_records(records, header.record_count)
    except InvalidRecordError as error:
        raise _invalid(str(error)) from None
    return last, largest_delta


def _check_each_record(
    header: BatchHeader, records: memoryview, config: LogConfig, now_ms: int, client_set_type: bool
) -> tuple[int, bool]:
    create_time = config.message_timestamp_type == "CreateTime"
    earliest = now_ms - config.message_timestamp_before_max_ms
    latest = now_ms + config.message_timestamp_after_max_ms
    needs_key = config.compacts and not header.is_control
    errors: list[tuple[int, str]] = []
    code = ErrorCode.INVALID_RECORD
    max_timestamp, position, is_numbered = NO_TIMESTAMP, 0, True
    for index in range(header.record_count):
        timestamp_delta, offset_delta, has_key = check_record(records, position)
        length, start = read_varint(records, position)
        timestamp = wrap_int64(header.base_timestamp + timestamp_delta)
        position = start + length
        is_numbered = is_numbered and offset_delta == index
        max_timestamp = max(max_timestamp, timestamp)
        if needs_key and not has_key:
            errors.append((index, "a compacted topic takes no record without a key"))
        elif create_time and timestamp != NO_TIMESTAMP:
            if not earliest <= timestamp <= latest:
                code = ErrorCode.INVALID_TIMESTAMP
                errors.append((index, f"timestamp {timestamp} is outside of {earliest} to {latest}"))
        elif client_set_type:
            code = ErrorCode.INVALID_TIMESTAMP
            errors.append((index, "producers must not set the timestamp type LogAppendTime"))
    if position != len(records):
        raise _invalid(f"{len(records) - position} bytes are left behind the last record")
    if errors:
        what = "an invalid timestamp" if code == ErrorCode.INVALID_TIMESTAMP else f"{len(errors)} record errors"
        raise RejectedRecordsError(code, f"the batch was rejected because of {what}: {errors[0][1]}", errors)
    return max_timestamp, is_numbered


def is_sound_first(batch: memoryview) -> bool:
    """Whether the first record of a plain batch, whose length is known to be right, is laid out well.

    The quick half of `check_record`: it knows only a record without deltas and headers, with parts below 8 KiB. False
    for another says nothing.
    """
    try:
        byte = batch[61]
        if byte < 0x80:
            at = 62
        else:
            if (second := batch[62]) >= 0x80:
                return False
            byte += (second - 1) << 7
            at = 63
        end = at + (byte >> 1)
        if batch[at + 1] or batch[at + 2]:
            return False
        at += 3
        for _ in _KEY_AND_VALUE:
            byte = batch[at]
            at += 1
            if byte >= 0x80:
                if (second := batch[at]) >= 0x80:
                    return False
                byte += (second - 1) << 7
                at += 1
            if byte != 1:
                if byte & 1:
                    return False
                at += byte >> 1
        return not batch[at] and at + 1 == end
    except IndexError:
        return False


def check_record(records: memoryview, position: int) -> tuple[int, int, bool]:
    """Take one record apart without keeping it: (timestamp delta, offset delta, whether it has a key).

    Raises KafkaError INVALID_RECORD unless its parts fill its length exactly.
    """
    try:
        length, start = read_varint(records, position)
        end = start + length
        if length < 0 or end > len(records):
            raise _invalid("a record is longer than its batch")
        timestamp_delta, at = read_varint(records, start + 1)
        offset_delta, at = read_varint(records, at)
        key_bytes, at = read_varint(records, at)
        at += max(0, key_bytes)
        value_bytes, at = read_varint(records, at)
        at += max(0, value_bytes)
        headers, at = read_varint(records, at)
        if headers < 0 or headers > end - at:
            raise _invalid(f"a record announces {headers} headers")
        for _ in range(headers):
            name_bytes, at = read_varint(records, at)
            if name_bytes < 0:
                raise _invalid("a header has no name")
            header_bytes, at = read_varint(records, at + name_bytes)
            at += max(0, header_bytes)
    except IndexError:
        raise _invalid("a record is incomplete") from None
    if at != end:
        raise _invalid(f"a record of {length} bytes has {at - start} bytes of content")
    return timestamp_delta, offset_delta, key_bytes >= 0


def read_varint(buffer: memoryview, position: int) -> tuple[int, int]:
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
            raise _invalid("a varint is longer than 10 bytes")
