"""The cleanable part of a log, the conditions under which compaction is due, and the groups of segments to merge.

Sources: Kafka documentation ("Log Compaction"), KIP-58 (min.compaction.lag.ms), KIP-354 (max.compaction.lag.ms).
"""

from bisect import bisect_right
from typing import NamedTuple

from odradek.log.config import LogConfig
from odradek.log.partition_log import PartitionLog
from odradek.log.segments.segment import Segment
from odradek.log.segments.segment_files import MAX_RELATIVE_OFFSET

_OFFSET_ENTRY_BYTES = 8
_TIME_ENTRY_BYTES = 12
_MAX_SEGMENTS = 64


class CleanableRange(NamedTuple):
    """The part of a log that can be compacted: from `first_dirty_offset` to `end_offset`.

    overdue_ms: the time since the oldest segment exceeded max.compaction.lag.ms; 0 if it has not
    """

    log: PartitionLog
    first_dirty_offset: int
    end_offset: int
    clean_bytes: int
    cleanable_bytes: int
    overdue_ms: int

    @property
    def ratio(self) -> float:
        """The dirty ratio: the share of the bytes that are not compacted yet."""
        return self.cleanable_bytes / (self.clean_bytes + self.cleanable_bytes)

    @property
    def is_due(self) -> bool:
        return self.overdue_ms > 0 or self.ratio > self.log.config.min_cleanable_dirty_ratio


def first_dirty_offset(log: PartitionLog, checkpoint: int | None) -> int:
    """Return the start of the dirty part: the checkpoint, or the log's start if the checkpoint is outside the log."""
    if checkpoint is None or not log.log_start_offset <= checkpoint <= log.log_end_offset:
        return log.log_start_offset
    return checkpoint


def find_cleanable(log: PartitionLog, checkpoint: int | None, now_ms: int) -> CleanableRange | None:
    """Return the part of the log that can be compacted, due or not; None if there is none. Raises OSError.

    It consists of complete segments before the active one, below the last stable offset and older than
    min.compaction.lag.ms. It is also below the flushed offset: otherwise compaction could remove a record whose
    successor is then lost in a power failure.
    """
    config, segments = log.config, log.segments
    if len(segments) == 1:
        return None
    first_dirty = first_dirty_offset(log, checkpoint)
    bases = [segment.base_offset for segment in segments]
    first = max(0, bisect_right(bases, first_dirty) - 1)
    bound = min(log.last_stable_offset, log.flushed_offset)
    limit = max(0, bisect_right(bases, max(bound, first_dirty)) - 1)
    if config.min_compaction_lag_ms > 0:
        for index in range(first, limit):
            if segments[index].largest_timestamp_ms > now_ms - config.min_compaction_lag_ms:
                limit = index
                break
    cleanable_bytes = sum(segment.size_bytes for segment in segments[first:limit])
    if cleanable_bytes == 0:
        return None
    # The segment that contains the first dirty offset counts as clean and as cleanable.
    clean_bytes = sum(segment.size_bytes for segment in segments[:limit] if segment.base_offset < first_dirty)
    # Segments above the range count as well: they may be older, and max.compaction.lag.ms applies to them too.
    timestamps = [segment.first_timestamp for segment in segments[first:-1]]
    oldest = min((timestamp for timestamp in timestamps if timestamp > 0), default=None)
    overdue_ms = 0 if oldest is None else max(0, now_ms - config.max_compaction_lag_ms - oldest)
    return CleanableRange(log, first_dirty, bases[limit], clean_bytes, cleanable_bytes, overdue_ms)


def group_segments(segments: list[Segment], config: LogConfig, end_offset: int) -> list[list[Segment]]:
    """Group adjacent segments that fit into one segment, by bytes, index entries and range of offsets.

    A group has at most _MAX_SEGMENTS, which limits the duration of its replacement.
    """
    groups: list[list[Segment]] = []
    sizes = (0, 0, 0)
    limits = (config.segment_limit_bytes, config.segment_index_bytes, config.segment_index_bytes)
    for index, segment in enumerate(segments):
        sizes_of_segment = (
            segment.size_bytes,
            segment.offset_index.count * _OFFSET_ENTRY_BYTES,
            segment.time_index.count * _TIME_ENTRY_BYTES,
        )
        merged = (
            sizes[0] + sizes_of_segment[0],
            sizes[1] + sizes_of_segment[1],
            sizes[2] + sizes_of_segment[2],
        )
        next_base = segments[index + 1].base_offset if index + 1 < len(segments) else end_offset
        if (
            groups
            and len(groups[-1]) < _MAX_SEGMENTS
            and all(size <= limit for size, limit in zip(merged, limits, strict=True))
            and (segment.size_bytes == 0 or next_base - 1 - groups[-1][0].base_offset <= MAX_RELATIVE_OFFSET)
        ):
            groups[-1].append(segment)
            sizes = merged
        else:
            groups.append([segment])
            sizes = sizes_of_segment
    return groups
