"""Finding records by time: what ListOffsets asks for (KIP-79, KIP-734)."""

from collections.abc import Iterator
from typing import NamedTuple

from odradek.log.segment import Segment
from odradek.protocol.record_batch import NO_TIMESTAMP, BatchHeader
from odradek.protocol.record_reader import Record, iter_records


class TimestampOffset(NamedTuple):
    """A record's offset and timestamp (ms), and the leader epoch of its batch."""

    offset: int
    timestamp: int
    leader_epoch: int


def offset_for_timestamp(segments: list[Segment], timestamp: int, start_offset: int) -> TimestampOffset | None:
    """The first record in offset order, from `start_offset` on, whose timestamp is at or above `timestamp`.

    Raises OSError, InvalidRecordError, CompressionError.
    """
    for segment in segments:
        if segment.largest_timestamp_ms < timestamp:
            continue
        offset = max(segment.time_floor(timestamp), start_offset)
        for position, header in segment.headers(segment.floor_position(offset)):
            if header.max_timestamp < timestamp or header.last_offset < start_offset:
                continue
            for record in _records(segment, position, header):
                if record.timestamp >= timestamp and record.offset >= start_offset:
                    return TimestampOffset(record.offset, record.timestamp, header.partition_leader_epoch)
    return None


def offset_of_max_timestamp(segments: list[Segment]) -> TimestampOffset | None:
    """The first record that bears the largest timestamp; without any timestamps the first record.

    If the batch that states it has no such record, its latest one is returned. Raises OSError, InvalidRecordError,
    CompressionError.
    """
    for latest in sorted(segments, key=lambda segment: segment.max_timestamp, reverse=True):
        for position, header in latest.headers(latest.floor_position(latest.offset_of_max_timestamp)):
            if header.max_timestamp == latest.max_timestamp:
                found = _latest_record(latest, position, header)
                # Compaction leaves batches without records.
                if found is not None:
                    return found
    return None


def _latest_record(segment: Segment, position: int, header: BatchHeader) -> TimestampOffset | None:
    """The first record of a batch that bears its largest timestamp, at least -1; None if it has none."""
    latest: TimestampOffset | None = None
    for record in _records(segment, position, header):
        if record.timestamp > (NO_TIMESTAMP - 1 if latest is None else latest.timestamp):
            latest = TimestampOffset(record.offset, record.timestamp, header.partition_leader_epoch)
            if record.timestamp == header.max_timestamp:
                break
    return latest


def _records(segment: Segment, position: int, header: BatchHeader) -> Iterator[Record]:
    return iter_records(segment.file.pread(position, header.size_bytes))
