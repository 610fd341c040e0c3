"""Every reason for which Kafka refuses a produced batch, with its error; nothing of a refused batch is written."""

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.log.partition_log import PartitionLog
from odradek.log.tests.support import NOW_MS, append, batch, config, idempotent, misnumbered, open_log, read_all
from odradek.log.validation.batch import Origin, is_simple_first_record
from odradek.log.validation.record import RejectedRecordsError
from odradek.protocol.batches.crc import crc32c
from odradek.protocol.batches.record_batch import wrap_int64
from odradek.protocol.batches.record_chain import check_records
from odradek.protocol.batches.record_shape import check_record
from odradek.protocol.batches.streaming import run_steps
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.records import (
    Codec,
    ControlType,
    InvalidRecordError,
    build_batch,
    build_control_batch,
    check_record_chain,
    iter_records,
    read_header,
)

HOUR_MS = 3_600_000


def changed(
    data: bytes | bytearray | memoryview, position: int, layout: str, *values: int, crc: bool = True
) -> memoryview:
    """A batch with some bytes changed, and a correct checksum unless `crc` is false."""
    result = bytearray(data)
    struct.pack_into(layout, result, position, *values)
    if crc:
        struct.pack_into(">I", result, 17, crc32c(memoryview(result)[21:]))
    return memoryview(result)


def with_records(payload: bytes, count: int, codec: int = 0) -> memoryview:
    """A batch around record bytes of any content."""
    result = bytearray(batch()[:61]) + payload
    struct.pack_into(">i", result, 8, len(result) - 12)
    struct.pack_into(">i", result, 23, count - 1)
    struct.pack_into(">i", result, 57, count)
    struct.pack_into(">h", result, 21, codec)
    return changed(result, 16, ">b", 2)


ONE = batch()
MANY = batch([b"%d" % number for number in range(30)])
RECORD = bytes(ONE[61:])

REFUSED: dict[str, tuple[bytes | memoryview, ErrorCode]] = {
    "nothing": (b"", ErrorCode.INVALID_RECORD),
    "no complete batch": (ONE[:-1], ErrorCode.INVALID_RECORD),
    "less than a header": (ONE[:20], ErrorCode.INVALID_RECORD),
    "two batches": (bytes(ONE) * 2, ErrorCode.INVALID_RECORD),
    "magic 1": (changed(ONE, 16, ">b", 1), ErrorCode.INVALID_RECORD),
    "magic 3": (changed(ONE, 16, ">b", 3), ErrorCode.CORRUPT_MESSAGE),
    "length below 14": (changed(ONE, 8, ">i", 13), ErrorCode.CORRUPT_MESSAGE),
    "negative length": (changed(ONE, 8, ">i", -1), ErrorCode.CORRUPT_MESSAGE),
    "length below a header": (changed(ONE, 8, ">i", 40), ErrorCode.CORRUPT_MESSAGE),
    "base offset": (changed(ONE, 0, ">q", 5), ErrorCode.INVALID_RECORD),
    "too large": (batch([b"x" * 5000]), ErrorCode.MESSAGE_TOO_LARGE),
    "bad checksum": (changed(ONE, 66, ">b", 0x7F, crc=False), ErrorCode.CORRUPT_MESSAGE),
    "no records": (changed(ONE, 57, ">i", 0), ErrorCode.INVALID_RECORD),
    "negative count": (changed(ONE, 57, ">i", -1), ErrorCode.INVALID_RECORD),
    "count against offsets": (changed(ONE, 57, ">i", 2), ErrorCode.INVALID_RECORD),
    "negative offset delta": (changed(ONE, 23, ">i", -1), ErrorCode.INVALID_RECORD),
    "control batch": (
        build_control_batch(
            ControlType.COMMIT, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp_ms=NOW_MS
        ),
        ErrorCode.INVALID_RECORD,
    ),
    "producer without sequence": (batch(producer_id=4, producer_epoch=0, base_sequence=-1), ErrorCode.INVALID_RECORD),
    "codec 5": (changed(ONE, 21, ">h", 5), ErrorCode.UNKNOWN_SERVER_ERROR),
    "not gzip": (changed(ONE, 21, ">h", 1), ErrorCode.UNKNOWN_SERVER_ERROR),
    "record too long": (with_records(b"\x7e" + RECORD[1:], 1), ErrorCode.INVALID_RECORD),
    "record too short": (with_records(b"\x02" + RECORD[1:], 1), ErrorCode.INVALID_RECORD),
    "negative record length": (with_records(b"\x01" + RECORD[1:], 1), ErrorCode.INVALID_RECORD),
    "bytes left": (with_records(RECORD + b"\x00", 1), ErrorCode.INVALID_RECORD),
    "one record of two": (with_records(RECORD, 2), ErrorCode.INVALID_RECORD),
    "two records of one": (with_records(RECORD * 2, 1), ErrorCode.INVALID_RECORD),
    "many with bytes left": (with_records(bytes(MANY[61:]) + b"\x00", 30), ErrorCode.INVALID_RECORD),
    "many, one missing": (with_records(bytes(MANY[61:]), 31), ErrorCode.INVALID_RECORD),
    "key longer than record": (with_records(b"\x0e\x00\x00\x00\x7e\x01\x01\x00", 1), ErrorCode.INVALID_RECORD),
    "value missing": (with_records(b"\x08\x00\x00\x00\x00", 1), ErrorCode.INVALID_RECORD),
    "negative header count": (with_records(b"\x0c\x00\x00\x00\x01\x01\x01", 1), ErrorCode.INVALID_RECORD),
    "header without name": (with_records(b"\x10\x00\x00\x00\x01\x01\x02\x01\x01", 1), ErrorCode.INVALID_RECORD),
    "too new": (batch(timestamp=NOW_MS + HOUR_MS + 1), ErrorCode.INVALID_TIMESTAMP),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    data, code = REFUSED[name]
    log = open_log(cfg=config(max_message_bytes=4000, internal_segment_bytes=10_000))
    with pytest.raises(KafkaError) as raised:
        log.append_as_leader(memoryview(data), leader_epoch=0, now_ms=NOW_MS)
    assert raised.value.code == code
    assert log.log_end_offset == 0 and log.size_bytes == 0
    assert append(log, [b"next"]).first_offset == 0


def test_order_of_checks():
    """A batch with several errors gets the one that Apache Kafka finds first."""
    log = open_log(cfg=config(max_message_bytes=100))

    def code(data):
        with pytest.raises(KafkaError) as raised:
            log.append_as_leader(memoryview(data), leader_epoch=0, now_ms=NOW_MS)
        return raised.value.code

    large = batch([b"x" * 200])
    assert code(changed(large, 0, ">q", 1, crc=False)) == ErrorCode.INVALID_RECORD
    assert code(changed(large, 70, ">b", 1, crc=False)) == ErrorCode.MESSAGE_TOO_LARGE
    assert code(changed(ONE, 57, ">i", 9, crc=False)) == ErrorCode.CORRUPT_MESSAGE
    late = batch(timestamp=NOW_MS + 2 * HOUR_MS, producer_id=1, producer_epoch=0, base_sequence=-1)
    assert code(late) == ErrorCode.INVALID_RECORD


def test_larger_than_a_segment():
    log = open_log(cfg=config(internal_segment_bytes=100))
    with pytest.raises(KafkaError) as raised:
        append(log, [b"x" * 100])
    assert raised.value.code == ErrorCode.RECORD_LIST_TOO_LARGE


def test_zstd_needs_produce_7():
    log = open_log()
    data = batch([b"x" * 100], codec=Codec.ZSTD)
    with pytest.raises(KafkaError) as raised:
        log.append_as_leader(data, leader_epoch=0, now_ms=NOW_MS, produce_version=6)
    assert raised.value.code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert append(log, data).first_offset == 0


def test_incomplete_batch_behind_the_first_is_ignored():
    log = open_log()
    assert append(log, memoryview(bytes(ONE) + bytes(ONE)[:40])).last_offset == 0
    assert log.size_bytes == len(ONE)


def test_compacted_topic_needs_keys():
    log = open_log(cfg=config(cleanup_policy="compact"))
    records = [(NOW_MS, b"k", b"v", ()), (NOW_MS, None, b"v", ()), (NOW_MS, None, b"v", ())]
    with pytest.raises(RejectedRecordsError) as raised:
        append(log, memoryview(build_batch(records)))
    assert raised.value.code == ErrorCode.INVALID_RECORD
    assert [index for index, _ in raised.value.record_errors] == [1, 2]
    append(log, [b"v"])


@pytest.mark.parametrize(("offset_ms", "accepted"), [(-1001, False), (-1000, True), (500, True), (501, False)])
def test_timestamp_bounds(offset_ms, accepted):
    cfg = config(message_timestamp_before_max_ms=1000, message_timestamp_after_max_ms=500)
    log = open_log(cfg=cfg)
    times = [NOW_MS] * 9 + [NOW_MS + offset_ms]
    data = batch([b"v"] * 10, timestamp=times)
    if accepted:
        assert append(log, data).max_timestamp == max(times)
        return
    with pytest.raises(RejectedRecordsError) as raised:
        append(log, data)
    assert raised.value.code == ErrorCode.INVALID_TIMESTAMP
    assert [index for index, _ in raised.value.record_errors] == [9]


def test_absent_timestamps_are_exempt():
    log = open_log(cfg=config(message_timestamp_before_max_ms=1000))
    assert append(log, batch([b"a", b"b"], timestamp=-1)).max_timestamp == -1


def test_log_append_time_stamps_the_batch():
    log = open_log(cfg=config(message_timestamp_type="LogAppendTime"))
    info = append(log, batch([b"a", b"b"], timestamp=5), now_ms=NOW_MS + 7)
    assert (info.log_append_time_ms, info.max_timestamp) == (NOW_MS + 7, NOW_MS + 7)
    stored = log.read(0, 1000, upper_offset=2, at_least_one=True).read()
    assert read_header(stored).is_log_append_time and read_header(stored).base_timestamp == 5
    assert crc32c(memoryview(stored)[21:]) == read_header(stored).crc
    assert [record.timestamp for record in iter_records(stored)] == [NOW_MS + 7] * 2


def test_clients_must_not_claim_log_append_time():
    claimed = changed(ONE, 21, ">h", 8)
    with pytest.raises(KafkaError) as raised:
        append(open_log(cfg=config(message_timestamp_type="LogAppendTime")), claimed)
    assert raised.value.code == ErrorCode.INVALID_TIMESTAMP
    log = open_log()
    append(log, claimed)
    stored = log.read(0, 1000, upper_offset=1, at_least_one=True).read()
    assert not read_header(stored).is_log_append_time
    assert crc32c(memoryview(stored)[21:]) == read_header(stored).crc


def test_a_wrong_max_timestamp_is_corrected():
    log = open_log()
    times = [NOW_MS - 5, NOW_MS - 3]
    info = append(log, changed(batch([b"a", b"b"], timestamp=times), 35, ">q", NOW_MS - 100))
    assert info.max_timestamp == NOW_MS - 3
    info = append(log, changed(batch([b"a", b"b"], timestamp=times), 35, ">q", NOW_MS + 9 * HOUR_MS))
    assert info.max_timestamp == NOW_MS - 3


NONE_AND_GZIP = pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])


@NONE_AND_GZIP
@pytest.mark.parametrize("count", [1, 3, 5, 30])
@pytest.mark.parametrize("stated", [-1, 0, NOW_MS - 10_000, NOW_MS + 10_000, NOW_MS + 9 * HOUR_MS, -(2**63)])
def test_the_records_give_the_max_timestamp(codec, count, stated):
    times = [NOW_MS - abs(count // 2 - number) for number in range(count)]
    log = open_log()
    info = append(log, changed(batch([b"v"] * count, timestamp=times, codec=codec), 35, ">q", stated))
    assert info.max_timestamp == log.segments[0].max_timestamp == NOW_MS
    stored = log.read(0, 10_000, upper_offset=count, at_least_one=True).read()
    assert read_header(stored).max_timestamp == NOW_MS
    assert crc32c(memoryview(stored)[21:]) == read_header(stored).crc
    assert [record.timestamp for record in iter_records(stored)] == times


@NONE_AND_GZIP
@pytest.mark.parametrize("count", [1, 3, 5, 30])
def test_records_without_timestamps_have_none_whatever_the_header_states(codec, count):
    """librdkafka sends base timestamp -1 and max timestamp 0 for a producer that passes timestamp -1."""
    log = open_log()
    assert append(log, changed(batch([b"v"] * count, timestamp=-1, codec=codec), 35, ">q", 0)).max_timestamp == -1
    assert log.segments[0].max_timestamp == log.segments[0].first_timestamp == -1


@NONE_AND_GZIP
@pytest.mark.parametrize("index", [0, 2, 9, 29])
def test_a_timestamp_too_far_ahead_is_refused_whatever_the_header_states(codec, index):
    times = [NOW_MS] * 30
    times[index] = NOW_MS + HOUR_MS + 1
    log = open_log()
    with pytest.raises(RejectedRecordsError) as raised:
        append(log, changed(batch([b"v"] * 30, timestamp=times, codec=codec), 35, ">q", NOW_MS))
    assert raised.value.code == ErrorCode.INVALID_TIMESTAMP
    assert [number for number, _ in raised.value.record_errors] == [index]


@NONE_AND_GZIP
@pytest.mark.parametrize(("base", "delta"), [(-(2**63), 0), (2**63 - 2, 5), (-(2**63) + 1, -2), (-1, -(2**63))])
def test_timestamps_at_the_ends_of_the_64_bits_are_refused(codec, base, delta):
    times = [base] + [wrap_int64(base + delta)] * 9
    with pytest.raises(KafkaError) as raised:
        append(open_log(), changed(batch([b"v"] * 10, timestamp=times, codec=codec), 35, ">q", 0))
    assert raised.value.code == ErrorCode.INVALID_TIMESTAMP


@NONE_AND_GZIP
@pytest.mark.parametrize("count", [3, 10])
def test_timestamps_beyond_the_64_bits_wrap_as_for_readers(codec, count):
    """message.timestamp.after.max.ms was 2^63-1 by default before Apache Kafka 4.0."""
    log = open_log(cfg=config(message_timestamp_after_max_ms=2**63 - 1))
    produced = changed(batch([b"v"] * count, timestamp=[0, *range(1, count)], codec=codec), 27, ">q", 2**63 - 2)
    with pytest.raises(KafkaError) as raised:
        append(log, produced)
    assert raised.value.code == ErrorCode.INVALID_TIMESTAMP
    append(log, changed(produced, 27, ">q", 2**63 - count))
    assert run_steps(log.offset_of_max_timestamp()) == (count - 1, 2**63 - 1, 0)


@pytest.mark.parametrize("stated", [1, NOW_MS + 1, 2**62])
def test_renumbered_records_keep_their_timestamps_whatever_the_client_sets(stated):
    log = open_log()
    wrong = misnumbered(batch([b"1", b"2"], timestamp=[NOW_MS - 5, NOW_MS - 3]), [1, 2])
    log_append_time = changed(changed(wrong, 21, ">h", 0x08), 35, ">q", stated)
    append(log, log_append_time)
    assert run_steps(log.offset_of_max_timestamp()) == (1, NOW_MS - 3, 0)


deltas = st.one_of(st.integers(-3, 130), st.integers(-9000, 9000), st.integers(-(2**45), HOUR_MS))


@given(
    st.integers(-1, 2) | st.integers(NOW_MS - 5, NOW_MS),
    st.lists(st.tuples(deltas, st.integers(1, 40), st.integers(0, 90)), min_size=1, max_size=5),
    st.sampled_from([-(2**63), -1, 0, NOW_MS, 2**63 - 1, None]),
    st.booleans(),
)
def test_the_stored_max_timestamp_is_the_largest_of_the_records(base, runs, stated, is_shuffled):
    records = [(base + delta, None, b"v" * size, ()) for delta, times, size in runs for _ in range(times)]
    if is_shuffled:
        records = records[::3] + records[1::3] + records[2::3]
    data = memoryview(bytearray(build_batch(records)))
    if stated is not None:
        data = changed(data, 35, ">q", stated)
    log = open_log(cfg=config(max_message_bytes=1 << 20, internal_segment_bytes=1 << 20))
    expected = max(-1, *(timestamp for timestamp, *_ in records))
    assert append(log, data).max_timestamp == expected
    assert log.segments[0].max_timestamp == expected


@pytest.mark.parametrize("target", ["uncompressed", "gzip", "snappy", "lz4", "zstd", "producer"])
@pytest.mark.parametrize("source", list(Codec))
def test_compression_type_of_the_topic(source, target):
    log = open_log(cfg=config(compression_type=target))
    values = [b"value %d" % number * 9 for number in range(20)]
    producer: dict[str, Any] = {"producer_id": 3, "producer_epoch": 1, "base_sequence": 0}
    append(log, batch(values, codec=source, **producer))
    stored = log.read(0, 10_000, upper_offset=20, at_least_one=True).read()
    header = read_header(stored)
    expected = {"uncompressed": Codec.NONE, "producer": source}
    assert header.codec == (expected[target] if target in expected else Codec[target.upper()])
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (3, 1, 0)
    assert read_all(log) == list(enumerate(values))


def test_recompression_beyond_the_limit():
    log = open_log(cfg=config(compression_type="uncompressed", max_message_bytes=500))
    with pytest.raises(KafkaError) as raised:
        append(log, batch([b"x" * 900], codec=Codec.GZIP))
    assert raised.value.code == ErrorCode.MESSAGE_TOO_LARGE


class TestProducers:
    def code(self, log: PartitionLog, data: memoryview, **keywords: Any) -> ErrorCode:
        before = log.size_bytes
        with pytest.raises(KafkaError) as raised:
            log.append_as_leader(data, leader_epoch=0, now_ms=NOW_MS, **keywords)
        assert log.size_bytes == before
        return raised.value.code

    def test_duplicates_of_the_last_ten_batches(self):
        log = open_log()
        infos = [append(log, idempotent(number * 2, 2, timestamp=NOW_MS - number)) for number in range(12)]
        for number in range(2, 12):
            info = append(log, idempotent(number * 2, 2))
            assert info.is_duplicate
            assert (info.first_offset, info.last_offset) == (infos[number].first_offset, infos[number].last_offset)
            assert info.log_append_time_ms == NOW_MS - number
        assert self.code(log, idempotent(2, 2)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert log.log_end_offset == 24

    def test_gaps_epochs_and_wrap(self):
        log = open_log()
        append(log, idempotent(2**31 - 2, 2))
        assert self.code(log, idempotent(5)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        append(log, idempotent(0))
        append(log, idempotent(0, epoch=1))
        assert self.code(log, idempotent(1, epoch=0)) == ErrorCode.INVALID_PRODUCER_EPOCH
        assert self.code(log, idempotent(3, epoch=2)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        append(log, idempotent(0, epoch=2))

    def test_sequence_wraps_inside_a_batch(self):
        log = open_log()
        append(log, idempotent(2**31 - 1, 3))
        assert append(log, idempotent(2**31 - 1, 3)).is_duplicate
        assert self.code(log, idempotent(1)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        append(log, idempotent(2))

    def test_transactions(self):
        log = open_log()
        append(log, idempotent(0, transactional=True))
        assert self.code(log, idempotent(1)) == ErrorCode.INVALID_TXN_STATE
        unverified = idempotent(0, producer_id=8, transactional=True)
        assert self.code(log, unverified, is_verified=False) == ErrorCode.INVALID_TXN_STATE
        append(log, idempotent(1, transactional=True))
        assert log.last_stable_offset == 0

        def end(kind, epoch=0, coordinator_epoch=1, version=0):
            marker = build_control_batch(
                kind,
                producer_id=7,
                producer_epoch=epoch,
                coordinator_epoch=coordinator_epoch,
                timestamp_ms=NOW_MS,
            )
            return log.append_as_leader(
                memoryview(marker),
                leader_epoch=0,
                now_ms=NOW_MS,
                origin=Origin.COORDINATOR,
                transaction_version=version,
            )

        with pytest.raises(KafkaError) as raised:
            end(ControlType.COMMIT, version=2)
        assert raised.value.code == ErrorCode.INVALID_PRODUCER_EPOCH
        end(ControlType.ABORT)
        assert log.last_stable_offset == 0, "the marker is not below the high watermark yet"
        log.update_high_watermark(log.log_end_offset)
        assert log.last_stable_offset == 3
        with pytest.raises(KafkaError) as raised:
            end(ControlType.ABORT, coordinator_epoch=0)
        assert raised.value.code == ErrorCode.TRANSACTION_COORDINATOR_FENCED
        append(log, idempotent(2))

    def test_state_survives_a_restart(self):
        for is_clean in (True, False):
            log = open_log()
            for number in range(4):
                append(log, idempotent(number))
            log.close(NOW_MS)
            log = open_log(log.fs, is_clean=is_clean)
            assert append(log, idempotent(3)).is_duplicate
            assert self.code(log, idempotent(9)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            assert append(log, idempotent(4)).first_offset == 4

    def test_an_expired_producer_may_continue_with_any_sequence(self):
        log = open_log(producer_expiration_ms=1000)
        append(log, idempotent(0))
        log.producer_state.remove_expired(NOW_MS + 1000, end=1, count=1)
        assert append(log, idempotent(77)).first_offset == 1


@given(st.lists(st.tuples(st.binary(max_size=300) | st.none(), st.binary(max_size=300) | st.none()), min_size=1))
def test_record_checks_agree_with_the_builder(pairs):
    records = [(NOW_MS + index, key, value, ()) for index, (key, value) in enumerate(pairs)]
    data = memoryview(build_batch(records))
    assert check_record_chain(data) == len(pairs) - 1
    last, largest_delta = check_records(data[61:], len(pairs))
    assert largest_delta == len(pairs) - 1
    assert check_record(data[61:], 0)[:3] == (0, 0, pairs[0][0] is not None)
    count, has_key = len(pairs), pairs[-1][0] is not None
    assert check_record(data[61:], last) == (count - 1, count - 1, has_key, len(data) - 61)
    assert is_simple_first_record(data)


@given(st.data())
def test_changed_record_bytes_never_pass_the_quick_checks_alone(data):
    """A record that passes the chain check and the quick check of the first record passes the full check too."""
    whole = bytearray(batch([b"value"]))
    position = data.draw(st.integers(61, len(whole) - 1))
    whole[position] = data.draw(st.integers(0, 255))
    try:
        check_record_chain(memoryview(whole))
    except InvalidRecordError:
        return
    if is_simple_first_record(memoryview(whole)):
        _, offset_delta, _, end = check_record(memoryview(whole)[61:], 0)
        assert (offset_delta, end) == (0, len(whole) - 61)


@pytest.mark.parametrize("properties", [{}, {"cleanup_policy": "compact"}, {"message_timestamp_type": "LogAppendTime"}])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
@pytest.mark.parametrize("offset_deltas", [[5], [-1], [1000], [0, 0, 0], [2, 1, 0], [1, *range(1, 30)]])
def test_records_have_the_offsets_that_the_header_gives_them(properties, codec, offset_deltas):
    log = open_log(cfg=config(**properties))
    append(log)
    wrong = misnumbered(idempotent(0, len(offset_deltas), codec=codec), offset_deltas)
    info = append(log, wrong)
    assert (info.first_offset, info.last_offset) == (1, len(offset_deltas))
    values = [value for _, value in read_all(log)]
    assert read_all(log) == list(enumerate(values))
    assert append(log, wrong).first_offset == 1
    assert append(log, idempotent(len(offset_deltas))).first_offset == len(offset_deltas) + 1
