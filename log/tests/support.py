"""Helpers of the log's tests: batches, a log in memory, and reads of the whole log."""

from collections.abc import Generator, Sequence
from typing import Any, TypeVar

from odradek.log.append import AppendInfo
from odradek.log.config import LogConfig
from odradek.log.flush import LogSync
from odradek.log.partition_log import PartitionLog
from odradek.log.recovery import open_partition_log
from odradek.log.segments.segment_files import DeletedSegment
from odradek.log.storage.filesystem import FileSystem
from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.log.validation.batch import StepwiseValidationRequired
from odradek.log.validation.long_batch import check_in_steps
from odradek.protocol.batches.streaming import run_steps
from odradek.protocol.records import Codec, build_batch, iter_batches, iter_records, read_header, rebuild_batch

Result = TypeVar("Result")
NOW_MS = 1_700_000_000_000
LOG_DIRECTORY = "/data"
DIRECTORY = "/data/topic-0"


def batch(
    values: Sequence[bytes | None] = (b"v",),
    *,
    key: bytes | None = b"k",
    timestamp: int | list[int] = NOW_MS,
    codec: Codec = Codec.NONE,
    **producer: Any,
) -> memoryview:
    """Build a produced batch: one record for each value, all at `timestamp` unless it is a list."""
    times = timestamp if isinstance(timestamp, list) else [timestamp] * len(values)
    records = [(time, key, value, ()) for time, value in zip(times, values, strict=True)]
    return memoryview(build_batch(records, codec=codec, **producer))


def idempotent(
    sequence: int, count: int = 1, *, producer_id: int = 7, epoch: int = 0, **keywords: Any
) -> memoryview:
    values = [b"%d" % (sequence + index) for index in range(count)]
    return batch(values, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, **keywords)


def misnumbered(produced: bytes | memoryview, offset_deltas: Sequence[int]) -> memoryview:
    """Rebuild a produced batch with other offset deltas than 0, 1, 2..."""
    records = list(iter_records(produced))
    for record, offset_delta in zip(records, offset_deltas, strict=True):
        record.offset = offset_delta
    return memoryview(rebuild_batch(read_header(produced), records))


def config(**properties: object) -> LogConfig:
    """A configuration with small segments and frequent index entries, so that little data is enough for a test."""
    values = {"internal.segment.bytes": "2000", "index.interval.bytes": "100"}
    values |= {name.replace("_", "."): str(value) for name, value in properties.items()}
    return LogConfig(values)


def open_log(
    fs: FileSystem | None = None,
    cfg: LogConfig | None = None,
    *,
    directory: str = DIRECTORY,
    is_clean: bool = True,
    now_ms: int = NOW_MS,
    **keywords: Any,
) -> PartitionLog:
    fs = MemoryFileSystem() if fs is None else fs
    return open_partition_log(
        fs, directory, "topic", 0, cfg or config(), is_clean=is_clean, now_ms=now_ms, **keywords
    )


def memory_fs(log: PartitionLog) -> MemoryFileSystem:
    """Return the file system of a log in memory, for faults and crashes."""
    assert isinstance(log.fs, MemoryFileSystem)
    return log.fs


def prepared_flush(log: PartitionLog, target_offset: int | None = None) -> LogSync:
    """Return the task of a flush that is necessary."""
    task = log.prepare_flush(target_offset)
    assert task is not None
    return task


def append(
    log: PartitionLog,
    produced: memoryview | Sequence[bytes | None] = (b"v",),
    *,
    leader_epoch: int = 0,
    now_ms: int = NOW_MS,
    **keywords: Any,
) -> AppendInfo:
    """Append a batch as a leader, and advance the high watermark to the log end. Values become a batch first."""
    data = produced if isinstance(produced, memoryview) else batch(produced, **keywords)
    try:
        info = log.append_as_leader(data, leader_epoch=leader_epoch, now_ms=now_ms)
    except StepwiseValidationRequired as large:
        checked = run_steps(check_in_steps(large.batch, large.config, now_ms))
        info = log.append_as_leader(data, leader_epoch=leader_epoch, now_ms=now_ms, checked=checked)
    log.update_high_watermark(log.log_end_offset)
    return info


def truncate(log: PartitionLog, offset: int, now_ms: int = NOW_MS) -> list[DeletedSegment]:
    """Truncate a log at once, durably, without checkpoints of a log directory. Return the removed segments."""
    deleted = finish_steps(log.truncate_in_steps(offset, now_ms, lambda: None))
    log.complete_truncation()
    return deleted


def start_over(log: PartitionLog, offset: int, now_ms: int = NOW_MS) -> None:
    """Empty a log, durably, without checkpoints of a log directory."""
    log.start_over(offset, now_ms, lambda: None)
    log.complete_truncation()


def finish_steps(steps: Generator[None, None, Result]) -> Result:
    """Run all steps and return their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: Result = end.value
            return result


def read_all(log: PartitionLog, start: int | None = None, max_bytes: int = 10_000) -> list[tuple[int, bytes | None]]:
    """Return the offset and value of each record of the log, as a consumer fetches them."""
    offset = log.log_start_offset if start is None else start
    found: list[tuple[int, bytes | None]] = []
    while True:
        region = log.read(offset, max_bytes, upper_offset=log.log_end_offset, at_least_one=True)
        if region is None:
            return found
        data = region.read()
        assert len(data) == region.size_bytes
        batches = list(iter_batches(data))
        assert batches, "a read returns at least one whole batch"
        for one in batches:
            header = read_header(one)
            assert header.next_offset > offset, "a read returns no batch that ends before its offset"
            found += [(record.offset, record.value) for record in iter_records(one) if record.offset >= offset]
        offset = header.next_offset
