"""`log verify` reports no damage while a broker appends to a log, compacts it, and deletes segments and partitions."""

import struct
from collections.abc import Callable
from typing import Any

import pytest

from odradek.log.storage import checkpoints
from odradek.log.storage.filesystem import File
from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.log.tests.support import NOW_MS, append, config, idempotent, open_log
from odradek.tools.logs.findings import Finding, Report, Severity
from odradek.tools.logs.partition_state import VerifyOptions
from odradek.tools.logs.tests.support import COUNT, SMALL, StoredDirectory, append_aborted, appended, removed
from odradek.tools.logs.verify import VerifyTotals, select, verify

NOTE = Severity.NOTE


def verify_beside_a_broker(
    stored: StoredDirectory, monkeypatch: pytest.MonkeyPatch, change: Callable[[int], object]
) -> tuple[list[Finding], VerifyTotals]:
    """Verify a directory in use. `change(n)` is called when the n-th segment was read, before its check ends."""
    checkpoints.remove_clean_shutdown(stored.fs, stored.root)
    monkeypatch.setattr("odradek.tools.logs.directories.is_locked", lambda path: path == "/data/.lock")
    calls: list[int] = []

    def advance(size_bytes: int) -> None:
        calls.append(size_bytes)
        change(len(calls))

    found: list[Finding] = []
    selections = [select(stored.fs, "/data", lambda each: True)]
    totals = verify(stored.fs, selections, VerifyOptions(on_progress=advance), Report(found.append))
    return found, totals


def test_a_log_that_grows_during_the_check(monkeypatch: pytest.MonkeyPatch):
    """Between the read of the last segment's batches and the end of its check, its indexes get further entries."""
    stored = StoredDirectory()
    large = config(internal_segment_bytes=5000, index_interval_bytes=0)
    log = open_log(stored.fs, large, directory=stored.directory, is_clean=True)

    def grow(number: int) -> None:
        if number == len(stored.bases):
            append_aborted(log, base_sequence=1)
            for count in range(2):
                append(log, idempotent(COUNT + count, timestamp=NOW_MS + COUNT + count), leader_epoch=2)
            log.flush(NOW_MS)
            assert log.active_segment.base_offset == stored.bases[-1]

    found, totals = verify_beside_a_broker(stored, monkeypatch, grow)
    assert found == []
    assert totals.records == COUNT + 2
    assert len(stored.read(stored.path(-1, ".txnindex"))) > 0


def test_index_entries_that_are_written_after_their_zeros_were_read(monkeypatch: pytest.MonkeyPatch):
    """The index of the last segment is preallocated, and one block of it is read at once."""
    stored = StoredDirectory()
    path = stored.path(-1, ".index")
    entries = stored.read(path)
    stored.write(path, entries[:-8] + bytes(80))
    memory = stored.fs
    assert isinstance(memory, MemoryFileSystem)
    opened = memory.open

    class WrittenBehind:
        """The index file, of which an entry is written right after each read."""

        def __init__(self, file: File) -> None:
            self.file = file
            self.size_bytes, self.data_from = file.size_bytes, file.data_from

        def pread(self, position: int, size_bytes: int) -> bytes:
            data = self.file.pread(position, size_bytes)
            self.file.write_pieces(len(entries) - 8, [entries[-8:]], 8)
            return data

    def open_and_write_behind(name: str, *, create: bool = False) -> Any:
        file = opened(name, create=create)
        return WrittenBehind(file) if name == path else file

    monkeypatch.setattr(memory, "open", open_and_write_behind)
    assert verify_beside_a_broker(stored, monkeypatch, lambda n: None)[0] == []


def test_a_segment_that_is_replaced_during_the_check(monkeypatch: pytest.MonkeyPatch):
    """The first pass sees the index of another version of the segment."""
    stored = StoredDirectory()
    intact = stored.read(stored.path(1, ".index"))
    appended(1, ".index", struct.pack(">ii", 100, 90_000))(stored)
    found, totals = verify_beside_a_broker(
        stored, monkeypatch, lambda n: stored.write(stored.path(1, ".index"), intact) if n == 2 else None
    )
    assert found == []
    assert totals.records == COUNT + 2


def test_segments_that_are_replaced_all_the_time(monkeypatch: pytest.MonkeyPatch):
    stored = StoredDirectory()
    bad = struct.pack(">ii", 100, 90_000)
    found, _ = verify_beside_a_broker(stored, monkeypatch, lambda n: appended(1, ".index", bad)(stored))
    assert [(each.severity, each.check) for each in found] == [(NOTE, "changed")]


def test_segments_that_are_deleted_during_the_check(monkeypatch: pytest.MonkeyPatch):
    stored = StoredDirectory()

    def delete(number: int) -> None:
        if number == 1:
            for segment in (0, 1):
                removed(segment, ".log", ".index", ".timeindex")(stored)

    found, totals = verify_beside_a_broker(stored, monkeypatch, delete)
    assert [each for each in found if each.check != "leftover"] == []
    assert totals.records == COUNT + 2 - stored.bases[2]


def test_a_partition_that_is_deleted_during_the_check(monkeypatch: pytest.MonkeyPatch):
    stored = StoredDirectory()
    found, totals = verify_beside_a_broker(
        stored, monkeypatch, lambda n: stored.fs.remove_tree(stored.directory) if n == 1 else None
    )
    assert (found, totals.partitions) == ([], 0)


def test_records_appended_during_the_check_are_not_read():
    stored = StoredDirectory()
    checkpoints.remove_clean_shutdown(stored.fs, stored.root)
    log = open_log(stored.fs, SMALL, directory=stored.directory, is_clean=True)
    append(log, idempotent(COUNT, timestamp=NOW_MS + COUNT), leader_epoch=1)
    found, totals = stored.verify()
    assert {each.severity for each in found} <= {NOTE}
    assert totals.records == COUNT + 3
