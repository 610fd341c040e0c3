"""Flushes: due times, durable records, and the recovery point for the checkpoint."""

import errno

import pytest

from odradek.log.partition_log import PartitionLog
from odradek.log.storage.filesystem import LogDirFailure
from odradek.log.tests.support import NOW_MS, append, config, memory_fs, open_log, prepared_flush, read_all, truncate


def crashed(log: PartitionLog) -> PartitionLog:
    """Crash and reopen a log."""
    memory_fs(log).crash(lose_names=True)
    return open_log(log.fs, log.config, is_clean=False, recovery_point=log.recovery_point)


def test_an_empty_log_needs_no_flush():
    log = open_log()
    assert log.flush_due_offset(NOW_MS + 10**9) is None
    assert log.prepare_flush() is None


def test_by_messages():
    log = open_log(cfg=config(flush_messages=3))
    assert [append(log, [b"x"]).flush_due for _ in range(3)] == [False, False, True]
    assert log.flush_due_offset(NOW_MS) == 3
    log.flush(NOW_MS)
    assert log.flushed_offset == 3
    assert log.flush_due_offset(NOW_MS) is None
    assert append(log, [b"x"] * 5).flush_due
    log.update_config(config(flush_messages=100))
    assert log.flush_due_offset(NOW_MS) is None


def test_by_time():
    log = open_log(cfg=config(flush_ms=1000), monotonic_ms=NOW_MS)
    append(log, [b"x"])
    assert log.flush_due_offset(NOW_MS + 999) is None
    assert log.flush_due_offset(NOW_MS + 1000) == 1
    log.flush(NOW_MS + 1000)
    append(log, [b"x"])
    assert log.flush_due_offset(NOW_MS + 1999) is None
    assert log.flush_due_offset(NOW_MS + 2000) == 2


def test_after_a_roll_a_flush_of_the_old_segment_is_due():
    log = open_log()
    append(log, [b"a"])
    log.roll(NOW_MS)
    append(log, [b"b"])
    assert log.flush_due_offset(NOW_MS) == 1
    assert (log.flushed_offset, log.recovery_point) == (0, 0)
    log.flush(NOW_MS, 1)
    assert (log.flushed_offset, log.recovery_point) == (1, 1)
    assert log.flush_due_offset(NOW_MS) is None
    assert read_all(crashed(log)) == [(0, b"a")]


def test_flushed_records_survive_and_the_recovery_point_is_the_base_of_their_segment():
    log = open_log()
    append(log, [b"a"])
    log.roll(NOW_MS)
    append(log, [b"b"])
    log.flush(NOW_MS)
    append(log, [b"c"])
    assert (log.flushed_offset, log.recovery_point) == (2, 1), "the active segment's indexes are not on the disk"
    log = crashed(log)
    assert read_all(log) == [(0, b"a"), (1, b"b")]


def test_appends_and_a_roll_between_the_steps():
    log = open_log()
    append(log, [b"a"])
    task = prepared_flush(log)
    append(log, [b"b"])
    log.roll(NOW_MS)
    append(log, [b"c"])
    task.run()
    log.finish_flush(task, NOW_MS)
    assert log.flushed_offset == 1
    assert log.recovery_point == 0, "the segment rolled meanwhile is not flushed"
    assert log.flush_due_offset(NOW_MS) == 2


def log_with_an_unwritten_epoch() -> PartitionLog:
    """A flushed log whose last batch, at 1, has a leader epoch that was not written for lack of disk space."""
    log = open_log()
    append(log, [b"a"])
    log.flush(NOW_MS)
    log.elect(1)
    append(log, [b"b"], leader_epoch=1)
    memory_fs(log).fail("create", error=errno.ENOSPC, path_contains="leader-epoch-checkpoint")
    log.roll(NOW_MS)
    log.flush(NOW_MS)
    assert (log.flushed_offset, log.recovery_point) == (2, 1)
    return log


def test_the_recovery_point_waits_for_the_sync_of_a_leader_epoch():
    log = log_with_an_unwritten_epoch()
    task = prepared_flush(log)
    assert log.recovery_point == 1, "the epoch is written but not synced"
    log = crashed(log)
    assert log.leader_epochs.entries == [(0, 0), (1, 1)]
    assert task.target_offset == 2


def test_the_recovery_point_moves_with_the_sync_of_a_leader_epoch():
    log = log_with_an_unwritten_epoch()
    first = prepared_flush(log)
    append(log, [b"c"], leader_epoch=1)
    second = prepared_flush(log)
    for task, point in ((second, 1), (first, 2)):
        task.run()
        log.finish_flush(task, NOW_MS)
        assert log.recovery_point == point
    assert crashed(log).leader_epochs.entries == [(0, 0), (1, 1)]


def test_truncation_between_the_steps():
    log = open_log()
    append(log, [b"a"])
    append(log, [b"b"])
    task = prepared_flush(log)
    truncate(log, 1, NOW_MS)
    task.run()
    log.finish_flush(task, NOW_MS)
    assert log.flushed_offset == 1


def test_deletion_between_the_steps():
    log = open_log(cfg=config(retention_ms=1))
    append(log, [b"a"])
    log.roll(NOW_MS)
    append(log, [b"b"], timestamp=NOW_MS + 500)
    task = prepared_flush(log)
    log.remove_deleted(log.delete_old_segments(NOW_MS + 100))
    task.run()
    log.finish_flush(task, NOW_MS)
    assert (log.flushed_offset, log.log_start_offset) == (2, 1)


@pytest.mark.parametrize("operation", ["sync", "sync_directory"])
def test_failure(operation):
    log = open_log()
    append(log, [b"a"])
    memory_fs(log).fail(operation, error=errno.EIO)
    with pytest.raises(LogDirFailure) as raised:
        log.flush(NOW_MS)
    assert log.failure is raised.value
    assert log.flushed_offset == 0
    with pytest.raises(LogDirFailure):
        log.flush(NOW_MS)
    log.close(NOW_MS)


def test_close_flushes_everything():
    log = open_log()
    append(log, [b"a"])
    log.roll(NOW_MS)
    append(log, [b"b"])
    log.close(NOW_MS)
    assert log.recovery_point == 2
    memory_fs(log).crash(lose_names=True)
    log = open_log(log.fs, recovery_point=2)
    assert read_all(log) == [(0, b"a"), (1, b"b")]
    assert log.fs.size_bytes(log.active_segment.path(".index")) == 0, "trimmed"
