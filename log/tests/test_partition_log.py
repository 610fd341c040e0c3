"""Rolls, reads, DeleteRecords and truncation: each test is about one rule."""

import pytest

from odradek.log.partition_log import PartitionLog
from odradek.log.tests.support import (
    NOW_MS,
    append,
    batch,
    config,
    idempotent,
    open_log,
    read_all,
    start_over,
    truncate,
)
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.records import build_batch, read_header

BIG = 1_000_000


def bases(log: PartitionLog) -> list[int]:
    return [segment.base_offset for segment in log.segments]


# Rolls


def test_rolls_when_the_segment_would_be_too_large():
    size = len(batch())
    for limit, expected in ((2 * size, [0, 2]), (2 * size - 1, [0, 1, 2])):
        log = open_log(cfg=config(internal_segment_bytes=limit))
        for _ in range(3):
            append(log)
        assert bases(log) == expected


@pytest.mark.parametrize(("passed_ms", "expected"), [(1000, [0]), (1001, [0, 1])])
def test_rolls_by_the_time_of_the_records(passed_ms, expected):
    log = open_log(cfg=config(segment_ms=1000))
    append(log, batch(timestamp=NOW_MS - 5000), now_ms=NOW_MS)
    append(log, batch(timestamp=NOW_MS - 5000 + passed_ms), now_ms=NOW_MS)
    assert bases(log) == expected
    log.close(NOW_MS)
    log = open_log(log.fs, log.config)
    append(log, batch(timestamp=NOW_MS - 5000 + passed_ms), now_ms=NOW_MS)
    assert bases(log) == expected, "also for a reopened segment"


@pytest.mark.parametrize(("passed_ms", "expected"), [(1000, [0]), (1001, [0, 1])])
def test_rolls_by_the_clock_if_the_first_batch_has_no_timestamp(passed_ms, expected):
    log = open_log(cfg=config(segment_ms=1000))
    append(log, batch(timestamp=-1), now_ms=NOW_MS)
    append(log, batch(timestamp=-1), now_ms=NOW_MS + passed_ms)
    assert bases(log) == expected


def test_empty_segment_never_rolls_by_time():
    log = open_log(cfg=config(segment_ms=1))
    append(log, now_ms=NOW_MS + BIG)
    assert bases(log) == [0]


def test_compacted_topics_roll_after_their_maximum_lag():
    log = open_log(cfg=config(segment_ms=1000, max_compaction_lag_ms=10, cleanup_policy="compact"))
    append(log, batch(timestamp=NOW_MS))
    append(log, batch(timestamp=NOW_MS + 11))
    assert bases(log) == [0, 1]


def test_rolls_when_an_index_is_full():
    log = open_log(cfg=config(index_interval_bytes=0, segment_index_bytes=48, internal_segment_bytes=BIG))
    for _ in range(8):
        append(log)
    assert bases(log) == [0, 7], "6 entries of 8 bytes, and the first batch has none"
    log = open_log(cfg=config(index_interval_bytes=0, segment_index_bytes=48, internal_segment_bytes=BIG))
    for number in range(5):
        append(log, batch(timestamp=NOW_MS + number))
    assert bases(log) == [0, 4], "4 entries of 12 bytes, and one is reserved"


def test_rolls_before_an_offset_does_not_fit_the_index():
    log = open_log()
    append(log)
    for offset in (0x7FFFFFFF, 0x80000000):
        data = build_batch([(NOW_MS, b"k", b"v", ())], base_offset=offset)
        log.append_as_follower(memoryview(data), now_ms=NOW_MS)
    assert bases(log) == [0, 0x80000000]


def test_roll_takes_a_snapshot_and_trims_indexes():
    log = open_log()
    append(log, idempotent(0))
    assert log.roll(NOW_MS) is log.active_segment
    assert log.roll(NOW_MS) is log.active_segment, "an empty one is not rolled"
    assert bases(log) == [0, 1]
    assert f"{1:020d}.snapshot" in log.fs.list_names(log.directory)
    assert log.fs.size_bytes(log.segments[0].path(".timeindex")) == 12


# Reads


@pytest.fixture
def filled() -> PartitionLog:
    """Offsets 0-4 in a segment, 5-9 in the next; a batch each, of 70 to 72 bytes."""
    log = open_log(cfg=config(index_interval_bytes=0))
    for number in range(10):
        if number == 5:
            log.roll(NOW_MS)
        append(log, [b"%d" % number])
    return log


def region(
    log: PartitionLog, offset: int, max_bytes: int, *, upper: int = 10, at_least_one: bool = True
) -> bytes | None:
    found = log.read(offset, max_bytes, upper_offset=upper, at_least_one=at_least_one)
    return None if found is None else found.read()


def read(log: PartitionLog, offset: int, max_bytes: int, *, upper: int = 10, at_least_one: bool = True) -> bytes:
    data = region(log, offset, max_bytes, upper=upper, at_least_one=at_least_one)
    assert data is not None
    return data


def test_read_is_within_one_segment(filled: PartitionLog):
    data = read(filled, 2, BIG)
    assert read_header(data).base_offset == 2
    assert len(data) == 3 * len(batch([b"2"]))
    assert read_header(read(filled, 5, BIG)).base_offset == 5


def test_read_limit(filled: PartitionLog):
    size = len(batch([b"2"]))
    for _ in range(2):
        assert len(read(filled, 1, size * 2 + 9)) == size * 2 + 9, "cut anywhere"
        assert len(read(filled, 1, size)) == len(read(filled, 1, size - 1)) == len(read(filled, 1, 0)) == size
        assert region(filled, 1, size - 1, at_least_one=False) is None
        assert len(read(filled, 1, size, at_least_one=False)) == size


@pytest.mark.parametrize("upper", range(11))
def test_read_below_an_upper_offset(filled: PartitionLog, upper):
    for offset in range(11):
        data = region(filled, offset, BIG, upper=upper)
        end = min(upper, 5 if offset < 5 else 10)
        assert len(data or b"") == max(0, end - offset) * len(batch([b"2"]))


def test_read_outside_of_the_log(filled: PartitionLog):
    filled.delete_records_before(3)
    for offset in (-1, 2, 11):
        with pytest.raises(KafkaError) as raised:
            region(filled, offset, BIG)
        assert raised.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert region(filled, 10, BIG) is None


def test_a_read_in_the_middle_of_a_batch_returns_all_of_it():
    log = open_log()
    append(log, [b"a", b"b", b"c"])
    log.delete_records_before(1)
    assert read_header(read(log, 2, BIG, upper=3)).base_offset == 0


def test_consecutive_reads_return_all_records():
    """A read leaves a hint of the next position, with which later reads return all records, for any limit."""
    log = open_log(cfg=config(internal_segment_bytes=BIG))
    for number in range(60):
        append(log, [b"x" * (number * 7 % 50)] * (1 + number % 3))
    expected = read_all(log)
    for max_bytes in (0, 1, 75, 80, 150, 151, 400, 1000):
        assert read_all(log, 0, max_bytes) == expected
        for offset in (1, 17, 50):
            assert read_all(log, offset, max_bytes) == expected[offset:]
    truncate(log, log.log_end_offset - 1, NOW_MS)
    append(log, [b"other"] * 4)
    assert read_all(log, 0, 75)[-4:] == [(log.log_end_offset - 4 + n, b"other") for n in range(4)]


def test_reading_batch_by_batch_searches_once(filled: PartitionLog):
    size = len(batch([b"2"]))
    for at_least_one, max_bytes in ((True, 1), (True, size), (False, size)):
        segment = filled.segments[0]
        segment.hints.clear()
        for offset in range(4):
            region(filled, offset, max_bytes, at_least_one=at_least_one)
            assert segment.hints == {offset + 1: (offset + 1) * size}
    assert read_header(read(filled, 4, 1)).base_offset == 4
    assert read_header(read(filled, 5, 1)).base_offset == 5
    assert region(filled, 0, size - 1, at_least_one=False) is None


# DeleteRecords and truncation


def test_delete_records(filled: PartitionLog):
    filled.update_high_watermark(8)
    for offset in (-2, 9):
        with pytest.raises(KafkaError) as raised:
            filled.delete_records_before(offset)
        assert raised.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert filled.delete_records_before(6) == 6
    assert filled.delete_records_before(2) == 6, "never backwards"
    assert filled.delete_records_before(-1) == 8
    assert (filled.log_start_offset, filled.high_watermark, filled.log_end_offset) == (8, 8, 10)
    filled.update_config(config(cleanup_policy="compact"))
    with pytest.raises(KafkaError) as raised:
        filled.delete_records_before(8)
    assert raised.value.code == ErrorCode.POLICY_VIOLATION
    filled.update_config(config(cleanup_policy="compact,delete"))
    assert filled.delete_records_before(8) == 8


@pytest.mark.parametrize("offset", range(12))
def test_truncate(filled: PartitionLog, offset):
    filled.flush(NOW_MS)
    deleted = truncate(filled, offset, NOW_MS)
    end = min(offset, 10)
    assert [segment.base_offset for segment in deleted] == ([5] if offset < 5 else [])
    assert filled.log_end_offset == filled.high_watermark == filled.flushed_offset == end
    assert [found for found, _ in read_all(filled)] == list(range(end))
    assert append(filled, [b"next"]).first_offset == end


def test_truncate_removes_the_producers_of_removed_batches():
    log = open_log()
    for sequence in range(3):
        append(log, idempotent(sequence))
    append(log, idempotent(0, producer_id=8))
    truncate(log, 2, NOW_MS)
    assert list(log.producer_state.producers) == [7]
    assert append(log, idempotent(2)).first_offset == 2


def test_start_over_before_the_first_segment():
    log = open_log()
    append(log, idempotent(0))
    start_over(log, 100, NOW_MS)
    assert (log.log_start_offset, log.log_end_offset, bases(log)) == (100, 100, [100])
    assert log.leader_epochs.entries == [] and log.producer_state.is_empty
    log.remove_deleted(truncate(log, 50, NOW_MS))
    assert (log.log_start_offset, log.log_end_offset, bases(log)) == (50, 50, [50])
    assert append(log).first_offset == 50
