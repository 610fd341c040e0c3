from random import Random

import pytest

from odradek.log.filesystem import MemoryFileSystem
from odradek.log.transaction_index import AbortedTransaction, CorruptTransactionIndexError, TransactionIndex

PATH = "/data/00000000000000000000.txnindex"


class CountingFileSystem(MemoryFileSystem):
    """Counts how often a whole file was read."""

    def __init__(self):
        super().__init__()
        self.reads = 0

    def read_bytes(self, path):
        self.reads += 1
        return super().read_bytes(path)


@pytest.fixture
def fs():
    made = CountingFileSystem()
    made.make_directory("/data")
    return made


def transactions(count, seed=0):
    """Aborted transactions as a log brings them about: some begin before others end."""
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


def touching(entries, fetch_offset, upper_bound):
    return [e for e in entries if e.last_offset >= fetch_offset and e.first_offset < upper_bound]


@pytest.mark.parametrize("seed", range(5))
def test_what_touches_a_range_is_found(fs, seed):
    index, entries = TransactionIndex(fs, PATH), transactions(60, seed)
    for entry in entries:
        index.append(entry)
    end = entries[-1].last_offset + 3
    for fetch_offset in range(0, end, 3):
        for upper_bound in (fetch_offset + 1, fetch_offset + 10, end):
            found, is_complete = index.collect(fetch_offset, upper_bound)
            assert found == touching(entries, fetch_offset, upper_bound)
            assert is_complete == any(e.last_stable_offset >= upper_bound for e in entries)


def test_how_many_are_left_from_an_offset_on(fs):
    index, entries = TransactionIndex(fs, PATH), transactions(30)
    assert index.count_from(0) == 0
    for entry in entries:
        index.append(entry)
    for offset in range(entries[-1].last_offset + 2):
        assert index.count_from(offset) == sum(entry.last_offset >= offset for entry in entries)


def test_a_range_of_nothing(fs):
    assert TransactionIndex(fs, PATH).collect(0, 100) == ([], False)


def test_the_file_is_read_once_for_all_readers(fs):
    writer = TransactionIndex(fs, PATH)
    entries = transactions(50)
    for entry in entries[:40]:
        writer.append(entry)
    index = TransactionIndex(fs, PATH)
    reads = fs.reads
    for _ in range(10):
        assert index.collect(0, 10_000)[0] == entries[:40]
    for entry in entries[40:]:
        index.append(entry)
        assert index.collect(entry.last_offset, 10_000)[0][-1:] == [entry]
    assert index.collect(0, 10_000)[0] == entries
    assert fs.reads == reads + 1


def test_what_was_cut_off_is_not_found_again(fs):
    index, entries = TransactionIndex(fs, PATH), transactions(20)
    for entry in entries:
        index.append(entry)
    assert len(index.collect(0, 10_000)[0]) == 20
    index.truncate_to(entries[10].last_offset)
    assert index.collect(0, 10_000)[0] == entries[:10]
    index.append(entries[10])
    assert index.collect(0, 10_000)[0] == entries[:11]
    index.reset()
    assert index.collect(0, 10_000)[0] == []


def test_a_file_that_is_no_index_is_never_answered_from(fs):
    index = TransactionIndex(fs, PATH)
    for entry in transactions(3):
        index.append(entry)
    fs.open(PATH).truncate(50)
    with pytest.raises(CorruptTransactionIndexError):
        TransactionIndex(fs, PATH).collect(0, 100)
