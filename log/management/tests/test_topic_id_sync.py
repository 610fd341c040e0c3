"""The topic id in `partition.metadata` after a power loss: a clean stop and an acknowledgement by flush rely on it."""

from random import Random

import pytest

from odradek.log.log_manager import LogManager
from odradek.log.storage.checkpoints import read_partition_metadata, write_partition_metadata
from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.log.tests.managers import TOPIC_ID, append, opened, served
from odradek.log.tests.support import NOW_MS, batch, open_log
from odradek.log.tests.threads import Threads

PATH = "/data/a"
SEEDS = pytest.mark.parametrize("seed", [None, *range(5)])


def created(threads: Threads) -> tuple[MemoryFileSystem, LogManager]:
    """A new log whose background sync waits for a thread."""
    fs = MemoryFileSystem()
    manager = opened(fs, [PATH], run_in_thread=threads)
    append(manager.create_log("t", 0, TOPIC_ID, 0), b"value")
    return fs, manager


def kill(manager: LogManager) -> None:
    """End the process: its locks are released, and its unsynced writes remain."""
    for directory in manager.directories.values():
        directory.unlock()


def assert_served(fs: MemoryFileSystem) -> None:
    manager = opened(fs, [PATH], ids={"t": TOPIC_ID})
    log = served(manager)
    assert (manager.topic_id("t", 0), log.log_end_offset) == (TOPIC_ID, 1)


@SEEDS
def test_a_clean_stop_syncs_a_new_topic_id(seed: int | None) -> None:
    fs, manager = created(Threads())
    manager.close(0)
    fs.crash(None if seed is None else Random(seed), lose_names=True)
    assert_served(fs)


@SEEDS
def test_a_stop_does_not_rely_on_a_sync_that_waits_for_a_thread(seed: int | None) -> None:
    threads = Threads()
    fs, manager = created(threads)
    log = served(manager)
    manager.flush(log)
    manager.close(0)
    fs.crash(None if seed is None else Random(seed), lose_names=True)
    assert_served(fs)


@SEEDS
def test_a_clean_stop_syncs_a_topic_id_that_was_found_after_kill_9(seed: int | None) -> None:
    fs, manager = created(Threads())
    kill(manager)
    opened(fs, [PATH], ids={"t": TOPIC_ID}, run_in_thread=Threads()).close(0)
    fs.crash(None if seed is None else Random(seed), lose_names=True)
    assert_served(fs)


def test_a_clean_stop_syncs_a_topic_id_that_was_lost_and_written_again() -> None:
    fs, manager = created(Threads())
    log = served(manager)
    log.flush(0)
    fs.open(f"{log.directory}/partition.metadata").truncate(0)
    fs.crash()
    manager = opened(fs, [PATH], ids={"t": TOPIC_ID}, run_in_thread=Threads())
    manager.create_log("t", 0, TOPIC_ID, 0)
    manager.close(0)
    fs.crash()
    assert_served(fs)


@SEEDS
def test_a_flush_syncs_a_new_topic_id(seed: int | None) -> None:
    fs, manager = created(Threads())
    log = served(manager)
    log.flush(0)
    fs.crash(None if seed is None else Random(seed), lose_names=True)
    assert_served(fs)


def test_a_topic_id_that_is_written_while_a_flush_ends_is_synced_later() -> None:
    fs = MemoryFileSystem()
    log = open_log(fs)
    log.append_as_leader(batch(), leader_epoch=0, now_ms=NOW_MS)
    flush = log.prepare_flush()
    assert flush is not None
    flush.run()
    write_partition_metadata(fs, log.directory, TOPIC_ID, sync=False)
    log.mark_name_unsynced()
    log.finish_flush(flush, 0)
    log.close(0)
    fs.crash()
    assert read_partition_metadata(fs, log.directory) == TOPIC_ID
