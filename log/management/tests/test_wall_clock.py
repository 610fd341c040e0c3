"""Background tasks use the monotonic clock: a step of the wall clock neither delays nor hastens them."""

import pytest

from odradek.log.log_manager import LogManager
from odradek.log.storage import checkpoints
from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.log.tests.managers import TOPIC_ID, append, opened, set_monotonic
from odradek.log.tests.support import NOW_MS

HOUR_MS = 3_600_000
PATH = "/data/a"
steps = pytest.mark.parametrize("step_ms", [-HOUR_MS, HOUR_MS], ids=["back", "forward"])


class Clocks:
    """A manager whose monotonic clock begins at 0, and whose wall clock is set by `step_ms` once it is open."""

    def __init__(self, step_ms: int, config: dict[str, str]) -> None:
        self.fs = MemoryFileSystem()
        self.manager: LogManager = opened(self.fs, [PATH], config, monotonic=lambda: 0.0, now_ms=NOW_MS)
        self.log = self.manager.create_log("t", 0, TOPIC_ID, NOW_MS)
        self.wall_ms = NOW_MS + step_ms
        self.monotonic_ms = 0
        self._due_ms = 0

    def run_until(self, end_ms: int) -> None:
        while self._due_ms <= end_ms:
            self.monotonic_ms = self._due_ms
            set_monotonic(self.manager, self.monotonic_ms)
            self._due_ms += self.manager.run_due(self.wall_ms + self.monotonic_ms)
        self.monotonic_ms = end_ms
        set_monotonic(self.manager, end_ms)


@steps
def test_flush_ms_and_checkpoints(step_ms: int) -> None:
    clocks = Clocks(step_ms, {"flush.ms": "2000"})
    log = clocks.log
    append(log, b"a", now_ms=NOW_MS)
    clocks.run_until(1999)
    assert log.flushed_offset == 0
    clocks.run_until(3000)
    assert log.flushed_offset == 1
    clocks.run_until(4999)
    assert not clocks.fs.exists(f"{PATH}/replication-offset-checkpoint")
    clocks.run_until(5000)
    assert checkpoints.read_offsets(clocks.fs, f"{PATH}/replication-offset-checkpoint") == {("t", 0): 1}
    clocks.run_until(29_999)
    assert not clocks.fs.exists(f"{PATH}/recovery-point-offset-checkpoint")
    clocks.run_until(30_000)
    assert clocks.fs.exists(f"{PATH}/recovery-point-offset-checkpoint")


@steps
def test_retention_is_due_by_the_monotonic_clock_and_decided_by_the_wall_clock(step_ms: int) -> None:
    config = {"retention.ms": str(2 * HOUR_MS), "internal.segment.bytes": "100", "file.delete.delay.ms": "100"}
    clocks = Clocks(step_ms, config)
    log = clocks.log
    append(log, b"a", b"b", now_ms=NOW_MS + step_ms - 2 * HOUR_MS)
    append(log, b"c", now_ms=NOW_MS + step_ms - HOUR_MS)
    clocks.run_until(29_999)
    assert log.log_start_offset == 0
    clocks.run_until(30_000)
    assert log.log_start_offset == 2
    assert any(name.endswith(".deleted") for name in clocks.fs.list_names(log.directory))
    clocks.run_until(30_100)
    assert not any(name.endswith(".deleted") for name in clocks.fs.list_names(log.directory))


@steps
def test_retention_by_size_continues(step_ms: int) -> None:
    clocks = Clocks(step_ms, {"retention.bytes": "200", "retention.ms": "-1", "internal.segment.bytes": "100"})
    clocks.run_until(30_000)
    append(clocks.log, *[b"x" * 20] * 5, now_ms=NOW_MS)
    clocks.run_until(329_999)
    assert clocks.log.log_start_offset == 0
    clocks.run_until(330_000)
    assert clocks.log.log_start_offset > 0


@steps
def test_compaction_continues(step_ms: int) -> None:
    config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "internal.segment.bytes": "100"}
    clocks = Clocks(step_ms, {**config, "flush.ms": "0"})
    for round_end_ms in (30_000, 60_000):
        append(clocks.log, *[b"x" * 20] * 5, now_ms=NOW_MS)
        clocks.run_until(round_end_ms)
        assert clocks.manager.cleaner.offsets == {("t", 0): clocks.log.log_end_offset - 1}


@steps
def test_a_deleted_log_is_removed_after_its_delay(step_ms: int) -> None:
    clocks = Clocks(step_ms, {"file.delete.delay.ms": "1000"})
    clocks.run_until(500)
    clocks.manager.delete_log("t", 0)
    clocks.run_until(1499)
    assert any(name.endswith("-delete") for name in clocks.fs.list_names(PATH))
    clocks.run_until(1500)
    assert not any(name.endswith("-delete") for name in clocks.fs.list_names(PATH))
