"""Choice of the log to compact and of its offsets, interval of the cleaner, and logs that cannot be compacted."""

import errno
import logging

import pytest

from odradek.log.compaction.cleanable import find_cleanable
from odradek.log.partition_log import PartitionLog
from odradek.log.storage import checkpoints
from odradek.log.storage.filesystem import remove_if_exists
from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.log.tests.cleaning import (
    T0,
    batches,
    clean,
    make_log,
    mark,
    open_manager,
    put,
    records,
    roll,
)
from odradek.log.tests.managers import ONE_THREAD, run_due
from odradek.log.tests.threads import Threads
from odradek.properties import INT64_MAX
from odradek.protocol.records import ControlType


def dirty(log: PartitionLog, count: int, now_ms: int = T0) -> None:
    """Append `count` values of one key, each in its own segment."""
    for _ in range(count):
        put(log, (b"a", b"1"), now_ms=now_ms)
        roll(log, now_ms)


# The checkpoint


@pytest.mark.parametrize("lost", ["end", "start"])
def test_a_checkpoint_outside_of_the_log_is_corrected_on_the_disk(lost, caplog):
    """Otherwise the log would grow up to it, and the records below would never be compacted."""
    fs = MemoryFileSystem()
    manager, log = make_log(fs, {"min.cleanable.dirty.ratio": "1"})
    dirty(log, 6)
    if lost == "end":
        manager.cleaner.offsets["t", 0] = 9
    else:
        manager.cleaner.offsets["t", 0] = 1
        log.advance_log_start(3)
    manager.cleaner.step(T0)
    expected = 0 if lost == "end" else 3
    assert manager.cleaner.offsets == {("t", 0): expected}
    assert checkpoints.read_offsets(fs, "/d/cleaner-offset-checkpoint") == {("t", 0): expected}
    assert "outside the log" in caplog.text


def test_a_log_start_that_compact_and_delete_advanced_causes_no_warning(caplog):
    manager, log = make_log(MemoryFileSystem(), {"cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": "1"})
    dirty(log, 3)
    manager.cleaner.offsets["t", 0] = 1
    log.advance_log_start(2)
    manager.cleaner.step(T0)
    assert manager.cleaner.offsets == {("t", 0): 2}
    assert caplog.text == ""


# Due logs


def test_a_log_without_a_whole_segment_has_nothing_to_compact():
    _, log = make_log(MemoryFileSystem())
    assert find_cleanable(log, None, T0) is None
    put(log, (b"a", b"1"))
    assert find_cleanable(log, 1, T0) is None


def test_the_oldest_dirty_record_makes_a_log_overdue_even_if_it_cannot_be_compacted_yet():
    _, log = make_log(MemoryFileSystem(), {"min.cleanable.dirty.ratio": "1", "max.compaction.lag.ms": "1000"})
    put(log, (b"a", b"1"), now_ms=T0 + 2000)
    roll(log)
    put(log, (b"a", b"1"), now_ms=T0, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    roll(log)
    target = find_cleanable(log, None, T0 + 1001)
    assert target is not None
    assert target.end_offset == 1
    assert target.is_due


def test_a_ratio_of_zero_requires_dirty_records():
    _, log = make_log(MemoryFileSystem(), {"min.cleanable.dirty.ratio": "0"})
    dirty(log, 2)
    target = find_cleanable(log, 1, T0)
    assert target is not None
    assert target.is_due
    assert find_cleanable(log, 2, T0) is None


# Rules


def test_the_largest_delete_retention_keeps_tombstones_forever():
    manager, log = make_log(MemoryFileSystem(), {"delete.retention.ms": str(INT64_MAX)})
    put(log, (b"a", None))
    roll(log)
    clean(manager)
    assert manager.cleaner.uncleanable == set()
    assert batches(log)[0][0].delete_horizon_ms == INT64_MAX
    put(log, (b"b", b"1"))
    roll(log)
    clean(manager, T0 + 10**12)
    assert records(log)[0] == (0, b"a", None)
    assert [record.timestamp for _, found in batches(log) for record in found] == [T0, T0]


def test_a_batch_with_more_keys_than_the_dedupe_buffer_is_compacted_in_parts():
    manager, log = make_log(MemoryFileSystem(), settings=ONE_THREAD._replace(log_cleaner_dedupe_buffer_size=700))
    put(log, *[(b"%d" % (key % 4), b"%d" % key) for key in range(8)])
    roll(log)
    assert manager.cleaner.step(T0)
    assert manager.cleaner.offsets == {("t", 0): 3}
    clean(manager)
    assert manager.cleaner.offsets == {("t", 0): 8}
    assert manager.cleaner.uncleanable == set()
    assert records(log) == [(4 + key, b"%d" % key, b"%d" % (4 + key)) for key in range(4)]


def test_the_marker_of_a_producer_without_data_keeps_its_epoch_through_a_restart():
    fs = MemoryFileSystem()
    manager, log = make_log(fs)
    put(log, (b"a", b"1"), producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    mark(log, ControlType.ABORT, 5, epoch=1)
    roll(log)
    for now_ms in (T0, T0, T0 + 5000, T0 + 5000):
        put(log, (b"b", b"1"), now_ms=now_ms)
        roll(log, now_ms)
        clean(manager, now_ms)
    header, found = batches(log)[0]
    assert (header.is_control, header.producer_id, header.producer_epoch, found) == (True, 5, 1, [])
    log.flush(T0)
    fs.crash()
    state = open_manager(fs).all_logs()[0].producer_state
    assert 5 not in state.producers or state.producers[5].epoch == 1
    assert state.first_unstable_offset == -1


def test_an_open_transaction_continues_after_compaction_and_a_crash():
    fs = MemoryFileSystem()
    manager, log = make_log(fs)
    dirty(log, 3)
    put(log, (b"b", b"1"), producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    roll(log)
    dirty(log, 2)
    clean(manager)
    assert [offset for offset, _, _ in records(log)] == [2, 3, 4, 5]
    log.flush(T0)
    fs.crash()
    manager = open_manager(fs)
    log = manager.all_logs()[0]
    log.update_high_watermark(log.log_end_offset)
    assert log.last_stable_offset == 3
    put(log, (b"b", b"2"), producer_id=5, producer_epoch=0, base_sequence=1, transactional=True)
    mark(log, ControlType.COMMIT, 5)
    roll(log)
    clean(manager)
    assert [(key, value) for _, key, value in records(log)] == [(b"a", b"1"), (b"b", b"2")]


# Retention of compacted logs


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_the_cleaner_removes_segments_before_the_log_start(policy):
    manager, log = make_log(MemoryFileSystem(), {"cleanup.policy": policy, "min.cleanable.dirty.ratio": "1"})
    dirty(log, 4)
    log.advance_log_start(2)
    manager.cleaner.step(T0)
    assert [segment.base_offset for segment in log.segments] == [2, 3, 4]


def test_the_cleaner_applies_time_and_size_to_compact_and_delete():
    config = {"cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": "1", "retention.ms": "500"}
    manager, log = make_log(MemoryFileSystem(), config)
    dirty(log, 2)
    dirty(log, 2, T0 + 600)
    manager.cleaner.step(T0 + 600)
    assert log.log_start_offset == 2
    log.update_config(log.config.replace({"retention.bytes": str(log.segments[0].size_bytes)}))
    manager.cleaner.step(T0 + 600)
    assert log.log_start_offset == 3


def test_only_the_cleaner_deletes_from_compacted_logs():
    steps = Threads()
    manager, log = make_log(
        MemoryFileSystem(), {"cleanup.policy": "compact,delete", "internal.segment.bytes": "100"}, run_in_thread=steps
    )
    dirty(log, 4)
    steps.run()
    manager.cleaner.step(T0)
    assert ("t", 0) in manager.cleaner.running
    log.advance_log_start(2)
    manager.cleaner.step(T0)
    assert len(log.segments) == 5, "not while it is being compacted"
    while manager.cleaner.running:
        steps.run()
    manager.cleaner.step(T0)
    steps.run()
    assert log.segments[0].base_offset == 2


# Logs that cannot be compacted


def test_a_log_that_cannot_be_compacted_is_reported_and_others_are_compacted(caplog):
    manager, log = make_log(MemoryFileSystem())
    other = manager.create_log("t", 1, bytes(16), T0)
    dirty(log, 3)
    dirty(other, 3)
    log.segments[0].file.write_pieces(65, [b"x"], 1)
    clean(manager)
    assert manager.cleaner.uncleanable == {("t", 0)}
    assert manager.cleaner.offsets == {("t", 1): 3}
    [line] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "/d/t-0" in line.getMessage()
    assert "restart" in line.getMessage()
    put(log, (b"a", b"2"))
    assert manager.online_directories == ["/d"]
    manager.delete_log("t", 0)
    assert manager.cleaner.uncleanable == set()


def test_a_damaged_transaction_index_ends_compaction_of_its_log_only():
    fs = MemoryFileSystem()
    manager, log = make_log(fs)
    put(log, (b"a", b"1"), producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    mark(log, ControlType.ABORT, 5)
    roll(log)
    fs.open(log.segments[0].transaction_index.path).truncate(20)
    clean(manager)
    assert manager.cleaner.uncleanable == {("t", 0)}
    assert manager.online_directories == ["/d"]


@pytest.mark.parametrize("operation", ["write", "rename"])
@pytest.mark.parametrize("after", range(1, 16))
def test_a_full_disk_postpones_compaction(operation, after):
    fs = MemoryFileSystem()
    manager, log = make_log(fs, {"internal.segment.bytes": "200"})
    for index in range(5):
        put(log, (b"a", b"%d" % index), (b"b%d" % index, b"1"))
        roll(log)
    fs.fail(operation, after=after, error=errno.ENOSPC, path_contains="/d/t-0")
    for _ in range(4):
        manager.cleaner.step(T0)
    fs.heal()
    clean(manager)
    assert manager.online_directories == ["/d"]
    assert log.failure is None
    assert manager.cleaner.uncleanable == set()
    expected = [(b"b0", b"1"), (b"b1", b"1"), (b"b2", b"1"), (b"b3", b"1"), (b"a", b"4"), (b"b4", b"1")]
    assert [(key, value) for _, key, value in records(log)] == expected
    assert {segment.suffix for segment in log.segments} == {""}
    assert not [name for name in fs.list_names("/d/t-0") if name.endswith((".cleaned", ".swap"))]
    manager.close(T0)
    log = open_manager(fs).all_logs()[0]
    assert [(key, value) for _, key, value in records(log)] == expected


def test_a_failed_compaction_leaves_no_files():
    fs = MemoryFileSystem()
    manager, log = make_log(fs)
    dirty(log, 3)
    clean(manager)
    dirty(log, 3)
    log.segments[0].file.write_pieces(65, [b"x"], 1)
    clean(manager)
    assert manager.cleaner.uncleanable == {("t", 0)}
    assert not [name for name in fs.list_names("/d/t-0") if name.endswith(".cleaned")]


# Properties that change


def test_changed_properties_apply_to_a_running_cleaner():
    steps = Threads()
    manager, log = make_log(MemoryFileSystem(), {"min.cleanable.dirty.ratio": "0.5"}, run_in_thread=steps)
    others = [manager.create_log("t", index, bytes(16), T0) for index in (1, 2)]
    for each in (log, *others):
        dirty(each, 4)
    steps.run()
    manager.cleaner.step(T0)
    assert len(manager.cleaner.running) == 1
    manager.update_settings(ONE_THREAD._replace(log_cleaner_threads=2, log_cleaner_backoff_ms=100))
    steps.run()
    assert manager.cleaner.running == set(), "the compaction restarts with the new properties"
    while manager.cleaner.step(T0):
        pass
    assert len(manager.cleaner.running) == 2
    for _ in range(20):
        steps.run()
        manager.cleaner.step(T0)
    assert manager.cleaner.offsets == {("t", index): 4 for index in range(3)}


def test_a_new_backoff_applies_from_the_time_of_the_change():
    manager, log = make_log(MemoryFileSystem())
    run_due(manager, T0)
    manager.update_settings(ONE_THREAD._replace(log_cleaner_backoff_ms=50))
    dirty(log, 2)
    run_due(manager, run_due(manager, T0))
    run_due(manager, T0 + 51)
    assert manager.cleaner.offsets == {("t", 0): 2}


def test_a_log_that_is_no_longer_compacted_keeps_its_gaps_through_a_crash():
    fs = MemoryFileSystem()
    manager, log = make_log(fs, {"internal.segment.bytes": "200"})
    for index in range(6):
        put(log, (b"a", b"%d" % index), (b"b%d" % index, b"1"))
        put(log, (b"a", b"%d" % index))
        roll(log)
    clean(manager)
    before = records(log)
    assert len(log.segments) > 2
    log.flush(T0)
    remove_if_exists(fs, "/d/recovery-point-offset-checkpoint")
    fs.crash()
    config = {"cleanup.policy": "delete", "internal.segment.bytes": "200"}
    log = open_manager(fs, config, ids={"t": bytes(16)}).all_logs()[0]
    assert records(log) == before
