"""The aborted transactions whose markers are in a segment: its .txnindex file, which exists only if there are any.

KIP-98. A consumer with isolation read_committed gets them with the records and skips what they name.
"""

import struct
from bisect import bisect_left
from contextlib import suppress
from typing import NamedTuple

from odradek.log.filesystem import FileSystem, is_shortage, remove_if_exists, write_atomically

_ENTRY = struct.Struct(">hqqqq")
_LAST_OFFSET = struct.Struct(">q")
_LAST_OFFSET_AT = 18
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
    """Raises OSError from any method.

    An entry for which the disk has no room waits in memory for the next `write_pending`: its marker is in the log
    already. `_known` are all entries as they are stored, once a reader has asked for some.
    """

    __slots__ = ("_fs", "_is_rebuilding", "_known", "_pending", "path")

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._fs = fs
        self.path = path
        self._pending = b""
        self._known: bytearray | None = None
        self._is_rebuilding = False

    def append(self, transaction: AbortedTransaction) -> None:
        entry = _ENTRY.pack(_VERSION, *transaction)
        self._pending += entry
        if self._known is not None:
            self._known += entry
        if self._is_rebuilding:
            return
        try:
            self.write_pending()
        except OSError as error:
            if not is_shortage(error):
                raise

    def write_pending(self) -> None:
        """Bring the file up to date; not synced. What a rebuild gave replaces it in one step."""
        if self._pending and self._is_rebuilding:
            write_atomically(self._fs, self.path, self._pending, sync=False)
        elif self._pending:
            file = self._fs.open(self.path, create=True)
            # Not the file's end: half an entry may lie there, of a write that failed.
            position = file.size_bytes() // _ENTRY.size * _ENTRY.size
            file.write_pieces(position, [self._pending], len(self._pending))
        self._pending = b""
        self._is_rebuilding = False

    @property
    def unwritten(self) -> bytes:
        """Entries that are not in the file yet, encoded: a reader in another thread or process needs them as well."""
        return self._pending

    def entries(self) -> list[AbortedTransaction]:
        """In the order of their markers, from the file. Raises CorruptTransactionIndexError."""
        return _decode(self.path, self._stored())

    def _stored(self) -> bytes:
        data = b""
        with suppress(FileNotFoundError):
            data = self._fs.read_bytes(self.path)
        if self._pending:
            data = data[: len(data) // _ENTRY.size * _ENTRY.size] + self._pending
        return data

    def collect(self, fetch_offset: int, upper_bound: int) -> tuple[list[AbortedTransaction], bool]:
        """Those that touch [fetch_offset, upper_bound), and whether later segments need no look."""
        found: list[AbortedTransaction] = []
        known, slots = self._slots_from(fetch_offset)
        for slot in slots:
            entry = AbortedTransaction(*_ENTRY.unpack_from(known, slot * _ENTRY.size)[1:])
            if entry.first_offset < upper_bound:
                found.append(entry)
            if entry.last_stable_offset >= upper_bound:
                return found, True
        return found, False

    def count_from(self, offset: int) -> int:
        """How many have their markers at or above `offset`."""
        return len(self._slots_from(offset)[1])

    def _slots_from(self, offset: int) -> tuple[bytearray, range]:
        known = self._known
        if known is None:
            known = bytearray(self._stored())
            _decode(self.path, known)
            self._known = known
        slots = range(len(known) // _ENTRY.size)
        if not slots or _last_offset(known, 0) >= offset:
            return known, slots
        return known, slots[bisect_left(slots, offset, key=lambda slot: _last_offset(known, slot)) :]

    def truncate_to(self, offset: int) -> None:
        """Drop entries whose marker is at or above `offset`."""
        self._known = None
        entries = self.entries()
        keep = sum(entry.last_offset < offset for entry in entries)
        if keep < len(entries):
            kept_pending = max(0, keep - len(entries) + len(self._pending) // _ENTRY.size)
            self._pending = self._pending[: kept_pending * _ENTRY.size]
            with suppress(FileNotFoundError):
                file = self._fs.open(self.path)
                file.truncate(min(file.size_bytes(), keep * _ENTRY.size))

    def reset(self) -> None:
        """Forget all entries, to build them anew: in memory, until `write_pending`."""
        remove_if_exists(self._fs, self.path)
        self._pending = b""
        self._known = None
        self._is_rebuilding = True


def read_growing(fs: FileSystem, path: str, unwritten: bytes) -> list[AbortedTransaction]:
    """Entries of an index that its segment may append to at the same time; `unwritten` is what its file lacked before.

    An incomplete entry at the file's end is one that is being written, or for which the disk has no room; entries that
    have reached the file since `unwritten` was taken count once. Raises OSError, CorruptTransactionIndexError.
    """
    data = b""
    with suppress(FileNotFoundError):
        data = fs.read_bytes(path)
    entries = _decode(path, data[: len(data) // _ENTRY.size * _ENTRY.size])
    last_offset = entries[-1].last_offset if entries else -1
    return entries + [entry for entry in _decode(path, unwritten) if entry.last_offset > last_offset]


def _decode(path: str, data: bytes | bytearray) -> list[AbortedTransaction]:
    if len(data) % _ENTRY.size:
        raise CorruptTransactionIndexError(f"{path}: {len(data)} bytes are not whole entries")
    result: list[AbortedTransaction] = []
    for version, *fields in _ENTRY.iter_unpack(data):
        entry = AbortedTransaction(*fields)
        if version != _VERSION:
            raise CorruptTransactionIndexError(f"{path}: unknown entry version {version}")
        if result and entry.last_offset <= result[-1].last_offset:
            raise CorruptTransactionIndexError(f"{path}: marker {entry.last_offset} is out of order")
        result.append(entry)
    return result


def _last_offset(entries: bytearray, slot: int) -> int:
    found: int = _LAST_OFFSET.unpack_from(entries, slot * _ENTRY.size + _LAST_OFFSET_AT)[0]
    return found
