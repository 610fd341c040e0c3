"""Finding records by time: what ListOffsets asks for (KIP-79, KIP-734)."""

from typing import NamedTuple

from odradek.log.segment import Segment
from odradek.protocol.record_batch import BatchHeader
from odradek.protocol.record_reader import Record, iter_records


class TimestampOffset(NamedTuple):
    """A record's offset and timestamp (ms), and the leader epoch of its batch."""

    offset: int
    timestamp: int
    leader_epoch: int


def offset_for_timestamp(segments: list[Segment], timestamp: int, start_offset: int) -> TimestampOffset | None:
    """The first record in offset order, from `start_offset` on, whose timestamp is at or above `timestamp`.

    Raises OSError.
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
    """The first record that bears the largest timestamp; None if no record has one. Raises OSError."""
    latest = max(segments, key=lambda segment: segment.max_timestamp)
    if latest.max_timestamp < 0:
        return None
    for position, header in latest.headers(latest.floor_position(latest.offset_of_max_timestamp)):
        if header.max_timestamp != latest.max_timestamp:
            continue
        for record in _records(latest, position, header):
            if record.timestamp == header.max_timestamp:
                return TimestampOffset(record.offset, record.timestamp, header.partition_leader_epoch)
        return None
    return None


def _records(segment: Segment, position: int, header: BatchHeader) -> "list[Record]":
    return list(iter_records(segment.file.pread(position, header.size_bytes)))
