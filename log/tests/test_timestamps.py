"""What ListOffsets finds by time."""

import pytest

from odradek.log.tests.support import NOW_MS, append, batch, config, open_log
from odradek.protocol.records import Codec

T = NOW_MS - 1000


def log_of(*batches, codec=Codec.NONE, **properties):
    log = open_log(cfg=config(message_timestamp_after_max_ms=10**15, index_interval_bytes=0, **properties))
    for number, times in enumerate(batches):
        data = batch([b"v"] * len(times), timestamp=[T + time for time in times], codec=codec)
        append(log, data, leader_epoch=number)
    return log


def find(log, time):
    found = log.offset_for_timestamp(T + time)
    return None if found is None else (found.offset, found.timestamp - T, found.leader_epoch)


@pytest.mark.parametrize("codec", list(Codec))
def test_first_in_offset_order(codec):
    log = log_of([5, 9, 7], [8, 8], [20, 10], codec=codec)
    assert find(log, -500) == (0, 5, 0)
    assert find(log, 6) == (1, 9, 0)
    assert find(log, 8) == (1, 9, 0), "not the one that is nearest in time"
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


def test_records_before_the_start_are_not_there():
    log = log_of([1, 2, 3], [4])
    log.delete_records_before(2)
    assert find(log, 0) == (2, 3, 0)


def test_log_append_time():
    log = open_log(cfg=config(message_timestamp_type="LogAppendTime"))
    append(log, batch([b"a", b"b"], timestamp=[1, 2]), now_ms=NOW_MS)
    append(log, batch([b"c", b"d"], timestamp=[1, 2]), now_ms=NOW_MS + 5)
    assert log.offset_for_timestamp(3) == (0, NOW_MS, 0)
    assert log.offset_for_timestamp(NOW_MS + 1) == (2, NOW_MS + 5, 0)
    assert log.offset_for_timestamp(NOW_MS + 6) is None
    assert log.offset_of_max_timestamp() == (2, NOW_MS + 5, 0)


@pytest.mark.parametrize("codec", list(Codec))
def test_largest_timestamp_goes_to_the_first_that_bears_it(codec):
    log = log_of([1, 5], [2, 7, 7, 3], [7, 6], codec=codec)
    assert log.offset_of_max_timestamp() == (3, T + 7, 1)
    log = log_of([1, 5], [2, 7], [3, 4], [7], codec=codec, internal_segment_bytes=200)
    assert log.offset_of_max_timestamp() == (3, T + 7, 1)


def test_nothing_to_find():
    log = open_log()
    assert log.offset_of_max_timestamp() is None
    assert log.offset_for_timestamp(0) is None
    append(log, batch([b"a"], timestamp=-1))
    assert log.offset_of_max_timestamp() is None
    assert log.offset_for_timestamp(0) is None


def test_truncation_forgets_times():
    log = log_of([1], [9], [2])
    log.truncate_to(1, NOW_MS)
    assert find(log, 2) is None
    assert log.offset_of_max_timestamp() == (0, T + 1, 0)
    append(log, batch([b"v"], timestamp=T + 4))
    assert find(log, 2) == (1, 4, 0)
