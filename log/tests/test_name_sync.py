"""New logs become durable in a thread, many at once; removals use one thread at a time."""

import errno
from functools import partial

import pytest

from odradek.log.background.tasks import run_inline
from odradek.log.log_manager import LogManager
from odradek.log.management.removals import Removals
from odradek.log.storage.filesystem import DiskFullError
from odradek.log.storage.memory_filesystem import MemoryFileSystem, MemoryLock
from odradek.log.tests.managers import opened
from odradek.log.tests.test_closing import DIRECTORY, Syncs
from odradek.log.tests.threads import Threads


def make(manager: LogManager, count: int, first: int = 0) -> None:
    for index in range(first, first + count):
        manager.create_log("t", index, bytes([index]) * 16, 0, is_new=True)


def topic_ids(fs: MemoryFileSystem) -> list[bytes | None]:
    again = opened(fs, [DIRECTORY])
    return [again.topic_id("t", log.partition) for log in sorted(again.all_logs(), key=lambda log: log.partition)]


def test_logs_created_during_a_sync_are_synced_together():
    fs, threads = MemoryFileSystem(), Threads()
    manager = opened(fs, [DIRECTORY], run_in_thread=threads)
    make(manager, 100)
    assert len(threads.waiting) == 1
    syncs = Syncs(fs)
    threads.run()
    assert syncs.count < 10
    fs.crash(lose_names=True)
    assert topic_ids(fs) == [bytes([index]) * 16 for index in range(100)]


def test_a_few_logs_are_synced_without_the_whole_file_system(monkeypatch):
    fs, threads = MemoryFileSystem(), Threads()
    manager = opened(fs, [DIRECTORY], run_in_thread=threads)
    monkeypatch.setattr(MemoryLock, "sync_file_system", lambda self: pytest.fail("the whole file system is synced"))
    make(manager, 3)
    threads.run()
    fs.crash(lose_names=True)
    assert topic_ids(fs) == [bytes([index]) * 16 for index in range(3)]


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
