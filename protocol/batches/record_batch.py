"""The header of a record batch (magic 2): layout and derived values that need no record.

Sources: Kafka documentation, "Record Batch"; KIP-98 (producer fields, control batches), KIP-534 (delete horizon).
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from struct import error as StructError  # noqa: N812 - the standard library's name is lower-case
from typing import NamedTuple

from odradek.protocol.batches.compression import Buffer, Codec, CompressionError
from odradek.protocol.batches.crc import crc32c

LOG_OVERHEAD = 12
"""Bytes of base offset and length; the length field does not count them."""
RECORD_BATCH_OVERHEAD = 61
"""Bytes of the header; the records follow."""
CURRENT_MAGIC = 2

LEAST_BATCH_LENGTH = RECORD_BATCH_OVERHEAD - LOG_OVERHEAD
"""The length field of a batch without records."""

HEADER = Struct(">qiibIhiqqqhii")
HEADER_START = Struct(">qiibIhi")
"""The fields of `HEADER` from base offset to last offset delta: what a search by offset needs."""
STAMP = Struct(">qii")
"""The first fields of `HEADER`: base offset and leader epoch, which the leader sets, with the length between them."""
PRODUCER = Struct(">qhi")
"""Producer id, epoch and base sequence, at PRODUCER_POSITION."""
BATCH_LENGTH = Struct(">i")
"""The length field, at LENGTH_POSITION."""
LENGTH_POSITION = 8
MAGIC_POSITION = 16
CRC_POSITION = 17
ATTRIBUTES_POSITION = 21
"""The CRC covers all bytes from here on, so base offset and leader epoch can be set without a new CRC."""
FLAGS_POSITION = 22
"""The low byte of the attributes, with all that are defined."""
MAX_TIMESTAMP_POSITION = 35
PRODUCER_POSITION = 43

CODEC_MASK = 0x07
LOG_APPEND_TIME_FLAG = 0x08
TRANSACTIONAL_FLAG = 0x10
CONTROL_FLAG = 0x20
DELETE_HORIZON_FLAG = 0x40

NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_PARTITION_LEADER_EPOCH = -1

_MAX_SEQUENCE = 2**31 - 1
_INT64_LIMIT = 1 << 63
_UINT32 = Struct(">I")
_CODECS = tuple(Codec)


class InvalidRecordError(ValueError):
    """A batch or record that violates the format."""


class BatchHeader(NamedTuple):
    """Header fields in their order on disk. Timestamps are ms since the epoch."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        """Size of the batch, header included."""
        return LOG_OVERHEAD + self.batch_length

    @property
    def last_offset(self) -> int:
        """Last offset of the batch. Compaction keeps it even if it removes the record at this offset."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The offset after the batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record. Wraps from 2^31-1 to 0; NO_SEQUENCE without an idempotent producer."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & _MAX_SEQUENCE

    @property
    def codec(self) -> Codec:
        """Compression codec. Raises CompressionError for an unknown one."""
        return decode_codec(self.attributes)

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL_FLAG != 0

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL_FLAG != 0

    @property
    def is_log_append_time(self) -> bool:
        return self.attributes & LOG_APPEND_TIME_FLAG != 0

    @property
    def delete_horizon_ms(self) -> int | None:
        """Time from which compaction may remove the batch's tombstones and markers; None if it is not set (KIP-534)."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON_FLAG else None


def wrap_int64(value: int) -> int:
    """Wrap a sum or difference, such as base timestamp + delta, to signed 64 bits."""
    if -_INT64_LIMIT <= value < _INT64_LIMIT:
        return value
    return (value + _INT64_LIMIT) % (2 * _INT64_LIMIT) - _INT64_LIMIT


def decode_codec(attributes: int) -> Codec:
    """Return the codec in a batch's attributes. Raises CompressionError for an unknown one."""
    codec = attributes & CODEC_MASK
    if codec >= len(_CODECS):
        raise CompressionError(f"unknown compression codec {codec}")
    return _CODECS[codec]


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Read the header at `position`. Its values are not checked.

    Raises InvalidRecordError if fewer than RECORD_BATCH_OVERHEAD bytes are left.
    """
    try:
        return BatchHeader._make(HEADER.unpack_from(buffer, position))
    except StructError as error:
        raise InvalidRecordError(f"no complete batch header at byte {position} of {len(buffer)}") from error


def crc_is_valid(batch: Buffer) -> bool:
    """Return whether a batch matches the CRC in its header. `batch` contains exactly one batch."""
    if len(batch) < RECORD_BATCH_OVERHEAD:
        return False
    computed: int = crc32c(memoryview(batch)[ATTRIBUTES_POSITION:])
    stated: int = _UINT32.unpack_from(batch, CRC_POSITION)[0]
    return computed == stated


def iter_batches(buffer: Buffer) -> Iterator[memoryview]:
    """Iterate over the complete batches in `buffer`, as views; an incomplete batch at the end is ignored.

    Magic and CRC are not checked. Raises InvalidRecordError for a length that is smaller than a header, because the
    next batch cannot be located.
    """
    view = memoryview(buffer)
    end = len(view)
    position = 0
    while end - position >= LOG_OVERHEAD:
        size_bytes = LOG_OVERHEAD + BATCH_LENGTH.unpack_from(view, position + LENGTH_POSITION)[0]
        if size_bytes < RECORD_BATCH_OVERHEAD:
            raise InvalidRecordError(f"batch of {size_bytes} bytes at byte {position}")
        if size_bytes > end - position:
            return
        yield view[position : position + size_bytes]
        position += size_bytes
