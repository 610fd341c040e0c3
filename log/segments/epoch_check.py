"""Comparison of leader-epoch-checkpoint with the batches that its entries point to.

Kafka's format has no checksum, and with a wrong entry followers and consumers would truncate valid records. The check
reads two batches per entry, so that its duration does not depend on the size of the log.
"""

from bisect import bisect_right
from collections.abc import Sequence

from odradek.log.segments.segment import Segment
from odradek.log.segments.segment_files import CorruptSegmentError
from odradek.protocol.batches.record_batch import BatchHeader

_MAX_OFFSET = 1 << 63


def find_wrong_epoch(entries: Sequence[tuple[int, int]], segments: Sequence[Segment]) -> int | None:
    """Return the index of the first (epoch, start offset) that contradicts the batches at its start; None if none does.

    The batches before a start have the preceding epoch, those from there on this one. Compaction may have removed all
    batches of an epoch. Batches without an epoch are ignored. `segments` is not empty. Raises OSError.
    """
    bases = [segment.base_offset for segment in segments]
    end_offset = segments[-1].next_offset()
    for index, (epoch, start_offset) in enumerate(entries):
        next_start = entries[index + 1][1] if index + 1 < len(entries) else _MAX_OFFSET
        first = _batch_from(segments, bases, start_offset)
        if first is not None and first.base_offset < next_start and 0 <= first.partition_leader_epoch != epoch:
            return index
        if index > 0:
            previous_epoch, previous_start = entries[index - 1]
            last = _batch_from(segments, bases, min(start_offset, end_offset) - 1)
            is_last = last is not None and previous_start <= last.base_offset < start_offset
            if last is not None and is_last and 0 <= last.partition_leader_epoch != previous_epoch:
                return index
    return None


def _batch_from(segments: Sequence[Segment], bases: Sequence[int], offset: int) -> BatchHeader | None:
    """Return the header of the first batch that ends at or after `offset`, in the segment of that offset, or None."""
    segment = segments[max(bisect_right(bases, offset) - 1, 0)]
    try:
        position = segment.locate(offset)
    except CorruptSegmentError:
        return None
    if position < 0:
        return None
    return next((header for _, header in segment.headers(position)), None)
