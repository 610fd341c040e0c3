"""Logs that were truncated to an offset between their batches, where compaction on the leader left a gap."""

import pytest

from odradek.log.log_manager import LogManager
from odradek.log.partition_log import PartitionLog
from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.log.tests.managers import TOPIC_ID, opened, served, truncate
from odradek.log.tests.support import read_all
from odradek.protocol.records import build_batch

CONFIG = {"cleanup.policy": "compact,delete", "retention.ms": "1000"}
END = 200


def start(fs: MemoryFileSystem, last: LogManager | None = None, *, is_clean: bool = True) -> LogManager:
    """Start, after a stop of the last process."""
    if last is not None and is_clean:
        last.close(0)
    fs._held.clear()
    return opened(fs, config=CONFIG, ids={"t": TOPIC_ID})


def follow(log: PartitionLog, *offsets: int) -> None:
    data = b"".join(build_batch([(0, b"k", b"v", ())], base_offset=offset) for offset in offsets)
    log.append_as_follower(memoryview(data), now_ms=0)


def truncated(manager: LogManager) -> PartitionLog:
    """A log with batches at 0 and 10, whose end and high watermark are END."""
    log = manager.create_log("t", 0, TOPIC_ID, 0)
    follow(log, 0, 10, END)
    truncate(manager, END, 0)
    log.update_high_watermark(END)
    return log


@pytest.mark.parametrize("is_clean", [True, False])
def test_retention_leaves_an_empty_log_at_the_end(is_clean: bool) -> None:
    """It began at the last batch, so that followers stayed there, and the next leader used offsets a second time."""
    fs = MemoryFileSystem()
    manager = start(fs)
    log = truncated(manager)
    log.state.active.set_read_timestamp(0, log.state.active.size_bytes)
    manager.delete_old_segments(log, 1_000_000)
    log.roll(0)
    assert (log.log_start_offset, log.log_end_offset, log.state.bases) == (END, END, [END])
    again = served(start(fs, manager, is_clean=is_clean))
    batch = build_batch([(0, b"k", b"new", ())])
    assert again.append_as_leader(memoryview(batch), leader_epoch=8, now_ms=0).first_offset == END


def test_a_log_whose_start_is_in_the_gap_is_empty_after_a_clean_stop() -> None:
    """The leader's log starts there. The log was taken for damaged, and its replica was offline."""
    fs = MemoryFileSystem()
    manager = start(fs)
    truncated(manager).advance_log_start(END)
    again = served(start(fs, manager))
    assert (again.log_start_offset, again.log_end_offset) == (END, END)


@pytest.mark.parametrize(
    "offsets",
    [
        (0, 1_500_000_000, 2_400_000_000, 2_400_000_001),
        (0, (1 << 31) - 1, 1 << 31, (1 << 31) + 1000),
        (0, 1 << 31, 1 << 32, 1 << 33, (1 << 33) + 1),
        (1 << 31, 1 << 32),
    ],
)
@pytest.mark.parametrize("count", [1, 2, 5])
def test_batches_that_no_segment_can_span_are_kept_after_a_kill(offsets: tuple[int, ...], count: int) -> None:
    fs = MemoryFileSystem()
    manager = start(fs)
    log = manager.create_log("t", 0, TOPIC_ID, 0)
    for first in range(0, len(offsets), count):
        follow(log, *offsets[first : first + count])
    log.update_high_watermark(log.log_end_offset)
    assert [offset for offset, _ in read_all(log)] == list(offsets)
    assert [offset for offset, _ in read_all(served(start(fs, is_clean=False)))] == list(offsets)


def test_a_far_segment_that_a_truncation_has_emptied_keeps_the_batches_that_follow() -> None:
    """They begin above its base, which recovery took for that of the first batch."""
    fs, far = MemoryFileSystem(), 1 << 40
    manager = start(fs)
    log = manager.create_log("t", 0, TOPIC_ID, 0)
    follow(log, 0)
    records = [(0, b"k", b"v", ())] * 3
    log.append_as_follower(memoryview(build_batch(records, base_offset=far)), now_ms=0)
    for _ in manager.truncate_in_steps("t", 0, far + 2, 0):
        pass
    manager.flush(log)
    follow(log, far + 2, far + 3)
    assert [offset for offset, _ in read_all(served(start(fs)))] == [0, far + 2, far + 3]


def test_the_end_before_a_segment_that_the_range_of_offsets_begins_is_not_lost() -> None:
    """Recovery took the lost end for a gap that no segment can span, and kept the batches behind it."""
    fs, limit = MemoryFileSystem(), 1 << 31
    manager = start(fs)
    log = manager.create_log("t", 0, TOPIC_ID, 0)
    follow(log, 0)
    log.flush(0)
    follow(log, limit - 10)
    log.append_as_follower(memoryview(build_batch([(0, b"k", b"v", ())] * 15, base_offset=limit - 9)), now_ms=0)
    log.state.active.file.sync()
    fs.crash()
    offsets = [offset for offset, _ in read_all(served(start(fs)))]
    assert offsets[:2] == [0, limit - 10]


def test_batches_after_a_truncation_into_a_compacted_part_are_not_compacted() -> None:
    """A kill lowers the log's end below the compacted offset. A power loss then left a hole."""
    fs, config = MemoryFileSystem(), {**CONFIG, "cleanup.policy": "compact", "internal.segment.bytes": "400"}

    def begin() -> LogManager:
        fs._held.clear()
        return opened(fs, config=config, ids={"t": TOPIC_ID})

    manager = begin()
    log = manager.create_log("t", 0, TOPIC_ID, 0)
    follow(log, 0, 1)
    follow(log, *range(100, 109))
    log.flush(0)
    manager.cleaner.offsets["t", 0] = 100
    truncate(manager, 60, 0)
    manager = begin()
    log = served(manager)
    assert log.log_end_offset == 2
    assert manager.cleaner.offsets["t", 0] == 2
    follow(log, *range(2, 13))
    log.state.active.file.sync()
    fs.crash()
    offsets = [offset for offset, _ in read_all(served(begin()))]
    assert offsets == list(range(len(offsets)))
