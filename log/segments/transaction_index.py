"""Transaction index (KIP-98): the aborted transactions whose markers are in a segment.

The .txnindex file exists only if there are any. A consumer with isolation.level=read_committed receives the entries in
the fetch response and skips the records of these transactions.
"""

import struct
import sys
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from operator import lt
from typing import NamedTuple, overload

from odradek.log.storage.filesystem import FileSystem, is_shortage, remove_if_exists, write_atomically

_ENTRY = struct.Struct(">hqqqq")
_VERSION = 0
_VERSION_BYTES = 2
_BLOCK_BITS = 5
_BLOCK = 1 << _BLOCK_BITS
_MAX_RUNS = 2048
"""Maximum number of runs of entries that a search returns separately, in a few ms."""


class CorruptTransactionIndexError(Exception):
    """The file is not a whole number of entries, an entry's version is unknown, or entries are out of order."""


class AbortedTransaction(NamedTuple):
    """One entry.

    `last_offset` is the offset of the abort marker, `last_stable_offset` that of the partition when the marker was
    appended.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class BlockSummaries:
    """A growing list of integers with a search that visits few of them.

    `levels[0]` contains the integers. Each next level contains, for each block of 32 integers of the previous level,
    their minimum or maximum (`summarize` is min or max); the last level is a single block.
    """

    __slots__ = ("_summarize", "levels")

    def __init__(self, summarize: Callable[..., int], values: "array[int]") -> None:
        self._summarize = summarize
        self.levels = [values]
        self._add_levels()

    def _add_levels(self) -> None:
        while len(self.levels[-1]) > _BLOCK:
            top = self.levels[-1].tolist()
            blocks = (top[start : start + _BLOCK] for start in range(0, len(top), _BLOCK))
            self.levels.append(array("q", map(self._summarize, blocks)))

    def append(self, value: int) -> None:
        """Add an integer, and update the summaries of its blocks."""
        slot = len(self.levels[0])
        self.levels[0].append(value)
        for level in self.levels[1:]:
            slot >>= _BLOCK_BITS
            if slot == len(level):
                level.append(value)
            else:
                level[slot] = self._summarize(level[slot], value)
        self._add_levels()

    def search(self, is_wanted: Callable[[int], bool], start: int, stop: int) -> Iterator[int]:
        """Yield the slots in [start, stop) whose integers fulfil `is_wanted`, in order.

        A block's summary must fulfil it if any integer of the block does. The search takes some 30 steps per level for
        each slot that it yields.
        """
        levels, slot = self.levels, start
        while slot < stop:
            # Descend from the largest block that starts at this slot to one that can be skipped, or to the integer.
            level = 0
            while level + 1 < len(levels) and slot & ((1 << _BLOCK_BITS * (level + 1)) - 1) == 0:
                level += 1
            while (is_match := is_wanted(levels[level][slot >> _BLOCK_BITS * level])) and level:
                level -= 1
            if is_match:
                yield slot
            slot = ((slot >> _BLOCK_BITS * level) + 1) << _BLOCK_BITS * level


class _LoadedEntries:
    """All entries of an index in memory, one array per field."""

    __slots__ = ("_first_offsets", "_largest_first_offsets", "_last_offsets", "_last_stable_offsets", "_producer_ids")

    def __init__(self, columns: "list[array[int]]") -> None:
        self._producer_ids, first_offsets, self._last_offsets, last_stable_offsets = columns
        self._first_offsets = BlockSummaries(min, first_offsets)
        self._largest_first_offsets = BlockSummaries(max, first_offsets[:])
        self._last_stable_offsets = BlockSummaries(max, last_stable_offsets)

    def append(self, transaction: AbortedTransaction) -> None:
        self._producer_ids.append(transaction.producer_id)
        self._first_offsets.append(transaction.first_offset)
        self._largest_first_offsets.append(transaction.first_offset)
        self._last_offsets.append(transaction.last_offset)
        self._last_stable_offsets.append(transaction.last_stable_offset)

    @property
    def count(self) -> int:
        return len(self._last_offsets)

    def count_from(self, offset: int) -> int:
        return len(self._last_offsets) - bisect_left(self._last_offsets, offset)

    def find(self, fetch_offset: int, upper_bound: int) -> tuple[list[range], bool]:
        """Return the slots of the entries that `TransactionIndex.find` returns.

        The search ends at the first entry whose last stable offset is at or above `upper_bound`: later markers belong
        to transactions that begin there or later. While one transaction stays open, the last stable offset of all
        entries is its first offset, so that many entries may precede the end; the block summaries skip them.
        """
        start, stop = bisect_left(self._last_offsets, fetch_offset), len(self._last_offsets)
        end = next(self._last_stable_offsets.search(lambda stable: stable >= upper_bound, start, stop), None)
        if end is not None:
            stop = end + 1
        return self._find_runs(upper_bound, start, stop), end is not None

    def _find_runs(self, upper_bound: int, start: int, stop: int) -> list[range]:
        """Return the slots from `start` up to `stop` of transactions that began below `upper_bound`, in order.

        A block with only such transactions is one step, and so is one without any. After `_MAX_RUNS` runs all other
        slots up to `stop` are returned: a consumer ignores transactions that began after the records that it gets.
        """
        least, greatest = self._first_offsets.levels, self._largest_first_offsets.levels
        runs: list[range] = []
        slot = run_start = start
        while slot < stop:
            level = 0
            while level + 1 < len(least) and slot & ((1 << _BLOCK_BITS * (level + 1)) - 1) == 0:
                level += 1
            while (
                least[level][slot >> _BLOCK_BITS * level]
                < upper_bound
                <= greatest[level][slot >> _BLOCK_BITS * level]
            ) and level:
                level -= 1
            end = min(stop, ((slot >> _BLOCK_BITS * level) + 1) << _BLOCK_BITS * level)
            if least[level][slot >> _BLOCK_BITS * level] >= upper_bound:
                if run_start < slot:
                    runs.append(range(run_start, slot))
                run_start = end
                if len(runs) == _MAX_RUNS:
                    break
            slot = end
        if run_start < stop:
            runs.append(range(run_start, stop))
        return runs

    def entry(self, slot: int) -> AbortedTransaction:
        return AbortedTransaction(
            self._producer_ids[slot],
            self._first_offsets.levels[0][slot],
            self._last_offsets[slot],
            self._last_stable_offsets.levels[0][slot],
        )


class FoundTransactions(Sequence[AbortedTransaction]):
    """Entries that were found in indexes, in the order of their markers. Each is created when it is accessed."""

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs: list[tuple[_LoadedEntries, range]] = []

    def add(self, entries: _LoadedEntries, runs: list[range]) -> None:
        """Add the entries of an index in the slots `runs`."""
        self._runs += [(entries, run) for run in runs]

    def __len__(self) -> int:
        return sum(len(run) for _, run in self._runs)

    def __iter__(self) -> Iterator[AbortedTransaction]:
        for entries, run in self._runs:
            yield from map(entries.entry, run)

    @overload
    def __getitem__(self, index: int) -> AbortedTransaction: ...

    @overload
    def __getitem__(self, index: slice) -> list[AbortedTransaction]: ...

    def __getitem__(self, index: int | slice) -> AbortedTransaction | list[AbortedTransaction]:
        return list(self)[index]


class TransactionIndex:
    """The .txnindex file of a segment. Any method may raise OSError.

    If the disk is full, an entry stays in memory until the next `write_pending`, because its marker is already in the
    log. `_loaded` is set by the first lookup.
    """

    __slots__ = ("_fs", "_is_rebuilding", "_loaded", "_pending", "path")

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._fs = fs
        self.path = path
        self._pending = b""
        self._loaded: _LoadedEntries | None = None
        self._is_rebuilding = False

    def append(self, transaction: AbortedTransaction) -> None:
        """Add an entry, and write it, unsynced, unless the index is being rebuilt."""
        entry = _ENTRY.pack(_VERSION, *transaction)
        self._pending += entry
        if self._loaded is not None:
            self._loaded.append(transaction)
        if self._is_rebuilding:
            return
        try:
            self.write_pending()
        except OSError as error:
            if not is_shortage(error):
                raise

    def write_pending(self) -> None:
        """Write the buffered entries to the file, unsynced. A rebuilt index replaces the file atomically."""
        if self._pending and self._is_rebuilding:
            write_atomically(self._fs, self.path, self._pending, sync=False)
        elif self._pending:
            file = self._fs.open(self.path, create=True)
            # A failed write may have left an incomplete entry at the file's end.
            position = file.size_bytes() // _ENTRY.size * _ENTRY.size
            file.write_pieces(position, [self._pending], len(self._pending))
        self._pending = b""
        self._is_rebuilding = False

    @property
    def unwritten(self) -> bytes:
        """Return the entries that are not in the file yet, encoded, for a reader in another thread or process."""
        return self._pending

    def entries(self) -> list[AbortedTransaction]:
        """Return all entries, in the order of their markers. Raises CorruptTransactionIndexError."""
        return _decode(self.path, self._read_stored())

    def _read_stored(self) -> bytes:
        data = b""
        with suppress(FileNotFoundError):
            data = self._fs.read_bytes(self.path)
        if self._pending:
            data = data[: len(data) // _ENTRY.size * _ENTRY.size] + self._pending
        return data

    def find(self, fetch_offset: int, upper_bound: int, found: FoundTransactions) -> bool:
        """Add the entries that overlap [fetch_offset, upper_bound) to `found`; return whether later segments have none.

        In an index with very many entries, some that begin above `upper_bound` may be added as well.
        """
        entries = self._load()
        runs, is_complete = entries.find(fetch_offset, upper_bound)
        found.add(entries, runs)
        return is_complete

    def count_from(self, offset: int) -> int:
        """Return the number of entries whose markers are at or above `offset`."""
        return self._load().count_from(offset)

    def _load(self) -> _LoadedEntries:
        if self._loaded is None:
            self._loaded = _LoadedEntries(_decode_columns(self.path, self._read_stored()))
        return self._loaded

    def truncate_to(self, offset: int) -> None:
        """Remove entries whose marker is at or above `offset`."""
        self._loaded = None
        count = self._load().count
        keep = count - self.count_from(offset)
        self._loaded = None
        if keep < count:
            kept_pending = max(0, keep - count + len(self._pending) // _ENTRY.size)
            self._pending = self._pending[: kept_pending * _ENTRY.size]
            with suppress(FileNotFoundError):
                file = self._fs.open(self.path)
                file.truncate(min(file.size_bytes(), keep * _ENTRY.size))

    def reset(self) -> None:
        """Remove the file and all entries before a rebuild, whose entries stay in memory until `write_pending`."""
        remove_if_exists(self._fs, self.path)
        self._pending = b""
        self._loaded = None
        self._is_rebuilding = True


def read_growing(fs: FileSystem, path: str, unwritten: bytes) -> list[AbortedTransaction]:
    """Return the entries of an index while its segment may append to it.

    `unwritten` was read from `TransactionIndex.unwritten` before; an entry that is in both is returned once. An
    incomplete entry at the file's end is ignored: its write is in progress or failed because the disk is full. Raises
    OSError, CorruptTransactionIndexError.
    """
    data = b""
    with suppress(FileNotFoundError):
        data = fs.read_bytes(path)
    entries = _decode(path, data[: len(data) // _ENTRY.size * _ENTRY.size])
    last_offset = entries[-1].last_offset if entries else -1
    return entries + [entry for entry in _decode(path, unwritten) if entry.last_offset > last_offset]


def _decode(path: str, data: bytes) -> list[AbortedTransaction]:
    return list(map(AbortedTransaction, *_decode_columns(path, data)))


def _decode_columns(path: str, data: bytes) -> "list[array[int]]":
    """Decode stored entries into one array per field of AbortedTransaction, without an object per entry."""
    if len(data) % _ENTRY.size:
        raise CorruptTransactionIndexError(f"{path}: size {len(data)} is not a multiple of {_ENTRY.size} bytes")
    if any(data[byte :: _ENTRY.size].strip(b"\0") for byte in range(_VERSION_BYTES)):
        version = next(version for version, *_ in _ENTRY.iter_unpack(data) if version != _VERSION)
        raise CorruptTransactionIndexError(f"{path}: unknown entry version {version}")
    # Copying byte 1 of all entries, then byte 2, and so on is some ten times faster than decoding entry by entry.
    row_bytes = _ENTRY.size - _VERSION_BYTES
    rows = bytearray(len(data) // _ENTRY.size * row_bytes)
    for byte in range(row_bytes):
        rows[byte::row_bytes] = data[_VERSION_BYTES + byte :: _ENTRY.size]
    fields = array("q", rows)
    if sys.byteorder == "little":
        fields.byteswap()
    columns = [fields[number :: len(AbortedTransaction._fields)] for number in range(len(AbortedTransaction._fields))]
    last_offsets = columns[AbortedTransaction._fields.index("last_offset")].tolist()
    if not all(map(lt, last_offsets, last_offsets[1:])):
        misplaced = next(after for before, after in pairwise(last_offsets) if after <= before)
        raise CorruptTransactionIndexError(f"{path}: marker {misplaced} is out of order")
    return columns
