"""Replay of batches into the state of their producers, after an append and when a log is loaded."""

import logging
from collections.abc import Generator
from typing import Final

from odradek.log.producers.in_flight_batches import keep_batches
from odradek.log.producers.state import ProducerState
from odradek.log.segments.segment import Segment
from odradek.log.segments.segment_files import CorruptSegmentError
from odradek.log.segments.transaction_index import AbortedTransaction
from odradek.protocol.batches.record_batch import BatchHeader

logger = logging.getLogger(__name__)

_BATCHES_PER_STEP: Final = 500
"""Number of headers that are read in 1 to 3 ms."""

_BYTES_PER_STEP: Final = 1_048_576
"""Bytes of a segment that a step passes: the headers of large batches may be on the disk only, each in another page."""


class MarkerFields:
    """The fields of a transaction marker's record."""

    __slots__ = ("coordinator_epoch", "is_abort", "timestamp")

    def __init__(self, coordinator_epoch: int, is_abort: bool, timestamp: int) -> None:
        self.coordinator_epoch = coordinator_epoch
        self.is_abort = is_abort
        self.timestamp = timestamp


def parse_marker(batch: memoryview) -> MarkerFields | None:
    """Return the marker in a control batch; None for an empty batch, and for another kind of control record."""
    from odradek.protocol.records import ControlType, iter_records, parse_control_record

    for record in iter_records(batch):
        control = parse_control_record(record)
        if control.coordinator_epoch is not None:
            return MarkerFields(control.coordinator_epoch, control.control_type == ControlType.ABORT, record.timestamp)
    return None


def add_batch(
    state: ProducerState,
    segment: Segment | None,
    header: BatchHeader,
    batch: memoryview | None,
    marker: MarkerFields | None = None,
) -> None:
    """Apply a batch of the log to the state. For a control batch `batch`, or the `marker` in it, is required.

    An aborted transaction goes into the transaction index of `segment`, unless that is None. Raises OSError.
    """
    if header.producer_id < 0:
        return
    if not header.is_control:
        state.add_data(
            header.producer_id,
            header.producer_epoch,
            header.last_sequence,
            header.base_offset,
            header.last_offset,
            header.max_timestamp,
            header.is_transactional,
        )
        return
    if marker is None and batch is not None:
        marker = parse_marker(batch)
    if marker is None:
        return
    completed = state.add_marker(
        header.producer_id,
        header.producer_epoch,
        marker.coordinator_epoch,
        header.base_offset,
        marker.timestamp,
        marker.is_abort,
    )
    if completed is None:
        return
    if completed.is_aborted and segment is not None:
        segment.transaction_index.append(
            AbortedTransaction(
                completed.producer_id,
                completed.first_offset,
                completed.last_offset,
                state.last_stable_offset_after(completed),
            )
        )
    state.complete(completed)


def rebuild(
    state: ProducerState,
    segments: list[Segment],
    log_start_offset: int,
    end_offset: int,
    now_ms: int,
    *,
    is_clean: bool,
) -> None:
    """Rebuild `state` at `end_offset`, from the newest snapshot and the batches after it.

    A clean stop leaves a snapshot; without any, the batches are read from the log's start. Raises OSError.
    """
    bases = [segment.base_offset for segment in segments]
    if state.latest_snapshot_offset is None and is_clean and end_offset > log_start_offset:
        logger.warning("reading producers from the batches, because there is no snapshot directory=%s", state.directory)
    elif state.latest_snapshot_offset is None and is_clean:
        for offset in [*bases[-2:], end_offset]:
            state.end_offset = offset
            state.take_snapshot_if_room(sync=True)
        return
    had_none = state.is_empty and state.end_offset >= end_offset
    state.truncate_and_reload(log_start_offset, end_offset, now_ms)
    if end_offset > state.end_offset and not had_none:
        for index, segment in enumerate(segments):
            is_before = index + 1 < len(segments) and bases[index + 1] <= state.end_offset
            if is_before or segment.base_offset >= end_offset:
                continue
            state.end_offset = max(segment.base_offset, state.end_offset, log_start_offset)
            if segment.base_offset in bases[-2:]:
                state.take_snapshot_if_room(sync=True)
            for _ in _replay(state, segment, state.end_offset, end_offset):
                pass
    state.end_offset = end_offset
    state.take_snapshot_if_room(sync=is_clean or end_offset in bases)


def find_earlier(
    state: ProducerState, segments: list[Segment], log_start_offset: int, end_offset: int, now_ms: int
) -> Generator[None, None, ProducerState]:
    """Return the producers at `end_offset`, an offset below the log's end, in steps; `state` remains as it is.

    They are read from the newest snapshot and the batches after it, except for the last batches of each producer that
    `state` has. Raises OSError.
    """
    earlier = state.load_earlier(log_start_offset, end_offset, now_ms)
    if not state.is_empty:
        kept = [segment for segment in segments if segment.base_offset < end_offset]
        ends = [*(segment.base_offset for segment in kept[1:]), end_offset]
        for segment, segment_end in zip(kept, ends, strict=False):
            start_offset = max(segment.base_offset, earlier.end_offset)
            if start_offset < segment_end:
                yield from _replay(earlier, segment, start_offset, end_offset)
        yield from keep_batches(earlier, state, now_ms)
    earlier.end_offset = end_offset
    return earlier


def _replay(
    state: ProducerState, segment: Segment, start_offset: int, end_offset: int
) -> Generator[None, None, None]:
    """Apply the batches of a segment from `start_offset` up to `end_offset` to the state, in steps.

    A truncation removes a batch that begins before its offset and ends after it.
    """
    try:
        position = segment.locate(start_offset)
    except CorruptSegmentError as error:
        logger.error("producers of damaged batches are not found: %s", error)
        return
    if position < 0:
        return
    begin = position
    for count, (at, header) in enumerate(segment.headers(position), 1):
        if header.last_offset >= end_offset:
            return
        if header.producer_id >= 0:
            batch = memoryview(segment.file.pread(at, header.size_bytes)) if header.is_control else None
            add_batch(state, None, header, batch)
        if count % _BATCHES_PER_STEP == 0 or at - begin >= _BYTES_PER_STEP:
            begin = at
            yield
