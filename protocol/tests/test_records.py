"""Batches of Kafka's Java classes, kafka-python and aiokafka are decoded correctly, and theirs decode Odradek's."""

import struct

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder
from kafka.record.memory_records import MemoryRecords as KafkaPythonRecords

from odradek.protocol.records import (
    Codec,
    CompressionError,
    ControlRecord,
    ControlType,
    InvalidRecordError,
    build_batch,
    build_control_batch,
    build_plain_batch,
    check_record_chain,
    crc_is_valid,
    empty_batch,
    iter_batches,
    iter_records,
    parse_control_record,
    read_header,
    rebuild_batch,
    recompress,
    stamp_log_append_time,
)
from odradek.protocol.tests import java_batches

int64s = st.integers(-(2**63), 2**63 - 1)
timestamps = st.integers(-1, 2**62)
maybe_bytes = st.none() | st.binary(max_size=200)
header_lists = st.lists(st.tuples(st.text(max_size=5), maybe_bytes), max_size=3)
record_lists = st.lists(st.tuples(timestamps, maybe_bytes, maybe_bytes, header_lists), min_size=1, max_size=20)
# aiokafka takes -1 for "no first timestamp yet".
aiokafka_record_lists = st.lists(
    st.tuples(st.integers(0, 2**62), maybe_bytes, maybe_bytes, header_lists), min_size=1, max_size=20
)
codecs = st.sampled_from(Codec)


def fields(records):
    return [(record.timestamp, record.key, record.value, tuple(record.headers)) for record in records]


def as_tuples(records):
    return [(timestamp, key, value, tuple(headers)) for timestamp, key, value, headers in records]


def checked(data):
    """Return the only batch in `data`, after all checks, with its header."""
    (batch,) = iter_batches(data)
    assert crc_is_valid(batch)
    check_record_chain(batch)
    return batch, read_header(batch)


@pytest.mark.parametrize("codec", java_batches.BY_CODEC)
def test_reads_javas_codecs(codec):
    batch, header = checked(bytes.fromhex(java_batches.BY_CODEC[codec]))
    assert fields(iter_records(batch)) == java_batches.RECORDS
    assert [record.offset for record in iter_records(batch)] == [5, 6, 7, 8]
    assert header.codec.name.lower() == codec
    assert (header.base_offset, header.last_offset, header.next_offset) == (5, 8, 9)
    assert header.partition_leader_epoch == 9
    assert header.max_timestamp == 1700000000007
    assert header.size_bytes == len(batch)


def test_builds_javas_transactional_batch_byte_for_byte():
    theirs = bytes.fromhex(java_batches.TRANSACTIONAL)
    ours = build_batch(
        java_batches.RECORDS,
        partition_leader_epoch=1,
        producer_id=42,
        producer_epoch=3,
        base_sequence=2**31 - 2,
        transactional=True,
    )
    assert ours == theirs
    _, header = checked(theirs)
    assert header.last_sequence == 1
    assert header.is_transactional
    assert not header.is_control


def test_builds_javas_log_append_time_batch_byte_for_byte():
    theirs = bytes.fromhex(java_batches.LOG_APPEND_TIME)
    assert build_batch(java_batches.RECORDS, base_offset=3, log_append_time=1234567) == theirs
    stamped = bytearray(build_batch(java_batches.RECORDS, base_offset=3))
    stamp_log_append_time(stamped, 1234567)
    assert stamped == theirs
    batch, header = checked(theirs)
    assert header.is_log_append_time
    assert {record.timestamp for record in iter_records(batch)} == {1234567}


def test_builds_javas_batch_with_a_delete_horizon_byte_for_byte():
    theirs = bytes.fromhex(java_batches.DELETE_HORIZON)
    ours = build_batch(
        java_batches.RECORDS,
        base_offset=3,
        partition_leader_epoch=4,
        codec=Codec.LZ4,
        delete_horizon_ms=1700000099999,
    )
    assert ours == theirs
    batch, header = checked(theirs)
    assert header.delete_horizon_ms == 1700000099999
    assert fields(iter_records(batch)) == java_batches.RECORDS
    assert rebuild_batch(header, iter_records(batch)) == theirs


@pytest.mark.parametrize(("name", "kind"), [("ABORT", ControlType.ABORT), ("COMMIT", ControlType.COMMIT)])
def test_builds_javas_markers_byte_for_byte(name, kind):
    theirs = bytes.fromhex(getattr(java_batches, name))
    ours = build_control_batch(
        kind,
        producer_id=42,
        producer_epoch=3,
        coordinator_epoch=11,
        timestamp_ms=1700000000000,
        base_offset=7,
        partition_leader_epoch=5,
    )
    assert ours == theirs
    assert len(ours) == 78
    batch, header = checked(theirs)
    assert header.attributes == 0x30
    assert header.last_sequence == -1
    (record,) = iter_records(batch)
    assert parse_control_record(record) == ControlRecord(kind, 11)


def test_builds_javas_empty_batch_byte_for_byte():
    theirs = bytes.fromhex(java_batches.EMPTY)
    batch, header = checked(theirs)
    assert list(iter_records(batch)) == []
    assert (header.last_offset, header.last_sequence, header.record_count) == (9, 12, 0)
    full = build_batch(
        java_batches.RECORDS[:1] * 3,
        codec=Codec.ZSTD,
        base_offset=7,
        partition_leader_epoch=5,
        producer_id=42,
        producer_epoch=3,
        base_sequence=10,
        transactional=True,
    )
    assert empty_batch(read_header(full)) == theirs
    assert rebuild_batch(read_header(full), []) == theirs


@pytest.mark.parametrize("key", [None, b"", b"\x00\x00\x00", b"\xff\xff\x00\x01"])
def test_bad_control_keys(key):
    (record,) = iter_records(build_batch([(1, key, b"\x00\x00\x00\x00\x00\x0b", ())]))
    with pytest.raises(InvalidRecordError):
        parse_control_record(record)


@pytest.mark.parametrize("value", [None, b"", b"\x00\x00\x00\x00\x00", b"\xff\xff\x00\x00\x00\x01"])
def test_bad_marker_values(value):
    (record,) = iter_records(build_batch([(1, b"\x00\x00\x00\x01", value, ())]))
    with pytest.raises(InvalidRecordError):
        parse_control_record(record)


def test_other_control_types():
    for type_id, kind in ((2, ControlType.LEADER_CHANGE), (99, ControlType.UNKNOWN)):
        (record,) = iter_records(build_batch([(1, struct.pack(">hh", 1, type_id), None, ())]))
        assert parse_control_record(record) == ControlRecord(kind, None)
    with pytest.raises(ValueError, match="LEADER_CHANGE"):
        build_control_batch(
            ControlType.LEADER_CHANGE, producer_id=1, producer_epoch=1, coordinator_epoch=1, timestamp_ms=1
        )


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(codecs, record_lists, int64s, st.integers(0, 2**31 - 1), st.booleans())
def test_roundtrip(codec, records, producer_id, base_sequence, transactional):
    made = build_batch(
        records,
        base_offset=2**40,
        codec=codec,
        producer_id=producer_id,
        producer_epoch=7,
        base_sequence=base_sequence,
        transactional=transactional,
    )
    batch, header = checked(made)
    assert fields(iter_records(batch)) == as_tuples(records)
    assert header.codec == codec
    assert header.record_count == len(records) == header.next_offset - header.base_offset
    assert header.max_timestamp == max(record[0] for record in records)
    assert header.last_sequence == (base_sequence + len(records) - 1) % 2**31
    assert (header.producer_id, header.producer_epoch, header.is_transactional) == (producer_id, 7, transactional)
    assert header.delete_horizon_ms is None
    kept = list(iter_records(batch))[::2]
    thinned, thinned_header = checked(rebuild_batch(header, kept))
    assert list(iter_records(thinned)) == kept
    assert thinned_header.last_offset == header.last_offset


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.binary(max_size=700), maybe_bytes), min_size=1, max_size=20), int64s, st.booleans())
def test_a_plain_batch_is_that_of_the_general_builder(records, producer_id, transactional):
    records = (records * 40)[: 40 * (len(records) % 15 + 1)]  # offset deltas of one and of two bytes
    producer = {"producer_id": producer_id, "producer_epoch": 7} if transactional and producer_id != -1 else {}
    general = build_batch([(5, *record, ()) for record in records], transactional=bool(producer), **producer)
    assert build_plain_batch([(*record, None) for record in records], 5, **producer) == general


@settings(max_examples=100, deadline=None)
@given(codecs, codecs, record_lists)
def test_recompression_changes_nothing_but_the_codec(source, target, records):
    before, header = checked(build_batch(records, codec=source, base_offset=9))
    after, new_header = checked(recompress(before, target))
    assert list(iter_records(after)) == list(iter_records(before))
    changing = {"batch_length": 0, "crc": 0, "attributes": 0}
    assert new_header._replace(**changing) == header._replace(**changing)
    assert new_header.codec == target


@pytest.mark.parametrize("codec", Codec)
@settings(max_examples=30, deadline=None)
@given(record_lists)
def test_batches_are_exchanged_with_kafka_python(codec, records):
    theirs = KafkaPythonBuilder(2, int(codec), True, 5, 1, 10, 10**6)
    for offset, record in enumerate(records):
        theirs.append(offset, *record[:3], record[3])
    batch, header = checked(bytes(theirs.build()))
    assert fields(iter_records(batch)) == as_tuples(records)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 1, 10)

    ours = build_batch(records, codec=codec, producer_id=5, producer_epoch=1, base_sequence=10, transactional=True)
    read = KafkaPythonRecords(ours).next_batch()
    assert read.validate_crc()
    assert read.producer_id == 5
    assert fields(read) == as_tuples(records)


@pytest.mark.parametrize("codec", Codec)
@settings(max_examples=30, deadline=None)
@given(aiokafka_record_lists)
def test_batches_are_exchanged_with_aiokafka(codec, records):
    theirs = AiokafkaBuilder(2, int(codec), True, 5, 1, 10, 10**6)
    for offset, (timestamp, key, value, headers) in enumerate(records):
        theirs.append(offset, timestamp=timestamp, key=key, value=value, headers=headers)
    batch, header = checked(bytes(theirs.build()))
    assert fields(iter_records(batch)) == as_tuples(records)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 1, 10)

    ours = build_batch(records, codec=codec, producer_id=5, producer_epoch=1, base_sequence=10, transactional=True)
    read = AiokafkaBatch(ours)
    assert read.validate_crc()
    assert read.producer_id == 5
    assert fields(read) == as_tuples(records)


def test_iter_batches_ignores_an_incomplete_tail():
    first, second = build_batch(java_batches.RECORDS), build_batch(java_batches.RECORDS[:1], base_offset=4)
    both = first + second
    for end in range(len(both) + 1):
        whole = [batch for batch, size in ((first, len(first)), (second, len(both))) if size <= end]
        assert [bytes(batch) for batch in iter_batches(both[:end])] == whole


@pytest.mark.parametrize("length", [-(2**31), -13, -12, 0, 48])
def test_iter_batches_refuses_impossible_lengths(length):
    with pytest.raises(InvalidRecordError):
        list(iter_batches(struct.pack(">qi", 0, length) + bytes(100)))


def test_short_headers():
    for size in range(61):
        with pytest.raises(InvalidRecordError):
            read_header(bytes(size))
        with pytest.raises(InvalidRecordError):
            check_record_chain(bytes(size))
        assert not crc_is_valid(bytes(size))
    assert read_header(bytes(5) + build_batch([]), 5).record_count == 0


def test_unknown_codecs():
    batch = bytearray(build_batch(java_batches.RECORDS))
    for codec in (5, 6, 7):
        batch[22] = codec
        for act in (check_record_chain, lambda it: list(iter_records(it)), lambda it: read_header(it).codec):
            with pytest.raises(CompressionError):
                act(batch)


def with_records(payload, count):
    batch = bytearray(build_batch([]))
    struct.pack_into(">i", batch, 57, count)
    return bytes(batch) + payload


GOOD = bytes([12, 0, 0, 0, 1, 1, 0])


@pytest.mark.parametrize(
    ("payload", "count"),
    [
        (GOOD, 0),
        (GOOD, 2),
        (GOOD, -1),
        (GOOD, 2**31 - 1),
        (GOOD + b"\x00", 1),
        (GOOD[:-1], 1),
        (b"", 1),
        (bytes([11]) + bytes(6), 1),
        (bytes([0]), 1),
        (bytes([10, 0, 0, 0, 1, 1]), 1),
        (b"\x80\x80\x80\x80\x80\x01" + bytes(10), 1),
        (b"\xff\xff\xff\xff\x0f" + bytes(10), 1),
        (b"\xfe\xff\xff\xff\x0f" + bytes(10), 1),
        (GOOD * 40 + bytes([14, 0, 0, 0, 1, 1, 0]), 41),
        (GOOD * 40 + bytes([11, 0, 0, 0, 1, 1, 0]), 41),
    ],
)
def test_both_readers_refuse_a_broken_chain(payload, count):
    for batch in (with_records(payload, count), memoryview(with_records(payload, count))):
        with pytest.raises(InvalidRecordError):
            check_record_chain(batch)
        with pytest.raises(InvalidRecordError):
            list(iter_records(batch))


@pytest.mark.parametrize(
    "body",
    [
        [0, 0, 0, 4, 1, 1, 0],  # key of 2 bytes takes the value's length with it
        [0, 0, 0, 1, 1, 0, 0],  # a byte behind the headers
        [0, 0, 0, 1, 1, 1, 0],  # -1 headers
        [0, 0, 0, 1, 1, 100, 0],  # 50 headers
        [0, 0, 0, 1, 1, 2, 1, 1],  # null header key
        [0, 0, 0, 1, 1, 2, 20, 1],  # header key longer than the record
        [0, 0, 0, 100, 1, 0],  # key longer than the record
        [0, *[128] * 10, 1, 0, 1, 1, 0],  # timestamp delta of 11 bytes
        [0, 0, *[128] * 5, 1, 1, 1, 0],  # offset delta of 6 bytes
        [0, 0, 0, 1, 1, 128],  # header count cut short
    ],
)
def test_iter_records_refuses_bad_fields(body):
    batch = with_records(bytes([2 * len(body), *body]), 1)
    with pytest.raises(InvalidRecordError):
        list(iter_records(batch))


def test_any_negative_length_is_null_and_overlong_numbers_are_read():
    body = bytes([0, 0x80, 0, 0x82, 0, 5, 3, 0])
    (record,) = iter_records(with_records(b"\x90\x80\x00" + body, 1))
    check_record_chain(with_records(b"\x90\x80\x00" + body, 1))
    assert (record.offset, record.key, record.value) == (1, None, None)


def test_header_keys_that_are_not_utf8_are_written_back_unchanged():
    body = bytes([0, 0, 0, 1, 1, 2, 4, 0xFF, 0x61, 1])
    batch = with_records(bytes([2 * len(body)]) + body, 1)
    header = read_header(batch)
    assert rebuild_batch(header, iter_records(batch))[61:] == batch[61:]


def test_sums_wrap_like_signed_64_bit_numbers():
    made = build_batch([(2**63 - 1, None, b"", ()), (-1, None, b"", ())])
    batch = bytearray(made)
    struct.pack_into(">q", batch, 0, 2**63 - 1)
    first, second = iter_records(batch)
    assert (first.timestamp, second.timestamp) == (2**63 - 1, -1)
    assert (first.offset, second.offset) == (2**63 - 1, -(2**63))


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(
    codecs,
    record_lists,
    st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), min_size=1, max_size=5),
    st.integers(0, 50),
)
def test_damage_gives_the_declared_errors_only(codec, records, changes, cut):
    batch = bytearray(build_batch(records, codec=codec))
    for position, value in changes:
        batch[position % len(batch)] = value
    del batch[len(batch) - cut :]
    opened = whole = None
    try:
        check_record_chain(batch, 100_000)
        whole = True
    except (InvalidRecordError, CompressionError):
        whole = False
    try:
        opened = list(iter_records(batch, 100_000))
    except (InvalidRecordError, CompressionError):
        opened = None
    assert whole or opened is None, "a batch that can be decoded must pass the chain check"
    crc_is_valid(batch)
    for act in (recompress_to_zstd, lambda it: list(iter_batches(it))):
        try:
            act(batch)
        except (InvalidRecordError, CompressionError):
            continue


def recompress_to_zstd(batch):
    return recompress(batch, Codec.ZSTD, max_bytes=100_000)
