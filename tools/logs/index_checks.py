"""Checks of a segment's offset index and time index against its batches, which pass by once, in order."""

from collections.abc import Iterator

from odradek.log.storage.filesystem import FileSystem
from odradek.tools.logs.findings import Report, Severity
from odradek.tools.logs.index_files import IndexFile, open_offset_index, open_time_index

REBUILD = "stop the broker, remove the segment's .index file and start the broker, which rebuilds the segment's indexes"
_OFFSET_REMEDY = f"lookups by offset may fail in Apache Kafka, Odradek repairs the index when it uses it: {REBUILD}"
_TIME_REMEDY = f"lookups by timestamp may skip records: {REBUILD}"
_MAX_UNINDEXED_BYTES = 16 << 20


class OffsetIndexCheck:
    """Check of a .index file.

    Each entry has to point to the start of a batch, and its offset has to be the last one of the batch. Followers of
    Apache Kafka up to 3.9 write the last offset of several batches that they append together, which does no harm: it is
    a note.
    """

    def __init__(
        self, fs: FileSystem, path: str, base_offset: int, report: Report, *, is_sealed: bool, may_grow: bool
    ) -> None:
        self._index: IndexFile = open_offset_index(fs, path, may_grow=may_grow)
        self._base_offset = base_offset
        self._report = report
        self._is_sealed = is_sealed
        self._entries = self._checked_entries()
        self._last_position = 0
        self._unindexed_bytes = 0
        self._offset = self._position = self._at = -1
        self._pending_offset = -1
        self._next()

    def _next(self) -> None:
        """Set offset and position of the next entry; -1 after the last one."""
        self._at, relative, self._position = next(self._entries, (-1, -1, -1))
        self._offset = self._base_offset + relative if self._at >= 0 else -1

    def _checked_entries(self) -> Iterator[tuple[int, int, int]]:
        """Yield the entries that ascend; report the others."""
        last_relative = last_position = -1
        for at, relative, position in self._index:
            if relative < 0 or position < 0 or relative <= last_relative or position <= last_position:
                self._error(at, f"the entry for offset {self._base_offset + relative} does not ascend")
                continue
            last_relative, last_position = relative, position
            yield at, relative, position

    def _error(self, at: int, problem: str) -> None:
        self._report.add(Severity.ERROR, "index", self._index.path, problem, _OFFSET_REMEDY, at)

    def add(self, position: int, size_bytes: int, base_offset: int, last_offset: int) -> None:
        """Compare the entry of a batch, if there is one."""
        self._unindexed_bytes += size_bytes
        if position < self._position or self._at < 0:
            return
        while self._at >= 0 and self._position < position:
            self._error(
                self._at, f"the entry for offset {self._offset} points to position {self._position}, inside of a batch"
            )
            self._next()
        if self._at < 0 or self._position != position:
            return
        if self._offset < last_offset:
            self._error(
                self._at,
                f"the entry for offset {self._offset} points to position {position}, where a batch ends at offset "
                f"{last_offset}",
            )
        elif self._offset > last_offset:
            self._pending_offset = self._offset
            self._report.add(
                Severity.NOTE,
                "index",
                self._index.path,
                f"the entry at position {position} has offset {self._offset}, its batch ends at {last_offset}",
                "nothing; followers of Apache Kafka up to 3.9 write such entries, and lookups work",
                self._at,
            )
        self._note_distance(size_bytes)
        self._next()

    def skip(self, end: int) -> None:
        """Ignore the entries up to position `end`, where batches follow damage."""
        while self._at >= 0 and self._position < end:
            self._next()

    def _note_distance(self, size_bytes: int) -> None:
        if self._unindexed_bytes - size_bytes > _MAX_UNINDEXED_BYTES:
            self._report.add(
                Severity.WARNING,
                "index",
                self._index.path,
                f"{self._unindexed_bytes} bytes of batches before this entry have no entry",
                "entries are missing, unless index.interval.bytes is that large; " + _OFFSET_REMEDY,
                max(self._at, 0),
            )
        self._unindexed_bytes = size_bytes

    def finish(self, end_offset: int, *, may_exceed: bool) -> None:
        """Check what remains after the last batch. `may_exceed`: entries behind it are no finding."""
        while self._at >= 0:
            if not may_exceed:
                problem = f"the entry for offset {self._offset} points to position {self._position}, behind the batches"
                self._error(self._at, problem)
            self._next()
        self._note_distance(0)
        if self._pending_offset >= end_offset:
            self._error(0, f"an entry has offset {self._pending_offset}, but the segment ends at {end_offset}")
        _check_size(self._index, self._report, _OFFSET_REMEDY, is_sealed=self._is_sealed)


class TimeIndexCheck:
    """Check of a .timeindex file.

    An entry is the largest timestamp so far and the last offset of the first batch that has it; older versions of
    Apache Kafka write the offset of the record. The last entry of a segment without further appends has the largest
    timestamp of the segment.
    """

    def __init__(
        self, fs: FileSystem, path: str, base_offset: int, report: Report, *, is_sealed: bool, may_grow: bool
    ) -> None:
        self._index = open_time_index(fs, path, may_grow=may_grow)
        self._base_offset = base_offset
        self._report = report
        self._is_sealed = is_sealed
        self._entries = self._checked_entries()
        self._largest = -1
        self._is_after_damage = False
        self._last_timestamp = -1
        self._at = self._timestamp = self._offset = -1
        self._next()

    def _next(self) -> None:
        self._last_timestamp = max(self._timestamp, self._last_timestamp)
        self._at, self._timestamp, relative = next(self._entries, (-1, -1, -1))
        self._offset = self._base_offset + relative if self._at >= 0 else -1

    def _checked_entries(self) -> Iterator[tuple[int, int, int]]:
        last_timestamp, last_relative = -1, -1
        for at, timestamp, relative in self._index:
            if timestamp <= last_timestamp or relative < last_relative:
                self._error(at, f"the entry with timestamp {timestamp} does not ascend")
                continue
            last_timestamp, last_relative = timestamp, relative
            yield at, timestamp, relative

    def _error(self, at: int, problem: str) -> None:
        self._report.add(Severity.ERROR, "time-index", self._index.path, problem, _TIME_REMEDY, at)

    def add(self, base_offset: int, last_offset: int, max_timestamp: int) -> None:
        """Compare the entry whose offset is in a batch, if there is one."""
        while self._at >= 0 and self._offset <= last_offset:
            if self._is_after_damage and self._offset < base_offset:
                self._next()
                continue
            if self._offset < base_offset or self._timestamp != max_timestamp:
                self._error(
                    self._at,
                    f"no batch has the entry with timestamp {self._timestamp} at offset {self._offset}: one has "
                    f"offsets {base_offset} to {last_offset} and timestamp {max_timestamp}",
                )
            elif self._largest >= self._timestamp:
                self._error(
                    self._at,
                    f"batches before the entry with timestamp {self._timestamp} at offset {self._offset} have "
                    f"timestamp {self._largest}",
                )
            self._next()
        self._largest = max(max_timestamp, self._largest)
        self._is_after_damage = False

    def skip(self) -> None:
        """Ignore the entries for batches that damage has destroyed."""
        self._is_after_damage = True

    def finish(self, *, may_exceed: bool) -> None:
        """Check what remains after the last batch. `may_exceed`: entries behind it are no finding."""
        while self._at >= 0:
            if not may_exceed:
                problem = f"the entry with timestamp {self._timestamp} has offset {self._offset}, behind the batches"
                self._error(self._at, problem)
            self._next()
        if self._is_sealed and self._largest > self._last_timestamp and not may_exceed:
            self._report.add(
                Severity.WARNING,
                "time-index",
                self._index.path,
                f"the largest timestamp of the segment is {self._largest}, that of the index {self._last_timestamp}",
                "retention by time may delete the segment too early; " + _TIME_REMEDY,
            )
        _check_size(self._index, self._report, _TIME_REMEDY, is_sealed=self._is_sealed)


def _check_size(index: IndexFile, report: Report, remedy: str, *, is_sealed: bool) -> None:
    if index.odd_bytes:
        at = index.size_bytes - index.odd_bytes
        problem = f"{index.odd_bytes} bytes at the end are no whole entry"
        report.add(Severity.WARNING, "index-size", index.path, problem, remedy, at)
    if index.trailing_zeros and is_sealed:
        at = index.size_bytes - index.trailing_zeros
        problem = f"the last {index.trailing_zeros} bytes are preallocated zeros, although the segment is complete"
        report.add(Severity.WARNING, "index-size", index.path, problem, remedy, at)
