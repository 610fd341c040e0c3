"""Every stored batch can be decompressed, although a batch that the broker rewrites may grow."""

import struct

import pytest

from odradek.log.compaction.offset_map import OffsetMap
from odradek.log.compaction.rules import BatchFilter, CleanedTransactions
from odradek.log.tests.support import NOW_MS, append, batch, config, open_log
from odradek.protocol.batches.compression import Codec, compress
from odradek.protocol.batches.crc import crc32c
from odradek.protocol.batches.streaming import run_steps
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.records import MAX_DECOMPRESSED_BYTES, build_batch, iter_records, read_header

pytestmark = pytest.mark.slow

LARGE = 1 << 30
COUNT = 100
VALUE_BYTES = 1_047_000
# An offset delta from 64 on takes two bytes; the length fields of these records keep their size.
GROWTH_BYTES = COUNT - 64


DAY = 86_400_000
TOMBSTONE = build_batch([(NOW_MS, b"k", None, ())])[61:]


def one_record(value_bytes: int) -> bytes:
    """A record with offset delta 0."""
    return build_batch([(NOW_MS, b"k", bytes(value_bytes), ())])[61:]


def records_of(size_bytes: int) -> bytes:
    """`size_bytes` bytes of records that all have offset delta 0, as in compressed batches of some old clients."""
    records = one_record(VALUE_BYTES) * (COUNT - 1)
    left = size_bytes - len(records)
    return records + one_record(left - (len(one_record(left)) - left))


def with_records(payload: bytes, codec: Codec, count: int = COUNT) -> memoryview:
    data = bytearray(batch([b""] * count)[:61]) + compress(codec, payload)
    struct.pack_into(">i", data, 8, len(data) - 12)
    struct.pack_into(">h", data, 21, codec)
    struct.pack_into(">I", data, 17, crc32c(memoryview(data)[21:]))
    return memoryview(data)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_a_renumbered_batch_remains_readable(codec: Codec) -> None:
    log = open_log(cfg=config(max_message_bytes=LARGE, internal_segment_bytes=LARGE))
    largest = records_of(MAX_DECOMPRESSED_BYTES - GROWTH_BYTES)
    assert len(largest) == MAX_DECOMPRESSED_BYTES - GROWTH_BYTES
    append(log, with_records(largest, codec))
    assert run_steps(log.offset_for_timestamp(NOW_MS)) == run_steps(log.offset_of_max_timestamp()) == (0, NOW_MS, 0)
    stored = log.read(0, LARGE, upper_offset=COUNT, at_least_one=True)
    assert stored is not None
    assert [record.offset for record in iter_records(stored.read())] == list(range(COUNT))


@pytest.mark.parametrize("size_bytes", [MAX_DECOMPRESSED_BYTES - GROWTH_BYTES + 1, MAX_DECOMPRESSED_BYTES + 1])
def test_a_batch_that_could_not_be_read_back_is_refused(size_bytes: int) -> None:
    """It is too large once it is renumbered, or as it is."""
    log = open_log(cfg=config(max_message_bytes=LARGE, internal_segment_bytes=LARGE))
    with pytest.raises(KafkaError) as raised:
        append(log, with_records(records_of(size_bytes), Codec.ZSTD))
    assert raised.value.code == ErrorCode.MESSAGE_TOO_LARGE
    assert log.log_end_offset == log.size_bytes == 0


def test_records_too_large_for_the_codec_of_the_topic_are_refused() -> None:
    """An uncompressed batch of this size is accepted if the topic stores it uncompressed."""
    properties = {"max_message_bytes": LARGE, "internal_segment_bytes": LARGE}
    data = with_records(one_record(MAX_DECOMPRESSED_BYTES), Codec.NONE, count=1)
    log = open_log(cfg=config(compression_type="zstd", **properties))
    with pytest.raises(KafkaError) as raised:
        append(log, data)
    assert raised.value.code == ErrorCode.MESSAGE_TOO_LARGE
    assert log.log_end_offset == log.size_bytes == 0
    log = open_log(cfg=config(**properties))
    append(log, data)
    assert run_steps(log.offset_for_timestamp(NOW_MS)) == (0, NOW_MS, 0)


def test_max_message_bytes_holds_for_a_renumbered_batch() -> None:
    payload = one_record(5) * 300
    data = with_records(payload, Codec.SNAPPY, count=300)
    append(open_log(cfg=config(max_message_bytes=len(data) * 10)), data)
    log = open_log(cfg=config(max_message_bytes=len(data)))
    with pytest.raises(KafkaError) as raised:
        append(log, data)
    assert raised.value.code == ErrorCode.MESSAGE_TOO_LARGE
    assert log.log_end_offset == log.size_bytes == 0


def test_a_malformed_record_in_a_batch_to_renumber_is_refused() -> None:
    damaged = bytearray(one_record(5) * 30)
    key_length_at = 15 * len(one_record(5)) + 4
    damaged[key_length_at] = 0x7E
    with pytest.raises(KafkaError) as raised:
        append(open_log(), with_records(bytes(damaged), Codec.GZIP, count=30))
    assert raised.value.code == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("middle", [5, 29])
def test_a_batch_of_a_compacted_topic_with_any_wrong_offset_is_renumbered(middle: int) -> None:
    log = open_log(cfg=config(cleanup_policy="compact", internal_segment_bytes=LARGE))
    payload = bytearray(build_batch([(NOW_MS, b"k", b"v", ())] * 30)[61:])
    stride = len(payload) // 30
    payload[middle * stride + 3] = 62
    append(log, with_records(bytes(payload), Codec.GZIP, count=30))
    stored = log.read(0, LARGE, upper_offset=30, at_least_one=True)
    assert stored is not None
    assert [record.offset for record in iter_records(stored.read())] == list(range(30))


def test_compaction_writes_no_batch_that_could_not_be_read_back() -> None:
    """A delete horizon makes the timestamp deltas longer. Without space for it, the batch gets no horizon."""
    for spare_bytes, has_horizon in ((6 * COUNT, True), (0, False)):
        payload = records_of(MAX_DECOMPRESSED_BYTES - len(TOMBSTONE) - spare_bytes) + TOMBSTONE
        stored = with_records(payload, Codec.ZSTD, count=COUNT + 1)
        decide = BatchFilter(
            OffsetMap(1000, 0.9),
            CleanedTransactions(()),
            upper_offset=COUNT + 1,
            now_ms=NOW_MS,
            delete_retention_ms=DAY,
        )
        kept = decide.apply(read_header(stored), stored)
        assert kept is not None
        assert kept[0].delete_horizon_ms == (NOW_MS + DAY if has_horizon else None)
        assert [record.value is None for record in iter_records(kept[1])] == [False] * COUNT + [True]
