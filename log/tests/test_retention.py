"""Retention: the segments that it deletes, and the log that remains."""

import pytest

from odradek.log import retention
from odradek.log.partition_log import PartitionLog
from odradek.log.tests.support import NOW_MS, append, batch, config, memory_fs, open_log, read_all

DAY = 86_400_000


def log_of(segments: int, *, age_ms: int = 0, now_ms: int = NOW_MS, **properties: object) -> PartitionLog:
    """A log of segments with one 100-byte record each; every record is a second younger than the previous one."""
    log = open_log(cfg=config(message_timestamp_after_max_ms=10**15, **properties), now_ms=now_ms)
    for number in range(segments):
        if number:
            log.roll(now_ms)
        append(log, batch([b"x" * 100], timestamp=now_ms - age_ms + number * 1000), now_ms=now_ms)
    return log


def bases_left(log: PartitionLog, now_ms: int = NOW_MS) -> list[int]:
    log.remove_deleted(log.delete_old_segments(now_ms))
    bases = [segment.base_offset for segment in log.segments]
    assert log.log_start_offset >= bases[0]
    files = {name for name in log.fs.list_names(log.directory) if name.endswith(".log")}
    assert files == {f"{base:020d}.log" for base in bases}, "files are removed with their segments"
    return bases


def test_nothing_is_old():
    assert bases_left(log_of(3)) == [0, 1, 2]
    assert bases_left(open_log()) == [0], "an empty active segment stays"


@pytest.mark.parametrize(("late_ms", "left"), [(0, 3), (1, 2), (1000, 2), (1001, 1)])
def test_time(late_ms, left):
    log = log_of(3, age_ms=5000, retention_ms=5000)
    assert bases_left(log, NOW_MS + late_ms) == [0, 1, 2][-left:]
    assert log.log_start_offset == 3 - left
    assert [offset for offset, _ in read_all(log)] == [0, 1, 2][-left:]


def test_all_too_old_rolls_the_active_segment():
    log = log_of(3, age_ms=DAY, retention_ms=5000)
    assert bases_left(log) == [3]
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (3, 3, 3)
    assert append(log, [b"next"]).first_offset == 3
    assert bases_left(log) == [3]


def test_time_of_the_file_where_records_have_none():
    log = open_log(cfg=config(retention_ms=5000))
    memory_fs(log).now_ms = NOW_MS
    append(log, batch([b"x"], timestamp=-1))
    assert bases_left(log, NOW_MS + 5000) == [0]
    assert bases_left(log, NOW_MS + 5001) == [1]


def test_a_younger_segment_keeps_those_behind_it():
    log = open_log(cfg=config(retention_ms=5000))
    for age_ms in (0, 9000, 9000):
        append(log, batch([b"x"], timestamp=NOW_MS - age_ms))
        log.roll(NOW_MS)
    assert bases_left(log) == [0, 1, 2, 3]


def test_size():
    log = log_of(4)
    one = log.segments[0].size_bytes
    for limit, left in ((4 * one, 4), (4 * one - 1, 4), (3 * one + 1, 4), (3 * one, 3), (one, 1), (1, 1), (0, 0)):
        log = log_of(4, retention_bytes=limit)
        assert bases_left(log) == ([0, 1, 2, 3][-left:] if left else [4]), f"limit {limit}"


def test_unlimited():
    assert len(bases_left(log_of(3, age_ms=100 * DAY, retention_ms=-1))) == 3


def test_start_offset():
    log = log_of(4)
    log.delete_records_before(2)
    assert bases_left(log) == [2, 3]
    log.delete_records_before(4)
    assert bases_left(log) == [3], "no other segment begins at the start"


def test_compacted_topics_lose_only_what_is_before_the_start():
    log = log_of(3, age_ms=DAY, cleanup_policy="compact", retention_ms=1, retention_bytes=0)
    assert bases_left(log) == [0, 1, 2]
    log.advance_log_start(1)
    assert bases_left(log) == [1, 2]
    assert len(bases_left(log_of(3, age_ms=DAY, cleanup_policy="compact,delete", retention_ms=1))) == 1


@pytest.mark.parametrize(("high_watermark", "left"), [(0, [0, 1, 2]), (1, [1, 2]), (2, [2]), (3, [3])])
def test_never_beyond_the_high_watermark(high_watermark, left):
    log = log_of(3, age_ms=DAY, retention_ms=5000)
    log.update_high_watermark(high_watermark)
    assert bases_left(log) == left


@pytest.mark.parametrize("properties", [{"retention_ms": 5000}, {"retention_ms": -1, "retention_bytes": 0}])
def test_a_few_segments_are_deleted_at_a_time(properties):
    log = log_of(20, age_ms=DAY, **properties)
    assert [bases_left(log)[0] for _ in range(4)] == [8, 16, 20, 20]
    log = log_of(20, age_ms=DAY, **properties)
    bases_left(log)
    assert log.log_start_offset == 8, "segments that are not deleted yet can be read"
    assert [offset for offset, _ in read_all(log)] == list(range(8, 20))


def test_a_requested_start_applies_before_all_segments_below_it_are_deleted():
    log = log_of(20)
    log.delete_records_before(18)
    for first in (8, 16, 18, 18):
        assert bases_left(log)[0] == first
        assert log.log_start_offset == 18
    assert [offset for offset, _ in read_all(log)] == [18, 19]


def test_rules_are_combined():
    """The first is deleted because of the log's start, the second because of the size, the third because of its age."""
    log = log_of(5, age_ms=5000, retention_ms=2500)
    log.update_config(config(retention_ms=2500, retention_bytes=3 * log.segments[0].size_bytes))
    log.delete_records_before(1)
    assert retention.count_deletable(log.state, NOW_MS) == 3
    assert bases_left(log) == [3, 4]


def test_files_of_deleted_segments_are_renamed_until_they_are_removed():
    log = log_of(2, age_ms=5000, retention_ms=4500)
    memory_fs(log).now_ms = NOW_MS
    deleted = log.delete_old_segments(NOW_MS)
    assert [segment.base_offset for segment in deleted] == [0]
    names = log.fs.list_names(log.directory)
    assert f"{0:020d}.log.deleted" in names and f"{0:020d}.log" not in names
    log.remove_deleted(deleted)
    assert not [name for name in log.fs.list_names(log.directory) if name.endswith(".deleted")]
    log.remove_deleted(deleted)
