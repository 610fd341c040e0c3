"""Validation of a batch before its append, in Apache Kafka's order and with its errors.

Most batches are checked without parsing all records: only the lengths and timestamps of the records are read, and the
first and the last record are parsed. Every record is parsed in small batches, and if a rule applies to each record:
keys on a compacted topic, a lower bound for timestamps.

The largest timestamp in the header of a stored batch is that of its records, even if the client sent another one.
Retention, rolling, the time index and ListOffsets rely on it.
"""

from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from odradek.log.config import LogConfig
from odradek.log.validation.record import RecordCheck
from odradek.properties import INT64_MAX
from odradek.protocol.batches.batch_builder import recompress
from odradek.protocol.batches.compression import Codec, CompressionError, DecompressedTooLargeError, decompress
from odradek.protocol.batches.crc import crc32c
from odradek.protocol.batches.record_batch import (
    ATTRIBUTES_POSITION,
    BATCH_LENGTH,
    CODEC_MASK,
    FLAGS_POSITION,
    HEADER,
    LENGTH_POSITION,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD,
    MAGIC_POSITION,
    NO_TIMESTAMP,
    RECORD_BATCH_OVERHEAD,
    BatchHeader,
    InvalidRecordError,
    read_header,
)
from odradek.protocol.batches.record_chain import check_records
from odradek.protocol.batches.record_shape import StepLimitError, check_record
from odradek.protocol.batches.streaming import run_steps
from odradek.protocol.errors import ErrorCode, KafkaError

_MIN_DECLARED_LENGTH = 14
_ZSTD_SINCE_VERSION = 7
# A batch with at most this many records is parsed completely, which takes no longer than reading the lengths only.
FEW_RECORDS = 4
_KEY_AND_VALUE = (0, 1)

# Limits of a check in one step, which then takes at most about two milliseconds; `long_batch` has no such limits.
MAX_RECORDS_PER_STEP = 16384
"""Records whose lengths are read."""
MAX_PARSED_RECORDS_PER_STEP = 1024
"""Records that are parsed or renumbered."""
MAX_HEADERS_PER_STEP = 4096
"""Headers of all parsed records."""
MAX_DECOMPRESSED_BYTES_PER_STEP = 1 << 20
MAX_COMPRESSED_PARTS_PER_STEP = 256
"""Compressed members, frames and blocks."""
MAX_REWRITTEN_BYTES_PER_STEP = 16 * 1024
"""Uncompressed bytes that are compressed: the default of a producer's batch.size."""

TARGET_CODECS = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}


class Origin(IntEnum):
    """Origin of an append, which determines the checks."""

    CLIENT = 0
    COORDINATOR = 1
    REPLICATION = 2


class StepwiseValidationRequired(Exception):  # noqa: N818 - not an error
    """A batch takes too long to check in one step: run `long_batch.check_in_steps`, then append with its result.

    The header of `batch` has been checked against `config`.
    """

    def __init__(self, batch: memoryview, config: LogConfig) -> None:
        super().__init__()
        self.batch = batch
        self.config = config


class CheckedRecords(NamedTuple):
    """A batch whose records satisfy `config`, rewritten if necessary, and the largest timestamp of its records."""

    config: LogConfig
    header: BatchHeader
    batch: memoryview
    max_timestamp: int


class NotOneBatchError(KafkaError):
    """A produce request has not exactly one batch, of a format its version allows, for a partition.

    The log was not accessed.
    """


class InvalidMagicError(NotOneBatchError):
    """A batch has an earlier format."""


class InvalidOffsetOrSequenceError(KafkaError):
    """INVALID_RECORD: the offsets, the number of records or the sequence number in a batch's header are impossible."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.INVALID_RECORD, message)


class CheckedBatch(NamedTuple):
    """A valid batch, to be appended after its base offset and leader epoch are set.

    `head` and `rest` together are the batch; the first 16 bytes of `head` will be replaced.
    """

    header: BatchHeader
    head: bytes | memoryview
    rest: bytes | memoryview


def invalid_record(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, message)


def split_batches(records: memoryview) -> list[memoryview]:
    """Return the complete batches in `records`. Raises as `find_batches`."""
    return list(find_batches(records))


def chunk_batches(records: memoryview, max_batches: int, max_bytes: int) -> Iterator[memoryview]:
    """Divide `records` into views of whole batches, each with one batch or within both limits.

    Raises as `find_batches`, when the iteration reaches the batch; for a single batch that is left to its reader.
    """
    rest_bytes = len(records) - LOG_OVERHEAD
    if rest_bytes >= 0 and BATCH_LENGTH.unpack_from(records, LENGTH_POSITION)[0] == rest_bytes:
        yield records
        return
    begin = end = count = 0
    for batch in find_batches(records):
        if count and (count == max_batches or end - begin + len(batch) > max_bytes):
            yield records[begin:end]
            begin, count = end, 0
        end += len(batch)
        count += 1
    if count:
        yield records[begin:end]


def find_batches(records: memoryview) -> Iterator[memoryview]:
    """Iterate over the complete batches in `records`; an incomplete one at the end is ignored.

    Raises KafkaError CORRUPT_MESSAGE for an impossible length or an unknown magic.
    """
    position, end = 0, len(records)
    while end - position >= LOG_OVERHEAD:
        length: int = BATCH_LENGTH.unpack_from(records, position + LENGTH_POSITION)[0]
        if length < _MIN_DECLARED_LENGTH:
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE, f"batch length {length} is below the minimum {_MIN_DECLARED_LENGTH}"
            )
        if end - position <= MAGIC_POSITION:
            break
        magic = records[position + MAGIC_POSITION]
        if magic > 2:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"unknown magic {magic}")
        if end - position < LOG_OVERHEAD + length:
            break
        yield records[position : position + LOG_OVERHEAD + length]
        position += LOG_OVERHEAD + length


def produced_batches(records: memoryview, origin: Origin, produce_version: int) -> list[memoryview]:
    """Divide `records` into batches: at least one, of magic 2; from a client exactly one. Raises KafkaError."""
    batches = split_batches(records)
    if not batches:
        raise NotOneBatchError(ErrorCode.INVALID_RECORD, "there is no complete record batch")
    if any(batch[MAGIC_POSITION] != 2 for batch in batches):
        raise InvalidMagicError(ErrorCode.INVALID_RECORD, "only record batches of magic 2 are accepted")
    if origin == Origin.CLIENT:
        if len(batches) > 1:
            raise NotOneBatchError(ErrorCode.INVALID_RECORD, "there is more than one record batch for the partition")
        zstd = len(batches[0]) > FLAGS_POSITION and batches[0][FLAGS_POSITION] & CODEC_MASK == Codec.ZSTD
        if zstd and produce_version < _ZSTD_SINCE_VERSION:
            raise NotOneBatchError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce version 7 or later")
    return batches


def check_shallow(batch: memoryview, config: LogConfig, origin: Origin) -> BatchHeader:
    """Run the checks that need only the header and the checksum. Raises KafkaError."""
    if len(batch) < RECORD_BATCH_OVERHEAD:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"a batch of {len(batch)} bytes has no complete header")
    header = read_header(batch)
    if origin == Origin.CLIENT and header.base_offset != 0:
        raise InvalidOffsetOrSequenceError(f"the base offset of a produced batch must be 0, not {header.base_offset}")
    # A marker ends a transaction regardless of a topic's current limit.
    is_marker = origin == Origin.COORDINATOR and header.is_control
    if len(batch) > config.max_message_bytes and origin != Origin.REPLICATION and not is_marker:
        raise too_large(len(batch), config)
    if crc32c(batch[ATTRIBUTES_POSITION:]) != header.crc:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "the checksum of the batch does not match its content")
    return header


def too_large(size_bytes: int, config: LogConfig) -> KafkaError:
    """Return the error MESSAGE_TOO_LARGE for a batch of `size_bytes`."""
    return KafkaError(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"the batch has {size_bytes} bytes, max.message.bytes allows {config.max_message_bytes}",
    )


def check_batch(batch: memoryview, config: LogConfig, origin: Origin, now_ms: int) -> CheckedBatch:
    """Run all checks of one batch that a leader appends, except those of the producer state. Raises KafkaError.

    The result differs from `batch` if the topic has another codec or LogAppendTime, if the largest timestamp in the
    header is wrong, or if the offset deltas are not 0, 1, 2... Raises StepwiseValidationRequired, after the checks of
    the header, for a client's batch whose records take more than about two milliseconds.
    """
    header = check_shallow(batch, config, origin)
    codec = header.attributes & CODEC_MASK
    if codec > Codec.ZSTD:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"unknown compression codec {codec}")
    if origin == Origin.CLIENT:
        _check_client_header(header)
    if origin == Origin.COORDINATOR and codec == target_codec(header, config) == Codec.NONE:
        # This broker has built the batch.
        return stamp(CheckedRecords(config, header, batch, header.max_timestamp), now_ms)
    try:
        max_timestamp, is_numbered, size_bytes = check_batch_records(header, batch, codec, config, now_ms)
        checked = CheckedRecords(config, header, batch, max_timestamp)
        if not is_numbered or target_codec(header, config) != codec:
            checked = _rewritten(checked, size_bytes, is_numbered)
    except StepLimitError:
        if origin == Origin.CLIENT:
            raise StepwiseValidationRequired(batch, config) from None
        from odradek.log.validation.long_batch import check_in_steps

        checked = run_steps(check_in_steps(batch, config, now_ms))
    return stamp(checked, now_ms)


def _rewritten(checked: CheckedRecords, size_bytes: int, is_numbered: bool) -> CheckedRecords:
    """Return the batch in the topic's codec, with offset deltas 0, 1, 2... Raises KafkaError, StepLimitError."""
    config, header, batch, _ = checked
    if size_bytes > MAX_REWRITTEN_BYTES_PER_STEP or header.record_count > MAX_PARSED_RECORDS_PER_STEP:
        raise StepLimitError
    if not is_numbered:
        from odradek.log.validation.long_batch import rewrite_in_steps

        return run_steps(rewrite_in_steps(checked, size_bytes, is_numbered))
    target = target_codec(header, config)
    rewritten = memoryview(recompress(batch, target, compression_level(target, config)))
    if len(rewritten) > config.max_message_bytes:
        raise too_large(len(rewritten), config)
    return checked._replace(header=read_header(rewritten), batch=rewritten)


def target_codec(header: BatchHeader, config: LogConfig) -> Codec:
    """Return the codec in which the log stores a batch."""
    codec = Codec(header.attributes & CODEC_MASK)
    if header.is_control and codec == Codec.NONE:
        return Codec.NONE
    return TARGET_CODECS.get(config.compression_type, codec)


def _check_client_header(header: BatchHeader) -> None:
    if header.last_offset_delta < 0 or header.record_count <= 0:
        raise InvalidOffsetOrSequenceError(
            f"a batch has record count {header.record_count} and last offset delta {header.last_offset_delta}"
        )
    if header.record_count != header.last_offset_delta + 1:
        raise InvalidOffsetOrSequenceError(
            f"record count {header.record_count} does not match last offset delta {header.last_offset_delta}"
        )
    if header.is_control:
        raise invalid_record("clients must not write control records")
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise InvalidOffsetOrSequenceError(
            f"sequence {header.base_sequence} of producer {header.producer_id} is negative"
        )


def _decompressed(codec: int, payload: memoryview) -> bytes:
    try:
        return decompress(Codec(codec), payload, MAX_DECOMPRESSED_BYTES_PER_STEP, MAX_COMPRESSED_PARTS_PER_STEP)
    except DecompressedTooLargeError:
        raise StepLimitError from None
    except CompressionError as error:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"the batch cannot be decompressed: {error}") from None


def compression_level(codec: Codec, config: LogConfig) -> int | None:
    """Return the topic's level for a codec; None for a codec without levels."""
    if codec == Codec.GZIP:
        return config.compression_gzip_level
    if codec == Codec.LZ4:
        return config.compression_lz4_level
    return config.compression_zstd_level if codec == Codec.ZSTD else None


def stamp(checked: CheckedRecords, now_ms: int) -> CheckedBatch:
    """Set the timestamp type, the largest timestamp and the checksum in the header of a checked batch."""
    config, header, batch, max_timestamp = checked
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
) -> tuple[int, bool, int]:
    """Check the records in a batch. Raises KafkaError INVALID_RECORD, INVALID_TIMESTAMP; StepLimitError.

    Returns the largest timestamp, whether the parsed records have offset deltas 0, 1, 2..., and the decompressed size.
    """
    parses_all = needs_each_record(header, config)
    if header.record_count > (MAX_PARSED_RECORDS_PER_STEP if parses_all else MAX_RECORDS_PER_STEP):
        raise StepLimitError
    payload = batch[RECORD_BATCH_OVERHEAD:]
    records = _decompressed(codec, payload) if codec else payload
    try:
        if not parses_all:
            last, largest_delta = _follow_records(header, records)
            offset_deltas = check_record(records, 0)[1], check_record(records, last)[1]
            is_numbered = offset_deltas == (0, header.last_offset_delta)
            if config.message_timestamp_type == "LogAppendTime":
                return header.max_timestamp, is_numbered, len(records)
            max_timestamp = accepted_timestamp(header, largest_delta, config, now_ms)
            if max_timestamp is not None:
                return max_timestamp, is_numbered, len(records)
            if header.record_count > MAX_PARSED_RECORDS_PER_STEP:
                raise StepLimitError
        check = RecordCheck(header, config, now_ms)
        end = check.check_all(records, 0, header.record_count, MAX_HEADERS_PER_STEP)
        if end != len(records):
            raise invalid_record(f"{len(records) - end} bytes follow the last record")
    except InvalidRecordError as error:
        raise invalid_record(str(error)) from None
    check.raise_errors()
    return check.max_timestamp, check.is_numbered, len(records)


def needs_each_record(header: BatchHeader, config: LogConfig) -> bool:
    """Return whether all records of a batch are parsed, rather than the first and the last only."""
    client_set_type = header.attributes & LOG_APPEND_TIME_FLAG
    return header.record_count <= FEW_RECORDS or config.compacts or bool(client_set_type)


def accepted_timestamp(header: BatchHeader, largest_delta: int | None, config: LogConfig, now_ms: int) -> int | None:
    """Return the largest timestamp if it implies that all timestamps are within the bounds; otherwise None."""
    # A record's timestamp, base + delta, may be below the lower bound or overflow 64 bits.
    if largest_delta is None or header.base_timestamp < NO_TIMESTAMP:
        return None
    max_timestamp = header.base_timestamp + largest_delta
    latest = min(now_ms + config.message_timestamp_after_max_ms, INT64_MAX)
    return max_timestamp if max_timestamp <= latest and config.message_timestamp_before_max_ms == INT64_MAX else None


def _follow_records(header: BatchHeader, records: bytes | memoryview) -> tuple[int, int | None]:
    """Return the position of the last record, and the largest timestamp delta; None if only parsing determines it."""
    last, largest_delta = check_records(
        records, header.record_count, max(0, header.max_timestamp - header.base_timestamp)
    )
    if largest_delta is None:
        # No record has the largest timestamp in the header.
        last, largest_delta = check_records(records, header.record_count)
    return last, largest_delta


def is_simple_first_record(batch: memoryview) -> bool:
    """Return whether the first record of an uncompressed batch, whose length is correct, is simple and valid.

    A simple record has zero deltas, no headers, and a key and a value below 8 KiB. The fast path calls `check_record`
    for any other record, which may be valid too.
    """
    try:
        at = RECORD_BATCH_OVERHEAD + 1
        byte = batch[RECORD_BATCH_OVERHEAD]
        if byte >= 0x80:
            if (second := batch[at]) >= 0x80:
                return False
            byte += (second - 1) << 7
            at += 1
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
