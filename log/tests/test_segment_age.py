"""Retention of stored segments whose headers state other timestamps than their records have."""

import pytest

from odradek.log.background.tasks import run_inline
from odradek.log.management.age_verifier import AgeVerifier
from odradek.log.partition_log import PartitionLog
from odradek.log.segment_age import read_largest_timestamp
from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.log.tests.managers import TOPIC_ID, opened, run_until, served
from odradek.log.tests.support import NOW_MS, append, batch, config, memory_fs, open_log
from odradek.log.tests.threads import Threads
from odradek.protocol.batches.streaming import run_steps
from odradek.protocol.records import Codec, build_batch, stamp_timestamps

DAY = 86_400_000
FIRST_CHECK_MS = 30_000
CODECS = pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])


def stating(max_timestamp: int, timestamps: list[int], base_offset: int, codec: Codec) -> memoryview:
    """A batch whose header states any largest timestamp, as earlier versions stored it."""
    records = [(timestamp, b"k", b"v", ()) for timestamp in timestamps]
    data = bytearray(build_batch(records, base_offset=base_offset, partition_leader_epoch=0, codec=codec))
    stamp_timestamps(data, codec, max_timestamp)
    return memoryview(data)


def stored(stated: int, timestamp: int, modified_ms: int, codec: Codec) -> MemoryFileSystem:
    """A data directory with a log of two segments of ten records, not changed since `modified_ms`."""
    fs = MemoryFileSystem()
    manager = opened(fs, ["/data/a"])
    log = manager.create_log("topic", 0, TOPIC_ID, modified_ms)
    fs.now_ms = modified_ms
    for base_offset in (0, 10):
        log.append_as_follower(stating(stated, [timestamp] * 10, base_offset, codec), now_ms=modified_ms)
        log.roll(modified_ms)
    manager.close(modified_ms)
    return fs


def start_offset(fs: MemoryFileSystem, now_ms: int, threads: Threads) -> int:
    """Return the log's start after two retention checks with retention.ms of a day."""
    manager = opened(fs, ["/data/a"], {"retention.ms": str(DAY)}, now_ms=now_ms, run_in_thread=threads)
    log = manager.get("topic", 0)
    assert isinstance(log, PartitionLog)
    log.update_high_watermark(log.log_end_offset)
    for end_ms in (now_ms + FIRST_CHECK_MS, now_ms + FIRST_CHECK_MS + 300_000):
        run_until(manager, end_ms - 1000, end_ms)
        threads.run()
    manager.close(now_ms)
    return log.log_start_offset


@CODECS
@pytest.mark.parametrize("timestamp", [-1, NOW_MS])
def test_records_that_seem_old_are_kept(codec: Codec, timestamp: int) -> None:
    """For batches of librdkafka with timestamp -1, earlier versions stored the largest timestamp 0."""
    fs = stored(0, timestamp, NOW_MS, codec)
    assert start_offset(fs, NOW_MS + DAY // 2, Threads()) == 0
    assert start_offset(fs, NOW_MS + 2 * DAY, Threads()) == 20


@CODECS
def test_records_that_seem_new_are_deleted(codec: Codec) -> None:
    fs = stored(NOW_MS + 1000 * DAY, NOW_MS, NOW_MS, codec)
    assert start_offset(fs, NOW_MS + DAY // 2, Threads()) == 0
    assert start_offset(fs, NOW_MS + 2 * DAY, Threads()) == 20


@CODECS
def test_records_that_are_older_than_their_file_are_deleted(codec: Codec) -> None:
    fs = stored(NOW_MS - 9 * DAY, NOW_MS - 9 * DAY, NOW_MS, codec)
    assert start_offset(fs, NOW_MS, Threads()) == 20


def test_segments_are_read_in_a_thread_one_at_a_time() -> None:
    fs, threads = stored(NOW_MS - 9 * DAY, NOW_MS - 9 * DAY, NOW_MS, Codec.NONE), Threads()
    manager = opened(fs, ["/data/a"], {"retention.ms": str(DAY)}, now_ms=NOW_MS, run_in_thread=threads)
    log = served(manager, "topic")
    log.update_high_watermark(log.log_end_offset)
    for _ in range(3):
        manager.delete_old_segments(log, NOW_MS)
    assert (log.log_start_offset, len(threads.waiting)) == (0, 1)
    threads.run(1)
    assert (log.log_start_offset, len(threads.waiting)) == (10, 1)
    threads.run(1)
    assert log.log_start_offset == 20


def test_a_segment_that_grew_while_it_was_read_waits_for_the_next_check() -> None:
    fs, threads = stored(0, -1, NOW_MS, Codec.NONE), Threads()
    manager = opened(fs, ["/data/a"], {"retention.ms": str(DAY)}, now_ms=NOW_MS, run_in_thread=threads)
    log = served(manager, "topic")
    log.update_high_watermark(log.log_end_offset)
    manager.delete_old_segments(log, NOW_MS)
    first = log.segments[0]
    first.set_read_timestamp(NOW_MS - 9 * DAY, first.size_bytes - 1)
    assert first.verified_timestamp_ms is None
    threads.run()
    assert (log.segments[0].verified_timestamp_ms, log.log_start_offset) == (NOW_MS, 0)


def test_a_segment_that_this_process_wrote_is_not_read_again() -> None:
    log = open_log(cfg=config(retention_ms=DAY))
    memory_fs(log).now_ms = NOW_MS
    append(log, batch([b"v"] * 9, timestamp=NOW_MS - 2 * DAY))
    log.roll(NOW_MS)
    assert log.segments[0].verified_timestamp_ms == NOW_MS - 2 * DAY
    assert len(log.delete_old_segments(NOW_MS)) == 1 and log.doubtful_segment is None


@pytest.mark.parametrize("codec", list(Codec))
def test_largest_timestamp_of_all_records(codec: Codec) -> None:
    log = open_log(cfg=config(internal_segment_bytes=100_000))
    batches = [[7] * 30, [-1] * 30, [NOW_MS, 5], [3], [-(2**50)] * 3]
    for number, timestamps in enumerate(batches):
        base_offset = log.log_end_offset
        log.append_as_follower(stating(NOW_MS + number, timestamps, base_offset, codec), now_ms=NOW_MS)
    segment = log.segments[0]
    assert run_steps(read_largest_timestamp(segment, segment.size_bytes)) == NOW_MS
    damaged = bytearray(stating(NOW_MS + 77, [1], log.log_end_offset, Codec.NONE))
    damaged[61] = 0x7E
    stamp_timestamps(damaged, 0, NOW_MS + 77)
    log.append_as_follower(memoryview(damaged), now_ms=NOW_MS)
    assert run_steps(read_largest_timestamp(segment, segment.size_bytes)) == NOW_MS + 77


def test_a_log_that_was_deleted_before_it_was_read_is_left_alone() -> None:
    """Its files are removed by then; a read of them would take the whole log directory offline."""
    fs, threads = stored(NOW_MS - 9 * DAY, NOW_MS - 9 * DAY, NOW_MS, Codec.NONE), Threads()
    manager = opened(fs, ["/data/a"], {"retention.ms": str(DAY)}, now_ms=NOW_MS, run_in_thread=threads)
    log = served(manager, "topic")
    log.update_high_watermark(log.log_end_offset)
    manager.delete_old_segments(log, NOW_MS)
    [reading] = threads.waiting
    threads.waiting.clear()
    manager.delete_log("topic", 0)
    run_until(manager, NOW_MS, NOW_MS + 61_000)
    threads.run()
    assert not fs.exists(log.directory)
    run_inline(*reading)
    assert manager.online_directories == ["/data/a"]


def test_a_segment_whose_retention_fails_does_not_hold_up_the_next() -> None:
    """Otherwise one defect would end retention by the age of records until the broker restarts."""
    fs, threads, seen = stored(NOW_MS - 9 * DAY, NOW_MS - 9 * DAY, NOW_MS, Codec.NONE), Threads(), []

    def retry(log: object, now_ms: int) -> None:
        seen.append(log)
        raise RuntimeError("a defect")

    log = served(opened(fs, ["/data/a"], {"retention.ms": str(DAY)}, now_ms=NOW_MS), "topic")
    verifier = AgeVerifier(threads, retry, lambda: 0.0, lambda seconds: None)
    for segment in log.segments[:2]:
        verifier.add(log, segment, NOW_MS)
    threads.run()
    assert len(seen) == 2
