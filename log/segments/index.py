"""The sparse indexes of a segment: offset -> file position, and timestamp -> offset.

The files have Apache Kafka's format: fixed-size entries. The file of an active segment is preallocated: extended with
zeros to its full size (a hole, which uses no disk space), and truncated to its entries on roll and close. An index
neither keeps its file open nor maps it into memory. New entries are buffered, and the first ones that are written
create the file. A lookup reads one block of entries and caches it; a sequential reader's next lookup usually needs the
same block.
"""

import struct
import sys
from array import array
from bisect import bisect_right
from typing import Any, ClassVar

from odradek.log.storage.filesystem import (
    ColdReadError,
    File,
    FileSystem,
    is_exhausted,
    remove_if_exists,
    write_atomically,
)

_BLOCK_ENTRIES = 512
_PENDING_ENTRIES = 256


class IndexOffsetError(Exception):
    """An entry is not above the last one, or its offset is too far from the segment's base offset."""


class SparseIndex:
    """Base of both indexes: an append-only array of two-field entries, ascending in both fields.

    takes_appends: the file is preallocated when entries are written. `trim` ends this, and the segment begins it

    Any method that accesses the file may raise OSError.
    """

    entry: ClassVar[struct.Struct]

    __slots__ = (
        "_block",
        "_block_start",
        "_count",
        "_fs",
        "_is_preallocated",
        "_is_rebuilding",
        "_pending",
        "_written",
        "base_offset",
        "max_entries",
        "path",
        "takes_appends",
    )

    def __init__(self, fs: FileSystem, path: str, base_offset: int, max_bytes: int, *, fresh: bool) -> None:
        self._fs = fs
        self.path = path
        self.base_offset = base_offset
        self.max_entries = max_bytes // self.entry.size
        self._count = 0 if fresh else -1
        self._written = 0
        self._pending = bytearray()
        self._is_preallocated = False
        self.takes_appends = False
        self._is_rebuilding = False
        self._block = b""
        self._block_start = 0

    @property
    def count(self) -> int:
        """Number of entries; the first call on an existing index reads the file's size and last entries."""
        if self._count < 0:
            self._count = self._written = self._count_stored()
            self._entries_replaced()
        return self._count

    def _count_stored(self) -> int:
        """Return the number of entries in the file."""
        try:
            return self._fs.size_bytes(self.path) // self.entry.size
        except FileNotFoundError:
            return 0

    def get(self, slot: int) -> tuple[int, int]:
        """Return the two fields of an entry, as stored (offsets relative to the base offset)."""
        source: bytes | bytearray
        if slot >= self._written:
            source, position = self._pending, slot - self._written
        else:
            if not 0 <= slot - self._block_start < len(self._block) // self.entry.size:
                self._read_block(slot)
            source, position = self._block, slot - self._block_start
        first, second = self.entry.unpack_from(source, position * self.entry.size)
        return first, second

    def entries(self) -> list[tuple[int, int]]:
        return [self.get(slot) for slot in range(self.count)]

    def encode_entries(self) -> bytes:
        """Return all entries as they are stored."""
        written = self._open().pread(0, self._written * self.entry.size) if self.count and self._written else b""
        return written[: len(written) - len(written) % self.entry.size] + self._pending

    @property
    def ends_in_zeros(self) -> bool:
        """Return whether the last entry is zeros, because the file was preallocated and never trimmed.

        No other entry is zeros: the batch at position 0 gets no entry.
        """
        return self.count > 0 and not any(self.get(self.count - 1))

    def write_pending(self) -> None:
        """Write the buffered entries to the file, unsynced.

        A rebuilt index is renamed into place atomically, so that an index file that exists is complete.
        """
        if self._pending:
            if self._is_rebuilding:
                write_atomically(self._fs, self.path, bytes(self._pending), sync=False)
            else:
                file = self._open()
                if self.takes_appends and not self._is_preallocated:
                    self._preallocate(file)
                file.write_pieces(self._written * self.entry.size, [self._pending], len(self._pending))
            self._written = self._count
            self._pending = bytearray()
        self._is_rebuilding = False

    def _preallocate(self, file: File) -> None:
        """Extend the file to its full size.

        It may contain more than `max_entries`, written with a larger segment.index.bytes or by a rebuild.
        """
        file.truncate(max(self.max_entries, self.count) * self.entry.size)
        self._is_preallocated = True

    def trim(self) -> None:
        """Write the buffered entries and truncate the file to its entries, after the last append."""
        is_replaced = self._is_rebuilding and bool(self._pending)
        self.write_pending()
        if not is_replaced:
            file, size_bytes = self._open(), self.count * self.entry.size
            if file.size_bytes() != size_bytes:
                file.truncate(size_bytes)
        self._is_preallocated = self.takes_appends = False

    def reset(self) -> None:
        """Remove the file and all entries before a rebuild, whose entries stay in memory until `write_pending`."""
        remove_if_exists(self._fs, self.path)
        self._count = self._written = 0
        self._pending = bytearray()
        self._block = b""
        self._is_preallocated = self.takes_appends = False
        self._is_rebuilding = True
        self._entries_replaced()

    def fill(self, entries: bytearray) -> None:
        """Set all entries, encoded, after `reset`."""
        self._pending = entries
        self._count = len(entries) // self.entry.size
        self._entries_replaced()

    def _truncate(self, count: int) -> None:
        if count < self._written:
            self._pending = bytearray()
            self._written = count
            self._block = b""
            # The space behind the last entry must read as zeros, so the file is shortened before it is extended again.
            file = self._open()
            file.truncate(count * self.entry.size)
            if self._is_preallocated:
                file.truncate(max(self.max_entries, count) * self.entry.size)
        else:
            del self._pending[(count - self._written) * self.entry.size :]
        self._count = count
        self._entries_replaced()

    def _append(self, first: int, second: int) -> None:
        self._pending += self.entry.pack(first, second)
        self._count += 1
        if len(self._pending) >= _PENDING_ENTRIES * self.entry.size and not self._is_rebuilding:
            try:
                self.write_pending()
            except OSError as error:
                # Without a descriptor or memory the entries stay buffered, and the append of their batch succeeds.
                if not is_exhausted(error):
                    del self._pending[-self.entry.size :]
                    self._count -= 1
                    raise

    def _floor_slot(self, target: int, field: int) -> int:
        """Return the last slot whose `field` is <= target; -1 if there is none."""
        low, high = 0, self.count
        if high > self._written and self.get(self._written)[field] <= target:
            low = self._written
        else:
            high = min(high, self._written)
            low, high = self._narrow_bounds(target, field, low, high)
        while low < high:
            middle = (low + high) // 2
            if self.get(middle)[field] <= target:
                low = middle + 1
            else:
                high = middle
        return low - 1

    def _narrow_bounds(self, target: int, field: int, low: int, high: int) -> tuple[int, int]:
        """Narrow a search by the cached block, so that a lookup near the previous one does not read the file."""
        if not self._block:
            return low, high
        start = self._block_start
        end = min(high, start + len(self._block) // self.entry.size)
        if start >= end or self.get(start)[field] > target:
            return low, min(high, start) if start < end else high
        if self.get(end - 1)[field] > target:
            return start, end
        next_block_last = min(high, end + _BLOCK_ENTRIES) - 1
        if next_block_last >= end and self.get(next_block_last)[field] > target:
            return end, next_block_last
        return end, high

    def _read_block(self, slot: int) -> None:
        self._block_start = slot - slot % _BLOCK_ENTRIES
        size = self.entry.size
        count = min(_BLOCK_ENTRIES, self._written - self._block_start)
        self._block = self._open().pread(self._block_start * size, count * size)
        if len(self._block) < count * size:
            self._block = b""
            raise OSError(f"index {self.path} is shorter than its entries: another process has truncated it")

    def _require_cached(self) -> None:
        """Raise ColdReadError if the entries of the file are on the disk only, as far as the page cache is known."""
        # Not `count`, whose first call reads entries.
        if written := self._count_stored() if self._count < 0 else self._written:
            file, size_bytes = self._open(), written * self.entry.size
            if not file.is_cached(0, size_bytes):
                raise ColdReadError(file, 0, size_bytes)

    def _open(self) -> File:
        return self._fs.open(self.path, create=True)

    def _entries_replaced(self) -> None:
        """Hook: update what a subclass derives from the entries, after any change except an append."""

    def __len__(self) -> int:
        return self.count


class OffsetIndex(SparseIndex):
    """Entries (last offset of a batch - base offset, position of that batch in the .log file).

    `last_offset` is the base offset while there is no entry.
    """

    entry: ClassVar[struct.Struct] = struct.Struct(">ii")

    # The relative offsets of the pending entries, and of the entries in _decoded_block, as arrays for bisect.
    __slots__ = ("_block_keys", "_decoded_block", "_last_offset", "_pending_keys")

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self._last_offset = self.base_offset
        self._pending_keys = array("i")
        self._block_keys = array("i")
        self._decoded_block = b""

    @property
    def last_offset(self) -> int:
        return self._last_offset if self.count else self.base_offset

    @property
    def is_full(self) -> bool:
        return self.count >= self.max_entries

    def append(self, last_offset: int, position: int) -> None:
        """Add an entry. Raises IndexOffsetError unless its offset is above the last one and within 2^31 of the base."""
        if self.count and last_offset <= self._last_offset:
            raise IndexOffsetError(f"offset {last_offset} after {self._last_offset} in {self.path}")
        relative = relative_offset(last_offset, self.base_offset)
        self._append(relative, position)
        self._last_offset = last_offset
        if self._pending:
            self._pending_keys.append(relative)
        else:
            del self._pending_keys[:]

    def floor_position(self, offset: int, *, may_wait: bool = True) -> int:
        """Return the position where a scan for `offset` starts: that of the last entry at or below it, or 0.

        Raises ColdReadError if the file is needed and on the disk only, unless it `may_wait` for the disk.
        """
        target = offset - self.base_offset
        keys = self._pending_keys
        if keys and keys[0] <= target:
            return _second_field(self._pending, bisect_right(keys, target) * 8 - 4)
        block = self._block
        if block:
            if block is not self._decoded_block:
                self._decode_block()
            keys = self._block_keys
            if keys[0] <= target < keys[-1]:
                return _second_field(block, bisect_right(keys, target) * 8 - 4)
        if not may_wait:
            self._require_cached()
        slot = self._floor_slot(target, 0)
        return self.get(slot)[1] if slot >= 0 else 0

    def _decode_block(self) -> None:
        fields = array("i", self._block)
        if sys.byteorder == "little":
            fields.byteswap()
        self._block_keys = fields[::2]
        self._decoded_block = self._block

    def write_pending(self) -> None:
        super().write_pending()
        del self._pending_keys[:]

    def entry_above_position(self, position: int, *, may_wait: bool = True) -> tuple[int, int] | None:
        """Return (offset, position) of the first entry whose batch starts at or after `position`.

        Raises ColdReadError if the file is on the disk only, unless it `may_wait` for the disk.
        """
        if not may_wait:
            self._require_cached()
        slot = self._floor_slot(position - 1, 1) + 1
        if slot >= self.count:
            return None
        relative, entry_position = self.get(slot)
        return self.base_offset + relative, entry_position

    def truncate_to(self, offset: int) -> None:
        """Remove entries with offsets at or above `offset`. If there are none, the file is not read."""
        if self.count and self._last_offset >= offset:
            self._truncate(self._floor_slot(offset - 1 - self.base_offset, 0) + 1)

    def _entries_replaced(self) -> None:
        self._last_offset = self.base_offset + (self.get(self._count - 1)[0] if self._count else 0)
        fields = array("i", bytes(self._pending))
        if sys.byteorder == "little":
            fields.byteswap()
        self._pending_keys = fields[::2]


class TimeIndex(SparseIndex):
    """Entries (largest timestamp so far, last offset of the first batch with it - base offset).

    One slot is reserved for the entry added on roll.
    """

    entry: ClassVar[struct.Struct] = struct.Struct(">qi")

    __slots__ = ("_last_offset", "_last_timestamp")

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self._last_timestamp, self._last_offset = -1, self.base_offset

    @property
    def last_entry(self) -> tuple[int, int]:
        """(timestamp, offset), or (-1, base offset)."""
        return (self._last_timestamp, self._last_offset) if self.count else (-1, self.base_offset)

    @property
    def is_full(self) -> bool:
        return self.count >= self.max_entries - 1

    def append_if_later(self, timestamp: int, offset: int) -> None:
        """Add an entry if `timestamp` is above the last one's. Raises IndexOffsetError if its offset is lower."""
        if self.count and offset < self._last_offset:
            raise IndexOffsetError(f"offset {offset} after {self._last_offset} in {self.path}")
        if timestamp > self._last_timestamp:
            self._append(timestamp, relative_offset(offset, self.base_offset))
            self._last_timestamp, self._last_offset = timestamp, offset

    def floor_entry(self, timestamp: int) -> tuple[int, int] | None:
        """Return the last entry with a timestamp <= `timestamp`; all batches before its offset have lower ones."""
        slot = self._floor_slot(timestamp, 0)
        if slot < 0:
            return None
        entry_timestamp, relative = self.get(slot)
        return entry_timestamp, self.base_offset + relative

    def truncate_to(self, offset: int) -> None:
        """Remove entries with offsets at or above `offset`. If there are none, the file is not read."""
        if self.count and self._last_offset >= offset:
            self._truncate(self._floor_slot(offset - 1 - self.base_offset, 1) + 1)

    def _entries_replaced(self) -> None:
        timestamp, relative = self.get(self._count - 1) if self._count else (-1, 0)
        self._last_timestamp, self._last_offset = timestamp, self.base_offset + relative


def _second_field(entries: bytes | bytearray, position: int) -> int:
    return int.from_bytes(entries[position : position + 4], "big")


def relative_offset(offset: int, base_offset: int) -> int:
    """Return `offset - base_offset`. Raises IndexOffsetError if it does not fit in 31 bits."""
    relative = offset - base_offset
    if not 0 <= relative <= 0x7FFFFFFF:
        raise IndexOffsetError(f"offset {offset} is not within 2^31 of the segment's base offset {base_offset}")
    return relative
