"""Restoration of the last batches of producers, after a start and after a truncation.

A snapshot has one batch of each producer (Kafka's format). A producer with several requests in flight at the end of the
broker repeats them all. Without their metadata, those before the last would be rejected as out of sequence, and Kafka's
Java client would begin a new epoch (KIP-360) and write them a second time. Therefore a start reads the headers at the
log's end.
"""

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from typing import Final

from odradek.log.producers.entry import RETAINED_BATCHES, BatchMetadata, ProducerEntry
from odradek.log.producers.state import ProducerState
from odradek.log.segments.segment import Segment
from odradek.protocol.batches.record_batch import BatchHeader

REPEATED_WITHIN_MS: Final = 10 * 60_000
"""Batches older than this are not restored: producers repeat a batch for two minutes (delivery.timeout.ms)."""

_FIRST_WINDOW_BYTES: Final = 256 << 10
_MAX_WINDOW_BYTES: Final = 16 << 20
_MAX_HEADERS: Final = 4096
_ABOVE_ALL_OFFSETS: Final = 1 << 62
_PRODUCERS_PER_STEP: Final = 200


def restore_batches(state: ProducerState, segments: Sequence[Segment], now_ms: int) -> None:
    """Restore up to ten batches of producers that wrote recently, from the log's end. Raises OSError.

    `segments` end at the end of `state`. Reads in growing windows: the last ten batches of a producer begin far from
    the end if batches are large.
    """
    window_bytes = _FIRST_WINDOW_BYTES
    producers = state.producers
    # Producer id -> epoch.
    wanted: dict[int, int] = {}
    for producer_id in producers.written_since(now_ms - REPEATED_WITHIN_MS):
        entry = producers[producer_id]
        if _may_repeat_more(entry):
            wanted[producer_id] = entry.epoch
    while wanted:
        seen: dict[int, deque[BatchMetadata]] = {}
        count = 0
        for header in _last_headers(segments, window_bytes):
            count += 1
            if header.is_control or header.producer_epoch != wanted.get(header.producer_id):
                continue
            batch = BatchMetadata(
                header.last_sequence, header.last_offset, header.last_offset - header.base_offset, header.max_timestamp
            )
            seen.setdefault(header.producer_id, deque(maxlen=RETAINED_BATCHES)).append(batch)
        for producer_id, batches in seen.items():
            entry = producers[producer_id]
            if batches[-1].last_offset == entry.batches[-1].last_offset:
                entry.batches = list(batches)
            if not _may_repeat_more(entry):
                del wanted[producer_id]
        if window_bytes >= _MAX_WINDOW_BYTES or count > _MAX_HEADERS:
            return
        window_bytes *= 4


def keep_batches(earlier: ProducerState, state: ProducerState, now_ms: int) -> Generator[None, None, None]:
    """Add batches of `state` to `earlier`, the state at the offset to which the log is being truncated, in steps.

    `earlier` may have only one batch of a producer, from a snapshot. Producers that wrote recently may repeat all
    batches in flight.
    """
    least_timestamp = now_ms - REPEATED_WITHIN_MS
    recent = [entry for entry in state.producers.recent.values() if entry.last_timestamp >= least_timestamp]
    for count, present in enumerate(recent, 1):
        entry = earlier.producers.get(present.producer_id)
        if entry is not None and entry.epoch == present.epoch and _may_repeat_more(entry):
            first_offset = entry.batches[0].first_offset
            kept = [*(batch for batch in present.batches if batch.last_offset < first_offset), *entry.batches]
            entry.batches = kept[-RETAINED_BATCHES:]
        if count % _PRODUCERS_PER_STEP == 0:
            yield


def _may_repeat_more(entry: ProducerEntry) -> bool:
    """Return whether the producer may repeat a batch that is not in the entry, before its first one."""
    batches = entry.batches
    return 0 < len(batches) < RETAINED_BATCHES and batches[0].last_sequence > batches[0].offset_delta


def _last_headers(segments: Sequence[Segment], window_bytes: int) -> Iterator[BatchHeader]:
    """Yield the headers of about the last `window_bytes` of the log, in order; all headers if it is shorter."""
    first = len(segments)
    while first and window_bytes > 0:
        first -= 1
        window_bytes -= segments[first].size_bytes
    for number, segment in enumerate(segments[first:]):
        position = _position_after(segment, -window_bytes) if number == 0 and window_bytes < 0 else 0
        for _, header in segment.headers(position):
            yield header


def _position_after(segment: Segment, position: int) -> int:
    """Return the position of a batch shortly after `position`, or of the last one in the index."""
    offset = segment.offset_above_position(position)
    return segment.floor_position(_ABOVE_ALL_OFFSETS if offset is None else offset)
