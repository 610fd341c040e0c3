"""Compaction: due logs, remaining records, and crashes and faults, which neither lose nor restore a record."""

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.log.background.pacing import Pacer
from odradek.log.compaction.cleanable import find_cleanable, group_segments
from odradek.log.compaction.offset_map import OffsetMap
from odradek.log.config import LogConfig
from odradek.log.log_manager import LogManager
from odradek.log.partition_log import PartitionLog
from odradek.log.storage import checkpoints
from odradek.log.storage.filesystem import OsFileSystem
from odradek.log.storage.memory_filesystem import MemoryFileSystem, SimulatedCrash
from odradek.log.tests.cleaning import (
    COMPACT,
    T0,
    batches,
    clean,
    latest,
    make_log,
    mark,
    open_manager,
    put,
    records,
    roll,
)
from odradek.log.tests.managers import ONE_THREAD, run_due
from odradek.log.tests.managers import truncate as truncate_log
from odradek.log.tests.support import misnumbered, truncate
from odradek.log.tests.threads import Threads
from odradek.protocol.batches.compression import Codec
from odradek.protocol.records import ControlType, build_batch, iter_batches, iter_records

# Due logs


def test_only_flushed_records_are_compacted() -> None:
    """Otherwise a record could be removed because of a later one that a power failure loses."""
    _, log = make_log(MemoryFileSystem())
    put(log, (b"a", b"1"))
    roll(log)
    log.append_as_leader(memoryview(build_batch([(T0, b"a", b"2", ())])), leader_epoch=0, now_ms=T0)
    log.update_high_watermark(log.log_end_offset)
    roll(log)
    target = find_cleanable(log, None, T0)
    assert target is not None
    assert target.end_offset == 1
    log.flush(T0)
    target = find_cleanable(log, None, T0)
    assert target is not None
    assert target.end_offset == 2


def test_only_whole_segments_below_the_last_stable_offset_count() -> None:
    _, log = make_log(MemoryFileSystem())
    put(log, (b"a", b"1"))
    assert find_cleanable(log, None, T0) is None
    roll(log)
    put(log, (b"a", b"2"))
    roll(log)
    put(log, (b"a", b"3"))
    log.update_high_watermark(1)
    target = find_cleanable(log, None, T0)
    assert target is not None
    assert (target.first_dirty_offset, target.end_offset, target.clean_bytes) == (0, 1, 0)
    assert target.ratio == 1
    log.update_high_watermark(3)
    target = find_cleanable(log, 1, T0)
    assert target is not None
    assert (target.first_dirty_offset, target.end_offset, target.ratio) == (1, 2, 0.5)
    assert find_cleanable(log, 2, T0) is None
    outside = find_cleanable(log, 9, T0)
    assert outside is not None
    assert outside.first_dirty_offset == 0


def test_lags() -> None:
    _, log = make_log(MemoryFileSystem(), {"min.compaction.lag.ms": "100", "min.cleanable.dirty.ratio": "1"})
    put(log, (b"a", b"1"), now_ms=T0)
    roll(log)
    put(log, (b"a", b"2"), now_ms=T0 + 50)
    roll(log)
    assert find_cleanable(log, None, T0 + 99) is None
    target = find_cleanable(log, None, T0 + 100)
    assert target is not None
    assert target.end_offset == 1
    assert not target.is_due
    log.update_config(log.config.replace({"max.compaction.lag.ms": "150"}))
    target = find_cleanable(log, None, T0 + 151)
    assert target is not None
    assert target.is_due


def test_the_dirtiest_log_comes_first() -> None:
    fs = MemoryFileSystem()
    manager, first = make_log(fs)
    second = manager.create_log("t", 1, bytes(16), T0)
    for log, count in ((first, 2), (second, 6)):
        for _ in range(count):
            put(log, (b"a", b"1"))
        roll(log)
    clean(manager)
    for log, count in ((first, 5), (second, 1)):
        for _ in range(count):
            put(log, (b"a", b"1"))
        roll(log)
    manager.cleaner.step(T0)
    assert manager.cleaner.offsets == {("t", 0): 7, ("t", 1): 6}
    manager.cleaner.step(T0)
    assert manager.cleaner.offsets == {("t", 0): 7, ("t", 1): 7}


def test_grouping() -> None:
    _, log = make_log(MemoryFileSystem(), {"internal.segment.bytes": "250"})
    for _ in range(7):
        put(log, (b"a", b"1"))
        roll(log)
    sizes = [[s.base_offset for s in group] for group in group_segments(log.segments[:-1], log.config, 7)]
    assert sizes == [[0, 1, 2], [3, 4, 5], [6]]
    far = log.config.replace({"internal.segment.bytes": str(1 << 30)})
    assert len(group_segments(log.segments[:-1], far, 1 << 31)) == 1
    assert [len(group) for group in group_segments(log.segments[:-1], far, (1 << 31) + 1)] == [6, 1]


# Remaining records


@pytest.mark.parametrize("codec", list(Codec))
def test_the_last_value_of_each_key_keeps_its_offset(codec: Codec) -> None:
    manager, log = make_log(MemoryFileSystem(), {"compression.type": "producer"})
    put(log, (b"a", b"1"), (b"b", b"1"), (b"c", b"1"), codec=codec)
    put(log, (b"a", b"2"), (b"b", b"2"), codec=codec)
    roll(log)
    put(log, (b"a", b"3"), codec=codec)
    clean(manager)
    assert records(log) == [(2, b"c", b"1"), (3, b"a", b"2"), (4, b"b", b"2"), (5, b"a", b"3")]
    first = batches(log)[0][0]
    assert (first.base_offset, first.last_offset, first.record_count, first.codec) == (0, 2, 1, codec)
    assert first.max_timestamp == T0
    assert log.read(0, 1000, upper_offset=6, at_least_one=True) is not None


def test_small_segments_are_merged() -> None:
    fs = MemoryFileSystem()
    manager, log = make_log(fs, {"internal.segment.bytes": "1000"})
    for index in range(8):
        put(log, (b"a", b"%d" % index))
        roll(log)
    clean(manager)
    assert [segment.base_offset for segment in log.segments] == [0, 8]
    assert records(log) == [(7, b"a", b"7")]
    run_due(manager, T0)
    names = [name for name in fs.list_names(log.directory) if name.endswith((".log", ".deleted", ".cleaned", ".swap"))]
    assert names == ["00000000000000000000.log", "00000000000000000008.log"]
    assert checkpoints.read_offsets(fs, "/d/cleaner-offset-checkpoint") == {("t", 0): 8}
    manager.close(T0)
    manager = open_manager(fs)
    assert manager.cleaner.offsets == {("t", 0): 8}


def test_tombstones_remain_for_delete_retention_ms_after_their_first_compaction() -> None:
    manager, log = make_log(MemoryFileSystem())
    put(log, (b"a", b"1"), (b"b", b"1"))
    put(log, (b"a", None), (b"c", b"1"))
    roll(log)
    clean(manager)
    assert records(log) == [(1, b"b", b"1"), (2, b"a", None), (3, b"c", b"1")]
    header, found = batches(log)[1]
    assert header.delete_horizon_ms == T0 + 1000
    assert [record.timestamp for record in found] == [T0, T0]
    for now_ms, tombstones in ((T0 + 999, 1), (T0 + 1000, 0)):
        put(log, (b"d", b"1"), now_ms=now_ms)
        roll(log)
        clean(manager, now_ms)
        assert sum(value is None for _, _, value in records(log)) == tombstones
    assert b"a" not in [key for _, key, _ in records(log)]


def test_records_without_a_key_are_removed() -> None:
    manager, log = make_log(MemoryFileSystem(), {"cleanup.policy": "delete"})
    put(log, (None, b"1"), (b"a", b"1"))
    roll(log)
    put(log, (None, b"2"))
    log.update_config(LogConfig(COMPACT))
    clean(manager)
    assert records(log) == [(1, b"a", b"1"), (2, None, b"2")]


def test_keys_beyond_the_dedupe_buffer_are_left_for_the_next_run() -> None:
    manager, log = make_log(MemoryFileSystem(), settings=ONE_THREAD._replace(log_cleaner_dedupe_buffer_size=700))
    for key in (b"a", b"b", b"c", b"d", b"a", b"b", b"c", b"d"):
        put(log, (key, b"v"))
    roll(log)
    manager.cleaner.step(T0)
    assert manager.cleaner.offsets == {("t", 0): 3}
    clean(manager)
    assert manager.cleaner.offsets == {("t", 0): 8}
    assert records(log) == [(4, b"a", b"v"), (5, b"b", b"v"), (6, b"c", b"v"), (7, b"d", b"v")]


def test_the_last_batch_of_a_live_producer_and_of_the_range_are_kept_empty() -> None:
    manager, log = make_log(MemoryFileSystem())
    put(log, (b"a", b"1"), producer_id=5, producer_epoch=0, base_sequence=0)
    put(log, (b"a", b"2"), producer_id=5, producer_epoch=0, base_sequence=1)
    put(log, (b"a", b"3"))
    put(log, (b"b", b"3"))
    roll(log)
    put(log, (b"a", b"4"), (b"b", b"4"))
    roll(log)
    clean(manager)
    found = batches(log)
    assert [(h.base_offset, h.last_offset, h.producer_id, h.base_sequence, len(r)) for h, r in found] == [
        (1, 1, 5, 1, 0),
        (4, 5, -1, -1, 2),
    ]
    put(log, (b"b", None), (b"a", None))
    roll(log)
    clean(manager)
    put(log, (b"c", b"1"))
    roll(log)
    clean(manager, T0 + 5000)
    put(log, (b"c", b"2"))
    roll(log)
    clean(manager, T0 + 5000)
    assert log.segments[-2].next_offset() == log.log_end_offset
    log.producer_state.producers.clear()
    put(log, (b"c", b"3"))
    roll(log)
    clean(manager, T0 + 5000)
    assert [h.producer_id for h, _ in batches(log)] == [-1]


def test_sequence_numbers_continue_after_compaction_and_a_crash() -> None:
    fs = MemoryFileSystem()
    manager, log = make_log(fs)
    put(log, (b"a", b"1"), producer_id=5, producer_epoch=0, base_sequence=0)
    put(log, (b"a", b"2"))
    roll(log)
    clean(manager)
    log.flush(T0)
    fs.crash()
    log = open_manager(fs).all_logs()[0]
    put(log, (b"a", b"3"), producer_id=5, producer_epoch=0, base_sequence=1)
    assert records(log) == [(1, b"a", b"2"), (2, b"a", b"3")]


# Transactions


def test_aborted_records_are_removed_at_once_and_their_marker_at_its_delete_horizon() -> None:
    manager, log = make_log(MemoryFileSystem(), {"internal.segment.bytes": "1000"})
    put(log, (b"a", b"old"))
    put(log, (b"a", b"no"), producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    mark(log, ControlType.ABORT, 5)
    roll(log)
    clean(manager)
    assert records(log) == [(0, b"a", b"old")]
    assert [entry.first_offset for entry in log.segments[0].transaction_index.entries()] == [1]
    # The producer is live, so its last data batch stays, empty; it still counts as data of the transaction.
    log.producer_state.producers.clear()
    for step, markers in ((0, 1), (1, 1), (1000, 1), (1001, 0)):
        put(log, (b"b", b"1"))
        roll(log)
        clean(manager, T0 + step)
        assert sum(h.is_control for h, _ in batches(log)) == markers
    assert log.segments[0].transaction_index.entries() == []


def test_committed_records_and_their_marker_are_kept() -> None:
    manager, log = make_log(MemoryFileSystem(), {"internal.segment.bytes": "1000"})
    put(log, (b"a", b"1"), producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    mark(log, ControlType.COMMIT, 5)
    roll(log)
    clean(manager)
    for now_ms in (T0, T0 + 5000):
        put(log, (b"b", b"1"))
        roll(log)
        clean(manager, now_ms)
        headers = [h for h, _ in batches(log) if h.is_control]
        assert [(h.delete_horizon_ms, h.record_count) for h in headers] == [(None, 1)]
    assert (0, b"a", b"1") in records(log)


def test_an_open_transaction_is_not_touched() -> None:
    manager, log = make_log(MemoryFileSystem())
    put(log, (b"a", b"1"), producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    roll(log)
    put(log, (b"a", b"2"))
    roll(log)
    assert find_cleanable(log, None, T0) is None
    mark(log, ControlType.ABORT, 5)
    clean(manager)
    assert records(log) == [(1, b"a", b"2")]


# Concurrent operations and failures


def dirty_log(steps: Threads, fs: MemoryFileSystem) -> tuple[LogManager, PartitionLog]:
    manager, log = make_log(fs, run_in_thread=steps)
    for index in range(12):
        put(log, (b"a", b"%d" % index))
    roll(log)
    steps.run()
    return manager, log


def test_appends_and_reads_go_on_during_compaction() -> None:
    steps = Threads()
    manager, log = dirty_log(steps, MemoryFileSystem())
    region = log.read(0, 10_000, upper_offset=12, at_least_one=True)
    manager.cleaner.step(T0)
    count = 0
    while manager.cleaner.running:
        put(log, (b"b", b"%d" % count))
        count += 1
        steps.run(1)
    assert count > 5
    assert [key for _, key, _ in records(log)] == [b"a"] + [b"b"] * count
    assert region is not None
    assert len(list(iter_batches(region.read()))) > 1


@pytest.mark.parametrize("after", range(24))
def test_deleting_the_log_ends_its_compaction(after: int) -> None:
    fs = MemoryFileSystem()
    steps = Threads()
    manager, _ = dirty_log(steps, fs)
    manager.cleaner.step(T0)
    steps.run(after)
    manager.delete_log("t", 0)
    again = manager.create_log("t", 0, bytes(16), T0)
    put(again, (b"a", b"new"))
    steps.run()
    assert not manager.cleaner.running
    assert manager.cleaner.offsets == {}
    assert records(again) == [(0, b"a", b"new")]
    assert manager.online_directories == ["/d"]
    assert not any(name.endswith((".cleaned", ".swap")) for name in fs.list_names("/d/t-0"))


@pytest.mark.parametrize("after", range(24))
def test_truncation_ends_compaction(after: int) -> None:
    fs = MemoryFileSystem()
    steps = Threads()
    manager, log = dirty_log(steps, fs)
    manager.cleaner.step(T0)
    steps.run(after)
    truncate_log(manager, 7, T0)
    put(log, (b"a", b"new"))
    steps.run()
    assert not manager.cleaner.running
    assert manager.cleaner.offsets.get(("t", 0), 0) <= 7
    assert records(log)[-1][1:] == (b"a", b"new")
    roll(log)
    while manager.cleaner.step(T0) or steps.waiting:
        steps.run()
    assert [value for _, _, value in records(log)] == [b"new"]


def test_a_removal_of_its_segments_ends_compaction() -> None:
    fs = MemoryFileSystem()
    steps = Threads()
    manager, log = dirty_log(steps, fs)
    manager.cleaner.step(T0)
    steps.run(1)
    log.remove_deleted(truncate(log, 0, T0))
    steps.run()
    assert not manager.cleaner.running
    assert manager.online_directories == ["/d"]
    assert log.log_end_offset == 0


def test_a_failed_write_takes_the_directory_offline() -> None:
    fs = MemoryFileSystem()
    manager, log = make_log(fs)
    put(log, (b"a", b"1"))
    roll(log)
    fs.fail("write", path_contains=".cleaned")
    clean(manager)
    assert manager.online_directories == []
    assert not manager.cleaner.running


def test_the_last_compactions_are_measured() -> None:
    fs = MemoryFileSystem()
    manager, log = make_log(fs)
    put(log, (b"a", b"1"), (b"a", b"2"))
    roll(log)
    size_bytes = log.segments[0].size_bytes
    for _ in range(2):
        clean(manager)
    (ended,) = manager.cleaner.ended
    assert ended.bytes_before == size_bytes > ended.bytes_after > 0
    assert ended.duration_s >= 0


def test_a_damaged_log_is_uncleanable() -> None:
    fs = MemoryFileSystem()
    manager, log = make_log(fs)
    put(log, (b"a", b"1"), (b"b", b"2"))
    roll(log)
    log.segments[0].file.write_pieces(70, [b"x"], 1)
    clean(manager)
    assert manager.cleaner.uncleanable == {("t", 0)}
    assert manager.online_directories == ["/d"]


def test_compact_and_delete_compacts_and_deletes() -> None:
    manager, log = make_log(MemoryFileSystem(), {"cleanup.policy": "compact,delete", "retention.ms": "500"})
    put(log, (b"a", b"1"), (b"a", b"2"))
    roll(log)
    put(log, (b"b", b"1"), now_ms=T0 + 1000)
    clean(manager)
    assert records(log)[0] == (1, b"a", b"2")
    now_ms = T0
    while now_ms < T0 + 40_000:
        now_ms = run_due(manager, now_ms) + 1
    assert records(log) == []
    assert log.log_start_offset == 3


def test_pacing() -> None:
    slept: list[float] = []
    pacer = Pacer(1000.0, lambda: sum(slept), slept.append)
    pacer(100)
    assert slept == [0.1]
    pacer(250)
    assert sum(slept) == pytest.approx(0.35)
    assert max(slept) <= 0.1
    now = 0.0
    breaks: list[float] = []
    pacer = Pacer(float("inf"), lambda: now, breaks.append)
    for _ in range(10):
        now += 0.001
        pacer(1000)
    assert breaks == [0.001] * 3


def test_offset_map_is_bounded_and_distinguishes_long_keys() -> None:
    offsets = OffsetMap(2000)
    assert offsets.max_entries == 9
    keys = [b"", b"k", b"k" * 15, b"k" * 16, b"k" * 17]
    for offset, key in enumerate(keys):
        offsets.put(key, offset)
    assert [offsets.get(key) for key in keys] == [0, 1, 2, 3, 4]
    assert offsets.get(b"other") == -1


# Models and crashes

KEYS = st.sampled_from([b"a", b"b", b"c", b"longer than sixteen bytes"])
VALUES = st.one_of(st.none(), st.binary(max_size=30))
ACTIONS = st.one_of(
    st.tuples(st.just("put"), st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=4)),
    st.tuples(st.just("roll"), st.none()),
    st.tuples(st.just("clean"), st.none()),
    st.tuples(st.just("wait"), st.integers(1, 2000)),
    st.tuples(st.just("restart"), st.booleans()),
)


@settings(max_examples=150, deadline=None)
@given(
    actions=st.lists(ACTIONS, max_size=30), buffer_size=st.sampled_from([1_200, 1 << 20]), codec=st.sampled_from([0, 4])
)
def test_model(actions: list[tuple[str, Any]], buffer_size: int, codec: int) -> None:
    fs = MemoryFileSystem()
    options: dict[str, Any] = {"settings": ONE_THREAD._replace(log_cleaner_dedupe_buffer_size=buffer_size)}
    manager, log = make_log(fs, **options)
    written: list[tuple[int, bytes | None, bytes | None]] = []
    now_ms = T0
    for action, argument in actions:
        if action == "put":
            offset = log.log_end_offset
            put(log, *argument, now_ms=now_ms, codec=Codec(codec))
            written += [(offset + delta, key, value) for delta, (key, value) in enumerate(argument)]
        elif action == "roll":
            roll(log, now_ms)
        elif action == "clean":
            clean(manager, now_ms)
        elif action == "wait":
            now_ms += argument
        else:
            if argument:
                manager.close(now_ms)
            else:
                log.flush(now_ms)
            end = log.log_end_offset
            fs.crash()
            manager = open_manager(fs, **options)
            log = manager.all_logs()[0]
            assert log.log_end_offset == end
            log.update_high_watermark(end)
        found = records(log)
        assert manager.cleaner.uncleanable == set()
        assert set(found) <= set(written)
        assert found == sorted(found, key=lambda record: record[0])
        assert latest(found) == latest(written)
        for offset in range(log.log_start_offset, log.log_end_offset):
            region = log.read(offset, 1 << 20, upper_offset=log.log_end_offset, at_least_one=True)
            later = [record for record in found if record[0] >= offset]
            if later:
                assert region is not None
                read = [r.offset for b in iter_batches(region.read()) for r in iter_records(b) if r.offset >= offset]
                if read:
                    assert read[0] == later[0][0]


def prepare_for_crash(fs: MemoryFileSystem) -> tuple[LogManager, list[tuple[int, bytes | None, bytes | None]]]:
    """A log that was compacted, has tombstones past their delete horizon and a dirty part, and is flushed."""
    manager, log = make_log(fs)
    for index in range(4):
        put(log, (b"a", b"a%d" % index), (b"b", b"b%d" % index), (b"c", b"c%d" % index))
        put(log, (b"gone%d" % index, b"value"))
        roll(log)
    clean(manager)
    for index in range(4):
        put(log, (b"gone%d" % index, None), (b"a", b"again%d" % index))
        roll(log)
    clean(manager)
    now_ms = T0 + 5000
    for index in range(3):
        put(log, (b"d", b"d%d" % index), (b"b", b"later%d" % index), now_ms=now_ms)
        roll(log, now_ms)
    for value in (b"back", None):
        put(log, (b"gone0", value), now_ms=now_ms)
        roll(log, now_ms)
    log.flush(now_ms)
    directory = manager.directories["/d"]
    directory.write_checkpoint("recovery-point-offset-checkpoint", {("t", 0): log.recovery_point})
    return manager, records(log)


@pytest.mark.slow
def test_a_crash_at_any_point_of_a_compaction_neither_loses_nor_restores_records() -> None:
    now_ms = T0 + 5000
    points = 0
    for seed in (None, 1, 2):
        for lose_names in (False, True):
            at = 1
            while True:
                fs = MemoryFileSystem()
                manager, before = prepare_for_crash(fs)
                if lose_names:
                    for name in ("/d", "/d/t-0"):
                        fs.sync_directory(name)
                fs.crash_at(at)
                try:
                    clean(manager, now_ms)
                    run_due(manager, now_ms)
                    is_complete = True
                except SimulatedCrash:
                    is_complete = False
                fs.crash(None if seed is None else Random(seed * 1000 + at), lose_names=lose_names)
                manager = open_manager(fs)
                [log] = manager.all_logs()
                expected = latest(before)
                assert latest(records(log)) == expected
                assert log.log_end_offset == before[-1][0] + 1
                log.update_high_watermark(log.log_end_offset)
                # From any state that a crash leaves, later compactions must not restore a record either.
                for step in (0, 10_000, 20_000):
                    put(log, (b"e", b"e"), now_ms=now_ms + step)
                    roll(log, now_ms + step)
                    clean(manager, now_ms + step)
                    assert latest(records(log)) == {**expected, b"e": b"e"}
                assert not any(key.startswith(b"gone") for _, key, _ in records(log) if key)
                points += 1
                if is_complete:
                    break
                at += 1
    assert points > 150


@pytest.mark.parametrize("policy", ["compact", "delete"])
def test_a_crash_at_any_point_loses_nothing_of_a_log_with_the_gaps_of_its_compaction(policy: str) -> None:
    """A gap that compaction left between segments does not end the log, whatever cleanup.policy is by then."""
    config = {"internal.segment.bytes": "200"}
    is_complete = False
    at = 0
    while not is_complete:
        at += 1
        fs = MemoryFileSystem()
        manager, log = make_log(fs, config)
        for index in range(6):
            put(log, (b"a", b"%d" % index), (b"b%d" % index, b"1"))
            put(log, (b"a", b"%d" % index))
            roll(log)
        before = records(log)
        log.flush(T0)
        fs.sync_directory("/d")
        fs.crash_at(at)
        try:
            clean(manager)
            is_complete = True
        except SimulatedCrash:
            pass
        fs.crash()
        if fs.exists("/d/cleaner-offset-checkpoint"):
            fs.remove("/d/cleaner-offset-checkpoint")
        [log] = open_manager(fs, {**config, "cleanup.policy": policy}, ids={"t": bytes(16)}).all_logs()
        assert latest(records(log)) == latest(before)
        assert log.log_end_offset == before[-1][0] + 1
    assert at > 20


def test_real_files(tmp_path: Any) -> None:
    fs = OsFileSystem()
    manager, log = make_log(fs, {"segment.index.bytes": "4096"}, path=str(tmp_path))
    for index in range(50):
        put(log, (b"k%d" % (index % 5), b"v" * index), (b"x%d" % index, None if index % 2 else b"x"))
    roll(log)
    clean(manager)
    run_due(manager, T0)
    expected = records(log)
    assert len([key for _, key, _ in expected if key and key.startswith(b"k")]) == 5
    manager.close(T0)
    manager = open_manager(fs, path=str(tmp_path))
    assert records(manager.all_logs()[0]) == expected
    manager.close(T0)


def test_a_value_whose_record_had_a_wrong_offset_does_not_outlive_its_tombstone() -> None:
    manager, log = make_log(MemoryFileSystem())
    wrong = misnumbered(build_batch([(T0, b"k", b"v", ())]), [1000])
    log.append_as_leader(wrong, leader_epoch=0, now_ms=T0)
    put(log, (b"k", None))
    roll(log)
    put(log, (b"j", b"1"))
    roll(log)
    clean(manager)
    put(log, (b"j", b"2"), now_ms=T0 + 5000)
    roll(log)
    put(log, (b"j", b"3"), now_ms=T0 + 5000)
    clean(manager, T0 + 5000)
    assert [offset for offset, _, _ in records(log)] == [3, 4]
    assert latest(records(log)) == {b"j": b"3"}
