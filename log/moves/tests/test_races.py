"""Moves of replicas that meet deletions, truncations, compactions, shortages, and busy producers."""

import errno
from typing import NoReturn

import pytest

from odradek.log.log_manager import LogManager
from odradek.log.management.loading import DuplicateLogError
from odradek.log.moves.move import ReplicaMove
from odradek.log.moves.tests.test_moves import (
    KEY,
    A,
    B,
    begin,
    content,
    create,
    move_until_served,
    numbered,
    open_manager,
    other,
    values,
)
from odradek.log.partition_log import PartitionLog
from odradek.log.storage.checkpoints import RECOVERY_POINTS_FILE, REPLACED_REPLICA_FILE, read_offsets
from odradek.log.storage.filesystem import ExhaustedError
from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.log.tests.managers import (
    NEW_ID,
    TOPIC_ID,
    append,
    folders,
    opened,
    run_due,
    run_until,
    served,
    truncate,
)
from odradek.log.tests.threads import Threads
from odradek.log.truncation import LogTruncation
from odradek.protocol.records import build_batch


def test_a_topic_that_is_created_anew_keeps_its_directory():
    """The directory that the replica of the deleted topic left was not renamed yet."""
    fs, threads = MemoryFileSystem(), Threads()
    manager = open_manager(fs, run_in_thread=threads)
    log = create(manager)
    home = log.log_directory
    move_until_served(manager, log, threads)
    manager.delete_log(*KEY)
    manager.prefer_directory(*KEY, home)
    new = manager.create_log(*KEY, NEW_ID, 0)
    append(new, b"new")
    threads.run()
    run_until(manager, 0, 5_000)
    threads.run()
    assert new.directory == f"{home}/t-0"
    assert (folders(fs, home), folders(fs, other(new))) == (["t-0"], [])
    manager.close(0)
    assert values(served(opened(fs, (A, B), ids={"t": NEW_ID}))) == [b"new"]


def test_a_busy_log_whose_appends_are_flushed_moves():
    """Whenever a flush ends, further appends wait for the next one."""
    threads = Threads()
    manager = open_manager(MemoryFileSystem(), run_in_thread=threads)
    log = create(manager)
    begin(manager, log)
    number = 200

    def produce(error: Exception | None = None) -> None:
        nonlocal number
        assert error is None
        if number < 1000:
            append(served(manager), b"%d" % number)
            number += 1
            manager.flush(served(manager), produce)

    for _ in range(3):
        produce()
        threads.run(1)
    while served(manager) is log and threads.waiting:
        threads.run(1)
    assert number < 1000
    threads.run(10_000)
    assert values(served(manager)) == numbered(1000)


def test_a_shortage_keeps_no_records_that_were_truncated(monkeypatch):
    """The truncation of the future log is refused at first."""
    threads = Threads()
    manager = open_manager(MemoryFileSystem(), run_in_thread=threads)
    log = create(manager)
    future = begin(manager, log)
    while future.log_end_offset < 200:
        threads.run(1)
    truncate(manager, 120, 0)
    log.elect(3)
    for number in range(100):
        batch = build_batch([(0, b"k", b"new %d" % number, ())])
        log.append_as_leader(memoryview(batch), leader_epoch=3, now_ms=0)
    refused: list[int] = []

    def refuse(truncation: LogTruncation, start_offset: int, end_offset: int, now_ms: int) -> NoReturn:
        refused.append(end_offset)
        raise ExhaustedError(future.log_directory, "no file descriptor")

    with monkeypatch.context() as shortage:
        shortage.setattr(LogTruncation, "_find_producers", refuse)
        threads.run()
    assert (refused, served(manager)) == ([120], log)
    run_until(manager, 0, 6_000)
    threads.run()
    assert served(manager) is future
    assert values(future) == [*numbered(120), *(b"new %d" % number for number in range(100))]


def test_a_log_that_was_compacted_meanwhile_is_copied_again():
    """Its copy would return keys whose tombstones are compacted away."""
    fs, threads = MemoryFileSystem(), Threads()
    compacted = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    manager = open_manager(fs, compacted, run_in_thread=threads)
    log = create(manager)
    future = begin(manager, log)
    while future.log_end_offset < 100:
        threads.run(1)
    future.flush(0)
    manager.checkpoints.write_now(manager.directories[future.log_directory], RECOVERY_POINTS_FILE)
    manager.fail_directory(future.log_directory, OSError("dead"))
    for now_ms in range(20_000, 60_000, 1_000):
        run_due(manager, now_ms)
        threads.run()
    assert len(values(log)) < 100
    manager.close(0)
    again = open_manager(fs, compacted)
    assert read_offsets(fs, f"{future.log_directory}/{RECOVERY_POINTS_FILE}") == {}
    expected = content(served(again))
    run_due(again, 0)
    assert served(again).log_directory == future.log_directory
    assert content(served(again)) == expected


def test_logs_that_wait_for_other_moves_are_not_compacted():
    threads = Threads()
    manager = open_manager(MemoryFileSystem(), run_in_thread=threads)
    keys = [("t", partition) for partition in range(6)]
    for key in keys:
        log = manager.create_log(*key, TOPIC_ID, 0)
        append(log, b"0")
        manager.move_log(*key, other(log), 0)
    assert manager.cleaner.paused == set(keys)
    manager.move_log(*keys[5], served(manager, *keys[5]).log_directory, 0)
    assert manager.cleaner.paused == set(keys[:5])
    threads.run()
    assert manager.cleaner.paused == set()


def test_the_flush_of_a_truncation_ends_before_the_replacement():
    """A follower waits for it. It first writes checkpoints, in a thread that may be slow."""
    threads, slow = Threads(), Threads()
    manager = open_manager(MemoryFileSystem(), run_in_thread=threads)
    log = create(manager)
    future = begin(manager, log)
    while future.log_end_offset < 200:
        threads.run(1)
    assert list(manager.truncate_in_steps(*KEY, 120, 0)) == []
    results: list[Exception | None] = []
    manager.flush(log, results.append)
    slow.waiting.append(threads.waiting.pop())
    threads.run(200)
    slow.run()
    threads.run()
    assert results == [None]
    assert served(manager) is future
    assert values(future) == numbered(120)


def test_an_empty_log_is_not_lost_between_two_directories():
    """Nothing of it had to be flushed, yet the topic id in its new directory is needed to choose between the two."""
    fs, threads = MemoryFileSystem(), Threads()
    manager = open_manager(fs, run_in_thread=threads)
    log = manager.create_log(*KEY, TOPIC_ID, 0)
    manager.start_over(*KEY, 500, 0)
    log.complete_truncation()
    threads.run()
    move_until_served(manager, log, threads)
    sync_names, _ = threads.waiting.pop(0)
    sync_names()
    fs.crash()
    assert (folders(fs, A), folders(fs, B)) == (["t-0"], ["t-0"])
    again = served(open_manager(fs))
    assert again.log_directory == other(log)
    assert (again.log_start_offset, again.log_end_offset) == (500, 500)


def test_a_shortage_does_not_keep_the_old_directory():
    fs, threads = MemoryFileSystem(), Threads()
    manager = open_manager(fs, run_in_thread=threads)
    log = create(manager)
    home = log.log_directory
    move_until_served(manager, log, threads)
    fs.fail("sync_directory", error=errno.EMFILE, path_contains=other(log))
    threads.run()
    assert folders(fs, home) == ["t-0"]
    assert manager.moves.is_ending(KEY)
    run_until(manager, 0, 6_000)
    threads.run()
    assert folders(fs, home) == ["t-0-delete"]
    assert not manager.moves.is_ending(KEY)


def move_back_short_of_space(is_repeated: bool) -> tuple[LogManager, Threads, str]:
    """Return a manager that could not begin to move a log back home, after the request for that had succeeded."""
    fs, threads = MemoryFileSystem(), Threads()
    manager = open_manager(fs, run_in_thread=threads)
    log = create(manager)
    home = log.log_directory
    move_until_served(manager, log, threads)
    manager.move_log(*KEY, home, 0)
    threads.run()
    fs.fail("create", error=errno.ENOSPC, path_contains="-future")
    run_until(manager, 0, 200)
    assert KEY not in manager.table.future_logs
    if is_repeated:
        run_until(manager, 200, 6_000)
        threads.run()
    return manager, threads, home


def test_a_shortage_does_not_end_a_move_that_waits_for_the_last_one():
    """The client had got success."""
    manager, _, home = move_back_short_of_space(is_repeated=True)
    assert (served(manager).log_directory, values(served(manager))) == (home, numbered(200))


@pytest.mark.parametrize("is_deleted", [True, False])
def test_a_move_that_was_short_of_space_is_not_repeated_after_another_request_or_a_deletion(is_deleted):
    manager, threads, home = move_back_short_of_space(is_repeated=False)
    directory = served(manager).log_directory
    if is_deleted:
        manager.delete_log(*KEY)
        manager.prefer_directory(*KEY, directory)
        manager.create_log(*KEY, NEW_ID, 0)
    else:
        manager.move_log(*KEY, directory, 200)
    run_until(manager, 200, 6_000)
    threads.run()
    assert served(manager).log_directory == directory != home


def test_a_shortage_does_not_keep_the_copy_of_a_cancelled_move():
    """The next start resumed the move."""
    fs, threads = MemoryFileSystem(), Threads()
    manager = open_manager(fs, run_in_thread=threads)
    log = create(manager)
    future = begin(manager, log)
    fs.fail("rename", error=errno.ENOMEM, path_contains=future.directory)
    manager.move_log(*KEY, log.log_directory, 0)
    threads.run()
    assert folders(fs, other(log)) != []
    run_until(manager, 0, 6_000)
    assert [name for name in folders(fs, other(log)) if name.endswith("-future")] == []


@pytest.mark.parametrize("is_created_again", [True, False])
def test_a_shortage_does_not_keep_the_old_directory_of_a_deleted_topic(is_created_again):
    """The retry does not remove the log of a later topic that has the name of this directory meanwhile."""
    fs, threads = MemoryFileSystem(), Threads()
    manager = open_manager(fs, run_in_thread=threads)
    log = create(manager)
    home = log.log_directory
    move_until_served(manager, log, threads)
    fs.fail("rename", error=errno.ENOMEM, path_contains=f"{home}/t-0")
    manager.delete_log(*KEY)
    assert folders(fs, home) == ["t-0"]
    if is_created_again:
        manager.prefer_directory(*KEY, home)
        append(manager.create_log(*KEY, NEW_ID, 0), b"new")
    threads.run()
    run_until(manager, 0, 10_000)
    threads.run()
    if is_created_again:
        assert values(served(manager)) == [b"new"]
        assert "t-0" in folders(fs, home)
    else:
        assert "t-0" not in folders(fs, home)


def test_a_move_does_not_keep_the_reactor_busy_while_the_disk_is_slow():
    threads, slow = Threads(), Threads()
    slept: list[float] = []
    manager = open_manager(MemoryFileSystem(), run_in_thread=threads, sleep=slept.append)
    log = create(manager)
    begin(manager, log)
    manager.flush(log)
    slow.waiting.append(threads.waiting.pop())
    threads.run(100)
    assert served(manager) is log
    turns = len(slept)
    threads.run(100)
    assert len(slept) == turns + 100
    slow.run()
    threads.run()
    assert served(manager).log_directory == other(log)


def test_a_defect_after_the_replacement_is_reported(caplog):
    def replaced(log: PartitionLog) -> None:
        raise ValueError("a defect")

    manager = open_manager(MemoryFileSystem(), on_log_replaced=replaced)
    log = create(manager)
    manager.move_log(*KEY, other(log), 0)
    assert served(manager) is not log
    assert f"its old directory {log.directory} is not removed" in caplog.text
    assert "a defect" in caplog.text


def test_a_log_outlives_a_rename_that_succeeded_with_an_error(monkeypatch):
    """A network file system reports such errors. The log is served and acknowledged where it was."""
    fs, threads = MemoryFileSystem(), Threads()
    manager = open_manager(fs, run_in_thread=threads)
    log = create(manager)
    begin(manager, log)
    rename = fs.rename

    def rename_and_fail(old: str, new: str) -> None:
        rename(old, new)
        if new == f"{other(log)}/t-0":
            raise OSError(errno.EIO, "lost connection")

    monkeypatch.setattr(fs, "rename", rename_and_fail)
    threads.run()
    assert manager.online_directories == [log.log_directory]
    assert served(manager) is log
    append(log, b"200")
    manager.close(0)
    with pytest.raises(DuplicateLogError):
        open_manager(fs)
    fs.remove_tree(f"{other(log)}/t-0")
    assert values(served(open_manager(fs))) == numbered(201)


def test_a_future_log_gets_no_recovery_point_of_an_earlier_log_in_its_directory():
    """After a crash its unsynced batches would count as flushed, and a torn one would replace a record."""
    fs, threads = MemoryFileSystem(), Threads()
    manager = open_manager(fs, run_in_thread=threads)
    log = create(manager)
    home = log.log_directory
    log.flush(0)
    run_until(manager, 0, 61_000)
    threads.run()
    begin(manager, log)
    threads.run()
    assert KEY in read_offsets(fs, f"{home}/{RECOVERY_POINTS_FILE}")
    begin(manager, served(manager))
    assert read_offsets(fs, f"{home}/{RECOVERY_POINTS_FILE}") == {}


def test_logs_that_move_back_at_once_share_the_removal_of_their_checkpoint_entries():
    """It syncs files in the reactor's thread."""
    fs, threads = MemoryFileSystem(), Threads()
    manager = open_manager(fs, run_in_thread=threads)
    for partition in range(3):
        manager.prefer_directory("t", partition, A)
        append(manager.create_log("t", partition, TOPIC_ID, 0), b"0")
    run_until(manager, 0, 61_000)
    threads.run()
    for partition in range(3):
        manager.move_log("t", partition, B, 61_000)
    threads.run()
    assert len(read_offsets(fs, f"{A}/{RECOVERY_POINTS_FILE}")) == 3
    manager.move_log("t", 0, A, 61_000)
    assert read_offsets(fs, f"{A}/{RECOVERY_POINTS_FILE}") == {}


def test_a_log_is_compacted_after_its_next_move_is_cancelled_while_the_last_one_removes_its_mark():
    fs, threads = MemoryFileSystem(), Threads()
    manager = open_manager(fs, run_in_thread=threads)
    log = create(manager)
    begin(manager, log)
    while True:
        work, done = threads.waiting.pop(0)
        work()
        if fs.exists(f"{log.directory}/{REPLACED_REPLICA_FILE}"):
            break
        done(None)
    manager.move_log(*KEY, log.log_directory, 0)
    done(None)
    assert len(threads.waiting) == 1
    begin(manager, log)
    manager.move_log(*KEY, log.log_directory, 0)
    threads.run()
    assert not fs.exists(f"{log.directory}/{REPLACED_REPLICA_FILE}")
    assert manager.cleaner.paused == set()


def test_the_future_log_of_a_move_that_failed_is_reported_as_removed(monkeypatch):
    """A checkpoint that is being collected would get its entry otherwise."""
    threads = Threads()
    manager = open_manager(MemoryFileSystem(), run_in_thread=threads)
    begin(manager, create(manager))
    removed: list[tuple[str, int]] = []
    manager.table.removal_listeners.append(removed.append)
    monkeypatch.setattr(ReplicaMove, "_copy_region", fail_by_defect)
    threads.run()
    assert manager.table.future_logs == {}
    assert removed == [KEY]


def fail_by_defect(move: ReplicaMove) -> NoReturn:
    raise ValueError("a defect")
