"""Comparison of a transaction index with the batches that its entries point to.

Kafka's format has no checksum, and with a wrong entry consumers would read aborted records. The check reads two or
three batches per entry, so that its duration does not depend on the size of the log.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from odradek.log.segments.segment import Segment
from odradek.log.segments.segment_files import CorruptSegmentError
from odradek.log.segments.transaction_index import AbortedTransaction, CorruptTransactionIndexError
from odradek.protocol.batches.record_batch import BatchHeader


def check_transaction_index(
    segment: Segment, segments: Sequence[Segment], entries: Iterable[AbortedTransaction], complete_from: int
) -> None:
    """Raise CorruptTransactionIndexError for an entry without the batches that it requires; OSError.

    `segments` are the log's segments in order, up to and including `segment`. Batches below `complete_from` are not
    required, because compaction may have removed them; neither are those before the first segment.
    """
    bases = [each.base_offset for each in segments]
    complete_from = max(complete_from, bases[0])
    for entry in entries:
        marker = _batch_at(segment, entry.last_offset)
        is_valid = marker is not None and marker.is_control and marker.producer_id == entry.producer_id
        if is_valid and entry.first_offset >= complete_from:
            is_valid = _has_transactional_batch(segments, bases, entry.first_offset, entry.producer_id)
        stable = entry.last_stable_offset
        if is_valid and stable != entry.last_offset + 1 and stable >= complete_from:
            is_valid = stable <= entry.last_offset and _has_transactional_batch(segments, bases, stable)
        if not is_valid:
            raise CorruptTransactionIndexError(
                f"{segment.transaction_index.path}: the log has no batches that match {entry}"
            )


def _has_transactional_batch(
    segments: Sequence[Segment], bases: Sequence[int], offset: int, producer_id: int | None = None
) -> bool:
    """Return whether a transactional batch, of `producer_id` if given, starts at `offset`."""
    batch = _batch_at(segments[bisect_right(bases, offset) - 1], offset)
    if batch is None or batch.is_control or not batch.is_transactional:
        return False
    return producer_id is None or batch.producer_id == producer_id


def _batch_at(segment: Segment, offset: int) -> BatchHeader | None:
    """Return the header of the batch with base offset `offset`; None if there is none."""
    try:
        position = segment.locate(offset)
    except CorruptSegmentError:
        return None
    for _, header in segment.headers(max(position, 0)):
        return header if position >= 0 and header.base_offset == offset else None
    return None
