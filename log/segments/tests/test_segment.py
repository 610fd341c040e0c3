"""One segment: positions of batches, index entries, and failed appends."""

import errno
from itertools import pairwise

import pytest

from odradek.log.segments.segment import Segment
from odradek.log.segments.segment_files import CorruptSegmentError
from odradek.log.storage.filesystem import ColdReadError
from odradek.log.storage.memory_filesystem import MemoryFile, MemoryFileSystem
from odradek.log.tests.support import config
from odradek.protocol.records import build_batch

BASE = 100


@pytest.fixture
def fs() -> MemoryFileSystem:
    result = MemoryFileSystem(now_ms=5000)
    result.make_directory("/d")
    return result


def make(
    fs: MemoryFileSystem, *, interval_bytes: int = 200, index_bytes: int = 12000, fresh: bool = True
) -> Segment:
    properties = config(index_interval_bytes=interval_bytes, segment_index_bytes=index_bytes)
    return Segment(fs, "/d", BASE, properties, now_ms=0, fresh=fresh)


def data(offset: int, count: int = 1, timestamp: int = 10, value: bytes = b"v" * 30) -> bytes:
    return build_batch([(timestamp, None, value, ())] * count, base_offset=offset)


def put(segment: Segment, offset: int, count: int = 1, timestamp: int = 10) -> int:
    one = data(offset, count, timestamp)
    segment.append([one[:20], one[20:]], len(one), offset + count - 1, timestamp)
    return len(one)


def test_entries_are_sparse_and_have_last_offsets(fs: MemoryFileSystem):
    segment = make(fs, interval_bytes=150)
    size = put(segment, BASE, 1, 50)
    assert 75 < size < 150
    for number in range(1, 7):
        put(segment, BASE + number, 1, 50 if number < 5 else 60)
    # The first batch after more than 150 bytes since the last entry gets an entry.
    assert segment.offset_index.entries() == [(2, 2 * size), (4, 4 * size), (6, 6 * size)]
    assert segment.time_index.entries() == [(50, 0), (60, 5)]
    put(segment, BASE + 7, 1, 70)
    segment.seal()
    assert segment.time_index.entries() == [(50, 0), (60, 5), (70, 7)], "seal adds the last entry"
    assert fs.size_bytes("/d/00000000000000000100.index") == 24
    assert fs.size_bytes("/d/00000000000000000100.timeindex") == 36


def test_appends_without_entries_create_no_index_files(fs: MemoryFileSystem):
    """The creation of two files would take longer than the first append to each of a thousand new partitions."""
    segment = make(fs)
    put(segment, BASE)
    segment.write_pending()
    assert fs.list_names("/d") == ["00000000000000000100.log"]
    segment.seal()
    assert fs.list_names("/d") == [f"00000000000000000100.{kind}" for kind in ("index", "log", "timeindex")]
    assert segment.time_index.entries() == [(10, 0)]


def test_entries_are_never_far_apart(fs: MemoryFileSystem):
    """A search reads each header between two entries, also in a topic that is configured to have no entries."""
    properties = config(index_interval_bytes=2**31 - 1, segment_index_bytes=12000)
    segment = Segment(fs, "/d", BASE, properties, now_ms=0, fresh=True)
    size = 0
    for number in range(2000):
        size = max(size, put(segment, BASE + number))
    assert properties.text("index.interval.bytes") == str(2**31 - 1), "the configured value is reported"
    positions = [0, *(position for _, position in segment.offset_index.entries()), segment.size_bytes]
    assert segment.size_bytes > 2 * 65_536
    assert max(after - before for before, after in pairwise(positions)) <= 65_536 + size


def test_append_of_several_makes_the_same_entries(fs: MemoryFileSystem):
    one = make(fs)
    batches = [data(BASE + number, 1, 10 + number) for number in range(9)]
    for number, piece in enumerate(batches):
        one.append([piece], len(piece), BASE + number, 10 + number)
    expected = (one.offset_index.entries(), one.time_index.entries(), one.size_bytes, one.max_timestamp)
    other = MemoryFileSystem()
    other.make_directory("/d")
    several = make(other)
    several.append_batches(batches, [(len(piece), BASE + n, 10 + n) for n, piece in enumerate(batches)])
    found = (several.offset_index.entries(), several.time_index.entries(), several.size_bytes, several.max_timestamp)
    assert found == expected
    assert several.first_timestamp == one.first_timestamp == 10


@pytest.mark.parametrize("interval_bytes", [0, 200, 100_000])
def test_locate(fs: MemoryFileSystem, interval_bytes):
    segment = make(fs, interval_bytes=interval_bytes)
    positions, offset = {}, BASE
    for count in (3, 1, 2, 5, 1, 1, 4):
        position = segment.size_bytes
        # Compaction leaves gaps: a lookup of an offset in one returns the next batch.
        positions |= dict.fromkeys(range(offset, offset + count + 2), position)
        put(segment, offset + 2, count)
        offset += count + 2
    for _ in range(2):
        assert {o: segment.locate(o) for o in positions} == positions
        assert segment.locate(BASE - 5) == 0
        assert segment.locate(offset) == -1
        assert segment.next_offset() == offset
        segment.seal()
        segment = make(fs, interval_bytes=interval_bytes, fresh=False)


def test_a_search_that_may_not_wait_asks_for_index_and_headers(fs: MemoryFileSystem, monkeypatch):
    written = make(fs, interval_bytes=100)
    sizes = [put(written, BASE + number) for number in range(600)]
    written.seal()
    segment = make(fs, fresh=False)
    loaded: set[tuple[str, int]] = set()
    waits: list[str] = []
    pread = MemoryFile.pread

    def pread_cached(file, position, size_bytes):
        if (file.path, position) not in loaded:
            raise ColdReadError(file, position, size_bytes)
        return pread(file, position, size_bytes)

    def read(file, position, size_bytes):
        # A loaded index is loaded as a whole.
        if (file.path, 0 if file.path.endswith("index") else position) not in loaded:
            waits.append(file.path)
        return pread(file, position, size_bytes)

    monkeypatch.setattr(MemoryFile, "pread", read)
    monkeypatch.setattr(MemoryFile, "pread_cached", pread_cached)
    monkeypatch.setattr(MemoryFile, "is_cached", lambda file, position, size: (file.path, position) in loaded)
    wanted = []
    position = None
    while position is None:
        try:
            position = segment.locate(BASE + 400, may_wait=False)
        except ColdReadError as error:
            wanted.append((error.file.path.rpartition(".")[2], error.position, error.size_bytes))
            loaded.add((error.file.path, error.position))
    assert position == sum(sizes[:400])
    assert waits == []
    index_bytes = fs.size_bytes("/d/00000000000000000100.index")
    assert wanted[0] == ("index", 0, index_bytes)
    assert {kind for kind, _, _ in wanted[1:]} == {"log"}
    assert len(wanted) <= 4
    with pytest.raises(ColdReadError):
        segment.batch_at(0, may_wait=False)
    assert segment.batch_at(0) == (sizes[0], BASE)
    assert segment.locate(BASE + 20) == sum(sizes[:20])
    assert not segment.is_repaired


def test_hints_are_used_and_few(fs: MemoryFileSystem):
    segment = make(fs)
    size = put(segment, BASE)
    segment.add_hint(BASE + 1, size)
    assert segment.locate(BASE + 1) == -1, "no batch is there yet"
    put(segment, BASE + 1)
    assert segment.locate(BASE + 1) == size
    segment.add_hint(BASE + 1, 0)
    assert segment.locate(BASE + 1) == 0, "a hint is not verified"
    for number in range(100):
        segment.add_hint(BASE + number, 0)
    assert len(segment.hints) == 32


def test_truncation_removes_hints(fs: MemoryFileSystem):
    segment = make(fs)
    size = put(segment, BASE, 5)
    segment.add_hint(BASE + 5, size)
    segment.truncate_to(BASE + 3, 0)
    put(segment, BASE, 2)
    put(segment, BASE + 2, 9)
    assert segment.locate(BASE + 5) == len(data(BASE, 2))


def test_bytes_that_are_no_batch(fs: MemoryFileSystem):
    segment = make(fs)
    put(segment, BASE)
    put(segment, BASE + 1)
    segment.file.write_pieces(8, [b"\0\0\0\x05"], 4)
    with pytest.raises(CorruptSegmentError, match=r"00000000000000000100\.log"):
        segment.locate(BASE + 1)


@pytest.mark.parametrize("failing", [".log", ".index", ".timeindex"])
def test_a_failed_append_is_undone(fs: MemoryFileSystem, failing):
    """Whichever file fails: size, indexes and timestamps are as before, and the next append succeeds."""
    segment = make(fs, interval_bytes=0)
    for number in range(256):
        put(segment, BASE + number, 1, 10 + number)
    before = segment.size_bytes
    # The 257th entry is the first to be written to the index files together with 255 others.
    assert segment.offset_index.count == 255
    fs.fail("write", error=errno.ENOSPC, path_contains=failing)
    with pytest.raises(OSError, match="No space"):
        for number in range(256, 520):
            put(segment, BASE + number, 1, 10 + number)
            before = segment.size_bytes
    end = segment.next_offset()
    assert segment.size_bytes == segment.file.size_bytes() == before
    assert segment.max_timestamp == 10 + end - 1 - BASE
    assert segment.offset_index.last_offset == end - 1
    assert segment.locate(end) == -1
    put(segment, end, 1, 7777)
    assert segment.locate(end) == before
    assert segment.max_timestamp == 7777
    segment.seal()
    again = make(fs, fresh=False)
    assert (again.next_offset(), again.max_timestamp) == (end + 1, 7777)


def test_full_indexes(fs: MemoryFileSystem):
    for index_bytes, entries in ((8 * 5, 2), (12 * 9, 8)):
        # A time entry takes 12 bytes and one slot is reserved, so it is full first if every batch is later.
        segment = make(fs, interval_bytes=0, index_bytes=index_bytes)
        number = 0
        while not segment.indexes_full:
            put(segment, BASE + number, 1, 10 + number)
            number += 1
        assert segment.time_index.count == entries
        segment.seal()
        assert segment.time_index.count == entries, "the last batch has an entry already"
        fs.remove_tree("/d")
        fs.make_directory("/d")


def test_age(fs: MemoryFileSystem):
    segment = make(fs)
    assert (segment.first_timestamp, segment.max_timestamp) == (-1, -1)
    put(segment, BASE, 1, 30)
    put(segment, BASE + 1, 1, 20)
    assert (segment.first_timestamp, segment.largest_timestamp_ms) == (30, 30)
    segment.seal()
    again = make(fs, fresh=False)
    assert (again.first_timestamp, again.largest_timestamp_ms) == (30, 30)
    again.truncate_to(BASE, 99)
    assert (again.first_timestamp, again.max_timestamp, again.created_ms) == (-1, -1, 99)
    put(again, BASE, 1, -1)
    assert again.largest_timestamp_ms == 5000, "the file's time is used if no record has a timestamp"


@pytest.mark.parametrize("offset", [BASE, BASE + 1, BASE + 4, BASE + 5, BASE + 19, BASE + 20, BASE + 99])
def test_truncate_drops_batches_that_reach_the_offset(fs: MemoryFileSystem, offset):
    segment = make(fs, interval_bytes=0)
    sizes = [put(segment, BASE + number * 5, 5, 10 + number) for number in range(4)]
    kept = min(4, (offset - BASE) // 5)
    segment.truncate_to(offset, 0)
    assert (segment.size_bytes, segment.file.size_bytes()) == (sum(sizes[:kept]), sum(sizes))
    assert segment.max_timestamp == (9 + kept if kept else -1)
    assert segment.next_offset() == BASE + kept * 5
    put(segment, BASE + 30, 1, 5)
    assert segment.locate(BASE + 20 if kept == 4 else BASE + kept * 5) == sum(sizes[:kept])


def test_names_of_a_deleted_segment(fs: MemoryFileSystem):
    segment = make(fs, interval_bytes=0)
    size = put(segment, BASE) + put(segment, BASE + 1)
    segment.write_pending()
    deleted = segment.mark_deleted()
    assert (deleted.base_offset, deleted.size_bytes) == (BASE, size)
    stem = "00000000000000000100"
    assert fs.list_names("/d") == [f"{stem}.{kind}.deleted" for kind in ("index", "log", "timeindex")]
    assert set(fs.list_names("/d")) <= set(deleted.names)
    assert segment.file.pread(0, size) == data(BASE) + data(BASE + 1), "a region that was read can still be sent"


def test_a_moved_hint_leaves_room_for_others(fs: MemoryFileSystem):
    segment = make(fs)
    segment.add_hint(BASE, 7)
    for number in range(100):
        segment.move_hint(BASE + 50 + number, BASE + 51 + number, number)
    assert segment.hints == {BASE: 7, BASE + 150: 99}


def test_batch_at(fs: MemoryFileSystem):
    segment = make(fs)
    sizes = [put(segment, BASE, 3), put(segment, BASE + 3, 2)]
    assert segment.batch_at(0) == (sizes[0], BASE + 2)
    assert segment.batch_at(sizes[0]) == (sizes[1], BASE + 4)
    segment.file.truncate(sizes[0] + 20)
    with pytest.raises(CorruptSegmentError, match="ends before"):
        segment.batch_at(sizes[0])
