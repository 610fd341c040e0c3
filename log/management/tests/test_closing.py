"""Closing logs: the number of syncs, and that a stop counts as clean only if everything is durable."""

import errno
from typing import Any

import pytest

from odradek.log.log_manager import LogManager
from odradek.log.partition_log import PartitionLog
from odradek.log.storage.checkpoints import CLEAN_SHUTDOWN_FILE, read_leader_epochs
from odradek.log.storage.filesystem import DiskFullError
from odradek.log.storage.memory_filesystem import MemoryFileSystem, MemoryLock, SimulatedCrash
from odradek.log.storage.name_sync import SYNC_INTERVAL_MS
from odradek.log.tests.cleaning import mark, put
from odradek.log.tests.managers import ONE_THREAD, append, opened, run_until, served
from odradek.log.tests.support import start_over, truncate
from odradek.log.tests.threads import Threads
from odradek.protocol.records import ControlType

DIRECTORY = "/data/a"


class Syncs:
    """Counts the syncs of a file system."""

    def __init__(self, fs: MemoryFileSystem) -> None:
        self._fs = fs
        self._before = self._now()

    def _now(self) -> list[int]:
        return [self._fs._counts.get(name, 0) for name in ("sync", "sync_directory")]

    @property
    def count(self) -> int:
        return sum(self._now()) - sum(self._before)


@pytest.fixture(params=["at once", "one by one"])
def sync_mode(request, monkeypatch):
    if request.param == "one by one":
        monkeypatch.setattr(MemoryLock, "sync_file_system", lambda self: False)
    return request.param


def with_logs(fs: MemoryFileSystem, count: int, records: int = 1, **options: Any) -> LogManager:
    manager = opened(fs, [DIRECTORY], **options)
    for index in range(count):
        log = manager.get("t", index) or manager.create_log("t", index, bytes(16), 0, is_new=True)
        for number in range(records):
            append(log, b"%d" % number)
    return manager


def contents(fs: MemoryFileSystem, count: int) -> list[int]:
    again = opened(fs, [DIRECTORY])
    assert all(directory.was_clean for directory in again.directories.values())
    return [served(again, "t", index).log_end_offset for index in range(count)]


@pytest.mark.parametrize("records", [0, 1])
def test_a_clean_stop_is_durable(sync_mode, records):
    fs = MemoryFileSystem()
    with_logs(fs, 5, records).close(0)
    fs.crash(lose_names=True)
    assert contents(fs, 5) == [records] * 5


def test_one_sync_covers_all_logs():
    counts = set()
    for logs in (5, 20):
        fs = MemoryFileSystem()
        manager = with_logs(fs, logs)
        syncs = Syncs(fs)
        manager.close(0)
        counts.add(syncs.count)
    assert len(counts) == 1


def test_without_a_sync_of_the_file_system_each_file_is_synced_once(monkeypatch):
    monkeypatch.setattr(MemoryLock, "sync_file_system", lambda self: False)
    counts = []
    for logs in (5, 25):
        fs = MemoryFileSystem()
        manager = with_logs(fs, logs)
        syncs = Syncs(fs)
        manager.close(0)
        counts.append(syncs.count)
    # The records, two indexes, the leader epochs, the snapshot, the topic id, the directory.
    assert counts[1] - counts[0] <= 20 * 7


def test_unchanged_logs_are_not_written(sync_mode):
    fs = MemoryFileSystem()
    with_logs(fs, 20).close(0)
    manager = opened(fs, [DIRECTORY])
    syncs, before = Syncs(fs), fs.operations
    append(served(manager, "t", 3), b"more")
    manager.close(0)
    assert syncs.count < 20
    assert fs.operations - before < 60
    fs.crash(lose_names=True)
    assert contents(fs, 20) == [1, 1, 1, 2] + [1] * 16


def truncate_and_append(log: PartitionLog) -> None:
    truncate(log, 2, 0)
    append(log, b"y")


@pytest.mark.parametrize(
    "change",
    [
        lambda log: append(log, b"x"),
        lambda log: truncate(log, 1, 0),
        truncate_and_append,
        lambda log: start_over(log, 7, 0),
        lambda log: log.roll(0),
        lambda log: log.elect(9),
        lambda log: log.mark_name_unsynced(),
    ],
)
def test_a_changed_log_is_made_durable(sync_mode, change):
    fs = MemoryFileSystem()
    with_logs(fs, 2, 3).close(0)
    manager = opened(fs, [DIRECTORY])
    log = served(manager)
    assert log.flusher.is_untouched
    change(log)
    assert not log.flusher.is_untouched
    end_offset = log.log_end_offset
    manager.close(0)
    fs.crash(lose_names=True)
    assert contents(fs, 2) == [end_offset, 3]


def test_a_log_of_an_unclean_stop_is_made_durable_although_nothing_was_written(sync_mode):
    fs = MemoryFileSystem()
    run_until(with_logs(fs, 2), 0, SYNC_INTERVAL_MS)
    fs.crash()
    fs._held.clear()
    manager = opened(fs, [DIRECTORY])
    assert not served(manager).flusher.is_untouched
    manager.close(0)
    fs.crash(lose_names=True)
    assert len(contents(fs, 2)) == 2


def test_after_a_failed_sync_of_the_file_system_each_file_is_synced():
    fs = MemoryFileSystem()
    manager = with_logs(fs, 5)
    fs.fail("sync", error=errno.EIO)
    manager.close(0)
    fs.crash(lose_names=True)
    assert contents(fs, 5) == [1] * 5


@pytest.mark.parametrize("path", [".log", ".index", ".timeindex", "leader-epoch"])
def test_a_file_that_cannot_be_synced_makes_the_stop_unclean(monkeypatch, path):
    monkeypatch.setattr(MemoryLock, "sync_file_system", lambda self: False)
    fs = MemoryFileSystem()
    manager = with_logs(fs, 3)
    fs.fail("sync", error=errno.EIO, path_contains=path)
    manager.close(0)
    again = opened(fs, [DIRECTORY])
    assert not again.directories[DIRECTORY].was_clean


def test_after_a_failed_flush_the_stop_is_unclean():
    fs = MemoryFileSystem()
    manager = with_logs(fs, 3)
    log = served(manager, "t", 1)
    task = log.prepare_flush()
    fs.fail("sync", error=errno.EIO)
    with pytest.raises(Exception, match="flush failed"):
        task.run()
    manager.close(0)
    assert not opened(fs, [DIRECTORY]).directories[DIRECTORY].was_clean


def test_a_full_disk_makes_the_stop_unclean(sync_mode):
    fs = MemoryFileSystem()
    manager = with_logs(fs, 3)
    fs.is_full = True
    manager.close(0)
    fs.heal()
    again = opened(fs, [DIRECTORY])
    assert not again.directories[DIRECTORY].was_clean
    assert [served(again, "t", index).log_end_offset for index in range(3)] == [1, 1, 1]


def test_a_crash_at_any_moment_of_the_stop_loses_nothing(sync_mode):
    operations = 0
    while True:
        operations += 1
        fs = MemoryFileSystem()
        manager = with_logs(fs, 2, 2)
        for log in manager.all_logs():
            log.flush(0)
        fs.crash_at(operations)
        try:
            manager.close(0)
        except SimulatedCrash:
            fs.crash(lose_names=True)
        else:
            assert operations > 10
            return
        again = opened(fs, [DIRECTORY], settings=ONE_THREAD)
        assert [served(again, "t", index).log_end_offset for index in range(2)] == [2, 2]
        assert not again.directories[DIRECTORY].was_clean


def test_the_stop_syncs_the_files_of_a_queued_flush(sync_mode):
    fs, threads = MemoryFileSystem(), Threads()
    with_logs(fs, 1).close(0)
    manager = opened(fs, [DIRECTORY], run_in_thread=threads)
    log = served(manager)
    log.elect(5)
    manager.flush(log)
    assert threads.waiting
    manager.close(0)
    fs.crash(lose_names=True)
    assert read_leader_epochs(fs, f"{DIRECTORY}/t-0/leader-epoch-checkpoint") == [(0, 0), (5, 1)]


def test_a_refused_append_leaves_no_file_extended(sync_mode):
    """After a clean stop a start takes an index file for complete, so zeros at its end would count as entries."""

    def sizes():
        names = fs.list_names(f"{DIRECTORY}/t-0")
        return {name: fs.size_bytes(f"{DIRECTORY}/t-0/{name}") for name in names}

    fs = MemoryFileSystem()
    with_logs(fs, 1).close(0)
    before = sizes()
    manager = opened(fs, [DIRECTORY], {"preallocate": "true"})
    fs.is_full = True
    with pytest.raises(DiskFullError):
        append(served(manager), b"y")
    fs.is_full = False
    manager.close(0)
    assert opened(fs, [DIRECTORY]).directories[DIRECTORY].was_clean
    assert sizes() == before


@pytest.mark.parametrize("fails", [False, True])
def test_a_log_in_another_file_system_is_synced_separately(fails):
    fs = MemoryFileSystem()
    fs.mounts.add(f"{DIRECTORY}/t-1")
    manager = with_logs(fs, 3)
    if fails:
        fs.fail("sync", error=errno.EIO, path_contains="t-1/")
    manager.close(0)
    fs.crash(lose_names=True)
    again = opened(fs, [DIRECTORY])
    assert again.directories[DIRECTORY].was_clean is not fails
    if not fails:
        assert [log.log_end_offset for log in again.all_logs()] == [1] * 3


def test_an_index_rebuilt_after_an_incomplete_close_does_not_count_as_durable():
    """The recovery point of the close is at the end of the segment whose indexes the next start rebuilds."""
    fs = MemoryFileSystem()
    manager = with_logs(fs, 1)
    log = served(manager)
    put(log, (b"a", b"aborted"), producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    mark(log, ControlType.ABORT, 5)
    manager.close(0)
    fs.remove(f"{DIRECTORY}/{CLEAN_SHUTDOWN_FILE}")
    manager = opened(fs, [DIRECTORY])
    served(manager).roll(0)
    fs.crash()
    [log] = opened(fs, [DIRECTORY]).all_logs()
    assert [entry.first_offset for entry in log.segments[0].transaction_index.entries()] == [1]
