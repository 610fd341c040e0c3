"""ListOffsets: lookups by timestamp."""

import pytest

from odradek.log.partition_log import PartitionLog
from odradek.log.tests.support import NOW_MS, append, batch, config, open_log, truncate
from odradek.protocol.batches.streaming import run_steps
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.records import Codec, build_batch, empty_batch, read_header, stamp_timestamps

T = NOW_MS - 1000


def log_of(*batches: list[int], codec: Codec = Codec.NONE, **properties: object) -> PartitionLog:
    log = open_log(cfg=config(message_timestamp_after_max_ms=10**15, index_interval_bytes=0, **properties))
    for number, times in enumerate(batches):
        data = batch([b"v"] * len(times), timestamp=[T + time for time in times], codec=codec)
        append(log, data, leader_epoch=number)
    return log


def find(log: PartitionLog, time: int) -> tuple[int, int, int] | None:
    found = run_steps(log.offset_for_timestamp(T + time))
    return None if found is None else (found.offset, found.timestamp - T, found.leader_epoch)


@pytest.mark.parametrize("codec", list(Codec))
def test_first_in_offset_order(codec):
    log = log_of([5, 9, 7], [8, 8], [20, 10], codec=codec)
    assert find(log, -500) == (0, 5, 0)
    assert find(log, 6) == (1, 9, 0)
    assert find(log, 8) == (1, 9, 0), "not the record with the nearest timestamp"
    assert find(log, 10) == (5, 20, 2)
    assert find(log, 20) == (5, 20, 2)
    assert find(log, 21) is None


def test_over_many_segments_with_and_without_indexes_in_memory():
    log = log_of(*[[number * 10, number * 10 + 5] for number in range(60)], internal_segment_bytes=500)
    assert len(log.segments) > 5
    for _ in range(2):
        for time in range(596):
            step = (time + 4) // 5
            assert find(log, time) == (step, step * 5, step // 2)
        assert find(log, 596) is None
        log.close(NOW_MS)
        log = open_log(log.fs, log.config)
        log.update_high_watermark(log.log_end_offset)


def test_records_before_the_log_start_are_not_found():
    log = log_of([1, 2, 3], [4])
    log.delete_records_before(2)
    assert find(log, 0) == (2, 3, 0)


def test_log_append_time():
    log = open_log(cfg=config(message_timestamp_type="LogAppendTime"))
    append(log, batch([b"a", b"b"], timestamp=[1, 2]), now_ms=NOW_MS)
    append(log, batch([b"c", b"d"], timestamp=[1, 2]), now_ms=NOW_MS + 5)
    assert run_steps(log.offset_for_timestamp(3)) == (0, NOW_MS, 0)
    assert run_steps(log.offset_for_timestamp(NOW_MS + 1)) == (2, NOW_MS + 5, 0)
    assert run_steps(log.offset_for_timestamp(NOW_MS + 6)) is None
    assert run_steps(log.offset_of_max_timestamp()) == (2, NOW_MS + 5, 0)


@pytest.mark.parametrize("codec", list(Codec))
def test_the_first_record_with_the_largest_timestamp_is_found(codec):
    log = log_of([1, 5], [2, 7, 7, 3], [7, 6], codec=codec)
    assert run_steps(log.offset_of_max_timestamp()) == (3, T + 7, 1)
    log = log_of([1, 5], [2, 7], [3, 4], [7], codec=codec, internal_segment_bytes=200)
    assert run_steps(log.offset_of_max_timestamp()) == (3, T + 7, 1)


def test_an_empty_log_has_no_timestamps():
    log = open_log()
    assert run_steps(log.offset_of_max_timestamp()) is None
    assert run_steps(log.offset_for_timestamp(0)) is None


@pytest.mark.parametrize("codec", list(Codec))
def test_without_timestamps_the_first_record_is_the_latest(codec):
    log = open_log()
    for _ in range(2):
        append(log, batch([b"a", b"b"], timestamp=-1, codec=codec))
        log.roll(NOW_MS)
    for _ in range(2):
        assert run_steps(log.offset_of_max_timestamp()) == (0, -1, 0)
        assert run_steps(log.offset_for_timestamp(0)) is None
        log.close(NOW_MS)
        log = open_log(log.fs, log.config)


def stating(
    max_timestamp: int, times: list[int], *, base_offset: int = 0, codec: Codec = Codec.NONE
) -> memoryview:
    """A stored batch whose header states any largest timestamp, as it may be found on a disk."""
    records = [(time, b"k", b"v", ()) for time in times]
    data = bytearray(build_batch(records, base_offset=base_offset, partition_leader_epoch=0, codec=codec))
    stamp_timestamps(data, codec, max_timestamp)
    return memoryview(data)


@pytest.mark.parametrize("codec", list(Codec))
def test_a_stored_batch_that_overstates_its_largest_timestamp(codec):
    log = open_log()
    log.append_as_follower(stating(T + 9, [T, T + 3, T + 2], codec=codec), now_ms=NOW_MS)
    log.append_as_follower(stating(T + 1, [T + 1], base_offset=3), now_ms=NOW_MS)
    for is_clean in (True, False):
        assert run_steps(log.offset_of_max_timestamp()) == (1, T + 3, 0)
        assert find(log, 4) is None
        log.close(NOW_MS)
        log = open_log(log.fs, is_clean=is_clean)


def test_the_latest_batch_is_empty_after_compaction():
    log = open_log()
    append(log, batch([b"a"], timestamp=T))
    log.roll(NOW_MS)
    empty = empty_batch(read_header(stating(T + 5, [T + 5], base_offset=1)))
    log.append_as_follower(memoryview(empty), now_ms=NOW_MS)
    assert run_steps(log.offset_of_max_timestamp()) == (0, T, 0)


def test_records_that_cannot_be_read(caplog):
    """A lookup that needs them fails, but the log does not."""
    log = open_log()
    data = bytearray(batch([b"a"], timestamp=T))
    data[61] = 0x7E
    stamp_timestamps(data, 0, T)
    log.append_as_follower(memoryview(data), now_ms=NOW_MS)
    for search in (log.offset_for_timestamp(T), log.offset_of_max_timestamp()):
        with pytest.raises(KafkaError) as raised:
            run_steps(search)
        assert raised.value.code == ErrorCode.CORRUPT_MESSAGE
    assert log.failure is None and "records are damaged" in caplog.text


def test_truncation_removes_timestamps():
    log = log_of([1], [9], [2])
    truncate(log, 1, NOW_MS)
    assert find(log, 2) is None
    assert run_steps(log.offset_of_max_timestamp()) == (0, T + 1, 0)
    append(log, batch([b"v"], timestamp=T + 4))
    assert find(log, 2) == (1, 4, 0)
