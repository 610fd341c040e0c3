"""`preallocate`: the active segment's file has its full size, and the zeros behind its batches are never records."""

from random import Random

import pytest

from odradek.log.partition_log import PartitionLog
from odradek.log.storage.filesystem import OsFileSystem, ends_in_zeros
from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.log.tests.cleaning import clean, make_log, put, records, roll
from odradek.log.tests.support import NOW_MS, append, batch, config, open_log, read_all

SIZE = 2000
PREALLOCATED = config(preallocate="true")


def file_sizes(log: PartitionLog) -> list[int]:
    return [segment.file.size_bytes() for segment in log.segments]


def batch_bytes(log: PartitionLog) -> list[int]:
    return [segment.size_bytes for segment in log.segments]


def fill(log: PartitionLog, count: int = 30) -> None:
    for number in range(count):
        append(log, [b"%d" % number * 20])


def test_only_the_active_segment_has_its_full_size() -> None:
    log = open_log(cfg=PREALLOCATED)
    assert file_sizes(log) == [0], "not before the first append"
    fill(log)
    assert len(log.segments) > 1
    assert file_sizes(log) == [*batch_bytes(log)[:-1], SIZE]
    assert log.size_bytes == sum(batch_bytes(log)) < sum(file_sizes(log))
    assert [value for _, value in read_all(log)] == [b"%d" % number * 20 for number in range(30)]
    region = log.read(log.active_segment.base_offset, 100_000, upper_offset=log.log_end_offset, at_least_one=True)
    assert region is not None
    assert region.size_bytes == log.active_segment.size_bytes


def test_retention_counts_batches() -> None:
    log = open_log(cfg=PREALLOCATED)
    fill(log)
    log.update_config(config(preallocate="true", retention_bytes=sum(batch_bytes(log)[1:])))
    assert len(log.delete_old_segments(NOW_MS)) == 1


def test_a_stop_truncates_the_file_and_the_next_append_extends_it_again() -> None:
    fs = MemoryFileSystem()
    log = open_log(fs, PREALLOCATED)
    fill(log)
    log.close(NOW_MS)
    assert file_sizes(log) == batch_bytes(log)
    log = open_log(fs, PREALLOCATED)
    assert file_sizes(log) == batch_bytes(log)
    append(log, [b"next"])
    assert file_sizes(log)[-1] == SIZE
    assert read_all(log)[-1] == (30, b"next")


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("fs", [MemoryFileSystem(), OsFileSystem()])
@pytest.mark.parametrize("later", [PREALLOCATED, config()])
def test_a_start_truncates_a_file_that_the_stop_did_not(fs, is_clean, later, tmp_path, caplog) -> None:
    """Even if the last stop counts as clean, or `preallocate` is false now, as with a directory of Apache Kafka."""
    directory = f"{tmp_path}/topic-0"
    log = open_log(fs, PREALLOCATED, directory=directory)
    fill(log)
    expected, end = read_all(log), log.log_end_offset
    log = open_log(fs, later, directory=directory, is_clean=is_clean)
    assert file_sizes(log) == batch_bytes(log)
    assert (log.log_end_offset, read_all(log)) == (end, expected)
    assert "bad byte" not in caplog.text
    append(log, [b"next"])
    assert read_all(log)[-1] == (end, b"next")


@pytest.mark.parametrize("seed", range(30))
def test_a_power_loss_leaves_a_prefix(seed: int) -> None:
    random, fs = Random(seed), MemoryFileSystem()
    log = open_log(fs, PREALLOCATED)
    fill(log, random.randrange(5, 40))
    log.flush(NOW_MS)
    point, before = log.recovery_point, read_all(log)
    fill(log, random.randrange(20))
    after = read_all(log)
    fs.crash(random)
    log = open_log(fs, PREALLOCATED, is_clean=False, recovery_point=point)
    found = read_all(log)
    assert after[: len(found)] == found
    assert len(found) >= len(before)
    assert file_sizes(log) == batch_bytes(log)
    append(log, [b"next"])
    assert read_all(log) == [*found, (log.log_end_offset - 1, b"next")]


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_zeros_in_place_of_batches_end_the_log(policy: str) -> None:
    """A power loss may lose the end of a segment but not the next one. Compaction leaves gaps, but no zeros."""
    fs, cfg = MemoryFileSystem(), config(cleanup_policy=policy)
    log = open_log(fs, cfg)
    append(log, [b"first"])
    segment, kept_bytes = log.active_segment, log.size_bytes
    append(log, [b"lost"])
    log.roll(NOW_MS)
    append(log, [b"behind the gap"])
    lost_bytes = segment.size_bytes - kept_bytes
    segment.file.write_pieces(kept_bytes, [bytes(lost_bytes)], lost_bytes)
    log = open_log(fs, cfg, is_clean=False)
    assert (read_all(log), log.log_end_offset) == ([(0, b"first")], 1)


def test_zeros_that_come_back_before_a_new_segment_are_cut_again() -> None:
    """A second power loss undoes the truncation. Recovery reads only the new segment, at the recovery point."""
    fs = MemoryFileSystem()
    log = open_log(fs, PREALLOCATED)
    append(log, [b"first"])
    log.flush(NOW_MS)
    kept_bytes = log.size_bytes
    for _ in range(2):
        fs.crash()
        log = open_log(fs, PREALLOCATED, is_clean=False, recovery_point=1)
        assert (read_all(log), log.log_end_offset) == ([(0, b"first")], 1)
        log.roll(NOW_MS)
    assert file_sizes(log) == batch_bytes(log) == [kept_bytes, 0]
    log.close(NOW_MS)
    fs.crash()
    assert read_all(open_log(fs, PREALLOCATED)) == [(0, b"first")]


def test_a_batch_behind_zeros_is_damage(caplog) -> None:
    fs = MemoryFileSystem()
    log = open_log(fs, PREALLOCATED)
    append(log, [b"first"])
    second = batch([b"lost its neighbours"])
    log.active_segment.file.write_pieces(1500, [second], len(second))
    log = open_log(fs, PREALLOCATED, is_clean=False)
    assert read_all(log) == [(0, b"first")]
    assert "bad byte" in caplog.text


def test_a_failed_append_leaves_zeros_or_nothing_behind_the_batches() -> None:
    fs = MemoryFileSystem()
    log = open_log(fs, PREALLOCATED)
    append(log, [b"first"])
    fs.fail("write", error=28)
    with pytest.raises(Exception, match="No space left"):
        append(log, [b"second"])
    assert ends_in_zeros(log.active_segment.file, log.active_segment.size_bytes)
    append(log, [b"third"])
    assert read_all(log) == [(0, b"first"), (1, b"third")]


def test_compaction_writes_no_more_than_its_batches() -> None:
    manager, log = make_log(MemoryFileSystem(), {"preallocate": "true"})
    for number in range(5):
        put(log, (b"a", b"%d" % number))
        roll(log)
    clean(manager)
    assert file_sizes(log)[:-1] == batch_bytes(log)[:-1]
    assert records(log)[-1][1:] == (b"a", b"4")
    assert manager.cleaner.uncleanable == set()
