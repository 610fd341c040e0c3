"""The transaction index of a segment: its file, and searches by a range of offsets."""

import struct
import sys
from array import array
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.log.segments.transaction_index import (
    AbortedTransaction,
    BlockSummaries,
    CorruptTransactionIndexError,
    FoundTransactions,
    TransactionIndex,
)
from odradek.log.storage.memory_filesystem import MemoryFileSystem

PATH = "/data/00000000000000000000.txnindex"


class CountingFileSystem(MemoryFileSystem):
    """Counts the reads of whole files."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    def read_bytes(self, path: str) -> bytes:
        self.reads += 1
        return super().read_bytes(path)


@pytest.fixture
def fs() -> CountingFileSystem:
    made = CountingFileSystem()
    made.make_directory("/data")
    return made


def transactions(count: int, seed: int = 0) -> list[AbortedTransaction]:
    """Aborted transactions as a log has them: some begin before others end."""
    random, found, open_since, offset = Random(seed), [], {}, 0
    while len(found) < count:
        offset += 1
        producer = random.randrange(5)
        first = open_since.get(producer)
        if first is None:
            open_since[producer] = offset
            continue
        if random.random() < 0.5:
            continue
        del open_since[producer]
        found.append(AbortedTransaction(producer, first, offset, min(open_since.values(), default=offset + 1)))
    return found


def collect(
    index: TransactionIndex, fetch_offset: int, upper_bound: int
) -> tuple[list[AbortedTransaction], bool]:
    found = FoundTransactions()
    is_complete = index.find(fetch_offset, upper_bound, found)
    return list(found), is_complete


def overlapping(
    entries: list[AbortedTransaction], fetch_offset: int, upper_bound: int
) -> list[AbortedTransaction]:
    return [e for e in entries if e.last_offset >= fetch_offset and e.first_offset < upper_bound]


@pytest.mark.parametrize("seed", range(5))
def test_entries_that_overlap_a_range_are_found(fs: CountingFileSystem, seed):
    index, entries = TransactionIndex(fs, PATH), transactions(60, seed)
    for entry in entries:
        index.append(entry)
    end = entries[-1].last_offset + 3
    for fetch_offset in range(0, end, 3):
        for upper_bound in (fetch_offset + 1, fetch_offset + 10, end):
            found, is_complete = collect(index, fetch_offset, upper_bound)
            assert found == overlapping(entries, fetch_offset, upper_bound)
            assert is_complete == any(e.last_stable_offset >= upper_bound for e in entries)


def test_count_from_an_offset(fs: CountingFileSystem):
    index, entries = TransactionIndex(fs, PATH), transactions(30)
    assert index.count_from(0) == 0
    for entry in entries:
        index.append(entry)
    for offset in range(entries[-1].last_offset + 2):
        assert index.count_from(offset) == sum(entry.last_offset >= offset for entry in entries)


def test_an_empty_index(fs: CountingFileSystem):
    assert collect(TransactionIndex(fs, PATH), 0, 100) == ([], False)


def test_the_file_is_read_once_for_all_readers(fs: CountingFileSystem):
    writer = TransactionIndex(fs, PATH)
    entries = transactions(50)
    for entry in entries[:40]:
        writer.append(entry)
    index = TransactionIndex(fs, PATH)
    reads = fs.reads
    for _ in range(10):
        assert collect(index, 0, 10_000)[0] == entries[:40]
    for entry in entries[40:]:
        index.append(entry)
        assert collect(index, entry.last_offset, 10_000)[0][-1:] == [entry]
    assert collect(index, 0, 10_000)[0] == entries
    assert fs.reads == reads + 1


def test_truncated_entries_are_not_found(fs: CountingFileSystem):
    index, entries = TransactionIndex(fs, PATH), transactions(20)
    for entry in entries:
        index.append(entry)
    assert len(collect(index, 0, 10_000)[0]) == 20
    index.truncate_to(entries[10].last_offset)
    assert collect(index, 0, 10_000)[0] == entries[:10]
    index.append(entries[10])
    assert collect(index, 0, 10_000)[0] == entries[:11]
    index.reset()
    assert collect(index, 0, 10_000)[0] == []


def test_a_malformed_file_is_refused(fs: CountingFileSystem):
    index = TransactionIndex(fs, PATH)
    for entry in transactions(3):
        index.append(entry)
    fs.open(PATH).truncate(50)
    with pytest.raises(CorruptTransactionIndexError):
        collect(TransactionIndex(fs, PATH), 0, 100)


def store(fs: MemoryFileSystem, entries: list[AbortedTransaction]) -> None:
    data = b"".join(struct.pack(">hqqqq", 0, *entry) for entry in entries)
    fs.open(PATH, create=True).write_pieces(0, [data], len(data))


def find_by_definition(
    entries: list[AbortedTransaction], fetch_offset: int, upper_bound: int
) -> tuple[list[AbortedTransaction], bool]:
    """The definition: examine the entries in order, up to the first after which none can overlap the range."""
    found = []
    for entry in entries:
        if entry.last_offset < fetch_offset:
            continue
        if entry.first_offset < upper_bound:
            found.append(entry)
        if entry.last_stable_offset >= upper_bound:
            return found, True
    return found, False


@settings(deadline=None)
@given(
    seed=st.integers(0, 2**32),
    stored=st.sampled_from([0, 1, 31, 32, 33, 1000, 1024, 1025, 2100]),
    appended=st.integers(0, 70),
    open_percent=st.sampled_from([0, 1, 50, 99, 100]),
    reach=st.sampled_from([1, 10, 1000, 10_000]),
    is_sound=st.booleans(),
)
def test_a_search_agrees_with_its_definition(seed, stored, appended, open_percent, reach, is_sound):
    """Also in indexes that no log has: with decreasing last stable offsets, or with offsets at the limits."""
    random, offset, stable, entries = Random(seed), 0, 0, []
    for _ in range(stored + appended):
        offset += random.randint(1, 6)
        first = max(0, offset - random.randint(1, reach))
        if not is_sound:
            first = random.choice([first, random.randrange(8000), -(2**63), 2**63 - 1])
            stable = random.choice([offset + 1, random.randrange(8000), -(2**63), 2**63 - 1])
        elif random.randrange(100) >= open_percent:
            stable = random.randint(stable, offset + 1)
        entries.append(AbortedTransaction(random.randrange(3), first, offset, stable))
    fs = MemoryFileSystem()
    fs.make_directory("/data")
    store(fs, entries[:stored])
    index = TransactionIndex(fs, PATH)
    assert index.count_from(0) == stored
    for entry in entries[stored:]:
        index.append(entry)
    assert index.entries() == entries
    for _ in range(40):
        fetch_offset = random.randrange(offset + 10)
        upper_bound = fetch_offset + random.choice([0, 1, 5, 100, offset])
        assert collect(index, fetch_offset, upper_bound) == find_by_definition(entries, fetch_offset, upper_bound)


def calls_of(work: Callable[[], object]) -> int:
    """Return the number of function calls, including functions written in C."""
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("upper_bound", [100, 10_000, 40_008])
def test_while_a_transaction_is_open_few_entries_are_examined(fs: CountingFileSystem, upper_bound):
    """The last stable offset of every entry is the start of the open transaction, so no entry ends the search."""
    store(fs, [AbortedTransaction(number, 10 + 2 * number, 11 + 2 * number, 5) for number in range(20_000)])
    index = TransactionIndex(fs, PATH)
    assert index.count_from(0) == 20_000
    fetch_offset = upper_bound - 20
    assert len(collect(index, fetch_offset, upper_bound)[0]) == 10
    assert calls_of(lambda: collect(index, fetch_offset, upper_bound)) < 1000


@pytest.mark.parametrize("are_open_together", [False, True])
def test_many_entries_are_found_together_and_created_when_they_are_accessed(fs: CountingFileSystem, are_open_together):
    count = 20_000
    entries = [
        AbortedTransaction(
            number, number if are_open_together else 2 * (count + number), 2 * (count + number) + 1, 0
        )
        for number in range(count)
    ]
    store(fs, entries)
    index, found = TransactionIndex(fs, PATH), FoundTransactions()
    assert index.count_from(0) == count
    assert calls_of(lambda: index.find(2 * count + 11, 100_000, found)) < 500
    assert len(found) == count - 5
    assert list(found) == overlapping(entries, 2 * count + 11, 100_000)
    assert found[3] == entries[8]
    assert found[:2] == entries[5:7]


def test_of_scattered_entries_a_search_may_return_more_than_overlap_the_range(fs: CountingFileSystem):
    count, upper_bound = 20_000, 30_000
    entries = [
        AbortedTransaction(number, number if number % 2 else upper_bound + number, 100_000 + number, 0)
        for number in range(count)
    ]
    store(fs, entries)
    index, found = TransactionIndex(fs, PATH), FoundTransactions()
    assert index.count_from(0) == count
    assert calls_of(lambda: index.find(0, upper_bound, found)) < 20_000
    assert {*found} >= {*overlapping(entries, 0, upper_bound)}
    assert list(found) == sorted({*found}, key=lambda entry: entry.last_offset)
    assert list(found)[:2000] == overlapping(entries, 0, upper_bound)[:2000]


def test_a_search_of_integers_examines_few_of_them():
    values = array("q", range(100_000))
    summaries = BlockSummaries(max, values)
    examined: list[int] = []

    def is_wanted(value: int) -> bool:
        examined.append(value)
        return value >= 99_990

    found = summaries.search(is_wanted, 7, len(values))
    assert list(found) == list(range(99_990, 100_000))
    assert len(examined) < 300


def test_an_unknown_version_or_a_marker_out_of_order_is_reported(fs: CountingFileSystem):
    entries = transactions(600)
    store(fs, [*entries, entries[-2]])
    with pytest.raises(CorruptTransactionIndexError, match=f"marker {entries[-2].last_offset} is out of order"):
        TransactionIndex(fs, PATH).count_from(0)
    store(fs, entries)
    fs.open(PATH).write_pieces(34 * 599, [b"\0\7"], 2)
    with pytest.raises(CorruptTransactionIndexError, match="unknown entry version 7"):
        TransactionIndex(fs, PATH).entries()
