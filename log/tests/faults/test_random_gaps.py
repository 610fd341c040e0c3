"""Random changes of logs with gaps of the leader's compaction, compared with a list of their batches."""

import errno
from contextlib import suppress
from random import Random

import pytest

from odradek.log.partition_log import PartitionLog
from odradek.log.storage.filesystem import DiskFullError
from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.log.tests.support import NOW_MS, batch, config, memory_fs, open_log, read_all, truncate
from odradek.log.validation.batch import chunk_batches
from odradek.protocol.records import build_batch

NO_GAP, SMALL, LARGE = (0,), (1, 5, 50), (1 << 29, (1 << 31) - 3, 1 << 31, (1 << 31) + 3)
CHANGES = (
    ("follow", 10), ("refuse", 2), ("lead", 3), ("truncate", 4), ("roll", 1), ("flush", 1), ("retain", 1), ("kill", 2)
)  # fmt: skip


class RandomLog:
    """A log, and the offsets and values that it should contain."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = Random(seed)
        self.gaps = 3 * NO_GAP + SMALL + (LARGE if rng.random() < 0.3 else ())
        self.config = config(
            internal_segment_bytes=rng.choice([150, 250, 600, 2000]), index_interval_bytes=rng.choice([1, 100, 4096])
        )
        self.log: PartitionLog = open_log(cfg=self.config)
        self.expected: list[tuple[int, bytes]] = []
        self.epoch = self.count = self.checkpoint = self.checkpointed_start = 0

    def add(self, offset: int) -> bytes:
        """Expect a new value at an offset; return it."""
        self.count += 1
        self.expected.append((offset, b"%d" % self.count))
        return self.expected[-1][1]

    def follow(self) -> None:
        offset, batches = self.log.log_end_offset, []
        for _ in range(self.rng.randint(1, 4)):
            offset += self.rng.choice(self.gaps)
            record = (NOW_MS, b"k", self.add(offset), ())
            batches.append(build_batch([record], base_offset=offset, partition_leader_epoch=self.epoch))
            offset += 1
        for chunk in chunk_batches(memoryview(b"".join(batches)), self.rng.choice([1, 2, 64]), 1 << 20):
            self.log.append_as_follower(chunk, now_ms=NOW_MS)

    def refuse(self) -> None:
        """Follow until the disk refuses a write of batches. The batches of earlier writes are appended."""
        self.fs.fail("write", error=errno.ENOSPC, path_contains=".log", after=self.rng.choice([1, 1, 2]))
        with suppress(DiskFullError):
            self.follow()
        self.fs.heal()
        self.expected = [one for one in self.expected if one[0] < self.log.log_end_offset]

    def lead(self) -> None:
        value = self.add(self.log.log_end_offset)
        self.log.append_as_leader(batch([value], key=b"k"), leader_epoch=self.epoch, now_ms=NOW_MS)

    def truncate(self) -> None:
        """Truncate to an offset near one of the last batches, often in a gap."""
        start, end = self.log.log_start_offset, self.log.log_end_offset
        near = [offset for offset, _ in self.expected[-6:]]
        if near:
            offset = min(max(self.rng.choice(near) + self.rng.choice([-3, -1, 0, 1, 3, 20]), start), end)
            truncate(self.log, offset)
            assert self.log.log_end_offset == offset
            self.expected = [one for one in self.expected if one[0] < offset]
            self.save()
            self.epoch += 1

    def roll(self) -> None:
        self.log.complete_truncation()
        self.log.roll(NOW_MS)

    def flush(self) -> None:
        self.log.flush(0)
        self.save()

    def save(self) -> None:
        """Write the checkpoints."""
        self.checkpoint, self.checkpointed_start = self.log.recovery_point, self.log.log_start_offset

    def retain(self) -> None:
        self.log.update_high_watermark(self.log.log_end_offset)
        retention_bytes = self.rng.choice([0, 200])
        self.log.update_config(
            config(internal_segment_bytes=self.config.segment_limit_bytes, retention_bytes=retention_bytes)
        )
        self.log.remove_deleted(self.log.delete_old_segments(NOW_MS))
        self.log.update_config(self.config)
        self.checkpointed_start = self.log.log_start_offset

    def kill(self) -> None:
        """End the process, and recover. The files have all that was written."""
        self.log = open_log(
            self.fs,
            self.config,
            is_clean=False,
            recovery_point=min(self.checkpoint, self.log.log_end_offset),
            log_start_offset=self.checkpointed_start,
        )
        self.checkpoint = min(self.checkpoint, self.log.recovery_point)

    @property
    def fs(self) -> MemoryFileSystem:
        return memory_fs(self.log)

    def check(self) -> None:
        start, end = self.log.log_start_offset, self.log.log_end_offset
        self.expected = [one for one in self.expected if one[0] >= start]
        assert read_all(self.log) == self.expected
        bases = [segment.base_offset for segment in self.log.segments]
        assert self.log.state.bases == bases == sorted(set(bases))
        offset = self.rng.randint(start, end)
        assert read_all(self.log, offset) == [one for one in self.expected if one[0] >= offset]


@pytest.mark.parametrize("seed", range(100))
def test_a_log_with_gaps_keeps_its_batches(seed: int) -> None:
    one = RandomLog(seed)
    names, weights = zip(*CHANGES, strict=True)
    for name in one.rng.choices(names, weights, k=60):
        getattr(one, name)()
        one.check()
