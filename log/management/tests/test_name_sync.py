"""New logs become durable in a thread, many at once; removals use one thread at a time."""

import errno
from functools import partial

import pytest

from odradek.log.background.tasks import run_inline
from odradek.log.log_manager import LogManager
from odradek.log.management.removals import Removals
from odradek.log.management.tests.test_closing import DIRECTORY, Syncs
from odradek.log.storage.filesystem import DiskFullError
from odradek.log.storage.memory_filesystem import MemoryFileSystem, MemoryLock
from odradek.log.storage.name_sync import SYNC_INTERVAL_MS
from odradek.log.tests.managers import TOPIC_ID, opened, run_due, run_until
from odradek.log.tests.threads import Threads


def make(manager: LogManager, count: int, first: int = 0) -> None:
    for index in range(first, first + count):
        manager.create_log("t", index, bytes([index + 1]) * 16, 0, is_new=True)


def topic_ids(fs: MemoryFileSystem) -> list[bytes | None]:
    again = opened(fs, [DIRECTORY])
    return [again.topic_id("t", log.partition) for log in sorted(again.all_logs(), key=lambda log: log.partition)]


def test_logs_created_during_a_sync_are_synced_together():
    fs, threads = MemoryFileSystem(), Threads()
    manager = opened(fs, [DIRECTORY], run_in_thread=threads)
    make(manager, 100)
    assert len(threads.waiting) == 1
    syncs = Syncs(fs)
    run_until(manager, 0, SYNC_INTERVAL_MS)
    threads.run()
    assert syncs.count < 10
    fs.crash(lose_names=True)
    assert topic_ids(fs) == [bytes([index + 1]) * 16 for index in range(100)]


def test_a_few_logs_are_synced_without_the_whole_file_system(monkeypatch):
    fs, threads = MemoryFileSystem(), Threads()
    manager = opened(fs, [DIRECTORY], run_in_thread=threads)
    monkeypatch.setattr(MemoryLock, "sync_file_system", lambda self: pytest.fail("the whole file system is synced"))
    make(manager, 3)
    run_until(manager, 0, SYNC_INTERVAL_MS)
    threads.run()
    fs.crash(lose_names=True)
    assert topic_ids(fs) == [bytes([index + 1]) * 16 for index in range(3)]


@pytest.mark.parametrize("topic_id", [TOPIC_ID, None])
def test_a_single_log_is_synced_at_once(topic_id):
    fs, threads = MemoryFileSystem(), Threads()
    manager = opened(fs, [DIRECTORY], run_in_thread=threads)
    manager.create_log("t", 0, topic_id, 0, is_new=True)
    threads.run()
    fs.crash(lose_names=True)
    assert topic_ids(fs) == [topic_id]


def test_many_logs_created_one_after_the_other_need_few_syncs():
    """Each creation waits for the sync in progress."""
    fs, threads = MemoryFileSystem(), Threads()
    manager = opened(fs, [DIRECTORY], run_in_thread=threads)
    started = 0
    for index in range(200):
        run_due(manager, 10 * index)
        make(manager, 1, index)
        started += len(threads.waiting)
        threads.run()
    assert started <= 200 * 10 / SYNC_INTERVAL_MS + 1
    run_until(manager, 2_000, 2_000 + SYNC_INTERVAL_MS)
    threads.run()
    fs.crash(lose_names=True)
    assert topic_ids(fs) == [bytes([index + 1]) * 16 for index in range(200)]


def test_a_failed_sync_takes_the_directory_offline_and_ends_its_syncs():
    fs, threads = MemoryFileSystem(), Threads()
    manager = opened(fs, [DIRECTORY, "/data/b"], run_in_thread=threads)
    make(manager, 4)
    fs.fail("sync_directory", error=errno.EIO, path_contains=DIRECTORY)
    threads.run()
    assert manager.online_directories == ["/data/b"]
    assert threads.waiting == []


def test_removals_run_one_piece_of_work_at_a_time():
    threads, gone = Threads(), []
    removals = Removals(threads, lambda path, error: False)
    for number in range(100):
        removals.add("/d", partial(gone.append, number))
    pieces = 0
    while threads.waiting:
        assert len(threads.waiting) == 1
        pieces += 1
        threads.run(1)
    assert gone == list(range(100))
    assert pieces < 10


def test_a_removal_that_fails_affects_no_other():
    threads, gone, failed = Threads(), [], []

    def removal(number, error=None):
        def remove():
            if error is not None and number not in failed:
                failed.append(number)
                raise error
            gone.append(number)

        return remove

    removals = Removals(threads, lambda path, error: isinstance(error, DiskFullError))
    for number in range(4):
        error = {1: DiskFullError("/d", "full"), 2: OSError("broken")}.get(number)
        removals.add("/d", removal(number, error))
    threads.run()
    assert gone == [0, 3]
    removals.retry()
    threads.run()
    assert gone == [0, 3, 1]


def test_removals_without_threads():
    gone = []
    removals = Removals(run_inline, lambda path, error: False)
    removals.add("/d", lambda: gone.append(1))
    removals.add("/d", lambda: gone.append(2))
    assert gone == [1, 2]
