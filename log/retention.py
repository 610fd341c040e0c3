"""Selection of segments to delete: they are too old, the log is too large, or they are before its start."""

from typing import Final

from odradek.log.segment_age import is_doubtful, is_older
from odradek.log.segments.segment import Segment
from odradek.log.state import LogState

MAX_SEGMENTS_PER_CALL: Final = 8
"""The deletion of a segment takes four or five renames, each of which blocks the thread that serves requests."""


def count_deletable(log: LogState, now_ms: int) -> int:
    """Return how many segments to delete, from the oldest on, up to MAX_SEGMENTS_PER_CALL. Raises OSError.

    A segment with offsets at or above the high watermark and an empty active segment remain. The rules apply in this
    order: the log's start, retention.bytes, retention.ms; each to the segments that remain after the previous one.
    Segments before the log's start are deleted with any cleanup.policy.
    """
    count = _before_log_start(log, 0)
    if log.config.deletes:
        count = _beyond_size(log, count)
        count = _beyond_age(log, count, now_ms)
    return count


def _is_deletable(log: LogState, index: int) -> bool:
    segments = log.segments
    if index >= MAX_SEGMENTS_PER_CALL:
        return False
    if index == len(segments) - 1:
        return segments[index].size_bytes > 0 and log.high_watermark >= log.log_end_offset
    return index < len(segments) and log.high_watermark >= segments[index + 1].base_offset


def _before_log_start(log: LogState, count: int) -> int:
    while (
        count + 1 < len(log.segments)
        and _is_deletable(log, count)
        and log.segments[count + 1].base_offset <= log.log_start_offset
    ):
        count += 1
    return count


def _beyond_size(log: LogState, count: int) -> int:
    limit_bytes = log.config.retention_bytes
    if limit_bytes < 0:
        return count
    excess_bytes = sum(segment.size_bytes for segment in log.segments[count:]) - limit_bytes
    while _is_deletable(log, count) and excess_bytes >= log.segments[count].size_bytes:
        excess_bytes -= log.segments[count].size_bytes
        count += 1
    return count


def _beyond_age(log: LogState, count: int, now_ms: int) -> int:
    limit_ms = log.config.retention_ms
    if limit_ms < 0:
        return count
    while _is_deletable(log, count) and is_older(log.segments[count], now_ms - limit_ms):
        count += 1
    return count


def find_doubtful(log: LogState, count: int, now_ms: int) -> Segment | None:
    """Return the segment at which retention.ms stopped after `count` others, if its age requires a read of its records.

    Raises OSError.
    """
    limit_ms = log.config.retention_ms
    if not log.config.deletes or limit_ms < 0 or not _is_deletable(log, count):
        return None
    return log.segments[count] if is_doubtful(log.segments[count], now_ms - limit_ms) else None
