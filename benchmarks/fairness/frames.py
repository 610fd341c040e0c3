"""Requests of the heavy loads, written by hand; layouts follow the Kafka protocol guide."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache

import crc32c
import zstandard

from benchmarks import wire
from benchmarks.wire import frame, unsigned_varint, zigzag

OFFSET_COMMIT, DELETE_GROUPS, CREATE_PARTITIONS, DESCRIBE_PRODUCERS = 8, 42, 37, 61
ZSTD = 4
NULL_KEY_RECORD = bytes([12, 0, 0, 0, 1, 1, 0])
"""A record of seven bytes: no key, no value, no headers, and both deltas 0."""

KEYED_RECORD = bytes([14, 0, 0, 0, 2, ord("k"), 1, 0])
"""The same record with the key `k`."""

CHUNK_RECORDS = 100_000


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _compact(text: str) -> bytes:
    return unsigned_varint(len(text) + 1) + text.encode()


@lru_cache(maxsize=4)
def _compress(record: bytes, count: int) -> bytes:
    compressor = zstandard.ZstdCompressor().compressobj()
    chunk = record * CHUNK_RECORDS
    whole, rest = divmod(count, CHUNK_RECORDS)
    pieces = [compressor.compress(chunk) for _ in range(whole)]
    return b"".join([*pieces, compressor.compress(record * rest), compressor.flush()])


def repeated_record(record: bytes, count: int, last_offset_delta: int, now_ms: int, max_timestamp_ms: int) -> bytes:
    """Return a zstd batch of `count` equal records, in a few kilobytes."""
    checked = wire.BATCH_AFTER_CRC.pack(ZSTD, last_offset_delta, now_ms, max_timestamp_ms, -1, -1, -1, count)
    checked += _compress(record, count)
    return struct.pack(">qiibI", 0, len(checked) + 9, -1, 2, crc32c.crc32c(checked)) + checked


@lru_cache(maxsize=1)
def late_record(count: int, now_ms: int, lateness_ms: int) -> bytes:
    """Return a zstd batch of `count` records without key or value; the last is `lateness_ms` later than the others."""
    body = bytearray()
    for index in range(count):
        record = b"\0" + zigzag(lateness_ms if index == count - 1 else 0) + zigzag(index) + b"\1\1\0"
        body += zigzag(len(record)) + record
    checked = wire.BATCH_AFTER_CRC.pack(ZSTD, count - 1, now_ms, now_ms + lateness_ms, -1, -1, -1, count)
    checked += zstandard.ZstdCompressor().compress(bytes(body))
    return struct.pack(">qiibI", 0, len(checked) + 9, -1, 2, crc32c.crc32c(checked)) + checked


def list_offsets(topic: str, timestamp_ms: int) -> bytes:
    """ListOffsets 1 of partition 0."""
    body = struct.pack(">ii", -1, 1) + _string(topic) + struct.pack(">iiq", 1, 0, timestamp_ms)
    return frame(wire.LIST_OFFSETS, 1, body)


def create_topic(topic: str, partitions: int) -> bytes:
    """CreateTopics 4."""
    body = struct.pack(">i", 1) + _string(topic) + struct.pack(">ihii", partitions, 1, 0, 0)
    return frame(wire.CREATE_TOPICS, 4, body + struct.pack(">ib", 120_000, 0))


def create_partitions(topic: str, partitions: int) -> bytes:
    """CreatePartitions 1."""
    body = struct.pack(">i", 1) + _string(topic) + struct.pack(">iiib", partitions, -1, 120_000, 0)
    return frame(CREATE_PARTITIONS, 1, body)


def metadata_of_all() -> bytes:
    """Metadata 1 of every topic."""
    return frame(wire.METADATA, 1, struct.pack(">i", -1))


def metadata_of_empty_names(count: int) -> bytes:
    """Metadata 1 of `count` topics with an empty name: two bytes each."""
    return frame(wire.METADATA, 1, struct.pack(">i", count) + bytes(2 * count))


def header_of_tags(count: int) -> bytes:
    """ApiVersions 3 whose header has `count` unknown tags of five bytes."""
    tag = unsigned_varint(1 << 21) + b"\0"
    header = struct.pack(">hhih", wire.API_VERSIONS, 3, 1, 1) + b"b" + unsigned_varint(count) + tag * count
    body = _compact("b") + _compact("1") + b"\0"
    return struct.pack(">i", len(header) + len(body)) + header + body


def offset_commit(group: str, topic: str, partitions: Iterable[int], offset: int) -> bytes:
    """OffsetCommit 2 by a client that is not a group member."""
    rows = [struct.pack(">iqh", partition, offset, 0) for partition in partitions]
    body = _string(group) + struct.pack(">i", -1) + _string("") + struct.pack(">qi", -1, 1) + _string(topic)
    return frame(OFFSET_COMMIT, 2, body + struct.pack(">i", len(rows)) + b"".join(rows))


def delete_groups(groups: Sequence[str]) -> bytes:
    """DeleteGroups 1."""
    return frame(DELETE_GROUPS, 1, struct.pack(">i", len(groups)) + b"".join(map(_string, groups)))


def describe_producers(topic: str) -> bytes:
    """DescribeProducers 0 of partition 0."""
    body = b"\x02" + _compact(topic) + b"\x02" + struct.pack(">i", 0) + b"\0\0"
    return frame(DESCRIBE_PRODUCERS, 0, body, flexible=True)


def waiting_fetch(topic: str, partitions: int, max_wait_ms: int) -> bytes:
    """Fetch 12 of all partitions without a session, which waits for more bytes than are ever available."""
    body = struct.pack(">iiiibii", -1, max_wait_ms, 2**31 - 1, 2**31 - 1, 0, 0, -1) + b"\x02" + _compact(topic)
    body += unsigned_varint(partitions + 1)
    rows = [struct.pack(">iiqiqi", index, -1, 0, -1, -1, 1_048_576) + b"\0" for index in range(partitions)]
    return frame(wire.FETCH, 12, body + b"".join(rows) + b"\0\x01\x01\0", flexible=True)


def idempotent_batch(producer_id: int, now_ms: int) -> bytes:
    """The first batch of an idempotent producer: one empty record."""
    checked = wire.BATCH_AFTER_CRC.pack(0, 0, now_ms, now_ms, producer_id, 0, 0, 1) + NULL_KEY_RECORD
    return struct.pack(">qiibI", 0, len(checked) + 9, -1, 2, crc32c.crc32c(checked)) + checked
