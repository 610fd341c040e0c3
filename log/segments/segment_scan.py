"""Segment scan, for recovery: checks every batch of a segment and computes the entries of its indexes.

The scan neither creates an object per batch nor copies a batch: 10 GB in batches of 16 KB take some 3 s of one core if
they are in the page cache. Only the reads release the interpreter's lock, so several threads shorten a scan that waits
for disks, not one that reads from the page cache.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from odradek.log.segments.index import OffsetIndex, TimeIndex
from odradek.log.segments.segment_files import MAX_RELATIVE_OFFSET
from odradek.log.storage.filesystem import ends_in_zeros
from odradek.protocol.batches.crc import crc32c
from odradek.protocol.batches.record_batch import (
    ATTRIBUTES_POSITION,
    BATCH_LENGTH,
    HEADER,
    LEAST_BATCH_LENGTH,
    LENGTH_POSITION,
    LOG_OVERHEAD,
    RECORD_BATCH_OVERHEAD,
    BatchHeader,
    crc_is_valid,
)

if TYPE_CHECKING:
    from odradek.log.segments.segment import Segment

_READ_BYTES: Final = 1 << 20
_pack_offset_entry = OffsetIndex.entry.pack
_pack_time_entry = TimeIndex.entry.pack


class SegmentScan:
    """Result of a scan up to the first bad byte.

    `size_bytes`, `batches`: size and number of the valid batches
    `flaw`: the flaw of what follows them; None if nothing follows, or only zeros
    `next_offset`: the offset after the last valid batch
    `misplaced`: position and expected base offset of the last valid batch, if the next batch shows that its base
    offset, which no checksum covers, is too large; otherwise None. At the log's end nothing shows it: gaps are valid
    `offset_entries`, `time_entries`: the sparse indexes, encoded, without the last time entry, which `seal` adds
    """

    __slots__ = (
        "batches", "flaw", "max_timestamp", "misplaced", "next_offset", "offset_entries", "offset_of_max_timestamp",
        "size_bytes", "time_entries",
    )  # fmt: skip

    def __init__(self, base_offset: int) -> None:
        self.size_bytes = 0
        self.batches = 0
        self.next_offset = base_offset
        self.flaw: str | None = None
        self.misplaced: tuple[int, int] | None = None
        self.offset_entries = bytearray()
        self.time_entries = bytearray()
        self.max_timestamp = -1
        self.offset_of_max_timestamp = base_offset


BatchVisitor = Callable[[tuple[int, ...], memoryview], None]


def scan_segment(
    segment: "Segment",
    index_interval_bytes: int,
    limit_offset: int,
    latest_epoch: int,
    visit: BatchVisitor,
    end_position: int,
) -> SegmentScan:
    """Read a segment from its start to `end_position`, or to its first bad byte.

    `limit_offset` is the next segment's base offset. `visit(header fields, batch)` is called, in order, for each batch
    with a new leader epoch, above `latest_epoch` and all earlier ones, and for each batch with a producer id; the batch
    is a view that is valid only during the call. Raises OSError and the exceptions of `visit`.
    """
    scan = SegmentScan(segment.base_offset)
    base = segment.base_offset
    end = end_position
    read_into = segment.file.read_into
    unpack = HEADER.unpack_from
    offset_entries, time_entries = scan.offset_entries, scan.time_entries
    next_offset, max_timestamp, max_at = base, -1, base
    since_entry = position = batches = 0
    gap: tuple[int, int] | None = None
    # The batch that follows `gap`: the offset after it, and the one if it continued the batch before the gap.
    gap_end = gapless_end = -1
    last_timestamp = -1
    limit_offset = min(limit_offset, base + MAX_RELATIVE_OFFSET + 1)
    buffer = bytearray(min(_READ_BYTES, max(end, 1)))
    view = memoryview(buffer)
    flaw = None
    while position < end and flaw is None:
        wanted = min(len(buffer), end - position)
        size = read_into(position, view[:wanted])
        if size < wanted:
            end = position + size
        at = 0
        while at + RECORD_BATCH_OVERHEAD <= size:
            fields = unpack(buffer, at)
            base_offset, length, epoch, magic, crc, _, last_delta, _, timestamp, producer_id, _, _, _ = fields
            after = at + LOG_OVERHEAD + length
            if after > size:
                break
            last_offset = base_offset + last_delta
            if length < LEAST_BATCH_LENGTH or magic != 2:
                break
            if not next_offset <= base_offset <= last_offset < limit_offset:
                break
            if crc32c(view[at + ATTRIBUTES_POSITION : after]) != crc:
                break
            if timestamp > max_timestamp:
                max_timestamp, max_at = timestamp, last_offset
            if since_entry > index_interval_bytes:
                offset_entries += _pack_offset_entry(last_offset - base, position + at)
                if max_timestamp > last_timestamp:
                    time_entries += _pack_time_entry(max_timestamp, max_at - base)
                    last_timestamp = max_timestamp
                since_entry = 0
            since_entry += after - at
            if epoch > latest_epoch or producer_id >= 0:
                visit(fields, view[at:after])
                if epoch > latest_epoch:
                    latest_epoch = epoch
            if base_offset != next_offset:
                gap, gap_end, gapless_end = (position + at, next_offset), last_offset + 1, next_offset + last_delta + 1
            next_offset = last_offset + 1
            batches += 1
            at = after
        position += at
        if position < end and at < size:
            needed = _bytes_needed(buffer, at, size, end - position)
            if needed <= size - at:
                if ends_in_zeros(segment.file, position):
                    # Preallocated space that was never trimmed.
                    break
                flaw = _flaw(view[at:size], next_offset, limit_offset, end - position)
                if gap_end == next_offset and _begins_between(view[at:size], gapless_end, gap_end):
                    scan.misplaced = gap
            elif needed > len(buffer):
                buffer = bytearray(needed)
                view = memoryview(buffer)
    scan.size_bytes, scan.batches, scan.next_offset, scan.flaw = position, batches, next_offset, flaw
    scan.max_timestamp, scan.offset_of_max_timestamp = max_timestamp, max_at
    return scan


def _begins_between(rest: memoryview, first_offset: int, end_offset: int) -> bool:
    """Return whether `rest` begins with a complete batch with a valid checksum and a base offset in this range."""
    if len(rest) < RECORD_BATCH_OVERHEAD:
        return False
    header = BatchHeader._make(HEADER.unpack_from(rest))
    return (
        first_offset <= header.base_offset < end_offset
        and LEAST_BATCH_LENGTH <= header.batch_length <= len(rest) - LOG_OVERHEAD
        and crc_is_valid(rest[: header.size_bytes])
    )


def _bytes_needed(buffer: bytearray, at: int, size: int, left: int) -> int:
    """Return the number of bytes that a check at `at` needs: a header or a complete batch, at most `left`."""
    if size - at < RECORD_BATCH_OVERHEAD:
        return min(RECORD_BATCH_OVERHEAD, left)
    length: int = BATCH_LENGTH.unpack_from(buffer, at + LENGTH_POSITION)[0]
    needed = LOG_OVERHEAD + length
    return needed if RECORD_BATCH_OVERHEAD <= needed <= left else min(RECORD_BATCH_OVERHEAD, left)


def _flaw(rest: memoryview, next_offset: int, limit_offset: int, left: int) -> str:
    """Describe the flaw of the batch at the start of `rest`."""
    if len(rest) < RECORD_BATCH_OVERHEAD:
        return "a batch header is incomplete"
    header = BatchHeader._make(HEADER.unpack_from(rest))
    if header.size_bytes > left:
        return "a batch is incomplete, or its length is wrong"
    if header.batch_length < LEAST_BATCH_LENGTH:
        return f"a batch has length {header.batch_length}"
    if header.magic != 2:
        return f"a batch has magic {header.magic}"
    if not next_offset <= header.base_offset <= header.last_offset < limit_offset:
        return f"a batch has offsets {header.base_offset} to {header.last_offset}, expected from {next_offset} on"
    return "a batch does not match its checksum"
