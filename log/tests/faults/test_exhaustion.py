"""Without free descriptors an operation is refused or made later: no directory goes offline, no record is lost."""

import errno
import os
from random import Random

import pytest

from odradek.log.log_manager import LogManager
from odradek.log.partition_log import PartitionLog
from odradek.log.storage import checkpoints, descriptors
from odradek.log.storage.filesystem import (
    DiskFullError,
    ExhaustedError,
    LogDirFailure,
    OsFileSystem,
    ShortageError,
    storage_error,
)
from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.log.tests.managers import TOPIC_ID, append, folders, opened, run_until
from odradek.log.tests.threads import Threads
from odradek.protocol.batches.streaming import run_steps
from odradek.protocol.errors import ErrorCode

PATH = "/data/a"
CONFIG = {"internal.segment.bytes": "400", "index.interval.bytes": "1", "file.delete.delay.ms": "1000"}


class Flaky(MemoryFileSystem):
    """Files in memory where a random share of the operations that need a descriptor fails."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = Random(seed)
        self.share = 0.0

    def _take_descriptor(self, path: str) -> None:
        if self.random.random() < self.share:
            error = self.random.choice((errno.EMFILE, errno.ENFILE))
            raise OSError(error, os.strerror(error), path)


def filled(manager: LogManager) -> PartitionLog:
    log = manager.create_log("t", 0, TOPIC_ID, 0)
    while len(log.segments) < 4:
        append(log, b"x" * 50)
    return log


def values(log: PartitionLog) -> list[int]:
    """The base offsets of all batches, as reads find them."""
    found, offset = [], log.log_start_offset
    while (region := log.read(offset, 1, upper_offset=log.log_end_offset, at_least_one=True)) is not None:
        found.append(offset)
        offset += 1
        assert int.from_bytes(region.read()[:8], "big") == found[-1]
    return found


def test_shortages_and_failures_are_distinguished() -> None:
    kinds = {
        number: type(storage_error("/d", "m", OSError(number, "")))
        for number in (errno.ENOSPC, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO)
    }
    assert list(kinds.values()) == [DiskFullError, ExhaustedError, ExhaustedError, ExhaustedError, LogDirFailure]


def test_a_refused_roll_is_made_later() -> None:
    fs = MemoryFileSystem()
    manager = opened(fs, [PATH], CONFIG)
    log = filled(manager)
    fs.spare = 0
    with pytest.raises(ExhaustedError) as refused:
        append(log, *[b"y" * 50] * 9)
    assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    end, segments = log.log_end_offset, len(log.segments)
    manager.fail_directory(PATH, refused.value)
    assert manager.online_directories == [PATH]
    fs.spare = 1
    append(log, b"z")
    assert (log.log_end_offset, len(log.segments)) == (end + 1, segments + 1)
    manager.close(0)
    [log] = opened(fs, [PATH], CONFIG).all_logs()
    assert values(log) == list(range(end + 1))


def test_no_files_remain_of_a_log_that_could_not_be_created() -> None:
    fs = Flaky(1)
    manager = opened(fs, [PATH], CONFIG)
    fs.spare = 0
    with pytest.raises(ExhaustedError):
        manager.create_log("t", 0, TOPIC_ID, 0, is_new=True)
    assert folders(fs, PATH) == []
    fs.spare = 1
    for share in (1.0, 0.5, 0.5, 0.5):
        fs.share = share
        try:
            manager.create_log("t", 0, TOPIC_ID, 0, is_new=True)
        except ShortageError:
            assert manager.online_directories == [PATH]
    fs.share = 0.0
    assert manager.create_log("t", 0, TOPIC_ID, 0).log_end_offset == 0
    assert manager.topic_id("t", 0) == TOPIC_ID
    run_until(manager, 0, 20_000)
    assert folders(fs, PATH) == ["t-0"]


def test_exhaustion_is_logged_at_intervals(caplog: pytest.LogCaptureFixture) -> None:
    fs = MemoryFileSystem()
    manager = opened(fs, [PATH], CONFIG)
    filled(manager)
    fs.spare = -1
    now_ms = run_until(manager, 0, 64_000)
    lines = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert 1 <= len(lines) <= 64_000 / 5_000 + 1
    assert all(line.startswith("no file descriptor or memory is available: ") for line in lines)
    fs.spare = 100
    run_until(manager, now_ms, now_ms + 70_000)
    assert checkpoints.read_offsets(fs, f"{PATH}/recovery-point-offset-checkpoint")[("t", 0)] > 0


def test_a_start_without_descriptors_fails_and_locks_nothing() -> None:
    fs = MemoryFileSystem()
    manager = opened(fs, [PATH], CONFIG)
    end = filled(manager).log_end_offset
    manager.close(0)
    for share in (1.0, 0.3, 0.1, 0.05):
        flaky = Flaky(7)
        flaky.__dict__.update(fs.__dict__, random=Random(3), share=share)
        with pytest.raises(ExhaustedError):
            opened(flaky, [PATH], CONFIG)
    [log] = opened(fs, [PATH], CONFIG).all_logs()
    assert log.log_end_offset == end


@pytest.mark.parametrize("seed", range(6))
def test_random_work_with_too_few_descriptors(seed: int) -> None:
    """Appends, reads, flushes, lookups, retention and compaction are correct although some fail at random."""
    fs, random, threads = Flaky(seed), Random(seed), Threads()
    config = CONFIG | {"cleanup.policy": random.choice(["delete", "compact,delete"]), "retention.bytes": "1500"}
    manager = opened(fs, [PATH], config, run_in_thread=threads)
    log = filled(manager)
    now_ms = 0
    for _ in range(150):
        fs.share = random.choice([0.0, 0.2, 0.7])
        end = log.log_end_offset
        try:
            match random.randrange(6):
                case 0 | 1:
                    append(log, b"v" * random.randrange(60))
                    end += 1
                case 2:
                    offset = random.randrange(log.log_start_offset, end + 1)
                    log.read(offset, 100, upper_offset=end, at_least_one=True)
                case 3:
                    manager.flush(log)
                case 4:
                    run_steps(log.offset_for_timestamp(random.randrange(2)))
                case _:
                    now_ms = run_until(manager, now_ms, now_ms + random.randrange(70_000))
                    threads.run()
        except ShortageError:
            pass
        assert log.failure is None
        assert log.log_end_offset == end, "a refused append changes nothing"
    assert manager.online_directories == [PATH]
    fs.share = 0.0
    threads.run()
    now_ms = run_until(manager, now_ms, now_ms + 100_000)
    threads.run()
    log.flush(now_ms)
    assert log.flushed_offset == log.log_end_offset
    end, is_whole = log.log_end_offset, config["cleanup.policy"] == "delete"
    manager.close(now_ms)
    [log] = opened(fs, [PATH], config).all_logs()
    assert log.log_end_offset == end
    if is_whole:
        assert values(log) == list(range(log.log_start_offset, end))


def test_index_entries_wait_for_a_descriptor() -> None:
    fs = Flaky(1)
    manager = opened(fs, [PATH], CONFIG | {"internal.segment.bytes": "100000"})
    log = manager.create_log("t", 0, TOPIC_ID, 0)
    append(log, b"x")
    fs.share = 1.0
    append(log, *[b"x"] * 600)
    assert log.active_segment.offset_index.count == 600
    assert values(log) == list(range(601))
    fs.share = 0.0
    append(log, b"x")
    manager.close(0)
    [log] = opened(fs, [PATH], CONFIG).all_logs()
    assert values(log) == list(range(602))


def test_descriptors_of_this_process() -> None:
    before = descriptors.count_open()
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(5)]
    assert descriptors.count_open() == before + 5
    assert OsFileSystem().spare_descriptors() == descriptors.limit() - descriptors.reserve() - before - 5
    for descriptor in held:
        os.close(descriptor)
