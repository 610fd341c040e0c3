"""A log compared with a model of its records, through random operations."""

import errno
from random import Random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from odradek.log.storage.filesystem import DiskFullError, LogDirFailure
from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.log.tests.support import NOW_MS, batch, config, open_log, read_all, truncate
from odradek.log.validation.batch import Origin
from odradek.protocol.batches.streaming import run_steps
from odradek.protocol.errors import KafkaError
from odradek.protocol.records import Codec


class LogMachine(RuleBasedStateMachine):
    """The model: value and timestamp of every record by offset, and the log's start."""

    @initialize(interval=st.sampled_from([0, 100, 4096]), segment_bytes=st.sampled_from([500, 2000, 100_000]))
    def begin(self, interval, segment_bytes):
        self.fs = MemoryFileSystem(now_ms=NOW_MS)
        self.config = config(index_interval_bytes=interval, internal_segment_bytes=segment_bytes)
        self.log = open_log(self.fs, self.config)
        self.records = {}
        self.times = {}
        self.start = 0
        self.next_value = 0
        self.time = NOW_MS

    def add(self, offset, values, timestamp):
        for index, value in enumerate(values):
            self.records[offset + index] = value
            self.times[offset + index] = timestamp

    def values(self, sizes):
        result = []
        for size in sizes:
            self.next_value += 1
            result.append(b"%d:" % self.next_value + b"x" * size)
        return result

    @rule(
        sizes=st.lists(st.integers(0, 120), min_size=1, max_size=6),
        codec=st.sampled_from([Codec.NONE, Codec.NONE, Codec.GZIP]),
        step=st.integers(-5, 20),
        epoch_step=st.sampled_from([0, 0, 0, 1]),
    )
    def append(self, sizes, codec, step, epoch_step):
        values = self.values(sizes)
        self.time += step
        end = self.log.log_end_offset
        data = batch(values, timestamp=self.time, codec=codec)
        epoch = max(0, self.log.latest_epoch) + epoch_step
        try:
            info = self.log.append_as_leader(data, leader_epoch=epoch, now_ms=NOW_MS)
        except KafkaError:
            assert len(data) > self.config.segment_limit_bytes
            return
        assert (info.first_offset, info.last_offset) == (end, end + len(values) - 1)
        self.add(end, values, self.time)
        self.log.update_high_watermark(self.log.log_end_offset)

    @rule(counts=st.lists(st.integers(1, 3), min_size=2, max_size=4))
    def append_several(self, counts):
        all_values = [self.values([5] * count) for count in counts]
        data = memoryview(b"".join(batch(values, timestamp=self.time) for values in all_values))
        end = self.log.log_end_offset
        if len(data) > self.config.segment_limit_bytes:
            return
        self.log.append_as_leader(data, leader_epoch=0, now_ms=NOW_MS, origin=Origin.COORDINATOR)
        self.add(end, [value for values in all_values for value in values], self.time)
        self.log.update_high_watermark(self.log.log_end_offset)

    @rule()
    def roll(self):
        self.log.roll(NOW_MS)

    @rule()
    def flush(self):
        self.log.flush(NOW_MS)

    @precondition(lambda self: self.records)
    @rule(data=st.data())
    def truncate(self, data):
        # Followers truncate at batch borders; elsewhere the log's end moves to the offset and leaves a gap.
        borders = sorted(self.borders() | {self.log.log_end_offset})
        offset = data.draw(st.sampled_from(borders))
        truncate(self.log, offset, NOW_MS)
        # Without a sync a crash could undo the truncation; a follower would then truncate again.
        self.log.active_segment.file.sync()
        self.records = {o: v for o, v in self.records.items() if o < offset}
        assert self.log.log_end_offset == offset

    def borders(self):
        found = set()
        for segment in self.log.segments:
            found |= {header.base_offset for _, header in segment.headers() if header.base_offset >= self.start}
        return found

    @precondition(lambda self: self.records)
    @rule(data=st.data())
    def delete_records(self, data):
        offset = data.draw(st.integers(self.start, self.log.log_end_offset))
        assert self.log.delete_records_before(offset) == offset
        self.start = max(self.start, offset)
        deleted = self.log.delete_old_segments(NOW_MS)
        self.log.remove_deleted(deleted)
        assert self.log.segments[0].base_offset <= self.start
        self.records = {o: v for o, v in self.records.items() if o >= self.start}

    @rule()
    def reopen(self):
        self.log.close(NOW_MS)
        self.log = open_log(
            self.fs,
            self.config,
            is_clean=True,
            log_start_offset=self.start,
            recovery_point=self.log.recovery_point,
        )
        self.log.update_high_watermark(self.log.log_end_offset)

    @rule(seed=st.one_of(st.none(), st.integers(0, 1000)))
    def crash(self, seed):
        durable, recovery_point = self.log.flushed_offset, self.log.recovery_point
        self.fs.crash(None if seed is None else Random(seed))
        self.log = open_log(
            self.fs, self.config, is_clean=False, log_start_offset=self.start, recovery_point=recovery_point
        )
        end = self.log.log_end_offset
        assert end >= durable, "flushed records were lost"
        self.records = {o: v for o, v in self.records.items() if o < end}
        self.log.update_high_watermark(end)
        assert self.log.recovery_point <= end

    @rule(error=st.sampled_from([errno.EIO, errno.ENOSPC]), change=st.integers(1, 12), epoch=st.integers(0, 3))
    def fail_while_appending(self, error, change, epoch):
        """A failed append leaves no part of its batch. It can be retried for lack of space; otherwise the log fails."""
        self.fs.fail_at(change, error=error)
        for _ in range(4):
            end = self.log.log_end_offset
            values = self.values([50])
            data = batch(values, timestamp=self.time)
            try:
                self.log.append_as_leader(data, leader_epoch=epoch, now_ms=NOW_MS)
            except LogDirFailure:
                assert error == errno.EIO
                assert self.log.log_end_offset == end
                assert self.log.failure is not None
                break
            except DiskFullError:
                assert error == errno.ENOSPC
                assert self.log.log_end_offset == end
                assert self.log.failure is None
                continue
            self.add(end, values, self.time)
        self.fs.heal()
        self.log.state.failure = None
        self.log.update_high_watermark(self.log.log_end_offset)

    @invariant()
    def holds_the_records_of_the_model(self):
        if not hasattr(self, "log"):
            return
        assert self.log.log_start_offset == self.start
        assert read_all(self.log) == sorted(self.records.items())

    @invariant()
    def finds_every_offset_and_time(self):
        if not hasattr(self, "log") or not self.records:
            return
        for offset in list(self.records)[:: max(1, len(self.records) // 5)]:
            assert read_all(self.log, offset)[0] == (offset, self.records[offset])
        latest = max(self.times[offset] for offset in self.records)
        wanted = self.times[next(iter(self.records))]
        found = run_steps(self.log.offset_for_timestamp(wanted))
        expected = min(offset for offset in self.records if self.times[offset] >= wanted)
        assert found is not None and found.offset == expected
        assert run_steps(self.log.offset_for_timestamp(latest + 1)) is None


TestLog = LogMachine.TestCase
TestLog.settings = settings(
    max_examples=40,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
