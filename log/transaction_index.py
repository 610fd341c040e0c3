"""The aborted transactions whose markers are in a segment: its .txnindex file, which exists only if there are any.

KIP-98. A consumer with isolation read_committed gets them with the records and skips what they name.
"""

import struct
from typing import NamedTuple

from odradek.log.filesystem import FileSystem, remove_if_exists

_ENTRY = struct.Struct(">hqqqq")
_VERSION = 0


class CorruptTransactionIndexError(Exception):
    """The file is not a whole number of entries of a known version, in order."""


class AbortedTransaction(NamedTuple):
    """One entry: `last_offset` is the marker's, `last_stable_offset` the partition's when the marker was written."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """Raises OSError from any method."""

    __slots__ = ("_fs", "path")

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._fs = fs
        self.path = path

    def append(self, transaction: AbortedTransaction) -> None:
        file = self._fs.open(self.path, create=True)
        file.write_pieces(file.size_bytes(), [_ENTRY.pack(_VERSION, *transaction)], _ENTRY.size)

    def entries(self) -> list[AbortedTransaction]:
        """In the order of their markers. Raises CorruptTransactionIndexError."""
        try:
            data = self._fs.read_bytes(self.path)
        except FileNotFoundError:
            return []
        if len(data) % _ENTRY.size:
            raise CorruptTransactionIndexError(f"{self.path}: {len(data)} bytes are not whole entries")
        result: list[AbortedTransaction] = []
        for version, *fields in _ENTRY.iter_unpack(data):
            entry = AbortedTransaction(*fields)
            if version != _VERSION:
                raise CorruptTransactionIndexError(f"{self.path}: unknown entry version {version}")
            if result and entry.last_offset <= result[-1].last_offset:
                raise CorruptTransactionIndexError(f"{self.path}: marker {entry.last_offset} is out of order")
            result.append(entry)
        return result

    def collect(self, fetch_offset: int, upper_bound: int) -> tuple[list[AbortedTransaction], bool]:
        """Those that touch [fetch_offset, upper_bound), and whether later segments need no look."""
        found = []
        for entry in self.entries():
            if entry.last_offset >= fetch_offset and entry.first_offset < upper_bound:
                found.append(entry)
            if entry.last_stable_offset >= upper_bound:
                return found, True
        return found, False

    def truncate_to(self, offset: int) -> None:
        """Drop entries whose marker is at or above `offset`."""
        entries = self.entries()
        keep = sum(entry.last_offset < offset for entry in entries)
        if keep < len(entries):
            self._fs.open(self.path).truncate(keep * _ENTRY.size)

    def reset(self) -> None:
        remove_if_exists(self._fs, self.path)
