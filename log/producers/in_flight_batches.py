"""The last batches of producers after a start, when they are read from the log's end, and after a truncation.

A snapshot has one batch of each producer (Kafka's format). A producer with several requests in flight when the broker
ended repeats them all; those before the last would be rejected as a gap in its sequence, and Kafka's Java client would
begin a new epoch (KIP-360) and write them a second time. Therefore the headers at the log's end are read again.
"""

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from typing import Final

from odradek.log.producers.entry import RETAINED_BATCHES, BatchMark, ProducerEntry
from odradek.log.producers.state import ProducerState
from odradek.log.segments.segment import Segment
from odradek.protocol.batches.record_batch import BatchHeader

REPEATED_WITHIN_MS: Final = 10 * 60_000
"""No producer repeats an older batch: delivery.timeout.ms is two minutes by default."""

_FIRST_WINDOW_BYTES: Final = 256 << 10
_LARGEST_WINDOW_BYTES: Final = 16 << 20
_MOST_BATCHES: Final = 4096
_NO_LIMIT: Final = 1 << 62
_PRODUCERS_PER_STEP: Final = 200


def restore_batches(state: ProducerState, segments: Sequence[Segment], now_ms: int) -> None:
    """Restore up to five batches of producers that wrote recently, from the log's end. Raises OSError.

    `segments` end at the end of `state`. Reads in growing windows: a few large batches are far from the end, many small
    ones near it.
    """
    window = _FIRST_WINDOW_BYTES
    producers = state.producers
    # Producers with their epochs.
    wanted: dict[int, int] = {}
    for producer_id in producers.written_since(now_ms - REPEATED_WITHIN_MS):
        entry = producers[producer_id]
        if _may_repeat_more(entry):
            wanted[producer_id] = entry.epoch
    while wanted:
        seen: dict[int, deque[BatchMark]] = {}
        count = 0
        for header in _last_headers(segments, window):
            count += 1
            if header.is_control or header.producer_epoch != wanted.get(header.producer_id):
                continue
            mark = BatchMark(
                header.last_sequence, header.last_offset, header.last_offset - header.base_offset, header.max_timestamp
            )
            seen.setdefault(header.producer_id, deque(maxlen=RETAINED_BATCHES)).append(mark)
        for producer_id, marks in seen.items():
            entry = producers[producer_id]
            if marks[-1].last_offset == entry.batches[-1].last_offset:
                entry.batches = list(marks)
            if not _may_repeat_more(entry):
                del wanted[producer_id]
        if window >= _LARGEST_WINDOW_BYTES or count > _MOST_BATCHES:
            return
        window *= 4


def keep_batches(earlier: ProducerState, state: ProducerState, now_ms: int) -> Generator[None, None, None]:
    """Add the batches of `state` before the end of `earlier`, to which the log is being truncated, in steps.

    Those that `earlier` has may be from a snapshot. Producers that wrote recently may repeat all batches in flight.
    """
    least_timestamp = now_ms - REPEATED_WITHIN_MS
    recent = [entry for entry in state.producers.recent.values() if entry.last_timestamp >= least_timestamp]
    for count, present in enumerate(recent, 1):
        entry = earlier.producers.get(present.producer_id)
        if entry is not None and entry.epoch == present.epoch and _may_repeat_more(entry):
            first_offset = entry.batches[0].first_offset
            kept = [*(mark for mark in present.batches if mark.last_offset < first_offset), *entry.batches]
            entry.batches = kept[-RETAINED_BATCHES:]
        if count % _PRODUCERS_PER_STEP == 0:
            yield


def _may_repeat_more(entry: ProducerEntry) -> bool:
    """Return whether the producer wrote batches before its first known one."""
    batches = entry.batches
    return 0 < len(batches) < RETAINED_BATCHES and batches[0].last_sequence > batches[0].offset_delta


def _last_headers(segments: Sequence[Segment], window: int) -> Iterator[BatchHeader]:
    """Headers of about the last `window` bytes of the log, in order; all of them if it is shorter."""
    first = len(segments)
    while first and window > 0:
        first -= 1
        window -= segments[first].size_bytes
    for number, segment in enumerate(segments[first:]):
        position = _position_after(segment, -window) if number == 0 and window < 0 else 0
        for _, header in segment.headers(position):
            yield header


def _position_after(segment: Segment, position: int) -> int:
    """Return the position of a batch shortly after `position`, or of the last one in the index."""
    offset = segment.offset_above_position(position)
    return segment.floor_position(_NO_LIMIT if offset is None else offset)
