"""Logs that are missing at the start of a broker of a cluster: whether they were lost with a disk."""

from functools import partial

import pytest

from odradek.log.storage.memory_filesystem import MemoryFileSystem, SimulatedCrash
from odradek.log.tests.managers import opened as open_logs

FIRST, SECOND = "/first", "/second"
KEYS = [("t", 0), ("t", 1)]

opened = partial(open_logs, may_lack_logs=True)


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
    manager, lost = start(fs, FIRST)
    assert lost == []
    manager.delete_log("t", 1)
    manager.close(0)
    assert start(fs, FIRST)[1] == []


def test_lost_logs_are_not_lost_any_more_when_they_are_forgotten(fs):
    manager, lost = start(fs, FIRST, SECOND)
    assert lost == KEYS
    manager.forget_lost_logs()
    manager.close(0)
    assert start(fs, FIRST, SECOND)[1] == []


def test_a_mark_of_lost_logs_survives_a_loss_of_power(fs):
    start(fs, FIRST)
    fs.crash(lose_names=True)
    assert start(fs, FIRST)[1] == KEYS


def test_a_start_that_ends_at_any_change_of_the_disk_forgets_no_lost_log():
    """It ended after the directory was initialized, and before the metadata store was compared with it."""
    ends = 0
    for change in range(1, 100):
        fs = MemoryFileSystem()
        fs.crash_at(change)
        try:
            opened(fs, [FIRST])
        except SimulatedCrash:
            ends += 1
        fs.crash(lose_names=True)
        assert start(fs, FIRST)[1] == KEYS
    assert 5 < ends < 99


def test_a_log_that_was_not_created_before_the_stop_is_not_lost(fs):
    manager = opened(fs, [FIRST])
    assert not manager.log_dirs.find_lost_logs([])
    manager.close(0)
    assert start(fs, FIRST)[1] == []


def test_one_of_several_directories_is_new(fs):
    manager = opened(fs, [FIRST])
    manager.create_log("t", 0, bytes(16), 0, is_new=True)
    manager.log_dirs.find_lost_logs([])
    manager.close(0)
    assert start(fs, FIRST, SECOND)[1] == [("t", 1)]


def test_a_lone_broker_marks_no_directory(fs):
    open_logs(fs, [FIRST]).close(0)
    assert "odradek-missing-logs" not in fs.list_names(FIRST)
