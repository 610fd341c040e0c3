"""A damaged batch in a part of a log that a start does not verify: the rest of the log is served."""

import re

import pytest

from odradek.log import retention
from odradek.log.config import LogConfig
from odradek.log.partition_log import PartitionLog
from odradek.log.segments.segment import Segment
from odradek.log.segments.segment_files import CorruptSegmentError
from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.log.tests import managers
from odradek.log.tests.managers import opened, run_until, served
from odradek.log.tests.support import NOW_MS, append, config, idempotent, open_log, read_all
from odradek.protocol.batches.streaming import run_steps
from odradek.protocol.errors import ErrorCode, KafkaError

DIRECTORIES = ("/data/a",)
SMALL = {"internal.segment.bytes": "20000", "index.interval.bytes": "4096", "retention.ms": "1000000000"}


def erase_length(fs: MemoryFileSystem, segment: Segment, position: int) -> None:
    """Zero a batch's length, so that a scan cannot find the next batch."""
    fs.open(segment.path(".log")).write_pieces(position + 8, [bytes(4)], 4)


def positions(segment: Segment) -> dict[int, int]:
    """Return the positions of the batches by their last offsets."""
    return {header.last_offset: position for position, header in segment.headers()}


def code_of_read(log: PartitionLog, offset: int) -> ErrorCode:
    """Return the error of a read that begins at `offset`; NONE if the read returns that batch."""
    try:
        region = log.read(offset, 1, upper_offset=log.log_end_offset, at_least_one=True)
    except KafkaError as error:
        return error.code
    assert int.from_bytes(region.read()[:8], "big") == offset
    return ErrorCode.NONE


@pytest.mark.parametrize("policy", ["delete", "compact", "compact,delete"])
def test_a_damaged_batch_does_not_take_its_directory_offline(policy, caplog):
    fs = MemoryFileSystem()
    properties = SMALL | {"cleanup.policy": policy}
    manager = opened(fs, DIRECTORIES, properties)
    log = manager.create_log("t", 0, None, 0, is_new=True)
    managers.append(manager.create_log("other", 0, None, 0, is_new=True), b"fine")
    for number in range(400):
        managers.append(log, b"x" * 100, now_ms=1_000_000 + number)
    first = log.segments[0]
    manager.close(0)
    erase_length(fs, first, [*positions(first).values()][-3])
    for _ in range(2):
        manager = opened(fs, DIRECTORIES, properties)
        run_until(manager, 0, 100_000)
        assert manager.online_directories == ["/data/a"]
        managers.append(served(manager, "other"), b"more")
        managers.append(served(manager), b"more", now_ms=2_000_000)
        manager.close(0)
        assert manager.online_directories == ["/data/a"]
    assert "log directory" not in caplog.text


def test_a_damaged_batch_before_the_largest_timestamp_does_not_refuse_appends(caplog):
    fs = MemoryFileSystem()
    cfg = config(internal_segment_bytes=200_000, index_interval_bytes=4096)
    log = open_log(fs, cfg)
    for number in range(200):
        append(log, [b"x" * 100], timestamp=NOW_MS + (1000 if number == 99 else 0))
    log.close(0)
    segment = log.segments[0]
    found = positions(segment)
    floor = segment.offset_index.floor_position(99)
    victim = max(offset for offset, position in found.items() if floor < position and offset < 99)
    erase_length(fs, segment, found[victim])
    log = open_log(fs, cfg)
    assert append(log, [b"more"]).first_offset == 200
    assert log.failure is None
    assert caplog.text.count("segment is damaged") == 1


@pytest.mark.parametrize("what", ["retention", "append", "roll", "cleaner"])
def test_damage_found_by_any_operation_affects_only_its_log(what, monkeypatch, caplog):
    fs = MemoryFileSystem()
    manager = opened(fs, DIRECTORIES, SMALL | {"cleanup.policy": "compact" if what == "cleaner" else "delete"})
    log = manager.create_log("t", 0, None, 0, is_new=True)
    managers.append(log, b"x")

    def fail(*arguments, **keywords):
        raise CorruptSegmentError("no batch at position 7")

    if what == "retention":
        monkeypatch.setattr(retention, "count_deletable", fail)
    elif what == "cleaner":
        monkeypatch.setattr("odradek.log.compaction.cleaner.find_cleanable", fail)
    else:
        monkeypatch.setattr(Segment, "append", fail)
        monkeypatch.setattr(Segment, "append_batches", fail)
        monkeypatch.setattr(Segment, "seal", fail)
    for _ in range(2):
        if what in ("retention", "cleaner"):
            run_until(manager, 0, 1_000_000)
        else:
            with pytest.raises(KafkaError, match="no batch at position 7") as error:
                managers.append(log, b"y") if what == "append" else log.roll(0)
            assert error.value.code == ErrorCode.CORRUPT_MESSAGE
    assert manager.online_directories == ["/data/a"]
    assert log.failure is None
    assert caplog.text.count("no batch at position 7") == 1
    assert (("t", 0) in manager.cleaner.uncleanable) is (what == "cleaner")


def test_damage_that_prevents_loading_affects_only_its_log(monkeypatch, caplog):
    fs = MemoryFileSystem()
    manager = opened(fs, DIRECTORIES)
    for topic in ("bad", "fine"):
        managers.append(manager.create_log(topic, 0, None, 0, is_new=True), b"x")
    manager.close(0)
    initialize = PartitionLog.__init__

    def fail(log, fs, directory, *arguments, **keywords):
        if directory.endswith("bad-0"):
            raise CorruptSegmentError(f"{directory}: no batch at position 7")
        initialize(log, fs, directory, *arguments, **keywords)

    monkeypatch.setattr(PartitionLog, "__init__", fail)
    manager = opened(fs, DIRECTORIES)
    assert manager.online_directories == ["/data/a"]
    assert manager.get("fine", 0).log_end_offset == 1
    with pytest.raises(KafkaError):
        manager.get("bad", 0)
    assert "partition is not served log=/data/a/bad-0" in caplog.text


def test_a_start_without_snapshots_reads_producers_around_damage(caplog):
    fs = MemoryFileSystem()
    cfg = config(internal_segment_bytes=200_000, index_interval_bytes=1000)
    log = open_log(fs, cfg)
    for number in range(60):
        append(log, [b"%d" % number])
    log.roll(NOW_MS)
    append(log, idempotent(0))
    log.close(0)
    for name in fs.list_names(log.directory):
        if name.endswith(".snapshot"):
            fs.remove(f"{log.directory}/{name}")
    segment = log.segments[0]
    entry = segment.offset_index.entries()[0][0]
    erase_length(fs, segment, positions(segment)[entry + 2])
    log = open_log(fs, cfg, log_start_offset=entry + 4)
    assert (log.log_start_offset, log.log_end_offset) == (entry + 4, 61)
    assert list(log.producer_state.producers) == [7]
    assert "no batch at position" in caplog.text


def six_segments(fs: MemoryFileSystem, cfg: LogConfig) -> PartitionLog:
    """A log of 60 batches, ten in a segment, and all of it flushed."""
    log = open_log(fs, cfg)
    for number in range(60):
        append(log, [b"%d" % number])
        if number % 10 == 9 and number < 59:
            log.roll(NOW_MS)
    log.close(0)
    return log


@pytest.mark.parametrize("point", [60, 9999])
@pytest.mark.parametrize("is_clean", [True, False])
def test_damage_at_the_end_and_in_an_old_segment_keeps_the_segments_between(is_clean, point, caplog):
    fs, cfg = MemoryFileSystem(), config()
    log = six_segments(fs, cfg)
    for segment, batch in ((log.segments[1], 14), (log.segments[-1], 58)):
        erase_length(fs, segment, positions(segment)[batch])
    again = open_log(fs, cfg, is_clean=is_clean, recovery_point=point)
    kept = [*range(14), *range(20, 58)]
    assert [offset for offset, _ in read_all(again)] == kept
    assert again.log_end_offset == again.flushed_offset == 58
    assert "later segments are kept" in caplog.text
    assert append(again, [b"more"]).first_offset == 58
    fs.crash(lose_names=True)
    # The checkpoint may still have the earlier recovery point.
    for found_point in (point, again.recovery_point):
        again = open_log(fs, cfg, is_clean=False, recovery_point=found_point)
        assert [offset for offset, _ in read_all(again)] == kept
        assert again.log_end_offset == 58


def test_unflushed_segments_behind_damage_are_removed_even_if_it_is_below_the_recovery_point():
    fs, cfg = MemoryFileSystem(), config()
    log = six_segments(fs, cfg)
    for segment, batch in ((log.segments[1], 14), (log.segments[3], 32)):
        erase_length(fs, segment, positions(segment)[batch])
    log = open_log(fs, cfg, is_clean=False, recovery_point=35)
    assert [offset for offset, _ in read_all(log)] == [*range(14), *range(20, 32)]


ENTRIES = 66


def long_segment(fs: MemoryFileSystem) -> tuple[LogConfig, Segment]:
    """A sealed segment of 600 batches with 66 index entries, and a segment with one batch behind it."""
    cfg = config(internal_segment_bytes=100_000, index_interval_bytes=1000)
    log = open_log(fs, cfg)
    for number in range(600):
        append(log, [b"x" * 50], timestamp=NOW_MS + number)
    log.roll(NOW_MS)
    append(log, [b"y"], timestamp=NOW_MS + 600)
    log.close(0)
    assert len(log.segments[0].offset_index.entries()) == ENTRIES
    return cfg, log.segments[0]


@pytest.mark.parametrize("damage", ["too small", "negative", "too large", "into another batch", "another format"])
def test_batches_behind_a_damaged_one_stay_readable_when_the_index_is_repaired(damage, caplog):
    fs = MemoryFileSystem()
    cfg, segment = long_segment(fs)
    offset, position = segment.offset_index.entries()[10]
    size_bytes = (positions(segment)[offset + 1] - position) - 12
    data = {
        "too small": bytes(4),
        "negative": b"\xff\xff\xff\xff",
        "too large": b"\x7f\0\0\0",
        "into another batch": (size_bytes + 20_000).to_bytes(4, "big"),
        "another format": size_bytes.to_bytes(4, "big") + b"\0\0\0\0\x03",
    }[damage]
    fs.open(segment.path(".log")).write_pieces(position + 8, [data], len(data))
    fs.open(segment.path(".timeindex")).truncate(0)
    log = open_log(fs, cfg)
    for _ in range(2):
        assert run_steps(log.offset_of_max_timestamp()).offset == 600
        for readable in (*range(offset), *range(offset + 10, 601)):
            assert code_of_read(log, readable) == ErrorCode.NONE, readable
        assert run_steps(log.offset_for_timestamp(NOW_MS + 590)).offset == 590
        log.close(0)
        log = open_log(fs, cfg)
    assert caplog.text.count("index is damaged and is rebuilt") == 1


def test_an_index_is_repaired_around_each_of_several_damaged_batches(caplog):
    fs = MemoryFileSystem()
    cfg, segment = long_segment(fs)
    entries = segment.offset_index.entries()
    for number in (0, 10, 11, 40, ENTRIES - 1):
        erase_length(fs, segment, entries[number][1])
    log = open_log(fs, cfg)
    assert code_of_read(log, entries[10][0]) == ErrorCode.CORRUPT_MESSAGE
    readable = {offset for offset in range(601) if code_of_read(log, offset) == ErrorCode.NONE}
    for number in (1, 9, 12, 13, 39, 41, ENTRIES - 2):
        offset = entries[number][0]
        assert {offset, offset + 1} <= readable, number
    assert 600 in readable
    assert len(readable) > 601 - 6 * 10
    assert len(re.findall("segment is damaged, .* damaged_ranges=", caplog.text)) == 1


def test_appends_continue_behind_repaired_damage_and_the_next_start_keeps_them():
    fs = MemoryFileSystem()
    cfg = config(internal_segment_bytes=200_000, index_interval_bytes=1000)
    log = open_log(fs, cfg)
    for number in range(200):
        append(log, [b"x" * 100], timestamp=NOW_MS + (1000 if number == 99 else 0))
    log.close(0)
    segment = log.segments[0]
    floor = segment.offset_index.floor_position(99)
    erase_length(fs, segment, min(position for position in positions(segment).values() if position > floor))
    for number in range(3):
        log = open_log(fs, cfg, recovery_point=200 + number)
        assert append(log, [b"more"]).first_offset == 200 + number
        assert code_of_read(log, 199) == ErrorCode.NONE
        log.close(0)


def test_an_index_without_a_correct_entry_is_rebuilt_completely():
    fs = MemoryFileSystem()
    cfg, segment = long_segment(fs)
    expected = segment.offset_index.entries()
    fs.open(segment.path(".index")).write_pieces(0, [b"\0\0\0\1\1\1\1\1" * ENTRIES], 8 * ENTRIES)
    log = open_log(fs, cfg)
    assert {code_of_read(log, offset) for offset in reversed(range(601))} == {ErrorCode.NONE}
    assert log.segments[0].offset_index.entries() == expected
