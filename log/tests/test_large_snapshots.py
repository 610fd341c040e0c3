"""Snapshots of many producers: a roll leaves them to the thread of the next flush, and none is ever half believed."""

import errno

import pytest

from odradek.log.producers import state as producer_state
from odradek.log.storage.memory_filesystem import MemoryFileSystem, SimulatedCrash
from odradek.log.tests.managers import opened
from odradek.log.tests.support import NOW_MS, append, config, idempotent, open_log
from odradek.log.tests.threads import Threads

PRODUCERS = 40
SNAPSHOT = "/data/topic-0/00000000000000000040.snapshot"


@pytest.fixture(autouse=True)
def _few(monkeypatch):
    monkeypatch.setattr(producer_state, "_FEW_PRODUCERS", 30)


def filled(fs=None):
    log = open_log(fs or MemoryFileSystem(), config(internal_segment_bytes=1_000_000))
    for producer_id in range(PRODUCERS):
        append(log, idempotent(0, producer_id=producer_id))
    return log


def known(log):
    return sorted(log.producer_state.producers)


def recovered(log, **keywords):
    return open_log(log.fs, log.config, is_clean=False, recovery_point=log.recovery_point, **keywords)


def test_a_roll_writes_a_small_snapshot_itself():
    log = open_log(cfg=config(internal_segment_bytes=1_000_000))
    append(log, idempotent(0))
    log.roll(NOW_MS)
    assert log.fs.exists("/data/topic-0/00000000000000000001.snapshot")


def test_a_roll_leaves_a_large_one_to_the_flush():
    log = filled()
    log.roll(NOW_MS)
    assert not log.fs.exists(SNAPSHOT)
    task = log.prepare_flush(log.flush_due_offset(NOW_MS))
    append(log, idempotent(0, producer_id=999))
    task.run()
    log.finish_flush(task, NOW_MS)
    log.fs.crash(lose_names=True)
    again = recovered(log)
    assert again.producer_state.latest_snapshot_offset == PRODUCERS
    assert known(again) == list(range(PRODUCERS))


@pytest.mark.parametrize("flushes", [False, True])
def test_a_clean_stop_writes_it(flushes):
    log = filled()
    log.roll(NOW_MS)
    if flushes:
        log.flush(NOW_MS)
    append(log, idempotent(0, producer_id=999))
    log.close(NOW_MS)
    log.fs.crash(lose_names=True)
    again = open_log(log.fs, log.config)
    assert known(again) == [*range(PRODUCERS), 999]


def test_a_crash_at_any_moment_loses_no_producer():
    operations = 0
    while True:
        operations += 1
        log = filled()
        log.flush(NOW_MS)
        log.fs.crash_at(operations)
        try:
            log.roll(NOW_MS)
            log.flush(NOW_MS)
        except SimulatedCrash:
            log.fs.crash()
        else:
            assert operations > 4
            return
        assert known(recovered(log)) == list(range(PRODUCERS))


def test_a_segment_that_goes_takes_the_snapshot_along():
    log = filled()
    log.roll(NOW_MS)
    append(log, idempotent(0, producer_id=999))
    task = log.prepare_flush()
    task.run()
    log.truncate_to(10, NOW_MS)
    log.finish_flush(task, NOW_MS)
    assert not log.fs.exists(SNAPSHOT)
    assert known(log) == list(range(10))


def test_a_segment_that_is_deleted_before_the_flush_gets_none():
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
    log.fs.fail("write", error=errno.ENOSPC, path_contains=".snapshot")
    log.flush(NOW_MS)
    assert log.failure is None
    assert not log.fs.exists(SNAPSHOT)
    assert known(recovered(log)) == list(range(PRODUCERS))


def test_a_deleted_log_is_no_failure():
    log = filled()
    log.roll(NOW_MS)
    task = log.prepare_flush()
    log.fs.rename("/data/topic-0", "/data/topic-0-delete")
    log.move("/data/topic-0-delete")
    task.run()
    log.finish_flush(task, NOW_MS)
    assert log.failure is None


def test_a_broken_disk_is_one():
    log = filled()
    log.roll(NOW_MS)
    log.fs.fail("write", error=errno.EIO, path_contains=".snapshot")
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
    task = old.prepare_flush()
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
