"""Logs that are missing at the start of a broker: whether they were lost with a disk."""

import pytest

from odradek.log.storage.filesystem import LogDirFailure
from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.log.tests.managers import opened

FIRST, SECOND = "/first", "/second"
KEYS = [("t", 0), ("t", 1)]


@pytest.fixture
def fs():
    return MemoryFileSystem()


def start(fs, *directories):
    """Start a broker; return its log directories, and which of KEYS it has lost."""
    manager = opened(fs, directories)
    missing = [key for key in KEYS if not manager.table.has(key)]
    return manager, list(manager.log_dirs.find_lost_logs(missing))


def test_logs_that_are_missing_in_a_new_directory_are_lost_at_each_start_until_there_are_all(fs):
    manager, lost = start(fs, FIRST)
    assert lost == KEYS
    manager.create_log("t", 0, bytes(16), 0)
    manager.close(0)
    manager, lost = start(fs, FIRST)
    assert lost == [("t", 1)]
    manager.create_log("t", 1, bytes(16), 0)
    manager.close(0)
    start(fs, FIRST)[0].close(0)
    manager, lost = start(fs, FIRST)
    assert lost == []
    manager.delete_log("t", 1)
    manager.close(0)
    assert start(fs, FIRST)[1] == []


def test_a_mark_of_lost_logs_survives_a_loss_of_power(fs):
    start(fs, FIRST)
    fs.crash(lose_names=True)
    assert start(fs, FIRST)[1] == KEYS


def test_a_log_that_was_not_created_before_the_stop_is_not_lost(fs):
    opened(fs, [FIRST]).close(0)
    assert start(fs, FIRST)[1] == []


def test_one_of_several_directories_is_new(fs):
    manager = opened(fs, [FIRST])
    manager.create_log("t", 0, bytes(16), 0, is_new=True)
    manager.close(0)
    assert start(fs, FIRST, SECOND)[1] == [("t", 1)]


def test_directories_were_clean_if_all_were(fs):
    manager = opened(fs, [FIRST, SECOND])
    assert not manager.log_dirs.were_clean()
    manager.close(0)
    manager = opened(fs, [FIRST, SECOND])
    assert manager.log_dirs.were_clean()
    manager.log_dirs.fail(SECOND, LogDirFailure(SECOND, "failed"))
    assert not manager.log_dirs.were_clean()
    manager.close(0)
    assert not opened(fs, [FIRST, SECOND]).log_dirs.were_clean()


def test_a_directory_without_space_for_the_mark_is_no_failure(fs):
    manager = opened(fs, [FIRST])
    fs.is_full = True
    assert manager.log_dirs.find_lost_logs(KEYS) == KEYS
    assert manager.log_dirs.online()
