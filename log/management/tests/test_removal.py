"""Deletion of logs, and their rename as stray, on a disk without space for another name."""

import errno
from contextlib import suppress

import pytest

from odradek.log.log_manager import LogManager
from odradek.log.storage.filesystem import DiskFullError, LogDirFailure
from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.log.tests.managers import NEW_ID, TOPIC_ID, append, folders, opened
from odradek.log.tests.threads import Threads

DIRECTORY = "/data"
PATH = f"{DIRECTORY}/t-0"


def with_a_log(fs: MemoryFileSystem, threads: Threads) -> LogManager:
    manager = opened(fs, (DIRECTORY,), run_in_thread=threads)
    append(manager.create_log("t", 0, TOPIC_ID, 0), b"old")
    threads.run()
    return manager


def test_files_that_remain_after_a_crash_include_the_topic_id() -> None:
    files = 1
    while True:
        fs, threads = MemoryFileSystem(), Threads()
        manager = with_a_log(fs, threads)
        for refused in range(1, 20):
            fs.fail("rename", after=refused, error=errno.ENOSPC, path_contains=PATH)
        fs.fail("remove", after=files, path_contains=PATH)
        files += 1
        with suppress(LogDirFailure):
            manager.delete_log("t", 0)
        threads.run()
        if manager.online_directories:
            break
        fs._held.clear()
        fs.heal()
        left = fs.list_names(PATH)
        again = opened(fs, (DIRECTORY,), ids={"t": NEW_ID})
        if left:
            assert again.get("t", 0) is None
            assert folders(fs, DIRECTORY) == ["t-0-stray"]
    assert files > 4


def test_a_log_of_another_topic_that_cannot_be_renamed_keeps_its_topic_id() -> None:
    fs, threads = MemoryFileSystem(), Threads()
    manager = with_a_log(fs, threads)
    fs.fail("rename", error=errno.ENOSPC, path_contains=PATH)
    with pytest.raises(DiskFullError):
        manager.mark_stray("t", 0)
    assert manager.topic_id("t", 0) == TOPIC_ID
    manager.mark_stray("t", 0)
    assert folders(fs, DIRECTORY) == ["t-0-stray"]


def test_a_log_that_a_start_cannot_rename_as_stray_is_not_served() -> None:
    fs, threads = MemoryFileSystem(), Threads()
    with_a_log(fs, threads).close(0)
    fs.fail("rename", error=errno.ENOSPC, path_contains=PATH)
    manager = opened(fs, (DIRECTORY,), ids={"t": NEW_ID})
    assert manager.online_directories == [DIRECTORY]
    assert manager.get("t", 0) is None
    assert manager.create_log("t", 0, NEW_ID, 0).log_end_offset == 0
    assert folders(fs, DIRECTORY) == ["t-0", "t-0-stray"]


def test_a_disk_error_at_the_rename_takes_the_directory_offline() -> None:
    fs, threads = MemoryFileSystem(), Threads()
    manager = with_a_log(fs, threads)
    fs.fail("rename", path_contains=PATH)
    with pytest.raises(LogDirFailure):
        manager.delete_log("t", 0)
    assert manager.online_directories == []
