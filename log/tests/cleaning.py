"""Helpers of the compaction tests: a log manager over any file system, and short functions that change a log."""

from typing import Any

from odradek.log.log_manager import LogManager
from odradek.log.partition_log import PartitionLog
from odradek.log.storage.filesystem import FileSystem
from odradek.log.tests.managers import opened
from odradek.log.validation.batch import Origin
from odradek.protocol.records import (
    BatchHeader,
    ControlType,
    Record,
    build_batch,
    build_control_batch,
    iter_batches,
    iter_records,
    read_header,
)

COMPACT = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "internal.segment.bytes": "400",
    "delete.retention.ms": "1000",
    "file.delete.delay.ms": "0",
}
T0 = 1_000_000


def open_manager(fs: FileSystem, config: dict[str, str] | None = None, path: str = "/d", **options: Any) -> LogManager:
    return opened(fs, [path], {**COMPACT, **(config or {})}, now_ms=T0, **options)


def make_log(fs: FileSystem, config: dict[str, str] | None = None, **options: Any) -> tuple[LogManager, PartitionLog]:
    manager = open_manager(fs, config, **options)
    return manager, manager.create_log("t", 0, bytes(16), T0)


def put(log: PartitionLog, *records: tuple[bytes | None, bytes | None], now_ms: int = T0, **fields: Any) -> None:
    """Append one batch and flush it, because only flushed records are compacted."""
    batch = build_batch([(now_ms, key, value, ()) for key, value in records], **fields)
    origin = fields.get("origin", Origin.CLIENT)
    log.append_as_leader(memoryview(batch), leader_epoch=0, now_ms=now_ms, origin=origin)
    log.update_high_watermark(log.log_end_offset)
    log.flush(now_ms)


def mark(log: PartitionLog, kind: ControlType, producer_id: int, epoch: int = 0, now_ms: int = T0) -> None:
    batch = build_control_batch(
        kind, producer_id=producer_id, producer_epoch=epoch, coordinator_epoch=0, timestamp_ms=now_ms
    )
    log.append_as_leader(memoryview(batch), leader_epoch=0, now_ms=now_ms, origin=Origin.COORDINATOR)
    log.update_high_watermark(log.log_end_offset)
    log.flush(now_ms)


def roll(log: PartitionLog, now_ms: int = T0) -> None:
    log.roll(now_ms)


def clean(manager: LogManager, now_ms: int = T0) -> None:
    while manager.cleaner.step(now_ms):
        pass


def batches(log: PartitionLog) -> list[tuple[BatchHeader, list[Record]]]:
    found = []
    for segment in log.segments:
        for batch in iter_batches(segment.file.pread(0, segment.size_bytes)):
            found.append((read_header(batch), list(iter_records(batch))))
    return found


def records(log: PartitionLog) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(r.offset, r.key, r.value) for header, rs in batches(log) if not header.is_control for r in rs]


def latest(found: list[tuple[int, bytes | None, bytes | None]]) -> dict[bytes | None, bytes | None]:
    """Return the last value of each key, without the keys whose last record is a tombstone."""
    state: dict[bytes | None, bytes | None] = {}
    for _, key, value in found:
        state[key] = value
    return {key: value for key, value in state.items() if value is not None}
