"""Batches that the disk refused: they leave the log as it was, also across a crash."""

import errno
from random import Random

import pytest

from odradek.log.partition_log import PartitionLog
from odradek.log.storage.filesystem import DiskFullError, LogDirFailure
from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.log.tests.managers import TOPIC_ID, opened, served
from odradek.log.tests.support import NOW_MS, append, config, idempotent, open_log, read_all
from odradek.log.validation.batch import Origin
from odradek.protocol.records import build_batch

FAR = [1 << 31, (1 << 31) + 1, 1 << 40]
"""First offsets of a batch of two records that no segment with a batch at offset 0 can contain."""


def follow(log: PartitionLog, offset: int, *values: bytes, epoch: int = 0) -> None:
    records = [(NOW_MS, b"k", value, ()) for value in values]
    log.append_as_follower(
        memoryview(build_batch(records, base_offset=offset, partition_leader_epoch=epoch)), now_ms=NOW_MS
    )


def refuse_far_batch(fs: MemoryFileSystem, offset: int, *, epoch: int = 0) -> PartitionLog:
    """Return a log with a batch at offset 0 that has refused one at `offset`, for which it had begun a segment."""
    log = open_log(fs)
    log.append_as_leader(idempotent(0), leader_epoch=0, now_ms=NOW_MS)
    fs.fail("write", error=errno.ENOSPC, path_contains=f"{offset:020d}.log")
    with pytest.raises(DiskFullError):
        follow(log, offset, b"far", b"far", epoch=epoch)
    return log


@pytest.mark.parametrize("offset", FAR)
@pytest.mark.parametrize("epoch", [0, 1])
def test_a_refused_far_batch_leaves_the_log_as_it_was(offset: int, epoch: int) -> None:
    """The next batches were below the base offset of the segment that was begun for it."""
    fs = MemoryFileSystem()
    log = refuse_far_batch(fs, offset, epoch=epoch)
    assert (log.log_end_offset, log.state.bases, log.latest_epoch) == (1, [0], 0)
    assert not [name for name in fs.list_names(log.directory) if name.startswith(f"{offset:020d}")]
    for sequence in range(1, 80):
        produced = idempotent(sequence)
        assert log.append_as_leader(produced, leader_epoch=2, now_ms=NOW_MS).first_offset == sequence
    expected = [(number, b"%d" % number) for number in range(80)]
    assert read_all(log) == expected
    assert log.state.bases == sorted(log.state.bases)
    log.flush(0)
    fs.crash(lose_names=True)
    again = open_log(fs, is_clean=False)
    assert read_all(again) == expected
    assert again.append_as_leader(idempotent(79), leader_epoch=3, now_ms=NOW_MS).is_duplicate


@pytest.mark.parametrize("offset", FAR)
def test_a_refused_far_batch_is_appended_when_there_is_room(offset: int) -> None:
    fs = MemoryFileSystem()
    log = refuse_far_batch(fs, offset)
    follow(log, offset, b"far", b"far")
    follow(log, offset + 2, b"next")
    expected = [(0, b"0"), (offset, b"far"), (offset + 1, b"far"), (offset + 2, b"next")]
    assert read_all(log) == expected
    assert read_all(open_log(fs, is_clean=False)) == expected


@pytest.mark.parametrize("offset", FAR)
def test_the_segment_of_a_refused_far_batch_may_remain_on_the_disk(offset: int) -> None:
    """With copy-on-write a full disk has no space for a removal. The log then began at that segment's base offset."""
    fs = MemoryFileSystem()
    fs.fail("remove", after=1, error=errno.ENOSPC, path_contains=f"{offset:020d}.log")
    log = refuse_far_batch(fs, offset)
    assert f"{offset:020d}.log" in fs.list_names(log.directory)
    append(log, [b"1"], leader_epoch=2)
    again = open_log(fs, is_clean=False)
    assert (again.log_end_offset, again.state.bases) == (2, [0])
    assert read_all(again) == [(0, b"0"), (1, b"1")]


@pytest.mark.parametrize("offset", FAR)
def test_the_segment_of_a_refused_far_batch_is_removed_after_a_clean_stop(offset: int) -> None:
    """The log began at its base offset, and a kill then removed the batches that were appended there."""
    fs = MemoryFileSystem()
    manager = opened(fs)
    log = manager.create_log("t", 0, TOPIC_ID, 0)
    append(log, [b"0"])
    for operation in ("write", "remove"):
        fs.fail(operation, error=errno.ENOSPC, path_contains=f"{offset:020d}.log")
    with pytest.raises(DiskFullError):
        follow(log, offset, b"far", b"far")
    append(log, [b"1"])
    manager.close(0)
    manager = opened(fs, ids={"t": TOPIC_ID})
    again = served(manager)
    assert (again.log_end_offset, again.state.bases) == (2, [0])
    append(again, [b"2"])
    assert read_all(again) == [(0, b"0"), (1, b"1"), (2, b"2")]


def test_all_segments_of_refused_far_batches_are_removed_after_a_clean_stop() -> None:
    fs = MemoryFileSystem()
    manager = opened(fs)
    log = manager.create_log("t", 0, TOPIC_ID, 0)
    append(log, [b"0"])
    for offset in (1 << 40, 1 << 32):
        for operation in ("write", "remove"):
            fs.fail(operation, error=errno.ENOSPC, path_contains=f"{offset:020d}.log")
        with pytest.raises(DiskFullError):
            follow(log, offset, b"far")
    assert len([name for name in fs.list_names(log.directory) if name.endswith(".log")]) == 3
    manager.close(0)
    again = served(opened(fs, ids={"t": TOPIC_ID}))
    assert (again.log_end_offset, again.state.bases) == (1, [0])


@pytest.mark.parametrize("offset", FAR)
def test_a_far_segment_behind_one_that_remained_survives_a_kill(offset: int) -> None:
    """Recovery took the empty segment between for one that had lost its batches, and removed what followed."""
    fs = MemoryFileSystem()
    fs.fail("remove", after=1, error=errno.ENOSPC, path_contains=f"{offset:020d}.log")
    log = refuse_far_batch(fs, offset)
    assert f"{offset:020d}.log" in fs.list_names(log.directory)
    follow(log, offset + 10, b"next")
    log.flush(0)
    expected = [(0, b"0"), (offset + 10, b"next")]
    assert read_all(log) == expected
    fs.crash(lose_names=True)
    again = open_log(fs, is_clean=False)
    assert read_all(again) == expected
    assert again.state.bases == [0, offset + 10]


@pytest.mark.parametrize("offset", FAR)
def test_a_segment_that_a_kill_left_before_its_first_batch_is_removed(offset: int) -> None:
    fs = MemoryFileSystem()
    log = open_log(fs)
    append(log, [b"0"])
    log.roller.roll_at(offset, NOW_MS)
    again = open_log(fs, is_clean=False)
    assert (again.log_end_offset, again.state.bases) == (1, [0])


def test_a_failed_sync_before_a_far_segment_is_a_disk_failure() -> None:
    """A full disk may have lost the unsynced batches, and the next sync would not report it."""
    fs = MemoryFileSystem()
    log = open_log(fs)
    append(log, [b"0"])
    fs.fail("sync", error=errno.ENOSPC)
    with pytest.raises(LogDirFailure):
        follow(log, FAR[0], b"far")
    with pytest.raises(LogDirFailure):
        log.flush(0)


def kill_power(log: PartitionLog, seed: int) -> list[tuple[int, bytes | None]]:
    """Lose power, and return the records that the log has then."""
    fs = log.fs
    assert isinstance(fs, MemoryFileSystem)
    fs.crash(Random(seed))
    return read_all(open_log(fs, log.config, is_clean=False))


@pytest.mark.parametrize("seed", range(20))
def test_a_batch_whose_index_entry_was_refused_never_replaces_the_next_one(seed: int) -> None:
    """It was complete in the file, under the offset and leader epoch of the batch that was appended instead."""
    fs = MemoryFileSystem()
    log = open_log(fs, config(internal_segment_bytes=100_000, index_interval_bytes=1))
    for _ in range(256):
        append(log, [b"x"])
    log.flush(0)
    fs.fail("write", error=errno.ENOSPC, path_contains=".index")
    with pytest.raises(DiskFullError):
        append(log, [b"refused"])
    append(log, [b"next"])
    assert kill_power(log, seed)[256:] in ([], [(256, b"next")])


@pytest.mark.parametrize("is_killed", [True, False])
@pytest.mark.parametrize("is_leader", [True, False])
@pytest.mark.parametrize("seed", range(20))
def test_refused_batches_never_replace_the_next_ones(seed: int, is_leader: bool, is_killed: bool) -> None:
    """Several batches are one write. A full disk may take the first of them.

    If the broker is killed before their removal is synced, the next start has to sync it.
    """
    fs = MemoryFileSystem()
    log = open_log(fs)
    append(log, [b"x"])
    log.flush(0)
    refused = b"".join(
        build_batch([(NOW_MS, b"k", b"refused", ())], base_offset=offset, partition_leader_epoch=0)
        for offset in (1, 2, 3, 4)
    )
    fs.fail("write", error=errno.ENOSPC)
    with pytest.raises(DiskFullError):
        if is_leader:
            log.append_as_leader(memoryview(refused), leader_epoch=0, now_ms=NOW_MS, origin=Origin.COORDINATOR)
        else:
            log.append_as_follower(memoryview(refused), now_ms=NOW_MS)
    if is_killed:
        log = open_log(fs, is_clean=False)
        assert read_all(log) == [(0, b"x")]
    next_epoch = 0 if is_leader else 1
    append(log, [b"new-one"], leader_epoch=next_epoch)
    append(log, [b"new-two"], leader_epoch=next_epoch)
    expected = [(1, b"new-one"), (2, b"new-two")]
    found = kill_power(log, seed)[1:]
    assert found == expected[: len(found)]
