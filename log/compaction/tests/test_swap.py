"""Segment replacements by compaction that cannot be completed, and what later starts do with their files."""

import errno

import pytest

from odradek.log.partition_log import PartitionLog
from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.log.tests.cleaning import T0, clean, make_log, open_manager, put, records, roll
from odradek.log.tests.managers import served
from odradek.log.tests.threads import Threads
from odradek.protocol.batches.streaming import run_steps

TIMES = pytest.mark.parametrize("timestamp", [T0, -1])
CONFIG = {"cleanup.policy": "compact,delete", "retention.ms": "-1"}
KINDS = pytest.mark.parametrize("refused", [".log", ".index", ".timeindex"])


@KINDS
@pytest.mark.parametrize("is_clean", [True, False])
def test_a_start_does_not_complete_a_replacement_that_failed_long_before(refused: str, is_clean: bool) -> None:
    """Since then its start was deleted, and the rest was compacted into other segments."""
    fs = MemoryFileSystem()
    manager, log = make_log(fs, CONFIG)
    for key in (b"a", b"b"):
        put(log, (key, b"v"))
        roll(log)
    fs.fail("rename", path_contains=f"{refused}.cleaned", error=errno.ENOSPC)
    fs.fail("rename", path_contains=".swap", error=errno.ENOSPC)
    manager.cleaner.step(T0)
    fs.heal()
    assert len(log.segments) == 3
    log.delete_records_before(1)
    log.delete_old_segments(T0)
    put(log, (b"c", b"v"))
    roll(log)
    clean(manager)
    assert [segment.base_offset for segment in log.segments] == [1, 3]
    if is_clean:
        manager.close(T0)
    else:
        fs.crash()
    found = served(open_manager(fs, CONFIG))
    assert (found.log_end_offset, records(found)) == (3, [(1, b"b", b"v"), (2, b"c", b"v")])


@KINDS
def test_a_replacement_that_can_neither_be_finished_nor_removed_takes_its_directory_offline(refused: str) -> None:
    fs = MemoryFileSystem()
    manager, log = make_log(fs, CONFIG)
    for key in (b"a", b"b"):
        put(log, (key, b"v"))
        roll(log)
    fs.fail("rename", path_contains=f"{refused}.cleaned", error=errno.ENOSPC)
    fs.fail("remove", path_contains=".swap", error=errno.ENOSPC)
    manager.cleaner.step(T0)
    assert manager.online_directories == ([] if refused != ".log" else ["/d"])
    fs.crash()
    found = served(open_manager(fs, CONFIG))
    assert records(found) == [(0, b"a", b"v"), (1, b"b", b"v")]


@KINDS
@TIMES
def test_a_replacement_is_readable_while_some_of_its_files_are_not_renamed(refused: str, timestamp: int) -> None:
    fs, threads = MemoryFileSystem(now_ms=T0), Threads()
    manager, log = make_log(fs, {"index.interval.bytes": "1"}, run_in_thread=threads)
    threads.run()
    for number in range(20):
        put(log, (b"%d" % number, b"v"), now_ms=timestamp)
        roll(log)
    fs.fail("rename", path_contains=f"{refused}.swap", error=errno.ENOSPC)
    manager.cleaner.step(T0)
    while threads.waiting:
        threads.run(1)
        assert_readable(log)
    assert len(log.segments) < 20
    assert manager.online_directories == ["/d"]
    assert not [name for name in fs.list_names("/d/t-0") if name.endswith(".swap")]


def assert_readable(log: PartitionLog) -> None:
    assert len(records(log)) == 20
    for offset in range(20):
        assert log.read(offset, 1, upper_offset=20, at_least_one=True) is not None
    run_steps(log.offset_for_timestamp(T0))
    run_steps(log.offset_of_max_timestamp())


@pytest.mark.parametrize("pieces", range(1, 9))
def test_nothing_is_renamed_after_the_stop(pieces: int) -> None:
    """Another broker may use the log directory by then; its start completes the replacement."""
    fs, threads = MemoryFileSystem(now_ms=T0), Threads()
    manager, log = make_log(fs, run_in_thread=threads)
    threads.run()
    for number in range(40):
        put(log, (b"%d" % number, b"v"))
        roll(log)
    manager.cleaner.step(T0)
    threads.run(pieces)
    manager.close(T0)
    renames = fs._counts.get("rename", 0)
    threads.run()
    assert fs._counts.get("rename", 0) == renames
    found = served(open_manager(fs))
    assert [offset for offset, _, _ in records(found)] == list(range(40))
