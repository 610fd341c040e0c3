"""Comparison of leader-epoch-checkpoint with the batches that its entries point to.

Kafka's format has no checksum, and with a wrong entry followers and consumers would truncate valid records. The check
reads the batches around the starts of the latest epochs, so that its duration depends neither on the size of the log
nor on the number of its epochs.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final

from odradek.log.segments.segment import Segment
from odradek.log.segments.segment_files import CorruptSegmentError
from odradek.protocol.batches.record_batch import BatchHeader

MAX_CHECKED: Final = 8
"""Most epochs that are checked, the latest ones. Each may need a read of a segment that a start does not read."""

_MAX_OFFSET: Final = 1 << 63


def find_wrong_epoch(entries: Sequence[tuple[int, int]], segments: Sequence[Segment]) -> int | None:
    """Return the index of the first checked (epoch, start offset) that contradicts the batches around its start.

    The batches before a start have the preceding epoch, those from there on this one. Compaction may have removed all
    batches of an epoch. Batches without an epoch are ignored. `segments` is not empty. Raises OSError.
    """
    bases = [segment.base_offset for segment in segments]
    end_offset = segments[-1].next_offset()
    for index in range(max(0, len(entries) - MAX_CHECKED), len(entries)):
        epoch, start_offset = entries[index]
        next_start = entries[index + 1][1] if index + 1 < len(entries) else _MAX_OFFSET
        previous_epoch, previous_start = entries[index - 1] if index else (-1, _MAX_OFFSET)
        for header in _batches_around(segments, bases, min(start_offset, end_offset)):
            found = header.partition_leader_epoch
            if start_offset <= header.last_offset:
                is_right = found == epoch or header.base_offset >= next_start
            else:
                is_right = found == previous_epoch or header.base_offset < previous_start
            if found >= 0 and not is_right:
                return index
    return None


def _batches_around(segments: Sequence[Segment], bases: Sequence[int], offset: int) -> Iterator[BatchHeader]:
    """Yield the last batch that begins before `offset`, and the one after it; fewer if a gap or the end is there."""
    number = max(bisect_right(bases, offset - 1) - 1, 0)
    count = 0
    for segment in segments[number : number + 2]:
        try:
            position = segment.locate(offset - 1)
        except CorruptSegmentError:
            return
        for _, header in segment.headers(position) if position >= 0 else ():
            yield header
            count += 1
            if count == 2 or header.last_offset >= offset:
                return
