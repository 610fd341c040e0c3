"""Background tasks of the log manager: checkpoints, flushes, retention, and shared syncs."""

from errno import ENOSPC
from random import Random
from typing import Any

import pytest

from odradek.log.background.tasks import Postponed
from odradek.log.log_manager import LogManager
from odradek.log.partition_log import PartitionLog
from odradek.log.storage import checkpoints
from odradek.log.storage.filesystem import LogDirFailure, ShortageError
from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.log.tests.managers import (
    DIRECTORIES,
    NEW_ID,
    ONE_THREAD,
    TOPIC_ID,
    append,
    opened,
    refuse_new_files,
    run_due,
    run_until,
    served,
    truncate,
)
from odradek.log.tests.support import read_all
from odradek.log.tests.threads import Threads
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.records import build_batch


def test_checkpoints_are_written_at_their_times_and_only_if_changed() -> None:
    fs = MemoryFileSystem()
    manager = opened(fs, ["/data/a"])
    log = manager.create_log("t", 0, TOPIC_ID, 0)
    append(log, b"a", b"b")
    now_ms = run_until(manager, 0, 4999)
    assert not fs.exists("/data/a/replication-offset-checkpoint")
    now_ms = run_until(manager, now_ms, 5000)
    assert checkpoints.read_offsets(fs, "/data/a/replication-offset-checkpoint") == {("t", 0): 2}
    assert not fs.exists("/data/a/recovery-point-offset-checkpoint")
    now_ms = run_until(manager, now_ms, 30_000)
    assert checkpoints.read_offsets(fs, "/data/a/recovery-point-offset-checkpoint") == {("t", 0): 0}
    log.roll(now_ms)
    log.flush(now_ms)
    now_ms = run_until(manager, now_ms, 90_000)
    assert checkpoints.read_offsets(fs, "/data/a/recovery-point-offset-checkpoint") == {("t", 0): 2}
    before = fs.operations
    run_until(manager, now_ms, 900_000)
    assert fs.operations == before


def test_an_older_checkpoint_does_not_undo_a_later_one() -> None:
    fs = MemoryFileSystem()
    threads = Threads()
    manager = opened(fs, ["/data/a"], run_in_thread=threads)
    append(manager.create_log("t", 0, TOPIC_ID, 0), b"a")
    run_until(manager, 0, 5000)
    waiting = threads.waiting[-1]
    append(manager.create_log("t", 0, TOPIC_ID, 0), b"b")
    manager.close(0)
    waiting[0]()
    assert checkpoints.read_offsets(fs, "/data/a/replication-offset-checkpoint") == {("t", 0): 2}


def test_flush_by_time_runs_in_a_thread() -> None:
    fs = MemoryFileSystem()
    threads = Threads()
    manager = opened(fs, ["/data/a"], {"flush.ms": "2000"}, run_in_thread=threads)
    log = manager.create_log("t", 0, TOPIC_ID, 0)
    threads.run()
    append(log, b"a")
    run_until(manager, 0, 1999)
    assert threads.waiting == []
    run_until(manager, 2000, 4000)
    assert len(threads.waiting) == 1
    append(log, b"b")
    threads.run()
    assert log.flushed_offset == 1


def test_flush_that_fails_takes_the_directory_offline() -> None:
    fs = MemoryFileSystem()
    manager = opened(fs)
    log = manager.create_log("t", 0, TOPIC_ID, 0)
    append(log, b"a")
    fs.fail("sync")
    errors: list[Exception | None] = []
    manager.flush(log, errors.append)
    assert isinstance(errors[0], KafkaError)
    assert errors[0].code == ErrorCode.KAFKA_STORAGE_ERROR
    assert log.failure is not None
    assert manager.online_directories == [path for path in DIRECTORIES if path != log.log_directory]


def test_retention_starts_after_30_seconds_and_removes_files_after_the_delay() -> None:
    fs = MemoryFileSystem()
    config = {"retention.ms": "1000", "internal.segment.bytes": "100", "file.delete.delay.ms": "100"}
    manager = opened(fs, ["/data/a"], config)
    log = manager.create_log("t", 0, TOPIC_ID, 0)
    append(log, b"a", b"b", b"c", now_ms=10)
    now_ms = run_until(manager, 10, 29_999)
    assert log.log_start_offset == 0
    now_ms = run_until(manager, now_ms, 30_050)
    assert log.log_start_offset == 3
    assert any(name.endswith(".deleted") for name in fs.list_names(log.directory))
    run_until(manager, now_ms, 31_100)
    assert not any(name.endswith(".deleted") for name in fs.list_names(log.directory))


def with_old_segments(count: int, **config: str) -> tuple[LogManager, PartitionLog]:
    properties = {"retention.ms": "1000", "internal.segment.bytes": "100", "file.delete.delay.ms": "0"}
    properties |= {name.replace("_", "."): value for name, value in config.items()}
    manager = opened(MemoryFileSystem(), ["/data/a"], properties)
    log = manager.create_log("t", 0, TOPIC_ID, 0)
    append(log, *[b"%020d" % number for number in range(count)])
    assert len(log.segments) == count
    return manager, log


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_retention_deletes_many_segments_a_few_at_a_time_without_delay(policy: str) -> None:
    manager, log = with_old_segments(50, cleanup_policy=policy)
    now_ms, starts = 0, [0]
    while now_ms < 30_100:
        now_ms = run_due(manager, now_ms)
        assert log.log_start_offset - starts[-1] <= 8
        if log.log_start_offset != starts[-1]:
            starts.append(log.log_start_offset)
    assert starts == [0, 8, 16, 24, 32, 40, 48, 50]
    assert len(log.segments) == 1
    names = manager.fs.list_names(log.directory)
    assert [name for name in names if name.endswith((".log", ".deleted"))] == ["00000000000000000050.log"]


def test_repeated_retention_checks_schedule_one_continuation() -> None:
    manager, log = with_old_segments(50)
    for _ in range(3):
        manager.delete_old_segments(log, 30_000)
    assert log.log_start_offset == 24
    run_due(manager, 10)
    assert log.log_start_offset == 32


def test_a_scheduled_retention_check_leaves_a_deleted_log_alone() -> None:
    manager, log = with_old_segments(50)
    assert manager.delete_old_segments(log, 30_000)
    manager.delete_log("t", 0)
    run_until(manager, 0, 200)
    assert log.log_start_offset == 8
    assert manager.online_directories == ["/data/a"]


@pytest.mark.slow
def test_sweeps_visit_a_few_logs_at_a_time() -> None:
    fs = MemoryFileSystem()
    manager = opened(fs, ["/data/a"], {"flush.ms": "0"})
    for partition in range(450):
        append(manager.create_log("t", partition, TOPIC_ID, 0), b"x")
    flushed = []
    now_ms = 1000
    while run_due(manager, now_ms) == now_ms:
        flushed.append(sum(log.flushed_offset for log in manager.all_logs()))
    assert flushed == [200, 400]
    assert all(log.flushed_offset == 1 for log in manager.all_logs())


@pytest.mark.slow
def test_a_sweep_skips_a_log_that_was_deleted_since_it_began() -> None:
    """Its directory may be removed, and a deletion of its segments would take the log directory offline."""
    fs = MemoryFileSystem()
    config = {"retention.ms": "1000", "internal.segment.bytes": "100", "file.delete.delay.ms": "0"}
    manager = opened(fs, ["/data/a"], config)
    for partition in range(401):
        append(manager.create_log("t", partition, TOPIC_ID, 0), b"a", b"b")
    now_ms = run_until(manager, 0, 29_999)
    assert run_due(manager, now_ms) == now_ms, "201 logs are left"
    last = served(manager, "t", 400)
    assert last.log_start_offset == 0
    manager.delete_log("t", 400)
    assert run_due(manager, now_ms) == now_ms, "one is left"
    assert not fs.exists(last.directory)
    run_due(manager, now_ms)
    assert manager.online_directories == ["/data/a"]


def test_a_cleaner_sweep_skips_a_log_that_was_deleted_since_it_began() -> None:
    """It must not be compared with the checkpoint of the log that has its name now."""
    manager = opened(MemoryFileSystem(), ["/data/a"], {"cleanup.policy": "compact,delete"})
    for partition in range(201):
        append(manager.create_log("t", partition, TOPIC_ID, 0), b"a", b"b")
    old = served(manager, "t", 200)
    old.delete_records_before(2)
    manager.cleaner.step(0)
    manager.delete_log("t", 200)
    append(manager.create_log("t", 200, NEW_ID, 0), b"a")
    manager.cleaner.offsets["t", 200] = 1
    while manager.cleaner.step(0):
        pass
    assert manager.cleaner.offsets["t", 200] == 1


def test_idle_producers_expire() -> None:
    manager = opened(MemoryFileSystem(), ["/data/a"])
    log = manager.create_log("t", 0, TOPIC_ID, 0)
    batch = build_batch([(0, b"k", b"v", ())], producer_id=9, producer_epoch=0, base_sequence=0)
    log.append_as_leader(memoryview(batch), leader_epoch=0, now_ms=0)
    run_until(manager, 0, 86_399_999)
    assert 9 in log.producer_state.producers
    run_until(manager, 86_400_000, 86_400_000 + 600_000)
    assert 9 not in log.producer_state.producers


def test_truncation_lowers_the_recovery_point_on_the_disk() -> None:
    fs = MemoryFileSystem()
    manager = opened(fs, ["/data/a"])
    log = manager.create_log("t", 0, TOPIC_ID, 0)
    append(log, b"a")
    log.roll(0)
    append(log, b"b", b"c")
    log.roll(0)
    log.flush(0)
    run_until(manager, 0, 90_000)
    assert checkpoints.read_offsets(fs, "/data/a/recovery-point-offset-checkpoint") == {("t", 0): 3}
    truncate(manager, 1, 90_000)
    assert checkpoints.read_offsets(fs, "/data/a/recovery-point-offset-checkpoint") == {("t", 0): 1}
    manager.start_over("t", 0, 8, 90_000)
    assert (log.log_start_offset, log.log_end_offset) == (8, 8)


def test_batches_after_a_truncation_below_the_high_watermark_are_not_committed_after_a_crash() -> None:
    """An unclean leader election truncates committed records."""
    fs = MemoryFileSystem()
    manager = opened(fs, ["/data/a"])
    log = manager.create_log("t", 0, TOPIC_ID, 0)
    append(log, b"a", b"b", b"c")
    log.flush(0)
    run_until(manager, 0, 5000)
    assert checkpoints.read_offsets(fs, "/data/a/replication-offset-checkpoint") == {("t", 0): 3}
    truncate(manager, 1, 5000)
    for value in (b"d", b"e"):
        log.append_as_leader(memoryview(build_batch([(0, b"k", value, ())])), leader_epoch=1, now_ms=0)
    log.flush(0)
    fs.crash()
    [again] = opened(fs, ["/data/a"], ids={"t": TOPIC_ID}).all_logs()
    assert (again.high_watermark, again.log_end_offset) == (1, 3)


def test_a_start_lowers_a_high_watermark_above_the_end_of_the_log_on_the_disk() -> None:
    fs = MemoryFileSystem()
    manager = opened(fs, ["/data/a"])
    log = manager.create_log("t", 0, TOPIC_ID, 0)
    append(log, b"a")
    log.flush(0)
    append(log, b"b", b"c")
    run_until(manager, 0, 5000)
    fs.crash(Random(1))
    [again] = opened(fs, ["/data/a"], ids={"t": TOPIC_ID}).all_logs()
    assert again.high_watermark == again.log_end_offset < 3
    assert checkpoints.read_offsets(fs, "/data/a/replication-offset-checkpoint") == {("t", 0): again.log_end_offset}


def test_a_recovery_point_that_an_epoch_holds_back_is_not_recorded() -> None:
    """A compaction relies on it: recovery would take its gaps above the recovery point for lost ends of segments."""
    fs, threads = MemoryFileSystem(), Threads()
    manager = opened(fs, ["/data/a"], run_in_thread=threads)
    log = manager.create_log("t", 0, TOPIC_ID, 0)
    append(log, b"a", b"b")
    log.roll(0)
    threads.run()
    end = log.log_end_offset
    done: list[Exception | None] = []
    manager.flush(log)
    log.elect(1)
    manager.record_recovery_point(log, end, done.append)
    threads.run(1)
    log.elect(2)
    threads.run()
    assert log.recovery_point < end
    assert [type(error) for error in done] == [Postponed]
    manager.record_recovery_point(log, end, done.append)
    threads.run()
    assert done[1:] == [None]
    assert checkpoints.read_offsets(fs, "/data/a/recovery-point-offset-checkpoint") == {("t", 0): end}


def test_truncations_are_durable_after_the_next_flush_and_share_the_checkpoints() -> None:
    fs, threads = MemoryFileSystem(), Threads()
    manager = opened(fs, ["/data/a"], run_in_thread=threads)
    logs = [manager.create_log("t", number, TOPIC_ID, 0) for number in range(3)]
    for log in logs:
        append(log, b"a")
        log.roll(0)
        append(log, b"b", b"c")
        log.flush(0)
    run_until(manager, 0, 90_000)
    threads.run()
    recovery_points = "/data/a/recovery-point-offset-checkpoint"
    assert checkpoints.read_offsets(fs, recovery_points) == {("t", number): 1 for number in range(3)}
    done: list[Exception | None] = []
    for log in logs:
        for _ in manager.truncate_in_steps("t", log.partition, 0, 90_000):
            pass
        manager.flush(log, done.append)
    assert all(log.has_unsynced_truncation for log in logs)
    # One write for the first log, another one for the other two, and a sync for each log.
    threads.run(5)
    assert checkpoints.read_offsets(fs, recovery_points) == {("t", number): 0 for number in range(3)}
    assert (done, threads.waiting) == ([None] * 3, [])
    assert not any(log.has_unsynced_truncation for log in logs)
    fs.crash(lose_names=True)
    again = opened(fs, ["/data/a"], ids={"t": TOPIC_ID})
    assert [log.log_end_offset for log in again.all_logs()] == [0] * 3


@pytest.mark.parametrize("began", range(4))
def test_a_flush_that_began_before_a_truncation_does_not_make_it_durable(began: int) -> None:
    """Syncs of a log and writes of checkpoints, in progress and waiting, with a truncation after some of them."""
    fs, threads = MemoryFileSystem(), Threads()
    manager = opened(fs, ["/data/a"], run_in_thread=threads)
    log = manager.create_log("t", 0, TOPIC_ID, 0)
    append(log, b"a")
    log.roll(0)
    append(log, b"b")
    manager.flush(log)
    manager.flush(log)
    manager.checkpoint_log_starts("/data/a", lambda error: None)
    threads.run(began)
    for _ in manager.truncate_in_steps("t", 0, 0, 90_000):
        pass
    threads.run()
    assert log.has_unsynced_truncation
    run_until(manager, 90_000, 92_000)
    threads.run()
    assert not log.has_unsynced_truncation


@pytest.mark.parametrize("began", range(3))
def test_a_late_sync_of_a_truncation_keeps_batches_appended_meanwhile(began: int) -> None:
    """A new leader does not wait for the syncs that it requested as a follower."""
    fs, threads = MemoryFileSystem(), Threads()
    manager = opened(fs, ["/data/a"], run_in_thread=threads)
    log = manager.create_log("t", 0, TOPIC_ID, 0)
    append(log, b"a", b"b", b"c")
    for _ in manager.truncate_in_steps("t", 0, 1, 90_000):
        pass
    manager.flush(log)
    threads.run(began)
    log.complete_truncation()
    append(log, b"d", b"e")
    threads.run()
    assert read_all(log) == [(0, b"a"), (1, b"d"), (2, b"e")]
    assert log.active_segment.file.size_bytes() == log.active_segment.size_bytes


@pytest.mark.parametrize("began", range(3))
def test_a_late_sync_of_a_truncation_that_another_one_followed(began: int) -> None:
    fs, threads = MemoryFileSystem(), Threads()
    manager = opened(fs, ["/data/a"], run_in_thread=threads)
    log = manager.create_log("t", 0, TOPIC_ID, 0)
    append(log, b"a", b"b", b"c")
    for offset in (2, 1):
        for _ in manager.truncate_in_steps("t", 0, offset, 90_000):
            pass
        if offset == 2:
            manager.flush(log)
            threads.run(began)
    append(log, b"d", b"e", b"f")
    threads.run()
    assert read_all(log) == [(0, b"a"), (1, b"d"), (2, b"e"), (3, b"f")]


def test_an_append_after_a_truncation_that_is_not_durable() -> None:
    fs, threads = MemoryFileSystem(), Threads()
    manager = opened(fs, ["/data/a"], run_in_thread=threads)
    log = manager.create_log("t", 0, TOPIC_ID, 0)
    append(log, b"a", b"b", b"c")
    for _ in manager.truncate_in_steps("t", 0, 1, 90_000):
        pass
    manager.flush(log)
    end_shortage = refuse_new_files(fs, ENOSPC, lambda path: "checkpoint" in path)
    with pytest.raises(ShortageError):
        append(log, b"d")
    assert (log.log_end_offset, log.has_unsynced_truncation) == (1, True)
    end_shortage()
    append(log, b"e", b"f")
    assert not log.has_unsynced_truncation
    threads.run()
    assert read_all(log) == [(0, b"a"), (1, b"e"), (2, b"f")]
    fs.crash(lose_names=True)
    [again] = opened(fs, ["/data/a"], ids={"t": TOPIC_ID}).all_logs()
    assert read_all(again)[:1] == [(0, b"a")]
    assert {value for _, value in read_all(again)} <= {b"a", b"e", b"f"}


@pytest.mark.parametrize("seed", range(60))
def test_a_crash_before_a_truncation_is_durable(seed: int) -> None:
    """The log is as before, or as after, or a prefix of what it was; never batches after the log's end of then."""
    random, fs, threads = Random(seed), MemoryFileSystem(), Threads()
    manager = opened(fs, ["/data/a"], {"internal.segment.bytes": "200"}, run_in_thread=threads)
    log = manager.create_log("t", 0, TOPIC_ID, 0)
    append(log, *[b"%d" % number for number in range(10)])
    manager.flush(log)
    threads.run()
    run_until(manager, 0, 90_000)
    threads.run()
    offset, has_new_start = random.randrange(10), random.random() < 0.3
    if has_new_start:
        offset = random.choice([0, 12])
        manager.start_over("t", 0, offset, 90_000)
    else:
        for _ in manager.truncate_in_steps("t", 0, offset, 90_000):
            pass
    done: list[Exception | None] = []
    manager.flush(log, done.append)
    threads.run(random.randrange(4))
    if done:
        append(log, b"new")
    fs.crash(random, lose_names=random.random() < 0.5)
    [again] = opened(fs, ["/data/a"], {"internal.segment.bytes": "200"}, ids={"t": TOPIC_ID}).all_logs()
    values = dict(read_all(again))
    if done:
        assert again.log_end_offset in (offset, offset + 1)
        assert values.pop(offset, b"new") == b"new"
    kept = {number: b"%d" % number for number in range(again.log_start_offset, again.log_end_offset)}
    if has_new_start:
        is_new = again.log_start_offset == offset and values == {}
        assert is_new or (not done and again.log_end_offset <= 10 and values == kept)
    else:
        assert (again.log_start_offset, values) == (0, {one: kept[one] for one in range(offset)} if done else kept)
        assert again.log_end_offset >= offset


def test_a_roll_soon_advances_the_recovery_point_on_the_disk() -> None:
    fs = MemoryFileSystem()
    manager = opened(fs, ["/data/a"])
    log = manager.create_log("t", 0, TOPIC_ID, 0)
    append(log, b"a", b"b")
    log.roll(0)
    run_until(manager, 0, 3_000)
    assert checkpoints.read_offsets(fs, "/data/a/recovery-point-offset-checkpoint") == {("t", 0): 2}


def test_one_sync_of_a_log_at_a_time_is_shared_by_all_requests_during_the_previous_one() -> None:
    fs, threads = MemoryFileSystem(), Threads()
    manager = opened(fs, ["/data/a"], run_in_thread=threads)
    log = manager.create_log("t", 0, TOPIC_ID, 0)
    threads.run()
    ended: list[tuple[str, Exception | None, int]] = []

    def flush(name: str) -> None:
        manager.flush(log, lambda error: ended.append((name, error, log.flushed_offset)))

    append(log, b"a")
    flush("first")
    append(log, b"b")
    log.roll(0)
    flush("second")
    flush("third")
    manager.flush_task.visit(log, 0)
    assert len(threads.waiting) == 1
    threads.run()
    assert ended == [("first", None, 1), ("second", None, 2), ("third", None, 2)]


def test_after_a_failed_sync_no_other_sync_counts() -> None:
    """The system reports a failed write once, so the second sync may return success."""
    fs, threads = MemoryFileSystem(), Threads()
    manager = opened(fs, ["/data/a", "/data/b"], run_in_thread=threads)
    log = manager.create_log("t", 0, TOPIC_ID, 0)
    threads.run()
    append(log, b"a")
    ended: list[Exception | None] = []
    task = log.prepare_flush()
    manager.flush(log, ended.append)
    manager.flush(log, ended.append)
    fs.fail("sync", path_contains=".log")
    assert task is not None
    with pytest.raises(LogDirFailure):
        task.run()
    threads.run()
    assert [type(error) for error in ended] == [LogDirFailure, LogDirFailure]
    assert (log.flushed_offset, manager.online_directories) == (0, ["/data/b"])


def test_a_flush_of_a_removed_log_is_refused_and_its_directory_stays_online() -> None:
    """A request to flush waits while its topic is deleted. The first flush of a log writes its leader epochs."""
    fs, threads = MemoryFileSystem(), Threads()
    manager = opened(fs, ["/data/a"], {"file.delete.delay.ms": "0"}, run_in_thread=threads)
    log = manager.create_log("t", 0, TOPIC_ID, 0)
    log.elect(0)
    append(log, b"a")
    manager.delete_log("t", 0)
    run_until(manager, 0, 0)
    threads.run()
    assert not fs.exists(log.directory)
    ended: list[Exception | None] = []
    manager.flush(log, ended.append)
    threads.run()
    assert [type(error) for error in ended] == [KafkaError]
    assert manager.online_directories == ["/data/a"]


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("log_cleaner_backoff_ms", 10),
        ("log_flush_offset_checkpoint_interval_ms", 100),
        ("log_flush_scheduler_interval_ms", 100),
        ("replica_high_watermark_checkpoint_interval_ms", 100),
    ],
)
def test_an_interval_of_zero_does_not_use_all_of_the_time(name: str, most: int) -> None:
    """One second of the broker's clock, in which each task runs when it is due."""
    change: dict[str, Any] = {name: 0}
    manager = opened(MemoryFileSystem(), ["/data/a"], settings=ONE_THREAD._replace(**change))
    visits, now_ms = 0, 40_000
    while now_ms < 41_000:
        now_ms = max(run_due(manager, now_ms), now_ms + 1)
        visits += 1
    assert visits <= most + 5
