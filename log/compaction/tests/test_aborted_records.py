"""Compaction removes aborted records even if there was no disk space for the entry of their transaction."""

import errno
import os
from pathlib import Path

import pytest

from odradek.log.compaction import cleaner as cleaner_module
from odradek.log.compaction.process import ProcessWorker
from odradek.log.log_manager import LogManager
from odradek.log.partition_log import PartitionLog
from odradek.log.storage.filesystem import File, OsFileSystem
from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.log.tests.cleaning import T0, clean, make_log, mark, open_manager, put, records, roll
from odradek.log.tests.threads import Threads
from odradek.protocol.records import ControlType


class FullForTransactionIndexes(OsFileSystem):
    """The operating system's files on a disk without space for a transaction index while `is_full`."""

    is_full = False

    def open(self, path: str, *, create: bool = False) -> File:
        if self.is_full and create and path.endswith(".txnindex"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        return super().open(path, create=create)


def abort_without_room(fs: MemoryFileSystem, log: PartitionLog, operation: str) -> None:
    """Append a committed value of key a, then an aborted one whose entry is not written to the transaction index."""
    put(log, (b"a", b"committed"))
    put(log, (b"a", b"aborted"), producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    roll(log)
    fs.fail(operation, error=errno.ENOSPC, path_contains=".txnindex")
    mark(log, ControlType.ABORT, 5)


def compacted(manager: LogManager) -> list[tuple[int, bytes | None, bytes | None]]:
    clean(manager)
    assert manager.cleaner.uncleanable == set()
    [log] = manager.all_logs()
    assert manager.cleaner.offsets["t", 0] >= 2
    return records(log)


# A write that fails for lack of space leaves half an entry; a file that cannot be created leaves nothing.
OPERATIONS = ["create", "write"]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_committed_value_survives_an_abort_whose_entry_found_no_room(operation: str) -> None:
    fs = MemoryFileSystem()
    manager, log = make_log(fs)
    abort_without_room(fs, log, operation)
    assert compacted(manager) == [(0, b"a", b"committed")]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_entry_that_reaches_the_file_during_the_compaction_counts_once(operation: str) -> None:
    fs, threads = MemoryFileSystem(), Threads()
    manager, log = make_log(fs, run_in_thread=threads)
    abort_without_room(fs, log, operation)
    threads.run()
    clean(manager)
    assert threads.waiting, "the compaction waits for its thread"
    roll(log)
    threads.run()
    assert manager.cleaner.uncleanable == set()
    assert records(log) == [(0, b"a", b"committed")]


def test_half_an_entry_that_is_being_written_does_not_end_the_compaction() -> None:
    fs, threads = MemoryFileSystem(), Threads()
    manager, log = make_log(fs, run_in_thread=threads)
    put(log, (b"a", b"1"))
    put(log, (b"a", b"2"))
    roll(log)
    put(log, (b"b", b"no"), producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    threads.run()
    clean(manager)
    fs.fail("write", error=errno.ENOSPC, path_contains=".txnindex")
    mark(log, ControlType.ABORT, 5)
    threads.run()
    assert manager.cleaner.uncleanable == set()
    assert (1, b"a", b"2") in records(log)
    assert (0, b"a", b"1") not in records(log)


def test_a_process_gets_the_entries_that_are_not_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleaner_module, "_MIN_BYTES_FOR_PROCESS", 0)
    fs = FullForTransactionIndexes()
    manager, log = make_log(
        fs, path=str(tmp_path), start_compaction_worker=lambda is_idle_priority: ProcessWorker(is_idle_priority=False)
    )
    put(log, (b"a", b"committed"))
    put(log, (b"a", b"aborted"), producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    roll(log)
    fs.is_full = True
    mark(log, ControlType.ABORT, 5)
    assert compacted(manager) == [(0, b"a", b"committed")]
    fs.is_full = False
    manager.close(T0)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("how", ["crash", "power", "close", "close without room"])
def test_the_entry_is_restored_by_a_restart(operation: str, how: str) -> None:
    fs = MemoryFileSystem()
    manager, log = make_log(fs)
    abort_without_room(fs, log, operation)
    if how == "power":
        fs.crash(lose_names=True)
    elif how == "crash":
        fs._held.clear()
    else:
        if how == "close without room":
            fs.fail(operation, error=errno.ENOSPC, path_contains=".txnindex")
        manager.close(T0)
    again = open_manager(fs)
    [log] = again.all_logs()
    region = log.read(0, 10_000, upper_offset=log.log_end_offset, at_least_one=True)
    assert region is not None
    assert [entry.first_offset for entry in log.aborted_transactions(0, region)] == [1]
    log.update_high_watermark(log.log_end_offset)
    log.flush(T0)
    assert compacted(again) == [(0, b"a", b"committed")]
