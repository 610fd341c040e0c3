"""Comparison of a transaction index with the batches that it names.

Kafka's format has no checksum, and an entry that is wrong would have aborted records read. Two or three batches are
looked up for each entry, so that the check takes no longer for a longer log.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from odradek.log.segments.segment import Segment
from odradek.log.segments.segment_files import CorruptSegmentError
from odradek.log.segments.transaction_index import AbortedTransaction, CorruptTransactionIndexError
from odradek.protocol.batches.record_batch import BatchHeader


def check_transaction_index(
    segment: Segment, up_to_it: Sequence[Segment], entries: Iterable[AbortedTransaction], whole_from: int
) -> None:
    """Raises CorruptTransactionIndexError for an entry that no batches bear out; OSError.

    `up_to_it`: the log's segments, in order, `segment` the last of them. What lies before them, or before `whole_from`
    because it was compacted once, proves nothing.
    """
    bases = [each.base_offset for each in up_to_it]
    whole_from = max(whole_from, bases[0])
    for entry in entries:
        marker = _batch_at(segment, entry.last_offset)
        is_right = marker is not None and marker.is_control and marker.producer_id == entry.producer_id
        if is_right and entry.first_offset >= whole_from:
            is_right = _begins(up_to_it, bases, entry.first_offset, entry.producer_id)
        stable = entry.last_stable_offset
        if is_right and stable != entry.last_offset + 1 and stable >= whole_from:
            is_right = stable <= entry.last_offset and _begins(up_to_it, bases, stable)
        if not is_right:
            raise CorruptTransactionIndexError(f"{segment.transaction_index.path}: the log knows of no {entry}")


def _begins(segments: Sequence[Segment], bases: Sequence[int], offset: int, producer_id: int | None = None) -> bool:
    """Return whether a batch of a transaction, of that producer or of any, begins at an offset."""
    batch = _batch_at(segments[bisect_right(bases, offset) - 1], offset)
    if batch is None or batch.is_control or not batch.is_transactional:
        return False
    return producer_id is None or batch.producer_id == producer_id


def _batch_at(segment: Segment, offset: int) -> BatchHeader | None:
    """The batch whose first offset this is."""
    try:
        position = segment.locate(offset)
    except CorruptSegmentError:
        return None
    for _, header in segment.headers(max(position, 0)):
        return header if position >= 0 and header.base_offset == offset else None
    return None
