"""On a full disk operations that free space succeed or are retried, and no directory goes offline."""

import errno
import os
from collections.abc import Callable
from itertools import combinations

import pytest

from odradek.log.log_manager import LogManager
from odradek.log.partition_log import PartitionLog
from odradek.log.storage.filesystem import DiskFullError, ExhaustedError, LogDirFailure
from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.log.tests.managers import DIRECTORIES, NEW_ID, TOPIC_ID, folders, opened, run_due, run_until
from odradek.log.tests.support import NOW_MS, append, config, idempotent, open_log, read_all, truncate
from odradek.log.validation.batch import Origin
from odradek.protocol.records import ControlType, build_control_batch

PATH = "/data/a"
CONFIG = {
    "internal.segment.bytes": "400",
    "index.interval.bytes": "1",
    "retention.ms": "1000",
    "file.delete.delay.ms": "1000",
}
NEEDS = ("write", "create", "rename", "remove")
"""Operations that may fail for lack of space: a rename if the new name is longer, a removal with copy-on-write."""


class FullDisk(MemoryFileSystem):
    """Files in memory on a disk that has no space for the operations in `refused`."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: frozenset[str] = frozenset()
        self.error = errno.ENOSPC

    def before(self, operation: str, path: str, half_done: Callable[[], None] | None = None) -> None:
        if operation in self.refused:
            if half_done is not None:
                half_done()
            raise OSError(self.error, os.strerror(self.error), path)
        super().before(operation, path, half_done)


REFUSED = [frozenset(found) for count in range(1, 5) for found in combinations(NEEDS, count)]


def fill(manager: LogManager, *, rounds: int = 4) -> PartitionLog:
    """A log of several segments with transaction indexes and snapshots, whose records have timestamp 0."""
    log = manager.create_log("t", 0, TOPIC_ID, 0)
    for number in range(rounds):
        log.roll(0)
        batch = idempotent(number * 3, 3, timestamp=0, transactional=True)
        log.append_as_leader(batch, leader_epoch=number, now_ms=0)
        marker = build_control_batch(
            ControlType.ABORT, producer_id=7, producer_epoch=0, coordinator_epoch=0, timestamp_ms=0
        )
        log.append_as_leader(memoryview(marker), leader_epoch=number, now_ms=0, origin=Origin.COORDINATOR)
    log.update_high_watermark(log.log_end_offset)
    assert len(log.segments) == rounds
    return log


def names(fs: MemoryFileSystem) -> list[str]:
    return [name for name in fs.list_names(f"{PATH}/t-0") if name.endswith((".log", ".snapshot", ".deleted"))]


@pytest.mark.parametrize("refused", REFUSED)
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
def test_retention(refused: frozenset[str], error: int) -> None:
    fs = FullDisk()
    manager = opened(fs, [PATH], CONFIG)
    log = fill(manager)
    fs.refused, fs.error = refused, error
    manager.delete_old_segments(log, 5000)
    run_due(manager, 7000)
    assert manager.online_directories == [PATH]
    assert log.log_start_offset >= log.segments[-1].base_offset, "at most the last segment remains"
    if not refused & {"rename", "remove"}:
        assert len(names(fs)) <= 2
    if "rename" in refused and "remove" not in refused:
        assert not [name for name in names(fs) if not name.startswith(f"{log.segments[-1].base_offset:020d}")]
    fs.refused = frozenset()
    for now_ms in range(10_000, 40_000, 5_000):
        manager.delete_old_segments(log, now_ms)
        run_due(manager, now_ms)
    end = log.log_end_offset
    assert (log.log_start_offset, [segment.base_offset for segment in log.segments]) == (end, [end])
    assert names(fs) in ([f"{end:020d}.log"], [f"{end:020d}.log", f"{end:020d}.snapshot"])
    batch = idempotent(12, timestamp=40_000)
    assert log.append_as_leader(batch, leader_epoch=9, now_ms=40_000).first_offset == end
    manager.close(40_000)
    [log] = opened(fs, [PATH], CONFIG).all_logs()
    assert (log.log_start_offset, log.log_end_offset) == (end, end + 1)


@pytest.mark.parametrize("refused", REFUSED)
def test_the_only_segment_is_deleted_as_well(refused: frozenset[str]) -> None:
    """It is replaced as soon as a new one can be created, even if its indexes cannot be completed."""
    fs = FullDisk()
    manager = opened(fs, [PATH], CONFIG)
    log = fill(manager, rounds=1)
    fs.refused = refused
    manager.delete_old_segments(log, 5000)
    assert manager.online_directories == [PATH]
    if "create" not in refused:
        assert log.log_start_offset == log.log_end_offset
    fs.refused = frozenset()
    manager.delete_old_segments(log, 6000)
    assert [segment.base_offset for segment in log.segments] == [log.log_end_offset]


@pytest.mark.parametrize("refused", [one for one in REFUSED if one < set(NEEDS)])
def test_deletion_of_a_log(refused: frozenset[str]) -> None:
    fs = FullDisk()
    manager = opened(fs, [PATH], CONFIG)
    fill(manager)
    fs.refused = refused
    if {"rename", "remove"} <= refused:
        with pytest.raises(DiskFullError):
            manager.delete_log("t", 0)
        assert manager.topic_id("t", 0) == TOPIC_ID, "the log is unchanged"
        fs.refused -= {"remove"}
    manager.delete_log("t", 0)
    assert manager.get("t", 0) is None
    assert "t-0" not in folders(fs, PATH)
    run_due(manager, 100_000)
    assert manager.online_directories == [PATH]
    fs.refused = frozenset()
    for now_ms in (106_000, 112_000):
        run_due(manager, now_ms)
    assert folders(fs, PATH) == []
    log = manager.create_log("t", 0, NEW_ID, 112_000, is_new=True)
    assert log.log_end_offset == 0


def test_a_log_that_cannot_be_renamed_as_stray_keeps_its_topic_id() -> None:
    fs = FullDisk()
    manager = opened(fs, [PATH], CONFIG)
    fill(manager)
    fs.refused = frozenset({"rename"})
    with pytest.raises(DiskFullError):
        manager.mark_stray("t", 0)
    assert manager.topic_id("t", 0) == TOPIC_ID
    assert manager.online_directories == [PATH]
    fs.refused = frozenset()
    manager.mark_stray("t", 0)
    assert folders(fs, PATH) == ["t-0-stray"]


@pytest.mark.parametrize("refused", REFUSED)
def test_a_stop_without_room_is_followed_by_a_recovery(refused: frozenset[str]) -> None:
    fs = FullDisk()
    manager = opened(fs, [PATH], CONFIG)
    log = fill(manager)
    fs.refused = refused
    manager.close(1)
    assert manager.online_directories == [PATH]
    fs.refused = frozenset()
    manager = opened(fs, [PATH], CONFIG)
    [again] = manager.all_logs()
    assert (again.log_start_offset, again.log_end_offset) == (0, log.log_end_offset)
    for segment in again.segments:
        [entry] = segment.transaction_index.entries()
        assert entry.first_offset == segment.base_offset
    assert again.producer_state.first_unstable_offset == -1
    manager.close(2)


@pytest.mark.parametrize("refused", [one for one in REFUSED if not {"rename", "remove"} <= one])
def test_truncation(refused: frozenset[str]) -> None:
    fs = FullDisk()
    manager = opened(fs, [PATH], CONFIG)
    log = fill(manager)
    fs.refused = refused
    deleted = truncate(log, log.segments[1].base_offset, 0)
    assert len(deleted) == 2
    assert log.failure is None


@pytest.mark.parametrize("is_disk_full", [True, False])
@pytest.mark.parametrize("offset", [0, 3, 20])
def test_start_over(is_disk_full: bool, offset: int) -> None:
    """A follower starts over if the leader has deleted all its records. It tries again after a shortage."""
    fs = FullDisk()
    manager = opened(fs, [PATH], CONFIG)
    log = fill(manager)
    end_offset, before = log.log_end_offset, names(fs)
    fs.refused, fs.spare = (frozenset({"create"}), 9) if is_disk_full else (frozenset(), 0)
    with pytest.raises(DiskFullError if is_disk_full else ExhaustedError):
        manager.start_over("t", 0, offset, 0)
    assert (log.log_end_offset, names(fs), manager.online_directories) == (end_offset, before, [PATH])
    fs.refused, fs.spare = frozenset(), 9
    manager.start_over("t", 0, offset, 0)
    assert log.log_start_offset == log.log_end_offset == offset
    append(log, [b"next"])
    log.flush(0)
    fs.crash(lose_names=True)
    again = open_log(fs, directory=log.directory, is_clean=False, log_start_offset=offset)
    assert [found for found, _ in read_all(again)] == [offset]


def beside_a_damaged_log() -> tuple[MemoryFileSystem, LogManager]:
    """A manager that serves a log in one directory and has a damaged one of its name in the other."""
    fs = MemoryFileSystem()
    manager = opened(fs, DIRECTORIES)
    manager.create_log("t", 0, TOPIC_ID, 0)
    fs.make_directory("/data/b/t-0")
    manager.table.offline["t", 0] = "/data/b/t-0"
    return fs, manager


@pytest.mark.parametrize("path", DIRECTORIES)
def test_a_stray_log_beside_a_damaged_one_is_renamed_when_there_is_room(path: str) -> None:
    fs, manager = beside_a_damaged_log()
    fs.fail("rename", path_contains=path, error=errno.ENOSPC)
    with pytest.raises(DiskFullError):
        manager.mark_stray("t", 0)
    # The topic id still shows that the log is stray, so that the next creation of the partition tries again.
    assert manager.topic_id("t", 0) == TOPIC_ID
    manager.mark_stray("t", 0)
    assert [folders(fs, one) for one in DIRECTORIES] == [["t-0-stray"]] * 2
    manager.create_log("t", 0, NEW_ID, 0)


@pytest.mark.parametrize("path", DIRECTORIES)
def test_a_deletion_that_fails_in_one_directory_succeeds_in_the_other(path: str) -> None:
    fs, manager = beside_a_damaged_log()
    fs.fail("rename", path_contains=path, error=errno.EIO)
    with pytest.raises(LogDirFailure):
        manager.delete_log("t", 0)
    [left] = manager.online_directories
    run_until(manager, 0, 120_000)
    assert folders(fs, left) == []
    assert manager.get("t", 0) is None


@pytest.mark.parametrize("index", [".index", ".timeindex"])
def test_no_index_has_an_entry_of_a_batch_that_was_refused(index: str) -> None:
    fs = MemoryFileSystem()
    log = open_log(fs, config(internal_segment_bytes=100_000, index_interval_bytes=1))
    for number in range(256):
        append(log, [b"x"], timestamp=NOW_MS + number)
    fs.fail("write", error=errno.ENOSPC, path_contains=index)
    with pytest.raises(DiskFullError):
        append(log, [b"x"] * 5, timestamp=NOW_MS + 1000)
    for number in range(256, 260):
        append(log, [b"x"], timestamp=NOW_MS + number)
    log.active_segment.write_pending()
    segment = log.active_segment
    assert [offset for offset, _ in segment.offset_index.entries()] == list(range(1, 260))
    assert segment.time_index.entries() == [(NOW_MS + number, number) for number in range(1, 260)]
