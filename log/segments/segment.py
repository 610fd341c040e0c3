"""Segment of a partition's log: a .log file of record batches with its indexes.

Index entries, lookups and the trimming of files on a roll follow Apache Kafka's rules, so that its tools accept all
files.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Protocol

from odradek.log.segments.index import IndexOffsetError, OffsetIndex, TimeIndex
from odradek.log.segments.segment_files import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    MAX_RELATIVE_OFFSET,
    SEGMENT_SUFFIXES,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    CorruptSegmentError,
    DeletedSegment,
    file_name,
    remove_segment_files,
)
from odradek.log.segments.segment_scan import BatchVisitor, SegmentScan, scan_segment
from odradek.log.segments.transaction_index import TransactionIndex
from odradek.log.storage.filesystem import File, FileSystem, Piece, is_disk_full
from odradek.protocol.batches.record_batch import (
    HEADER_START,
    LEAST_BATCH_LENGTH,
    LOG_OVERHEAD,
    NO_TIMESTAMP,
    RECORD_BATCH_OVERHEAD,
    BatchHeader,
    read_header,
)

logger = logging.getLogger(__name__)

_CHUNK_BYTES = 4096
_MAX_HINTS = 32
_MAX_LOGGED = 10
_MAX_INDEX_INTERVAL_BYTES = 64 << 10
"""Upper bound of index.interval.bytes, because a search reads the headers between two entries in the main thread.

Apache Kafka's tools accept entries at shorter distances than the configured one.
"""
_LONG_SCAN_BYTES = 1 << 20
_LONG_SCAN_INTERVALS = 64
_UNKNOWN = -2
_FAR_FUTURE = 1 << 62
_FAR_PAST = -(1 << 62)


class SegmentConfig(Protocol):
    """The topic properties that a segment depends on."""

    @property
    def index_interval_bytes(self) -> int: ...
    @property
    def segment_index_bytes(self) -> int: ...
    @property
    def preallocated_bytes(self) -> int: ...


class Segment:
    """One segment. Any method that accesses the disk may raise OSError.

    `size_bytes`: the size of the complete, appended batches. The .log file may be longer in three cases: with
    `preallocate` the active segment ends in zeros (a hole in a sparse file); after a truncation of the log or the
    refusal of several batches, until the next sync; and after an append that failed, if the file could not be
    truncated (`is_torn`).

    `roll_timestamp`: `first_timestamp` for a single comparison per append. It is far in the future while the segment is
    empty, and far in the past if `first_timestamp` is not read yet or is -1.

    `is_repaired`: an index was damaged and was rebuilt.

    `has_checked_batches`: this process appended all batches as leader, so that the largest timestamp in each header is
    that of the records.

    `hints`: the offsets that readers are likely to request next, with the position of the first batch whose last offset
    is at or above each. Sequential and tailing reads need no index lookup.
    """

    __slots__ = (
        "_bytes_since_entry",
        "_first_timestamp",
        "_fs",
        "_index_interval_bytes",
        "_is_extended",
        "_log_path",
        "_max_timestamp",
        "_offset_of_max_timestamp",
        "_preallocated_bytes",
        "_read_timestamp",
        "_ready",
        "base_offset",
        "created_ms",
        "directory",
        "file",
        "has_checked_batches",
        "hints",
        "indexes_full",
        "is_repaired",
        "is_torn",
        "offset_index",
        "roll_jitter_ms",
        "roll_timestamp",
        "size_bytes",
        "suffix",
        "time_index",
        "transaction_index",
    )

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        base_offset: int,
        config: SegmentConfig,
        *,
        now_ms: int,
        fresh: bool,
        roll_jitter_ms: int = 0,
        suffix: str = "",
    ) -> None:
        """Open a segment; create it if `fresh`, in which case it must not exist."""
        self._fs = fs
        self.directory = directory
        self.base_offset = base_offset
        self.suffix = suffix
        self.created_ms = now_ms
        self.roll_jitter_ms = roll_jitter_ms
        self._index_interval_bytes = min(config.index_interval_bytes, _MAX_INDEX_INTERVAL_BYTES)
        self._preallocated_bytes = config.preallocated_bytes
        self._is_extended = False
        index_bytes = config.segment_index_bytes
        self._log_path = self.path(LOG_SUFFIX)
        self.file: File = fs.open(self._log_path, create=fresh)
        self.size_bytes = 0 if fresh else self.file.size_bytes()
        self.offset_index = OffsetIndex(fs, self.path(INDEX_SUFFIX), base_offset, index_bytes, fresh=fresh)
        self.time_index = TimeIndex(fs, self.path(TIME_INDEX_SUFFIX), base_offset, index_bytes, fresh=fresh)
        self.transaction_index = TransactionIndex(fs, self.path(TRANSACTION_INDEX_SUFFIX))
        self.indexes_full = False
        self.is_torn = False
        self.is_repaired = False
        self.has_checked_batches = fresh
        # (largest timestamp of the records, size in bytes of the batches from which it was read)
        self._read_timestamp: tuple[int, int] | None = None
        self.hints: dict[int, int] = {}
        self._bytes_since_entry = 0
        self._ready = False
        self._first_timestamp = _UNKNOWN
        self.roll_timestamp = _FAR_FUTURE if fresh else _FAR_PAST
        self._max_timestamp = NO_TIMESTAMP if fresh else _UNKNOWN
        self._offset_of_max_timestamp = base_offset

    def path(self, suffix: str) -> str:
        return f"{self.directory}/{self.base_offset:020d}{suffix}{self.suffix}"

    def __repr__(self) -> str:
        return f"Segment({self.base_offset}, {self.size_bytes} bytes, {self.directory})"

    # Appending

    def append(self, pieces: Sequence[Piece], size_bytes: int, last_offset: int, max_timestamp: int) -> None:
        """Append one batch, given as pieces. If it raises, the segment is unchanged.

        The batch is written last: one that is refused was never complete in the file, so that a power loss, which may
        undo the truncation of the file, cannot restore it in place of the next one.
        """
        if not self._ready:
            self._make_ready()
        position = self.size_bytes
        bytes_since_entry = self._bytes_since_entry
        try:
            if max_timestamp > self._max_timestamp:
                self._max_timestamp = max_timestamp
                self._offset_of_max_timestamp = last_offset
            if bytes_since_entry > self._index_interval_bytes:
                self._add_entries(last_offset, position)
            self.file.write_pieces(position, pieces, size_bytes)
        except BaseException:
            self._undo(position, last_offset, bytes_since_entry)
            raise
        if position == 0:
            self._set_first_timestamp(max_timestamp)
        self._bytes_since_entry += size_bytes
        self.size_bytes = position + size_bytes

    def append_batches(self, pieces: Sequence[Piece], batches: Sequence[tuple[int, int, int]]) -> None:
        """Append several batches in one write; `batches` contains (size, last offset, max timestamp) of each.

        If it raises, the segment is unchanged, but of several batches the first ones may have been complete in the
        file. Therefore the start of the first one remains in the file until the sync before the next append
        (`LogState.sync_refused_batches`): after a kill, recovery finds and removes it, and that includes a sync.
        """
        if not self._ready:
            self._make_ready()
        start = position = self.size_bytes
        bytes_since_entry = self._bytes_since_entry
        try:
            for size_bytes, last_offset, max_timestamp in batches:
                if max_timestamp > self._max_timestamp:
                    self._max_timestamp = max_timestamp
                    self._offset_of_max_timestamp = last_offset
                if self._bytes_since_entry > self._index_interval_bytes:
                    self._add_entries(last_offset, position)
                self._bytes_since_entry += size_bytes
                position += size_bytes
            self.file.write_pieces(start, pieces, position - start)
        except BaseException:
            self._undo(start, batches[0][1], bytes_since_entry, LOG_OVERHEAD if len(batches) > 1 else 0)
            raise
        if start == 0:
            self._set_first_timestamp(batches[0][2])
        self.size_bytes = position

    def _make_ready(self) -> None:
        """Prepare for the first append: extend the file to its full size and load the values that appends need.

        The indexes create their files with their first entries: to create files takes longer than the append.
        """
        if self.size_bytes < self._preallocated_bytes:
            self._is_extended = True
            self.file.truncate(self._preallocated_bytes)
        self.offset_index.takes_appends = self.time_index.takes_appends = True
        _ = self.max_timestamp
        self.indexes_full = self.offset_index.is_full or self.time_index.is_full
        self._ready = True

    def _add_entries(self, last_offset: int, position: int) -> None:
        self.offset_index.append(last_offset, position)
        self.time_index.append_if_later(self._max_timestamp, self._offset_of_max_timestamp)
        self._bytes_since_entry = 0
        self.indexes_full = self.offset_index.is_full or self.time_index.is_full

    def _undo(
        self, size_bytes: int, first_lost_offset: int, bytes_since_entry: int, left_bytes: int = 0
    ) -> None:
        """Revert a failed append, except for the first `left_bytes` in the file.

        If that fails as well, recovery does it at the next start.
        """
        self._bytes_since_entry = bytes_since_entry
        try:
            self.file.truncate(min(size_bytes + left_bytes, self.file.size_bytes()) if left_bytes else size_bytes)
            self.offset_index.truncate_to(first_lost_offset)
            self.time_index.truncate_to(first_lost_offset)
            self.indexes_full = self.offset_index.is_full or self.time_index.is_full
            self._max_timestamp, self._offset_of_max_timestamp = self._find_max_timestamp()
        except OSError:
            self.is_torn = True

    # Reading

    def locate(self, offset: int, *, may_wait: bool = True) -> int:
        """Return the position of the first batch whose last offset is at or above `offset`; -1 if there is none.

        Raises ColdReadError if index or batches are on the disk only, unless it `may_wait` for the disk.
        """
        position = self.hints.get(offset)
        if position is not None:
            return position if position < self.size_bytes else -1
        floor = self.floor_position(offset, may_wait=may_wait)
        position = self._scan(offset, floor, may_wait=may_wait)
        end = position if position >= 0 else self.size_bytes
        if end - floor > _LONG_SCAN_BYTES and self._lacks_entries(floor, end):
            self._repair_once("entries are missing")
        return position

    def _lacks_entries(self, floor: int, end: int) -> bool:
        """Return whether two positions are so far apart that an index entry between them is missing."""
        allowed = _LONG_SCAN_INTERVALS * self._index_interval_bytes
        for position, header in self.headers(floor, end):
            if position == floor:
                allowed += header.size_bytes
            elif position - floor > allowed:
                return True
        return False

    def floor_position(self, offset: int, *, may_wait: bool = True) -> int:
        """Return the position where a search for `offset` starts: all batches before it end below `offset`.

        The index entry is compared with the batch it points to, so that a damaged index is detected and rebuilt.
        Raises ColdReadError unless it `may_wait` for the disk.
        """
        position = self.offset_index.floor_position(offset, may_wait=may_wait)
        if position == 0 or self._is_floor(position, offset, may_wait=may_wait):
            return position
        self._repair_once(f"the entry for offset {offset} points to position {position}, where no such batch starts")
        position = self.offset_index.floor_position(offset)
        return position if self._is_floor(position, offset) else 0

    def _is_floor(self, position: int, offset: int, *, may_wait: bool = True) -> bool:
        if not 0 <= position <= self.size_bytes - RECORD_BATCH_OVERHEAD:
            return False
        head = self._pread(may_wait)(position, HEADER_START.size)
        if len(head) < HEADER_START.size:
            return False
        base_offset, length, _, magic, _, _, last_delta = HEADER_START.unpack(head)
        size_bytes = LOG_OVERHEAD + length
        is_floor: bool = (
            magic == 2
            and size_bytes >= RECORD_BATCH_OVERHEAD
            and position + size_bytes <= self.size_bytes
            and self.base_offset <= base_offset <= base_offset + last_delta <= offset
        )
        return is_floor

    def offset_above_position(self, position: int, *, may_wait: bool = True) -> int | None:
        """Return the offset of the first index entry at or after `position`; None if there is none.

        Raises ColdReadError unless it `may_wait` for the disk.
        """
        entry = self.offset_index.entry_above_position(position, may_wait=may_wait)
        if entry is None or not self._is_floor(entry[1], entry[0], may_wait=may_wait):
            return None
        return entry[0]

    def _repair_once(self, why: str) -> None:
        """Rebuild offset and time index from the headers of the batches.

        After a damaged header the position of the next batch is unknown. The rebuild then continues at the next old
        entry that points to a batch, so that later batches stay readable.
        """
        if self.is_repaired:
            return
        # Read first: if this fails for lack of a descriptor, nothing has changed, and a later lookup tries again.
        old_entries = OffsetIndex.entry.iter_unpack(self.offset_index.encode_entries())
        self.is_repaired = True
        logger.warning("index is damaged and is rebuilt file=%s why=%s", self.offset_index.path, why)
        self.offset_index.reset()
        self.time_index.reset()
        self.hints.clear()
        self._max_timestamp, self._offset_of_max_timestamp = NO_TIMESTAMP, self.base_offset
        self._bytes_since_entry = 0
        damaged_at = []
        position: int | None = 0
        while position is not None:
            last, end = self._index_batches(position)
            position = None
            if end < self.size_bytes:
                damaged_at.append(end)
                # The search starts at the last batch: if its length is wrong, batches were skipped.
                position = self._next_floor(old_entries, last)
        self._ready = False
        with suppress(IndexOffsetError):
            self.time_index.append_if_later(self._max_timestamp, self._offset_of_max_timestamp)
        self.time_index.trim()
        self.offset_index.trim()
        if damaged_at:
            positions = ",".join(map(str, damaged_at[:_MAX_LOGGED]))
            logger.error(
                "segment is damaged, records are lost: no batch at positions=%s damaged_ranges=%d file=%s",
                positions,
                len(damaged_at),
                self.path(LOG_SUFFIX),
            )

    def _index_batches(self, start: int) -> tuple[int, int]:
        """Add entries for the batches from `start` up to the first damage; return start and end of the last batch."""
        last = end = start
        with suppress(IndexOffsetError):
            for position, header in self.headers(start):
                first, last_relative = header.base_offset - self.base_offset, header.last_offset - self.base_offset
                if header.magic != 2 or not 0 <= first <= last_relative <= MAX_RELATIVE_OFFSET:
                    break
                last = position
                if header.max_timestamp > self._max_timestamp:
                    self._max_timestamp, self._offset_of_max_timestamp = header.max_timestamp, header.last_offset
                # A scan cannot cross the damage, so the first batch after it needs an entry.
                if self._bytes_since_entry > self._index_interval_bytes or position == start > 0:
                    self._add_entries(header.last_offset, position)
                self._bytes_since_entry += header.size_bytes
                end = position + header.size_bytes
        return last, end

    def _next_floor(self, entries: Iterator[tuple[int, ...]], after: int) -> int | None:
        """Return the position of the next entry that points to a batch after position `after` and after all entries."""
        last_offset = self.offset_index.last_offset
        for relative, position in entries:
            offset = self.base_offset + relative
            if position > after and offset > last_offset and self._is_floor(position, offset):
                return position
        return None

    def add_hint(self, offset: int, position: int) -> None:
        """Record the position of the first batch, present or future, whose last offset is at or above `offset`."""
        hints = self.hints
        if len(hints) >= _MAX_HINTS:
            del hints[next(iter(hints))]
        hints[offset] = position

    def move_hint(self, offset: int, next_offset: int, position: int) -> None:
        """Replace the hint for `offset`, which a reader has used, by one for `next_offset` at `position`.

        Otherwise a reader of many batches would evict the hints of other readers.
        """
        self.hints.pop(offset, None)
        self.add_hint(next_offset, position)

    def _pread(self, may_wait: bool) -> Callable[[int, int], bytes | bytearray]:
        return self.file.pread if may_wait else self.file.pread_cached

    def _scan(self, offset: int, position: int, *, may_wait: bool) -> int:
        unpack_from, head_bytes = HEADER_START.unpack_from, HEADER_START.size
        end, pread = self.size_bytes, self._pread(may_wait)
        chunk: bytes | bytearray = b""
        chunk_start = position
        while position + head_bytes <= end:
            at = position - chunk_start
            if at + head_bytes > len(chunk):
                chunk, chunk_start, at = pread(position, _CHUNK_BYTES), position, 0
                if len(chunk) < head_bytes:
                    break
            base_offset, length, _, _, _, _, last_delta = unpack_from(chunk, at)
            if base_offset + last_delta >= offset:
                return position
            if length < LEAST_BATCH_LENGTH:
                raise CorruptSegmentError(f"{self.path(LOG_SUFFIX)}: no batch at position {position}")
            position += LOG_OVERHEAD + length
        return -1

    def batch_at(self, position: int, *, may_wait: bool = True) -> tuple[int, int]:
        """Return size and last offset of the batch at `position`, from its header.

        Raises CorruptSegmentError, and ColdReadError unless it `may_wait` for the disk.
        """
        head = self._pread(may_wait)(position, HEADER_START.size)
        if len(head) < HEADER_START.size:
            raise CorruptSegmentError(f"{self.path(LOG_SUFFIX)} ends before position {position + HEADER_START.size}")
        base_offset, length, _, _, _, _, last_delta = HEADER_START.unpack(head)
        if length < LEAST_BATCH_LENGTH or position + LOG_OVERHEAD + length > self.size_bytes:
            raise CorruptSegmentError(f"{self.path(LOG_SUFFIX)}: no complete batch at position {position}")
        return LOG_OVERHEAD + length, base_offset + last_delta

    def headers(self, position: int = 0, end: int | None = None) -> Iterator[tuple[int, BatchHeader]]:
        """Yield (position, header) of each complete batch from `position`, where a batch must start, up to `end`."""
        end = self.size_bytes if end is None else end
        chunk, chunk_start = b"", position
        while position + RECORD_BATCH_OVERHEAD <= end:
            at = position - chunk_start
            if at + RECORD_BATCH_OVERHEAD > len(chunk):
                chunk, chunk_start, at = self.file.pread(position, _CHUNK_BYTES), position, 0
                if len(chunk) < RECORD_BATCH_OVERHEAD:
                    return
            header = read_header(chunk, at)
            if header.batch_length < LEAST_BATCH_LENGTH or position + header.size_bytes > end:
                return
            yield position, header
            position += header.size_bytes

    def next_offset(self) -> int:
        """Return the offset after the last batch, by a scan from the last index entry."""
        return self.find_end()[0]

    def find_end(self) -> tuple[int, int]:
        """Return the offset and the position after the last batch, by a scan from the last index entry."""
        offset, end = self.base_offset, 0
        for position, header in self.headers(self.floor_position(self.offset_index.last_offset)):
            offset, end = header.last_offset + 1, position + header.size_bytes
        return offset, end

    # Timestamps

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp in the segment's headers; -1 if there is none. After a load, from the time index."""
        if self._max_timestamp == _UNKNOWN:
            flaw = self._time_index_flaw()
            if flaw is not None:
                self._repair_once(flaw)
            if self._max_timestamp == _UNKNOWN:
                self._max_timestamp, self._offset_of_max_timestamp = self.time_index.last_entry
        return self._max_timestamp

    def _time_index_flaw(self) -> str | None:
        """Describe the flaw at the end of the time index (a wrong or a missing entry); None if there is none."""
        if self.size_bytes == 0:
            return None
        entry = self.time_index.last_entry if self.time_index.count else None
        if entry is not None and not self._has_max_timestamp(*entry):
            return f"no batch has the last time index entry, timestamp {entry[0]} at offset {entry[1]}"
        latest = entry[0] if entry is not None else NO_TIMESTAMP
        for _, header in self.headers(self.floor_position(self.offset_index.last_offset)):
            is_missing = header.max_timestamp > latest
            return f"timestamp {header.max_timestamp} is missing in the time index" if is_missing else None
        return None

    def _has_max_timestamp(self, timestamp: int, offset: int) -> bool:
        """Return whether `timestamp` is the largest one of the batch that contains `offset`."""
        try:
            position = self.locate(offset)
        except CorruptSegmentError:
            return False
        for _, header in self.headers(position) if position >= 0 else ():
            return header.max_timestamp == timestamp and header.base_offset <= offset
        return False

    def time_floor(self, timestamp: int) -> int:
        """Return the offset where a search for `timestamp` starts: all batches before it have lower timestamps."""
        entry = self.time_index.floor_entry(timestamp)
        if entry is not None and not self._has_max_timestamp(*entry):
            self._repair_once(f"no batch has the time index entry, timestamp {entry[0]} at offset {entry[1]}")
            entry = self.time_index.floor_entry(timestamp)
        return self.base_offset if entry is None else entry[1]

    @property
    def offset_of_max_timestamp(self) -> int:
        """The last offset of the first batch with `max_timestamp`."""
        _ = self.max_timestamp
        return self._offset_of_max_timestamp

    @property
    def largest_timestamp_ms(self) -> int:
        """`max_timestamp`, or the file's modification time if no record has a timestamp."""
        return self.max_timestamp if self.max_timestamp >= 0 else self.modified_ms

    @property
    def modified_ms(self) -> int:
        """Modification time of the .log file."""
        return self._fs.modified_ms(self._log_path)

    def set_read_timestamp(self, largest: int, size_bytes: int) -> None:
        """Record the largest timestamp of the records in the first `size_bytes`; -1 if none has one."""
        self._read_timestamp = largest, size_bytes

    @property
    def verified_timestamp_ms(self) -> int | None:
        """`largest_timestamp_ms` from the records; None if the headers were not compared with the records."""
        if self.has_checked_batches:
            return self.largest_timestamp_ms
        if self._read_timestamp is None or self._read_timestamp[1] != self.size_bytes:
            return None
        largest = self._read_timestamp[0]
        return largest if largest >= 0 else self.modified_ms

    def _set_first_timestamp(self, timestamp: int) -> None:
        self._first_timestamp = max(NO_TIMESTAMP, timestamp)
        self.roll_timestamp = timestamp if timestamp >= 0 else _FAR_PAST

    @property
    def first_timestamp(self) -> int:
        """The first batch's max timestamp, where the segment's age starts; -1 if there is no batch or no timestamp."""
        if self._first_timestamp == _UNKNOWN:
            if self.size_bytes == 0:
                return NO_TIMESTAMP
            for _, header in self.headers():
                self._set_first_timestamp(header.max_timestamp)
                break
            else:
                return NO_TIMESTAMP
        return self._first_timestamp

    def _find_max_timestamp(self) -> tuple[int, int]:
        """Return (timestamp, offset) of the last time index entry, or of a later batch with a larger timestamp.

        The last time index entry is the largest timestamp up to the batch of the last offset index entry.
        """
        timestamp, offset = self.time_index.last_entry
        for _, header in self.headers(self.floor_position(self.offset_index.last_offset)):
            if header.max_timestamp > timestamp:
                timestamp, offset = header.max_timestamp, header.last_offset
        return timestamp, offset

    @property
    def is_sealed(self) -> bool:
        """Return whether the files contain exactly the appended batches: none is preallocated, torn or repaired."""
        return not (
            self._is_extended
            or self.is_torn
            or self.is_repaired
            or self.offset_index.takes_appends
            or self.time_index.takes_appends
        )

    # Changing

    def truncate_to(self, offset: int, now_ms: int) -> None:
        """Remove every batch that ends at or above `offset`, and its index entries. The .log file remains as it is."""
        position = self.locate(offset)
        self.offset_index.truncate_to(offset)
        self.time_index.truncate_to(offset)
        self.transaction_index.truncate_to(offset)
        if position >= 0:
            self.size_bytes = position
        if self.size_bytes == 0:
            self.created_ms = now_ms
            self._first_timestamp = _UNKNOWN
            self.roll_timestamp = _FAR_FUTURE
        self.hints.clear()
        self._bytes_since_entry = 0
        self._ready = False
        self._read_timestamp = None
        self._max_timestamp, self._offset_of_max_timestamp = self._find_max_timestamp()

    def rebuild(self, limit_offset: int, latest_epoch: int, visit: BatchVisitor, end_position: int) -> SegmentScan:
        """Check every batch before `end_position`, rebuild the indexes, and truncate the file at the first bad byte.

        Parameters and exceptions are those of `scan_segment`.
        """
        self.offset_index.reset()
        self.time_index.reset()
        self.transaction_index.reset()
        self.hints.clear()
        scan = scan_segment(self, self._index_interval_bytes, limit_offset, latest_epoch, visit, end_position)
        self.offset_index.fill(scan.offset_entries)
        self.time_index.fill(scan.time_entries)
        self._max_timestamp, self._offset_of_max_timestamp = scan.max_timestamp, scan.offset_of_max_timestamp
        self._first_timestamp = _UNKNOWN
        self.roll_timestamp = _FAR_PAST
        self._bytes_since_entry = 0
        if scan.size_bytes < self.size_bytes:
            self.file.truncate(scan.size_bytes)
            self.size_bytes = scan.size_bytes
        self.seal()
        return scan

    def seal(self) -> None:
        """End appends to the segment: add the last time index entry and trim the files."""
        if self._is_extended:
            self.file.truncate(self.size_bytes)
            self._is_extended = False
        self.time_index.append_if_later(self.max_timestamp, self._offset_of_max_timestamp)
        self.transaction_index.write_pending()
        self.time_index.trim()
        # Last: if the offset index exists, the other indexes are complete.
        self.offset_index.trim()
        self._ready = False

    def write_pending(self) -> None:
        """Write buffered index entries to the files, unsynced."""
        self.offset_index.write_pending()
        self.time_index.write_pending()

    def move(self, directory: str) -> None:
        """Update all paths after a rename of the directory."""
        self.directory = directory
        for kind in SEGMENT_SUFFIXES:
            self._update_path(kind)

    def rename(self, suffix: str) -> None:
        """Change the suffix of all file names, such as ".deleted"; the .log file first.

        If it raises, the files that are renamed already are used with their new names, and the call can be repeated.
        """
        before, old = self.suffix, [self.path(kind) for kind in SEGMENT_SUFFIXES]
        self.suffix = suffix
        try:
            for kind, path in zip(SEGMENT_SUFFIXES, old, strict=True):
                with suppress(FileNotFoundError):
                    self._fs.rename(path, self.path(kind))
                self._update_path(kind)
        except OSError:
            self.suffix = before
            raise

    def _update_path(self, kind: str) -> None:
        path = self.path(kind)
        if kind == LOG_SUFFIX:
            self._log_path = path
        elif kind == INDEX_SUFFIX:
            self.offset_index.path = path
        elif kind == TIME_INDEX_SUFFIX:
            self.time_index.path = path
        else:
            self.transaction_index.path = path

    def mark_deleted(self) -> DeletedSegment:
        """Add the suffix .deleted to the file names. The next start removes files that still exist."""
        try:
            self.rename(DELETED_SUFFIX)
        except OSError as error:
            if not is_disk_full(error):
                raise
            # A full disk may have no space for the longer names, so the files are removed instead.
            for suffix in ("", DELETED_SUFFIX):
                remove_segment_files(self._fs, self.directory, self.base_offset, suffix)
        names = tuple(file_name(self.base_offset, kind) + DELETED_SUFFIX for kind in SEGMENT_SUFFIXES)
        return DeletedSegment(self.base_offset, self.size_bytes, names)
