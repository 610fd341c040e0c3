"""Reading of index files block by block, without the zeros of preallocated space at their end."""

import struct
from collections.abc import Iterator
from typing import Final

from odradek.log.segments.index import OffsetIndex, TimeIndex
from odradek.log.segments.transaction_index import AbortedTransaction, CorruptTransactionIndexError
from odradek.log.storage.filesystem import FileSystem, ends_in_zeros

TRANSACTION_ENTRY: Final = struct.Struct(">hqqqq")
"""Version, producer id, first offset, last offset, last stable offset."""
_TRANSACTION_VERSION: Final = 0
_BLOCK_ENTRIES: Final = 4096


class IndexFile:
    """The entries of an offset or time index, as stored.

    `trailing_zeros`: number of bytes of preallocated space behind the last entry, set when all entries were read.
    `odd_bytes`: bytes at the end that are no whole entry.
    `may_grow`: a broker may append entries, so that zeros that were read may be entries by now: the first zeros are the
    end. Otherwise zeros before other bytes are an entry.
    """

    def __init__(self, fs: FileSystem, path: str, entry: struct.Struct, *, may_grow: bool) -> None:
        self.path = path
        self._file = fs.open(path)
        self._entry = entry
        self._may_grow = may_grow
        self.size_bytes = self._file.size_bytes()
        self.odd_bytes = self.size_bytes % entry.size
        self.trailing_zeros = 0

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """Yield (position in the file, first field, second field) of each entry."""
        size, position = self._entry.size, 0
        end = self.size_bytes - self.odd_bytes
        while position < end:
            block = self._file.pread(position, min(_BLOCK_ENTRIES * size, end - position))
            if len(block) < size:
                return
            for first, second in self._entry.iter_unpack(block[: len(block) - len(block) % size]):
                if not first and not second and (self._may_grow or ends_in_zeros(self._file, position)):
                    self.trailing_zeros = self.size_bytes - position
                    return
                yield position, first, second
                position += size


def open_offset_index(fs: FileSystem, path: str, *, may_grow: bool = True) -> IndexFile:
    """Open a .index file: (last offset of a batch - base offset, position of the batch). Raises OSError."""
    return IndexFile(fs, path, OffsetIndex.entry, may_grow=may_grow)


def open_time_index(fs: FileSystem, path: str, *, may_grow: bool = True) -> IndexFile:
    """Open a .timeindex file: (timestamp, last offset of its first batch - base offset). Raises OSError."""
    return IndexFile(fs, path, TimeIndex.entry, may_grow=may_grow)


def read_transactions(fs: FileSystem, path: str) -> Iterator[tuple[int, AbortedTransaction]]:
    """Yield (position in the file, entry) of a .txnindex file. Raises OSError, CorruptTransactionIndexError."""
    data = fs.read_bytes(path)
    for position in range(0, len(data), TRANSACTION_ENTRY.size):
        entry = data[position : position + TRANSACTION_ENTRY.size]
        if len(entry) < TRANSACTION_ENTRY.size:
            raise CorruptTransactionIndexError(f"{len(entry)} bytes at the end are no whole entry")
        version, *fields = TRANSACTION_ENTRY.unpack(entry)
        if version != _TRANSACTION_VERSION:
            raise CorruptTransactionIndexError(f"the entry at byte {position} has the unknown version {version}")
        yield position, AbortedTransaction(*fields)
