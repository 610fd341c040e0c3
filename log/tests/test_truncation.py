"""Truncation of a follower's log: durability, and the state after it."""

import contextlib
from random import Random

import pytest

from odradek.log.partition_log import PartitionLog
from odradek.log.storage.filesystem import File
from odradek.log.storage.memory_filesystem import MemoryFileSystem, SimulatedCrash
from odradek.log.tests.support import (
    NOW_MS,
    append,
    batch,
    config,
    finish_steps,
    idempotent,
    memory_fs,
    open_log,
    read_all,
    start_over,
    truncate,
)
from odradek.log.validation.batch import Origin
from odradek.protocol.records import ControlType, build_control_batch


def filled(fs: MemoryFileSystem | None = None) -> PartitionLog:
    """A flushed log of 30 batches in several segments, with a leader epoch for ten of them each."""
    log = open_log(fs, config(internal_segment_bytes=700))
    for number in range(30):
        append(log, idempotent(number), leader_epoch=number // 10)
    log.flush(0)
    assert len(log.segments) > 3
    return log


def reopened(log: PartitionLog) -> PartitionLog:
    return open_log(memory_fs(log), log.config, is_clean=False, recovery_point=0)


OFFSETS = [0, 1, 5, 10, 14, 20, 29]


@pytest.mark.parametrize("lose_names", [False, True])
@pytest.mark.parametrize("offset", [*OFFSETS, "segment"])
def test_a_crash_does_not_undo_a_truncation(offset: int | str, lose_names: bool) -> None:
    log = filled()
    end = log.segments[-2].base_offset if isinstance(offset, str) else offset
    truncate(log, end, NOW_MS)
    epochs = log.leader_epochs.entries
    memory_fs(log).crash(lose_names=lose_names)
    again = reopened(log)
    assert (again.log_end_offset, again.leader_epochs.entries) == (end, epochs)
    assert [offset for offset, _ in read_all(again)] == list(range(end))


@pytest.mark.parametrize("seed", range(30))
def test_truncated_batches_do_not_reappear_behind_their_replacements(seed: int) -> None:
    random = Random(seed)
    log = filled()
    end = random.choice(OFFSETS)
    truncate(log, end, NOW_MS)
    for number in range(random.randint(0, 4)):
        append(log, [b"new %d" % number], leader_epoch=9)
    expected = read_all(log)
    memory_fs(log).crash(random)
    again = reopened(log)
    found = read_all(again)
    assert found == expected[: len(found)]
    assert len(found) >= end
    for offset, _ in found:
        assert again.epoch_for_offset(offset) == (offset // 10 if offset < end else 9)


@pytest.mark.parametrize("offset", [3, 12, 40])
@pytest.mark.parametrize("lose_names", [False, True])
def test_a_crash_does_not_undo_a_new_start(offset: int, lose_names: bool) -> None:
    log = filled()
    start_over(log, offset, NOW_MS)
    memory_fs(log).crash(lose_names=lose_names)
    again = open_log(memory_fs(log), log.config, is_clean=False, log_start_offset=offset)
    assert (again.log_start_offset, again.log_end_offset) == (offset, offset)
    assert again.leader_epochs.entries == []
    assert again.producer_state.is_empty


@pytest.mark.parametrize("offset", [4, 14])
@pytest.mark.parametrize("steps", range(1, 20))
def test_a_crash_between_the_steps_leaves_a_prefix_of_the_log(steps: int, offset: int) -> None:
    log = filled()
    fs = memory_fs(log)
    fs.crash_at(steps)
    with contextlib.suppress(SimulatedCrash):
        truncate(log, offset, NOW_MS)
    fs.crash()
    again = reopened(log)
    found = read_all(again)
    assert [offset for offset, _ in found] == list(range(len(found)))
    assert offset <= len(found) <= 30
    assert again.leader_epochs.entries == [(e, e * 10) for e in range(3) if e * 10 < again.log_end_offset]
    assert again.producer_state.producers[7].last_sequence == len(found) - 1


def test_epochs_that_recovery_removed_do_not_reappear() -> None:
    """The batches of the last epoch were lost, and batches of the epoch before it were appended in their place."""
    log = filled()
    fs = memory_fs(log)
    for segment in log.segments:
        if segment.base_offset >= 20:
            fs.remove(segment.path(".log"))
        elif segment.next_offset() > 20:
            file = fs.open(segment.path(".log"))
            file.truncate(segment.locate(20))
            file.sync()
    fs.sync_directory(log.directory)
    log = reopened(log)
    assert (log.log_end_offset, log.leader_epochs.entries) == (20, [(0, 0), (1, 10)])
    append(log, [b"v"], leader_epoch=1)
    log.active_segment.file.sync()
    fs.crash(lose_names=True)
    again = reopened(log)
    assert (again.log_end_offset, again.leader_epochs.entries) == (21, [(0, 0), (1, 10)])


@pytest.mark.parametrize("offset", [10, 13, 14])
def test_no_batch_below_the_log_start_remains_when_all_others_are_truncated(offset: int) -> None:
    """The leader epochs of the remaining ones would be above those of the leader's batches."""
    log = filled()
    log.delete_records_before(14)
    log.remove_deleted(truncate(log, offset, NOW_MS))
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (offset, offset, 0)
    append(log, [b"new"], leader_epoch=0)
    log.flush(0)
    memory_fs(log).remove(f"{log.directory}/leader-epoch-checkpoint")
    memory_fs(log).crash()
    again = open_log(memory_fs(log), log.config, is_clean=False, log_start_offset=offset)
    assert again.leader_epochs.entries == [(0, offset)]


def test_the_state_after_a_truncation() -> None:
    log = filled()
    log.remove_deleted(truncate(log, 14, NOW_MS))
    assert (log.log_end_offset, log.high_watermark, log.flushed_offset) == (14, 14, 14)
    assert log.recovery_point <= 14
    assert log.leader_epochs.entries == [(0, 0), (1, 10)]
    assert log.producer_state.producers[7].last_sequence == 13
    names = memory_fs(log).list_names(log.directory)
    assert max(int(name.partition(".")[0]) for name in names if name[0].isdigit()) <= 14
    append(log, idempotent(14), leader_epoch=5)
    assert [offset for offset, _ in read_all(log)] == list(range(15))


def test_an_open_transaction_is_open_again_after_its_marker_is_truncated() -> None:
    log = open_log()
    append(log, idempotent(0, transactional=True))
    marker = build_control_batch(
        ControlType.ABORT, producer_id=7, producer_epoch=0, coordinator_epoch=1, timestamp_ms=NOW_MS
    )
    log.append_as_leader(memoryview(marker), leader_epoch=0, now_ms=NOW_MS, origin=Origin.COORDINATOR)
    log.update_high_watermark(2)
    assert log.last_stable_offset == 2
    truncate(log, 1, NOW_MS)
    log.update_high_watermark(1)
    assert log.last_stable_offset == 0
    assert log.active_segment.transaction_index.entries() == []


def many_batches(count: int = 1200) -> PartitionLog:
    """A flushed log of one segment with `count` batches of a producer."""
    log = open_log(cfg=config(internal_segment_bytes=1_000_000))
    for number in range(count):
        append(log, idempotent(number))
    log.flush(0)
    return log


def test_a_truncation_reads_many_batches_in_steps_and_changes_the_log_in_the_last_one() -> None:
    log = many_batches()
    expected = read_all(log)
    steps = log.truncate_in_steps(1150, NOW_MS, lambda: None)
    for _ in range(2):
        next(steps)
        assert (log.log_end_offset, read_all(log)) == (1200, expected)
        assert log.producer_state.producers[7].last_sequence == 1199
        assert not log.has_unsynced_truncation
    with pytest.raises(StopIteration):
        next(steps)
    assert (log.log_end_offset, read_all(log)) == (1150, expected[:1150])
    assert log.producer_state.producers[7].last_sequence == 1149


def test_a_step_of_a_truncation_passes_few_large_batches() -> None:
    """Their headers may be on the disk only: a follower that caught up does not keep what it appended in memory."""
    log = open_log(cfg=config(internal_segment_bytes=50_000_000))
    for number in range(40):
        append(log, batch([bytes(100_000)], producer_id=7, producer_epoch=0, base_sequence=number))
    log.flush(0)
    assert sum(1 for _ in log.truncate_in_steps(35, NOW_MS, lambda: None)) == 3
    assert log.producer_state.producers[7].last_sequence == 34


def test_a_truncation_that_is_abandoned_changes_nothing() -> None:
    log = many_batches()
    steps = log.truncate_in_steps(1150, NOW_MS, lambda: None)
    next(steps)
    steps.close()
    append(log, idempotent(1200))
    assert log.log_end_offset == 1201
    assert log.producer_state.producers[7].last_sequence == 1200


def test_a_log_start_that_moves_between_the_steps() -> None:
    """The producers are read again: those of deleted batches do not count."""
    log = many_batches()
    steps = log.truncate_in_steps(1150, NOW_MS, lambda: None)
    next(steps)
    log.delete_records_before(1150)
    with pytest.raises(StopIteration):
        while True:
            next(steps)
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (1150, 1150, 0)
    assert log.producer_state.is_empty


def test_a_truncation_reads_nothing_of_a_log_without_producers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither do constant timestamps make it read more than the batches after the last index entry."""
    log = open_log(cfg=config(internal_segment_bytes=1_000_000, index_interval_bytes=1000))
    for _ in range(1200):
        append(log)
    read: list[int] = []
    pread = type(log.active_segment.file).pread

    def note(file: File, position: int, size_bytes: int) -> bytes:
        read.append(size_bytes)
        return pread(file, position, size_bytes)

    monkeypatch.setattr(type(log.active_segment.file), "pread", note)
    truncate(log, 1150)
    assert sum(read) < 30_000 < log.size_bytes


def test_the_last_stable_offset_after_a_truncation_above_a_decided_transaction() -> None:
    log = open_log()
    append(log, idempotent(0, transactional=True))
    marker = build_control_batch(
        ControlType.COMMIT, producer_id=7, producer_epoch=0, coordinator_epoch=1, timestamp_ms=NOW_MS
    )
    log.append_as_leader(memoryview(marker), leader_epoch=0, now_ms=NOW_MS, origin=Origin.COORDINATOR)
    append(log)
    truncate(log, 2)
    assert (log.high_watermark, log.last_stable_offset) == (2, 2)


@pytest.mark.parametrize("is_known", [False, True], ids=["first batch", "later batch"])
def test_a_batch_that_is_truncated_within_may_be_written_again(is_known: bool) -> None:
    log = open_log(MemoryFileSystem())
    if is_known:
        append(log, idempotent(0, 4))
    start = log.log_end_offset
    append(log, idempotent(start, 4))
    truncate(log, start + 2)
    info = append(log, idempotent(start, 4))
    assert (info.is_duplicate, info.first_offset) == (False, start + 2)


def truncated_to_2(fs: MemoryFileSystem) -> PartitionLog:
    """A log of one segment with a truncation that is not durable."""
    log = open_log(fs)
    for _ in range(4):
        append(log)
    log.flush(0)
    finish_steps(log.truncate_in_steps(2, NOW_MS, lambda: None))
    log.update_high_watermark(2)
    return log


def test_a_segment_begins_only_after_a_durable_truncation() -> None:
    log = truncated_to_2(MemoryFileSystem())
    with pytest.raises(AssertionError, match="truncation"):
        log.roll(NOW_MS)
    log.complete_truncation()
    assert log.roll(NOW_MS).base_offset == 2


@pytest.mark.parametrize("seed", range(10))
def test_retention_may_delete_a_truncated_segment_before_the_truncation_is_durable(seed: int) -> None:
    fs = MemoryFileSystem()
    log = truncated_to_2(fs)
    log.update_config(config(retention_bytes=0))
    log.remove_deleted(log.delete_old_segments(NOW_MS))
    assert (log.log_start_offset, log.log_end_offset, log.has_unsynced_truncation) == (2, 2, True)
    append(log, [b"new"], leader_epoch=1)
    assert not log.has_unsynced_truncation
    fs.crash(Random(seed), lose_names=seed % 2 == 0)
    again = open_log(fs, is_clean=False, recovery_point=2, log_start_offset=2)
    assert read_all(again) in ([], [(2, b"new")])
