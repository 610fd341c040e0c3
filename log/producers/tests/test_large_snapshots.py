"""Snapshots of many producers: a roll leaves them to the thread of the next flush, and a crash loses no producer."""

import errno

import pytest

from odradek.log.partition_log import PartitionLog
from odradek.log.producers import state as producer_state
from odradek.log.storage.memory_filesystem import MemoryFileSystem, SimulatedCrash
from odradek.log.tests.managers import opened
from odradek.log.tests.support import NOW_MS, append, config, idempotent, memory_fs, open_log, prepared_flush, truncate
from odradek.log.tests.threads import Threads

PRODUCERS = 40
SNAPSHOT = "/data/topic-0/00000000000000000040.snapshot"


@pytest.fixture(autouse=True)
def _few(monkeypatch):
    monkeypatch.setattr(producer_state, "_FEW_PRODUCERS", 30)


def filled() -> PartitionLog:
    log = open_log(cfg=config(internal_segment_bytes=1_000_000))
    for producer_id in range(PRODUCERS):
        append(log, idempotent(0, producer_id=producer_id))
    return log


def producer_ids(log: PartitionLog) -> list[int]:
    return sorted(log.producer_state.producers)


def recovered(log: PartitionLog) -> PartitionLog:
    return open_log(log.fs, log.config, is_clean=False, recovery_point=log.recovery_point)


def test_a_roll_writes_a_small_snapshot_itself():
    log = open_log(cfg=config(internal_segment_bytes=1_000_000))
    append(log, idempotent(0))
    log.roll(NOW_MS)
    assert log.fs.exists("/data/topic-0/00000000000000000001.snapshot")


def test_a_roll_leaves_a_large_snapshot_to_the_flush():
    log = filled()
    log.roll(NOW_MS)
    assert not log.fs.exists(SNAPSHOT)
    task = prepared_flush(log, log.flush_due_offset(NOW_MS))
    append(log, idempotent(0, producer_id=999))
    task.run()
    log.finish_flush(task, NOW_MS)
    memory_fs(log).crash(lose_names=True)
    again = recovered(log)
    assert again.producer_state.latest_snapshot_offset == PRODUCERS
    assert producer_ids(again) == list(range(PRODUCERS))


@pytest.mark.parametrize("flushes", [False, True])
def test_a_clean_stop_writes_a_large_snapshot(flushes):
    log = filled()
    log.roll(NOW_MS)
    if flushes:
        log.flush(NOW_MS)
    append(log, idempotent(0, producer_id=999))
    log.close(NOW_MS)
    memory_fs(log).crash(lose_names=True)
    again = open_log(log.fs, log.config)
    assert producer_ids(again) == [*range(PRODUCERS), 999]


def test_a_crash_at_any_moment_loses_no_producer():
    operations = 0
    while True:
        operations += 1
        log = filled()
        log.flush(NOW_MS)
        memory_fs(log).crash_at(operations)
        try:
            log.roll(NOW_MS)
            log.flush(NOW_MS)
        except SimulatedCrash:
            memory_fs(log).crash()
        else:
            assert operations > 4
            return
        assert producer_ids(recovered(log)) == list(range(PRODUCERS))


def test_truncation_removes_the_snapshot_with_its_segment():
    log = filled()
    log.roll(NOW_MS)
    append(log, idempotent(0, producer_id=999))
    task = prepared_flush(log)
    task.run()
    truncate(log, 10, NOW_MS)
    log.finish_flush(task, NOW_MS)
    assert not log.fs.exists(SNAPSHOT)
    assert producer_ids(log) == list(range(10))


def test_a_segment_that_is_deleted_before_the_flush_gets_no_snapshot():
    log = filled()
    log.roll(NOW_MS)
    append(log, idempotent(0, producer_id=999))
    log.roll(NOW_MS)
    log.delete_records_before(-1)
    log.delete_old_segments(NOW_MS)
    log.flush(NOW_MS)
    assert not log.fs.exists(SNAPSHOT)
    assert log.producer_state.latest_snapshot_offset == PRODUCERS + 1


def test_a_full_disk_is_no_failure():
    log = filled()
    log.roll(NOW_MS)
    memory_fs(log).fail("write", error=errno.ENOSPC, path_contains=".snapshot")
    log.flush(NOW_MS)
    assert log.failure is None
    assert not log.fs.exists(SNAPSHOT)
    assert producer_ids(recovered(log)) == list(range(PRODUCERS))


def test_a_deleted_log_is_no_failure():
    log = filled()
    log.roll(NOW_MS)
    task = prepared_flush(log)
    log.fs.rename("/data/topic-0", "/data/topic-0-delete")
    log.move("/data/topic-0-delete")
    task.run()
    log.finish_flush(task, NOW_MS)
    assert log.failure is None


def test_a_disk_error_is_a_failure():
    log = filled()
    log.roll(NOW_MS)
    memory_fs(log).fail("write", error=errno.EIO, path_contains=".snapshot")
    with pytest.raises(Exception, match="flush failed"):
        log.flush(NOW_MS)
    assert log.failure is not None


@pytest.mark.parametrize("is_written", [False, True])
def test_a_snapshot_of_a_deleted_log_has_no_effect_on_another_of_its_name(is_written):
    fs, threads = MemoryFileSystem(), Threads()

    def snapshots():
        return [name for name in fs.list_names("/data/topic-0") if name.endswith(".snapshot")]

    def rolled():
        log = manager.create_log("topic", 0, None, NOW_MS, is_new=True)
        for producer_id in range(PRODUCERS):
            append(log, idempotent(0, producer_id=producer_id))
        log.roll(NOW_MS)
        return log

    manager = opened(fs, ["/data"], now_ms=NOW_MS, run_in_thread=threads)
    old = rolled()
    task = prepared_flush(old)
    if is_written:
        task.run()
    manager.delete_log("topic", 0)
    new = rolled() if is_written else manager.create_log("topic", 0, None, NOW_MS, is_new=True)
    new.flush(NOW_MS)
    expected = snapshots()
    if not is_written:
        task.run()
    old.finish_flush(task, NOW_MS)
    assert snapshots() == expected
