"""Recovery after a crash at any change, and of directories with files of interrupted changes."""

import errno
from random import Random

import pytest

from odradek.log.producers.snapshots import encode_snapshot
from odradek.log.producers.state import ProducerState
from odradek.log.segments.segment_files import INDEX_SUFFIX, TIME_INDEX_SUFFIX
from odradek.log.storage import checkpoints
from odradek.log.storage.filesystem import LogDirFailure, OsFileSystem, remove_if_exists
from odradek.log.storage.memory_filesystem import MemoryFileSystem, SimulatedCrash
from odradek.log.tests.support import (
    DIRECTORY,
    LOG_DIRECTORY,
    NOW_MS,
    append,
    batch,
    config,
    idempotent,
    open_log,
    read_all,
)
from odradek.log.validation.batch import Origin
from odradek.protocol.batches.streaming import run_steps
from odradek.protocol.records import ControlType, build_control_batch

SMALL = config(segment_index_bytes=600, internal_segment_bytes=500, index_interval_bytes=0)


class Acknowledged:
    """Values that were written, by the first offset of their batch, and the end offset of the durable ones."""

    def __init__(self) -> None:
        self.written: dict[int, list[bytes]] = {}
        self.durable = 0


def run_workload(fs: MemoryFileSystem, acknowledged: Acknowledged) -> None:
    """Append, roll, flush and delete records."""
    log = open_log(fs, SMALL)
    for number in range(12):
        info = append(log, idempotent(number * 2, 2))
        acknowledged.written[info.first_offset] = [b"%d" % (number * 2), b"%d" % (number * 2 + 1)]
        if number % 4 == 3:
            log.flush(NOW_MS)
            checkpoints.write_offsets(
                fs,
                f"{LOG_DIRECTORY}/{checkpoints.RECOVERY_POINTS_FILE}",
                {("topic", 0): log.recovery_point},
            )
            acknowledged.durable = log.flushed_offset
    log.delete_records_before(5)
    log.remove_deleted(log.delete_old_segments(NOW_MS))
    log.close(NOW_MS)


def count_changes() -> int:
    fs = MemoryFileSystem(now_ms=NOW_MS)
    run_workload(fs, Acknowledged())
    return fs.operations


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
@pytest.mark.parametrize("lose_names", [False, True])
def test_crash_at_every_change(seed, lose_names):
    """Flushed records are complete, in order and unique; those behind them are a prefix of the written ones."""
    for change in range(1, count_changes() + 1):
        fs = MemoryFileSystem(now_ms=NOW_MS)
        acknowledged = Acknowledged()
        fs.crash_at(change)
        with pytest.raises(SimulatedCrash):
            run_workload(fs, acknowledged)
        fs.crash(None if seed is None else Random(seed * 1000 + change), lose_names=lose_names)
        points = checkpoints.read_offsets(fs, f"{LOG_DIRECTORY}/{checkpoints.RECOVERY_POINTS_FILE}")
        log = open_log(fs, SMALL, is_clean=False, recovery_point=points.get(("topic", 0), 0))
        assert log.log_end_offset >= acknowledged.durable, f"lost at change {change}"
        found = dict(read_all(log))
        assert list(found) == list(range(log.log_start_offset, log.log_end_offset))
        for offset, values in acknowledged.written.items():
            for index, value in enumerate(values):
                assert found.get(offset + index, value) == value
        # The producer's state is that of the last record of the log.
        log.update_high_watermark(log.log_end_offset)
        following = log.log_end_offset
        entry = log.producer_state.producers.get(7)
        assert (entry.last_sequence if entry else -1) == following - 1
        assert append(log, idempotent(following, 2)).first_offset == following
        again = open_log(fs, SMALL, is_clean=False, log_start_offset=log.log_start_offset)
        assert read_all(again) == read_all(log)


def test_failed_writes_leave_the_log_as_it_was():
    """Every write, truncate, create and rename of an append and a roll fails once, and leaves no part of the batch."""
    for operation in ("write", "truncate", "create", "rename"):
        for after in range(1, 40):
            fs = MemoryFileSystem(now_ms=NOW_MS)
            log = open_log(fs, SMALL)
            fs.fail(operation, after=after, error=errno.EIO)
            written = []
            try:
                for number in range(12):
                    info = append(log, idempotent(number))
                    written.append((info.first_offset, b"%d" % number))
            except LogDirFailure as failure:
                assert failure.directory == LOG_DIRECTORY
                assert isinstance(failure.__cause__, OSError)
                with pytest.raises(LogDirFailure):
                    append(log, idempotent(len(written)))
                assert log.log_end_offset == len(written)
            fs.heal()
            log = open_log(fs, SMALL, is_clean=False)
            assert read_all(log) == written


def test_bad_bytes_end_the_log_and_later_segments_are_removed(tmp_path):
    directory = f"{tmp_path}/topic-0"
    fs = OsFileSystem()
    log = open_log(fs, SMALL, directory=directory)
    for number in range(12):
        append(log, [b"%d" % number * 50])
    assert len(log.segments) > 3
    second = log.segments[1]
    log.close(NOW_MS)
    file = fs.open(second.path(".log"))
    file.write_pieces(70, [b"\xff"], 1)
    log = open_log(fs, SMALL, directory=directory, is_clean=False)
    assert log.log_end_offset == second.base_offset
    assert len(log.segments) == 2
    names = fs.list_names(directory)
    assert not [name for name in names if name.endswith(".deleted")]
    assert append(log, [b"next"]).first_offset == second.base_offset


def test_truncated_records_do_not_reappear_behind_new_ones():
    """A second power loss restores names and sizes whose change was not synced."""
    fs = MemoryFileSystem(now_ms=NOW_MS)
    log = open_log(fs, SMALL)
    for number in range(12):
        append(log, [b"old %d" % number * 30])
    log.close(NOW_MS)
    first = log.segments[0]
    count = log.segments[1].base_offset
    fs.open(first.path(".log")).write_pieces(70, [b"\xff"], 1)
    log = open_log(fs, SMALL, is_clean=False)
    assert log.log_end_offset == 0
    for number in range(count):
        append(log, [b"new %d" % number * 30])
    log.segments[0].file.sync()
    fs.crash(lose_names=True)
    values = [value for _, value in read_all(open_log(fs, SMALL, is_clean=False))]
    assert values == [b"new %d" % number * 30 for number in range(count)]


def test_rebuilt_indexes_are_durable_before_the_recovery_point_passes_them():
    fs = MemoryFileSystem(now_ms=NOW_MS)
    log = open_log(fs, SMALL)
    for number in range(12):
        append(log, [b"%d" % number * 30])
    log.close(NOW_MS)
    expected = [segment.offset_index.entries() for segment in log.segments[:-1]]
    assert all(expected)
    log = open_log(fs, SMALL, is_clean=False)
    log.flush(NOW_MS)
    point = log.recovery_point
    assert point == log.active_segment.base_offset
    fs.crash()
    log = open_log(fs, SMALL, is_clean=False, recovery_point=point)
    assert [segment.offset_index.entries() for segment in log.segments[:-1]] == expected


@pytest.mark.parametrize("kind", [INDEX_SUFFIX, TIME_INDEX_SUFFIX])
@pytest.mark.parametrize("extra_bytes", [8, 12, 60, 600])
def test_a_preallocated_index_that_was_not_trimmed_is_rebuilt(kind, extra_bytes):
    """The log was durable up to the end of a segment, was reopened and rolled, and the index's new size was lost."""
    fs = MemoryFileSystem(now_ms=NOW_MS)
    log = open_log(fs, SMALL)
    for number in range(15):
        append(log, [b"%d" % number * 40], timestamp=NOW_MS + number)
    log.close(NOW_MS)
    active, before = log.segments[-1], log.segments[-2]
    entries = {INDEX_SUFFIX: before.offset_index.entries(), TIME_INDEX_SUFFIX: before.time_index.entries()}
    file = fs.open(before.path(kind))
    file.truncate(file.size_bytes() + extra_bytes)
    log = open_log(fs, SMALL, is_clean=False, recovery_point=active.base_offset)
    found = log.segments[-2]
    assert found.base_offset == before.base_offset
    assert {INDEX_SUFFIX: found.offset_index.entries(), TIME_INDEX_SUFFIX: found.time_index.entries()} == entries
    assert run_steps(log.offset_for_timestamp(NOW_MS + active.base_offset - 1)).offset == active.base_offset - 1


def test_a_segment_without_index_behind_a_damaged_one_is_removed_with_it():
    fs = MemoryFileSystem(now_ms=NOW_MS)
    log = open_log(fs, SMALL)
    for number in range(0, 120, 10):
        append(log, idempotent(number, 10))
    log.close(NOW_MS)
    _, damaged, behind, *_ = log.segments
    fs.open(damaged.path(".log")).truncate(0)
    fs.remove(behind.path(".index"))
    for segment in log.segments:
        remove_if_exists(fs, f"{DIRECTORY}/{segment.base_offset:020d}.snapshot")
    log = open_log(fs, SMALL, is_clean=False)
    assert log.log_end_offset == damaged.base_offset
    assert log.producer_state.producers[7].last_sequence == damaged.base_offset - 1


def test_an_epoch_that_was_not_written_for_lack_of_space_is_restored_from_the_batches():
    fs = MemoryFileSystem(now_ms=NOW_MS)
    log = open_log(fs, SMALL)
    append(log, [b"old"])
    log.flush(NOW_MS)
    log.elect(1)
    append(log, [b"new" * 30], leader_epoch=1)
    fs.fail("create", error=errno.ENOSPC, path_contains="leader-epoch-checkpoint")
    for number in range(12):
        append(log, [b"%d" % number * 50], leader_epoch=1)
    log.flush(NOW_MS)
    point = log.recovery_point
    fs.crash()
    log = open_log(fs, SMALL, is_clean=False, recovery_point=point)
    assert log.leader_epochs.entries == [(0, 0), (1, 1)]


def test_epochs_are_complete_if_a_crash_undoes_an_advance_of_the_log_start():
    fs = MemoryFileSystem(now_ms=NOW_MS)
    log = open_log(fs, SMALL)
    append(log, [b"old" * 40])
    append(log, [b"new" * 40], leader_epoch=1)
    log.roll(NOW_MS)
    for recovery_point in (0, 2):
        log.update_high_watermark(log.log_end_offset)
        log.delete_records_before(2)
        log.flush(NOW_MS)
        fs.crash()
        log = open_log(fs, SMALL, is_clean=False, recovery_point=recovery_point)
        assert (log.log_start_offset, log.leader_epochs.entries) == (0, [(0, 0), (1, 1)])


def test_clean_start_reads_no_batch_and_unclean_reads_from_the_recovery_point():
    fs = MemoryFileSystem(now_ms=NOW_MS)
    log = open_log(fs, SMALL)
    for number in range(30):
        append(log, idempotent(number))
    base = log.segments[-2].base_offset
    log.close(NOW_MS)
    # Damage before the recovery point.
    fs.open(log.segments[0].path(".log")).write_pieces(65, [b"\xff"], 1)
    assert open_log(fs, SMALL, is_clean=True, recovery_point=0).log_end_offset == 30
    assert open_log(fs, SMALL, is_clean=False, recovery_point=base).log_end_offset == 30
    assert open_log(fs, SMALL, is_clean=False, recovery_point=0).log_end_offset == 0


def test_leftovers_of_interrupted_changes():
    fs = MemoryFileSystem(now_ms=NOW_MS)
    log = open_log(fs, SMALL)
    for number in range(12):
        append(log, [b"%d" % number * 50])
    first, second = log.segments[0], log.segments[1]
    expected = read_all(log)
    log.close(NOW_MS)

    def copy(old, new):
        data = fs.read_bytes(old)
        fs.open(new, create=True).write_pieces(0, [data], len(data))

    # A finished replacement of the first segment that is not renamed yet, and an unfinished one of the second.
    copy(first.path(".log"), first.path(".log") + ".swap")
    copy(first.path(".index"), first.path(".index") + ".swap")
    fs.remove(first.path(".log"))
    copy(second.path(".log"), second.path(".log") + ".cleaned")
    copy(second.path(".log"), second.path(".log") + ".swap")
    copy(second.path(".log"), f"{DIRECTORY}/00000000000000000099.log.deleted")
    copy(second.path(".index"), f"{DIRECTORY}/00000000000000000777.index")
    log = open_log(fs, SMALL, is_clean=True)
    assert read_all(log) == expected
    names = fs.list_names(DIRECTORY)
    assert not [name for name in names if name.endswith((".swap", ".cleaned", ".deleted")) or "777" in name]


@pytest.mark.parametrize("lost", [".index", ".timeindex", ".snapshot"])
def test_missing_files_are_rebuilt(lost):
    fs = MemoryFileSystem(now_ms=NOW_MS)
    log = open_log(fs, SMALL)
    for number in range(12):
        append(log, idempotent(number, timestamp=NOW_MS + number))
    log.close(NOW_MS)
    for name in [name for name in fs.list_names(DIRECTORY) if name.endswith(lost)]:
        fs.remove(f"{DIRECTORY}/{name}")
    log = open_log(fs, SMALL, is_clean=lost != ".snapshot")
    assert [offset for offset, _ in read_all(log)] == list(range(12))
    assert log.producer_state.producers[7].last_sequence == 11
    assert run_steps(log.offset_for_timestamp(NOW_MS + 7)).offset == 7


def test_end_before_the_checkpointed_start_starts_over():
    fs = MemoryFileSystem(now_ms=NOW_MS)
    log = open_log(fs)
    append(log, [b"a", b"b"])
    log.close(NOW_MS)
    log = open_log(fs, log_start_offset=10, is_clean=False)
    assert (log.log_start_offset, log.log_end_offset, log.segments[0].base_offset) == (10, 10, 10)
    assert append(log, [b"c"]).first_offset == 10


def test_transactions_are_restored():
    """Open, committed and aborted transactions after a clean and an unclean start."""
    for is_clean in (True, False):
        fs = MemoryFileSystem(now_ms=NOW_MS)
        log = open_log(fs)
        for producer in (1, 2, 3):
            append(log, batch([b"x"], producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True))
        for producer, kind in ((1, ControlType.COMMIT), (2, ControlType.ABORT)):
            marker = build_control_batch(
                kind, producer_id=producer, producer_epoch=0, coordinator_epoch=4, timestamp_ms=NOW_MS
            )
            log.append_as_leader(memoryview(marker), leader_epoch=0, now_ms=NOW_MS, origin=Origin.COORDINATOR)
        assert log.log_end_offset == 5
        log.update_high_watermark(5)
        assert log.last_stable_offset == 2
        if is_clean:
            log.close(NOW_MS)
        log = open_log(fs, is_clean=is_clean)
        log.update_high_watermark(5)
        assert log.last_stable_offset == 2
        region = log.read(0, 10_000, upper_offset=5, at_least_one=True)
        assert region is not None
        aborted = log.aborted_transactions(0, region)
        assert [(entry.producer_id, entry.first_offset, entry.last_offset) for entry in aborted] == [(2, 1, 4)]
        assert log.producer_state.producers[2].coordinator_epoch == 4


@pytest.mark.parametrize("lost_bytes", range(1, 18))
@pytest.mark.parametrize("is_clean", [True, False])
def test_a_torn_epoch_checkpoint_is_rebuilt_from_the_batches(is_clean, lost_bytes):
    fs = MemoryFileSystem(now_ms=NOW_MS)
    log = open_log(fs, SMALL)
    for number in range(15):
        append(log, [b"%d" % number * 40], leader_epoch=number // 6)
    entries = log.leader_epochs.entries
    assert entries == [(0, 0), (1, 6), (2, 12)]
    log.close(NOW_MS)
    path = f"{DIRECTORY}/{checkpoints.LEADER_EPOCHS_FILE}"
    fs.open(path).truncate(fs.size_bytes(path) - lost_bytes)
    log = open_log(fs, SMALL, is_clean=is_clean, recovery_point=log.segments[-1].base_offset)
    assert log.leader_epochs.entries == entries


def test_recovery_does_not_rewrite_a_correct_snapshot():
    fs = MemoryFileSystem(now_ms=NOW_MS)
    log = open_log(fs)
    append(log, idempotent(0, 3))
    open_log(fs, is_clean=False)
    path = log.producer_state.snapshot_path(3)
    content = fs.read_bytes(path)
    fs.fail("write", path_contains=".snapshot")
    fs.fail("remove", path_contains=".snapshot")
    log = open_log(fs, is_clean=False)
    assert log.producer_state.producers[7].last_sequence == 2
    assert fs.read_bytes(path) == content
    fs.heal()


@pytest.mark.parametrize("is_end", [True, False])
def test_recovery_replaces_a_wrong_snapshot(is_end):
    """At the log's end its batches may have been truncated and written anew; elsewhere it cannot be checked."""
    fs = MemoryFileSystem(now_ms=NOW_MS)
    log = open_log(fs)
    append(log, idempotent(0, 3))
    other = ProducerState(fs, DIRECTORY, expiration_ms=1)
    other.end_offset = 3 if is_end else 2
    other.add_data(8, 0, 5, 0, other.end_offset - 1, NOW_MS, False)
    other.take_snapshot(sync=True)
    log = open_log(fs, is_clean=False)
    assert list(log.producer_state.producers) == [7]
    assert [name for name in fs.list_names(DIRECTORY) if name.endswith(".snapshot")] == [f"{3:020d}.snapshot"]
    assert fs.read_bytes(log.producer_state.snapshot_path(3)) == encode_snapshot(log.producer_state.producers.records)


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_crash_at_every_change_of_a_recovery(seed):
    """A recovery that follows an interrupted one has the same result."""
    change, is_done = 0, False
    while not is_done:
        change += 1
        fs = MemoryFileSystem(now_ms=NOW_MS)
        run_workload(fs, Acknowledged())
        # Malformed snapshots, at the log's end and inside its last segment.
        for offset in (23, 24):
            path = f"{DIRECTORY}/{offset:020d}.snapshot"
            fs.open(path, create=True).write_pieces(0, [b"other"], 5)
        fs.crash_at(change)
        try:
            open_log(fs, SMALL, is_clean=False, log_start_offset=5)
            is_done = True
        except SimulatedCrash:
            pass
        fs.crash(None if seed is None else Random(seed * 1000 + change))
        log = open_log(fs, SMALL, is_clean=False, log_start_offset=5)
        assert [offset for offset, _ in read_all(log)] == list(range(5, 24))
        assert log.producer_state.producers[7].last_sequence == 23
        assert log.producer_state.find_duplicate(7, 0, 22, 23).last_offset == 23
    assert change > 5
