"""Search for records by timestamp, for ListOffsets (KIP-79, KIP-734).

The searches are generators of steps (`streaming.Step`), because even a small batch may contain millions of records. A
segment that is deleted during a search stays readable until the search ends.
"""

from bisect import bisect_right
from collections.abc import Generator, Iterator
from operator import itemgetter
from typing import Final, NamedTuple

from odradek.log.segments.segment import Segment
from odradek.protocol.batches.record_batch import (
    NO_TIMESTAMP,
    RECORD_BATCH_OVERHEAD,
    BatchHeader,
    InvalidRecordError,
    wrap_int64,
)
from odradek.protocol.batches.record_chain import (
    MAX_DECOMPRESSED_BYTES,
    IncompleteRecordError,
    LargestDelta,
    follow_records,
)
from odradek.protocol.batches.record_shape import read_varint
from odradek.protocol.batches.record_stream import RecordStream
from odradek.protocol.batches.streaming import PIECE_BYTES, Step, StreamPiece, iter_decompressed

HEADERS_PER_STEP: Final = 256
"""A header takes about a microsecond."""
_SEGMENTS_PER_STEP: Final = 16
_READ_BYTES: Final = 256 * 1024
# A record takes about a microsecond, less if records are skipped together.
_RECORDS_PER_STEP: Final = 512


class TimestampOffset(NamedTuple):
    """A record's offset and timestamp (ms), and the leader epoch of its batch."""

    offset: int
    timestamp: int
    leader_epoch: int


def offset_for_timestamp(
    segments: list[Segment], timestamp: int, start_offset: int
) -> Generator[Step, None, TimestampOffset | None]:
    """Find the first record in offset order, from `start_offset` on, with a timestamp at or above `timestamp`.

    Raises OSError, InvalidRecordError, CompressionError.
    """
    next_offset: int | None = start_offset
    while next_offset is not None:
        # Found by offset, because segments may be deleted or compacted between two steps.
        index = max(0, bisect_right(segments, next_offset, key=_base_offset) - 1)
        segment = segments[index]
        following = segments[index + 1].base_offset if index + 1 < len(segments) else None
        if segment.largest_timestamp_ms >= timestamp:
            offset = max(segment.time_floor(timestamp), next_offset)
            for number, (position, header) in enumerate(segment.headers(segment.floor_position(offset)), 1):
                if number % HEADERS_PER_STEP == 0:
                    yield None
                if header.max_timestamp < timestamp or header.last_offset < next_offset:
                    continue
                record = yield from BatchSearch(segment, position, header).first_at_least(timestamp, next_offset)
                if record is not None:
                    return record
        next_offset = following
        yield None
    return None


def _base_offset(segment: Segment) -> int:
    return segment.base_offset


def offset_of_max_timestamp(segments: list[Segment]) -> Generator[Step, None, TimestampOffset | None]:
    """Find the first record with the largest timestamp; the first record if no record has a timestamp.

    If no record of the batch has the largest timestamp in its header, the latest record of the batch is returned.
    Raises OSError, InvalidRecordError, CompressionError.
    """
    latest: list[tuple[int, Segment]] = []
    for number, segment in enumerate(tuple(segments), 1):
        if segment in segments:
            latest.append((segment.max_timestamp, segment))
        if number % _SEGMENTS_PER_STEP == 0:
            yield None
    latest.sort(key=itemgetter(0), reverse=True)
    for _, segment in latest:
        if segment not in segments:
            continue
        max_timestamp = segment.max_timestamp
        floor = segment.floor_position(segment.offset_of_max_timestamp)
        for number, (position, header) in enumerate(segment.headers(floor), 1):
            if number % HEADERS_PER_STEP == 0:
                yield None
            if header.max_timestamp == max_timestamp:
                record = yield from BatchSearch(segment, position, header).latest()
                # Compaction leaves batches without records.
                if record is not None:
                    return record
        yield None
    return None


class BatchSearch:
    """Searches for a record in one batch, in steps."""

    __slots__ = ("_header", "_position", "_segment")

    def __init__(self, segment: Segment, position: int, header: BatchHeader) -> None:
        self._segment = segment
        self._position = position
        self._header = header

    def first_at_least(self, timestamp: int, start_offset: int) -> Generator[Step, None, TimestampOffset | None]:
        """Find the first record at or above `timestamp` and `start_offset`; only this record is parsed completely."""
        header = self._header
        wanted_delta = timestamp - header.base_timestamp
        may_skip = wanted_delta > 0 and header.base_timestamp >= NO_TIMESTAMP and not header.is_log_append_time
        stream = RecordStream((yield from self._pieces()))
        remaining = header.record_count
        while remaining > 0:
            yield from stream.fill_deltas()
            count = min(remaining, _RECORDS_PER_STEP)
            skipped = _skip_below(stream, count, wanted_delta) if may_skip else 0
            remaining -= skipped
            if not skipped:
                for _ in range(count):
                    position = stream.position
                    record_timestamp, offset = self._read(stream)
                    if record_timestamp >= timestamp and offset >= start_offset:
                        stream.position = position
                        yield from stream.read_record()
                        return TimestampOffset(offset, record_timestamp, header.partition_leader_epoch)
                    remaining -= 1
                    if stream.lacks_deltas:
                        break
            yield None
        yield from stream.expect_end()
        return None

    def latest(self) -> Generator[Step, None, TimestampOffset | None]:
        """Find the first record with the largest timestamp, at least -1; None if there is none."""
        header = self._header
        record = yield from self.first_at_least(header.max_timestamp, header.base_offset)
        if record is not None and record.timestamp == header.max_timestamp:
            return record
        return (yield from self._latest_by_each_record())

    def largest_timestamp(self) -> Generator[Step, None, int]:
        """Return the largest timestamp of the records, independent of the one in the header; -1 if none has one."""
        header = self._header
        if header.base_timestamp >= NO_TIMESTAMP:
            for expected in (max(0, header.max_timestamp - header.base_timestamp), 0):
                largest = LargestDelta(expected)
                stream = RecordStream((yield from self._pieces()))
                yield from stream.follow(header.record_count, largest)
                yield from stream.expect_end()
                if largest.value is not None:
                    return header.base_timestamp + largest.value
        latest = yield from self._latest_by_each_record()
        return NO_TIMESTAMP if latest is None else latest.timestamp

    def _latest_by_each_record(self) -> Generator[Step, None, TimestampOffset | None]:
        """Find the first record with the largest timestamp by reading all records."""
        header = self._header
        latest, latest_offset = NO_TIMESTAMP - 1, -1
        stream = RecordStream((yield from self._pieces()))
        for index in range(header.record_count):
            if index % _RECORDS_PER_STEP == 0 or stream.lacks_deltas:
                yield from stream.fill_deltas()
                yield None
            timestamp, offset = self._read(stream)
            if timestamp > latest:
                latest, latest_offset = timestamp, offset
        if latest < NO_TIMESTAMP:
            return None
        return TimestampOffset(latest_offset, latest, header.partition_leader_epoch)

    def _pieces(self) -> Generator[Step, None, Iterator[StreamPiece]]:
        """Read and decompress the batch's records in pieces."""
        header, pread = self._header, self._segment.file.pread
        start, end = self._position + RECORD_BATCH_OVERHEAD, self._position + header.size_bytes
        if not header.codec:
            return (pread(at, min(PIECE_BYTES, end - at)) for at in range(start, end, PIECE_BYTES))
        payload = bytearray()
        for at in range(start, end, _READ_BYTES):
            payload += pread(at, min(_READ_BYTES, end - at))
            yield None
        return iter_decompressed(header.codec, payload, MAX_DECOMPRESSED_BYTES)

    def _read(self, stream: RecordStream) -> tuple[int, int]:
        """Return timestamp and offset of the next record."""
        header, window = self._header, stream.window
        try:
            length, at = read_varint(window, stream.position)
            timestamp_delta, delta_at = read_varint(window, at + 1)
            offset_delta = read_varint(window, delta_at)[0]
        except IndexError:
            raise InvalidRecordError(f"record at byte {stream.read_bytes} is incomplete") from None
        if length < 0:
            raise InvalidRecordError(f"record at byte {stream.read_bytes} has negative length {length}")
        stream.position = at + length
        if header.is_log_append_time:
            timestamp = header.max_timestamp
        else:
            timestamp = wrap_int64(header.base_timestamp + timestamp_delta)
        return timestamp, wrap_int64(header.base_offset + offset_delta)


def _skip_below(stream: RecordStream, count: int, wanted_delta: int) -> int:
    """Skip up to `count` records if all have timestamp deltas below `wanted_delta`; return how many were skipped."""
    largest = LargestDelta(wanted_delta)
    try:
        position = follow_records(stream.window, stream.position, count, largest)
    except IncompleteRecordError as error:
        position = error.position
        count -= error.remaining
    if largest.is_reached or largest.is_unknown:
        return 0
    stream.position = position
    return count
