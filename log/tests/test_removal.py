"""Deleting logs on a disk that has no room for another name."""

import errno

import pytest

from odradek.log.filesystem import DiskFullError, LogDirFailure, MemoryFileSystem
from odradek.log.log_manager import LogManager
from odradek.log.tests.managers import NEW_ID, TOPIC_ID, append, folders, opened
from odradek.log.tests.threads import Threads

DIRECTORY = "/data"
PATH = f"{DIRECTORY}/t-0"


def with_a_log(fs: MemoryFileSystem, threads: Threads) -> LogManager:
    manager = opened(fs, (DIRECTORY,), run_in_thread=threads)
    append(manager.create_log("t", 0, TOPIC_ID, 0), b"old")
    threads.run()
    return manager


def test_a_log_that_cannot_be_renamed_is_removed_at_once() -> None:
    fs, threads = MemoryFileSystem(), Threads()
    manager = with_a_log(fs, threads)
    fs.fail("rename", error=errno.ENOSPC, path_contains=PATH)
    manager.delete_log("t", 0, 0)
    assert manager.get("t", 0) is None
    assert manager.online_directories == [DIRECTORY]
    assert folders(fs, DIRECTORY) == ["t-0"]
    with pytest.raises(DiskFullError, match="still being removed"):
        manager.create_log("t", 0, NEW_ID, 0, is_new=True)
    threads.run()
    assert folders(fs, DIRECTORY) == []
    log = manager.create_log("t", 0, NEW_ID, 0, is_new=True)
    assert log.log_end_offset == 0
    assert manager.topic_id("t", 0) == NEW_ID


def test_what_is_left_of_it_after_a_crash_has_the_topic_id() -> None:
    files = 0
    while True:
        fs, threads = MemoryFileSystem(), Threads()
        manager = with_a_log(fs, threads)
        fs.fail("rename", error=errno.ENOSPC, path_contains=PATH)
        manager.delete_log("t", 0, 0)
        files += 1
        fs.fail("remove", after=files, path_contains=PATH)
        threads.run()
        if manager.online_directories:
            break
        assert fs.exists(f"{PATH}/partition.metadata")
        fs._held.clear()
        again = opened(fs, (DIRECTORY,), ids={"t": NEW_ID})
        assert again.get("t", 0) is None
        assert folders(fs, DIRECTORY) == ["t-0-stray"]
    assert files > 4


def test_a_log_of_another_topic_that_cannot_be_renamed_stays_what_it_is() -> None:
    fs, threads = MemoryFileSystem(), Threads()
    manager = with_a_log(fs, threads)
    fs.fail("rename", error=errno.ENOSPC, path_contains=PATH)
    with pytest.raises(DiskFullError):
        manager.mark_stray("t", 0)
    assert manager.topic_id("t", 0) == TOPIC_ID
    manager.mark_stray("t", 0)
    assert folders(fs, DIRECTORY) == ["t-0-stray"]


def test_a_start_that_cannot_set_a_log_aside_does_not_serve_it() -> None:
    fs, threads = MemoryFileSystem(), Threads()
    with_a_log(fs, threads).close(0)
    fs.fail("rename", error=errno.ENOSPC, path_contains=PATH)
    manager = opened(fs, (DIRECTORY,), ids={"t": NEW_ID})
    assert manager.online_directories == [DIRECTORY]
    with pytest.raises(Exception, match="is offline"):
        manager.get("t", 0)


def test_a_disk_that_breaks_at_the_rename_is_offline() -> None:
    fs, threads = MemoryFileSystem(), Threads()
    manager = with_a_log(fs, threads)
    fs.fail("rename", path_contains=PATH)
    with pytest.raises(LogDirFailure):
        manager.delete_log("t", 0, 0)
    assert manager.online_directories == []
