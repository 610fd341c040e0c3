"""Moves of replicas between log directories."""

import errno
from typing import Any

import pytest

from odradek.log.background.tasks import run_inline
from odradek.log.flush import LogFlusher
from odradek.log.log_manager import LogManager
from odradek.log.partition_log import PartitionLog
from odradek.log.storage.filesystem import ShortageError
from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.log.tests.managers import NEW_ID, TOPIC_ID, append, folders, opened, run_due, run_until, served, truncate
from odradek.log.tests.threads import Threads
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.records import build_batch, iter_batches, iter_records

A, B = "/data/a", "/data/b"
SMALL_SEGMENTS = {"segment.bytes": "1048576", "internal.segment.bytes": "2000", "file.delete.delay.ms": "1000"}
KEY = ("t", 0)


def open_manager(
    fs: MemoryFileSystem, config: dict[str, str] | None = None, topic_id: bytes = TOPIC_ID, **options: Any
) -> LogManager:
    return opened(fs, (A, B), {**SMALL_SEGMENTS, **(config or {})}, ids={"t": topic_id}, **options)


def create(manager: LogManager, count: int = 200, topic_id: bytes = TOPIC_ID) -> PartitionLog:
    log = manager.create_log(*KEY, topic_id, 0)
    append(log, *(b"%d" % number for number in range(count)))
    return log


def begin(manager: LogManager, log: PartitionLog) -> PartitionLog:
    """Begin to move a log; return its future log."""
    manager.move_log(*KEY, other(log), 0)
    return manager.table.future_logs[KEY]


def move_until_served(manager: LogManager, log: PartitionLog, threads: Threads) -> None:
    """Move a log until the future log is served. The removal of the old one remains to be done."""
    begin(manager, log)
    while served(manager) is log:
        threads.run(1)


def other(log: PartitionLog) -> str:
    """The log directory that the log is not in."""
    return B if log.log_directory == A else A


def content(log: PartitionLog) -> bytes:
    """All batches of a log."""
    return b"".join(segment.file.pread(0, segment.size_bytes) for segment in log.segments)


def values(log: PartitionLog) -> list[bytes | None]:
    return [record.value for batch in iter_batches(content(log)) for record in iter_records(batch)]


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def lags(manager: LogManager) -> list[tuple[str, int, bool]]:
    """Return (log directory, lag, is future) of each log that the manager describes."""
    steps = manager.describe_directories()
    try:
        while True:
            next(steps)
    except StopIteration as end:
        return [(one.path, log.offset_lag, log.is_future) for one in end.value for log in one.logs]


def test_a_log_moves():
    fs = MemoryFileSystem()
    replaced: list[PartitionLog] = []
    manager = open_manager(fs, on_log_replaced=replaced.append)
    log = create(manager)
    target, before = other(log), content(log)
    manager.move_log(*KEY, target, 0)
    moved = served(manager)
    assert replaced == [moved]
    assert moved.log_directory == target
    assert content(moved) == before
    assert (moved.high_watermark, moved.flushed_offset) == (200, 200)
    append(moved, b"more")
    run_until(manager, 0, 70_000)
    assert (folders(fs, log.log_directory.replace(target, "")), folders(fs, target)) == ([], ["t-0"])
    manager.close(0)
    again = served(open_manager(fs))
    assert (again.log_directory, values(again)) == (target, [*numbered(200), b"more"])


def test_appends_continue_while_a_log_moves():
    fs, threads = MemoryFileSystem(), Threads()
    manager = open_manager(fs, run_in_thread=threads)
    log = create(manager)
    begin(manager, log)
    number = 200
    while served(manager) is log:
        append(log, b"%d" % number)
        number += 1
        threads.run(1)
    assert number > 202
    assert values(served(manager)) == numbered(number)
    assert content(served(manager)) == content(log)
    assert served(manager).high_watermark == number


def test_a_future_log_is_described_with_its_lag():
    threads = Threads()
    manager = open_manager(MemoryFileSystem(), run_in_thread=threads)
    log = create(manager)
    begin(manager, log)
    assert sorted(lags(manager)) == sorted([(log.log_directory, 0, False), (other(log), 200, True)])
    threads.run()
    assert lags(manager) == [(other(log), 0, False)]


def test_a_move_resumes_after_a_stop_and_copies_the_rest():
    fs, threads = MemoryFileSystem(), Threads()
    manager = open_manager(fs, run_in_thread=threads)
    log = create(manager, 2000)
    future = begin(manager, log)
    while future.log_end_offset < 1000:
        threads.run(1)
    future.flush(0)
    manager.checkpoints.write_now(manager.directories[other(log)], "recovery-point-offset-checkpoint")
    point = future.recovery_point
    assert 0 < point < 1000
    manager.close(0)
    again = open_manager(fs, run_in_thread=threads)
    assert again.table.future_logs[KEY].log_end_offset == point
    run_due(again, 0)
    threads.run()
    assert served(again).log_directory == other(log)
    assert values(served(again)) == numbered(2000)


def test_the_present_directory_cancels_a_move():
    fs, threads = MemoryFileSystem(), Threads()
    manager = open_manager(fs, run_in_thread=threads)
    log = create(manager)
    begin(manager, log)
    threads.run(2)
    manager.move_log(*KEY, log.log_directory, 0)
    assert lags(manager) == [(log.log_directory, 0, False)]
    threads.run()
    assert served(manager) is log
    assert folders(fs, other(log)) == ["t-0-delete"]
    run_until(manager, 0, 5_000)
    threads.run()
    assert folders(fs, other(log)) == []
    assert KEY not in manager.cleaner.paused


def test_another_directory_replaces_a_move():
    fs, threads = MemoryFileSystem(), Threads()
    paths = (A, B, "/data/c")
    manager = opened(fs, paths, SMALL_SEGMENTS, ids={"t": TOPIC_ID}, run_in_thread=threads)
    log = create(manager)
    first, second = [path for path in paths if path != log.log_directory]
    manager.move_log(*KEY, first, 0)
    threads.run(2)
    manager.move_log(*KEY, second, 0)
    manager.move_log(*KEY, second, 0)
    threads.run()
    assert served(manager).log_directory == second
    assert values(served(manager)) == numbered(200)
    assert folders(fs, first) == ["t-0-delete"]


def test_a_log_can_move_back_at_once():
    fs, threads = MemoryFileSystem(), Threads()
    manager = open_manager(fs, run_in_thread=threads)
    log = create(manager)
    home = log.log_directory
    move_until_served(manager, log, threads)
    manager.move_log(*KEY, home, 0)
    threads.run()
    run_until(manager, 0, 200)
    threads.run()
    assert (served(manager).log_directory, values(served(manager))) == (home, numbered(200))
    manager.close(0)
    assert values(served(open_manager(fs))) == numbered(200)


@pytest.mark.parametrize("done", range(2, 40, 3))
def test_a_truncation_truncates_the_future_log(done):
    """The records after it differ, in a later leader epoch."""
    threads = Threads()
    manager = open_manager(MemoryFileSystem(), run_in_thread=threads)
    log = create(manager)
    begin(manager, log)
    threads.run(done)
    current = served(manager)
    truncate(manager, 120, 0)
    current.elect(3)
    for number in range(50):
        batch = build_batch([(0, b"k", b"new %d" % number, ())])
        current.append_as_leader(memoryview(batch), leader_epoch=3, now_ms=0)
    threads.run()
    moved = served(manager)
    assert moved.log_directory == other(log)
    assert values(moved) == [*numbered(120), *(b"new %d" % number for number in range(50))]
    assert moved.leader_epochs.entries == [(0, 0), (3, 120)]


@pytest.mark.parametrize("done", range(5))
def test_a_log_moves_although_a_leader_epoch_without_batches_is_truncated(done):
    """The future log had the epoch, refused the batches of an earlier one that replaced it, and the move ended."""
    threads = Threads()
    manager = open_manager(MemoryFileSystem(), run_in_thread=threads)
    log = create(manager, 20)
    log.elect(5)
    future = begin(manager, log)
    while future.latest_epoch < 5:
        threads.run(1)
    threads.run(done)
    assert served(manager) is log
    truncate(manager, 20, 0)
    assert log.latest_epoch == 0
    batch = build_batch([(0, b"k", b"of another leader", ())], base_offset=20, partition_leader_epoch=4)
    log.append_as_follower(memoryview(batch), now_ms=0)
    threads.run()
    moved = served(manager)
    assert moved is not log
    assert values(moved) == [*numbered(20), b"of another leader"]
    assert moved.leader_epochs.entries == [(0, 0), (4, 20)]


def test_a_log_moves_that_was_truncated_to_an_offset_between_its_batches():
    """Compaction on the leader left the gap. A kill loses nothing that is appended after it."""
    fs = MemoryFileSystem()
    manager = open_manager(fs)
    log = create(manager, 1)
    for offset in (1, 100):
        batch = build_batch([(0, b"k", b"v", ())], base_offset=offset)
        log.append_as_follower(memoryview(batch), now_ms=0)
    truncate(manager, 50, 0)
    manager.move_log(*KEY, other(log), 0)
    moved = served(manager)
    assert (moved.log_directory, moved.log_end_offset) == (other(log), 50)
    append(moved, *(b"%d" % number for number in range(100)))
    expected = [b"0", b"v", *numbered(100)]
    assert values(moved) == expected
    fs._held.clear()
    assert values(served(open_manager(fs))) == expected


def test_a_log_that_starts_over_is_copied_again():
    threads = Threads()
    manager = open_manager(MemoryFileSystem(), run_in_thread=threads)
    log = create(manager)
    begin(manager, log)
    threads.run(6)
    manager.start_over(*KEY, 90, 0)
    log.complete_truncation()
    append(log, b"new")
    threads.run()
    assert served(manager) is not log
    assert (served(manager).log_start_offset, values(served(manager))) == (90, [b"new"])


def test_the_log_start_moves_along():
    threads = Threads()
    manager = open_manager(MemoryFileSystem(), run_in_thread=threads)
    log = create(manager)
    log.delete_records_before(70)
    begin(manager, log)
    threads.run(6)
    log.delete_records_before(100)
    manager.delete_old_segments(log, 0)
    threads.run()
    moved = served(manager)
    assert (moved.log_start_offset, moved.log_end_offset) == (100, 200)
    assert content(moved).endswith(content(log)) or content(log).endswith(content(moved))


def test_a_log_that_starts_within_a_batch_moves():
    manager = open_manager(MemoryFileSystem())
    log = manager.create_log(*KEY, TOPIC_ID, 0)
    for number in range(4):
        batch = build_batch([(0, b"k", b"%d" % number, ())] * 5)
        log.append_as_leader(memoryview(batch), leader_epoch=0, now_ms=0)
    log.update_high_watermark(20)
    log.delete_records_before(7)
    manager.move_log(*KEY, other(log), 0)
    moved = served(manager)
    assert moved is not log
    assert (moved.log_start_offset, moved.log_end_offset) == (7, 20)
    assert values(moved) == values(log)[5:]


def test_retention_that_overtakes_the_copy_lets_it_start_over():
    threads = Threads()
    manager = open_manager(MemoryFileSystem(), run_in_thread=threads)
    log = create(manager, 2000)
    future = begin(manager, log)
    while future.log_end_offset == 0:
        threads.run(1)
    log.delete_records_before(1500)
    while manager.delete_old_segments(log, 0):
        pass
    threads.run()
    moved = served(manager)
    assert moved is not log
    assert (moved.log_start_offset, moved.log_end_offset) == (1500, 2000)
    assert values(moved)[-500:] == numbered(2000)[1500:]


def test_a_log_without_records_at_its_end_moves():
    """Compaction can remove the last batches before an active segment that is empty."""
    manager = open_manager(MemoryFileSystem())
    log = create(manager, 20)
    log.state.active.truncate_to(10, 0)
    log.roller.roll_at(20, 0)
    assert log.log_end_offset == 20
    manager.move_log(*KEY, other(log), 0)
    moved = served(manager)
    assert moved is not log
    assert (moved.log_end_offset, values(moved)) == (20, numbered(10))
    append(moved, b"20")
    assert values(moved) == [*numbered(10), b"20"]


def test_epochs_without_a_batch_move_along():
    manager = open_manager(MemoryFileSystem())
    log = create(manager, 20)
    log.elect(5)
    manager.move_log(*KEY, other(log), 0)
    assert served(manager).leader_epochs.entries == [(0, 0), (5, 20)]


def test_producers_move_along():
    """The duplicate of a batch that was deleted is recognized after the move."""
    manager = open_manager(MemoryFileSystem(), {"internal.segment.bytes": "200"})
    log = manager.create_log(*KEY, TOPIC_ID, 0)
    batch = build_batch([(0, b"k", b"v", ())], producer_id=7, producer_epoch=0, base_sequence=0)
    log.append_as_leader(memoryview(batch), leader_epoch=0, now_ms=0)
    append(log, *numbered(5))
    verification = log.producer_state.begin_verification(8, 0, 0, 0, adds_partition=False)
    log.delete_records_before(3)
    manager.delete_old_segments(log, 0)
    manager.move_log(*KEY, other(log), 0)
    moved = served(manager)
    assert moved is not log
    assert moved.append_as_leader(memoryview(batch), leader_epoch=0, now_ms=0).is_duplicate
    assert moved.producer_state.verifications[8] is verification


def test_a_log_is_not_compacted_while_it_moves():
    threads = Threads()
    compacting: list[bool] = []

    def run_compaction(work: Any, done: Any) -> None:
        compacting.append(KEY in manager.table.future_logs)
        run_inline(work, done)

    manager = open_manager(
        MemoryFileSystem(),
        {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"},
        run_in_thread=threads,
        run_compaction=run_compaction,
    )
    log = create(manager)
    begin(manager, log)
    threads.run(3)
    run_until(manager, 0, 40_000)
    assert compacting == []
    threads.run()
    assert served(manager) is not log
    for now_ms in range(40_000, 80_000, 1_000):
        run_due(manager, now_ms)
        threads.run()
    assert compacting
    assert not any(compacting)
    assert len(values(served(manager))) < 200


def test_a_flush_waits_for_the_replacement():
    """Acknowledgements that need a sync of the current log get one of the new log."""
    fs, threads = MemoryFileSystem(), Threads()
    manager = open_manager(fs, run_in_thread=threads)
    log = create(manager)
    begin(manager, log)
    while log not in manager.flush_task._held:
        threads.run(1)
    append(log, b"200")
    results: list[Exception | None] = []
    manager.flush(log, results.append)
    while served(manager) is log:
        assert not results
        threads.run(1)
    threads.run()
    assert results == [None]
    assert served(manager).flushed_offset == 201
    assert log.flushed_offset < 201


def test_a_deleted_log_ends_its_move():
    fs, threads = MemoryFileSystem(), Threads()
    manager = open_manager(fs, run_in_thread=threads)
    log = create(manager)
    begin(manager, log)
    threads.run(3)
    manager.delete_log(*KEY)
    threads.run()
    assert (manager.get(*KEY), manager.table.future_logs) == (None, {})
    assert (folders(fs, A), folders(fs, B)) == (["t-0-delete"], ["t-0-delete"])


@pytest.mark.parametrize("fails_source", [False, True])
def test_a_failed_directory_ends_the_move(fails_source):
    fs, threads = MemoryFileSystem(), Threads()
    failed: list[str] = []
    manager = open_manager(fs, run_in_thread=threads, on_directory_failure=lambda path, lost: failed.append(path))
    log = create(manager)
    begin(manager, log)
    threads.run(3)
    path = log.log_directory if fails_source else other(log)
    manager.fail_directory(path, OSError("dead"))
    threads.run()
    assert failed == [path]
    assert manager.table.future_logs == {}
    if not fails_source:
        assert served(manager) is log
        append(log, b"more")
    with pytest.raises(KafkaError) as raised:
        manager.move_log(*KEY, other(log), 0)
    assert raised.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    manager.close(0)
    again = open_manager(fs)
    run_until(again, 0, 1_000)
    assert served(again).log_directory == other(log)
    assert values(served(again))[:200] == numbered(200)


def test_an_error_of_the_target_disk_leaves_the_log_where_it_is():
    for at in range(1, 60):
        fs, threads = MemoryFileSystem(), Threads()
        manager = open_manager(fs, run_in_thread=threads)
        log = create(manager)
        target = other(log)
        fs.fail("write", after=at, path_contains=target)
        try:
            manager.move_log(*KEY, target, 0)
        except KafkaError:
            threads.run()
            assert manager.directories[target].failure is not None
            assert served(manager) is log
            continue
        threads.run()
        if manager.directories[target].failure is None:
            break
        if manager.get(*KEY) is log:
            append(log, b"more")
            assert values(log) == [*numbered(200), b"more"]
    assert at > 5
    assert served(manager).log_directory == target


def test_a_full_target_disk_delays_the_move():
    fs, threads = MemoryFileSystem(), Threads()
    manager = open_manager(fs, run_in_thread=threads)
    log = create(manager)
    fs.is_full = True
    with pytest.raises(ShortageError):
        manager.move_log(*KEY, other(log), 0)
    fs.is_full = False
    begin(manager, log)
    threads.run(2)
    fs.is_full = True
    threads.run()
    assert served(manager) is log
    assert manager.online_directories == [A, B]
    fs.is_full = False
    run_due(manager, 10_000)
    threads.run()
    assert served(manager).log_directory == other(log)


def test_batches_that_a_full_target_disk_refused_are_synced_away_in_a_thread(monkeypatch):
    fs, threads = MemoryFileSystem(), Threads()
    manager = open_manager(fs, run_in_thread=threads)
    log = create(manager)
    future = begin(manager, log)
    while not future.has_unsynced_truncation:
        fs.fail("write", error=errno.ENOSPC, path_contains=f"{future.directory}/")
        threads.run(1)
    fs.heal()
    monkeypatch.setattr(LogFlusher, "flush", lambda *arguments: pytest.fail("a sync blocks the reactor"))
    run_due(manager, 10_000)
    threads.run()
    assert served(manager).log_directory == other(log)


def test_damaged_records_end_the_move(caplog):
    fs = MemoryFileSystem()
    manager = open_manager(fs)
    log = create(manager)
    log.segments[0].file.write_pieces(100, [b"XXXX"], 4)
    manager.move_log(*KEY, other(log), 0)
    assert served(manager) is log
    assert manager.table.future_logs == {}
    assert "cannot move replica" in caplog.text
    assert folders(fs, other(log)) == ["t-0-delete"]


def test_a_future_log_of_another_topic_is_removed():
    fs, threads = MemoryFileSystem(), Threads()
    manager = open_manager(fs, run_in_thread=threads)
    log = create(manager)
    future = begin(manager, log)
    manager.close(0)
    (path,) = [name for name in fs.list_names(other(log)) if name.endswith("-future")]
    fs.open(f"{other(log)}/{path}/partition.metadata", create=True)
    from odradek.log.storage.checkpoints import write_partition_metadata

    write_partition_metadata(fs, future.directory, NEW_ID, sync=True)
    again = open_manager(fs)
    assert again.table.future_logs == {}
    assert folders(fs, other(log)) == ["t-0-delete"]


class Throttle:
    """A limit that the test sets."""

    def __init__(self) -> None:
        self.is_over = False
        self.copied_bytes = 0

    def is_exceeded(self) -> bool:
        return self.is_over

    def record(self, size_bytes: int) -> None:
        self.copied_bytes += size_bytes


def test_a_throttled_move_waits():
    throttle = Throttle()
    manager = open_manager(MemoryFileSystem(), move_throttle=throttle)
    log = create(manager)
    throttle.is_over = True
    future = begin(manager, log)
    run_until(manager, 0, 5_000)
    assert (future.log_end_offset, throttle.copied_bytes) == (0, 0)
    throttle.is_over = False
    run_until(manager, 5_000, 6_000)
    assert served(manager) is future
    assert throttle.copied_bytes == len(content(log))


def test_a_preferred_directory_is_used_once():
    manager = open_manager(MemoryFileSystem())
    for path in (B, A, B, B):
        manager.prefer_directory("t", 5, path)
        assert manager.create_log("t", 5, TOPIC_ID, 0).log_directory == path
        manager.delete_log("t", 5)
    for partition in range(3):
        manager.create_log("t", partition, TOPIC_ID, 0)
    assert manager.create_log("t", 5, TOPIC_ID, 0).log_directory == B
