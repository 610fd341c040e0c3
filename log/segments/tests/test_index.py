"""Offset and time index: contents of the files, and lookups, also after the indexes are reopened."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.log.segments.index import IndexOffsetError, OffsetIndex, TimeIndex
from odradek.log.storage.memory_filesystem import MemoryFileSystem

BASE = 1000


@pytest.fixture
def fs() -> MemoryFileSystem:
    result = MemoryFileSystem()
    result.make_directory("/d")
    return result


def offsets(fs: MemoryFileSystem, max_bytes: int = 8000, *, fresh: bool = True) -> OffsetIndex:
    return OffsetIndex(fs, "/d/o.index", BASE, max_bytes, fresh=fresh)


def times(fs: MemoryFileSystem, max_bytes: int = 12000, *, fresh: bool = True) -> TimeIndex:
    return TimeIndex(fs, "/d/t.timeindex", BASE, max_bytes, fresh=fresh)


def test_a_file_is_preallocated_and_trimmed_to_its_entries(fs: MemoryFileSystem):
    index = offsets(fs, max_bytes=803)
    index.takes_appends = True
    index.append(BASE + 5, 70)
    index.append(BASE + 9, 4200)
    assert not fs.exists("/d/o.index"), "created when it is first needed"
    index.write_pending()
    expected = bytes.fromhex("00000005 00000046 00000009 00001068")
    assert fs.read_bytes("/d/o.index") == expected + bytes(800 - 16), "whole entries only"
    index.trim()
    assert fs.read_bytes("/d/o.index") == expected
    index.takes_appends = True
    index.append(BASE + 11, 8300)
    index.write_pending()
    assert fs.size_bytes("/d/o.index") == 800, "appends go on after a trim"
    assert index.count == 3


def test_a_truncation_keeps_entries_above_a_lowered_limit(fs: MemoryFileSystem):
    """Lowering segment.index.bytes leaves an index with more entries than its new limit."""
    index = offsets(fs)
    for number in range(20):
        index.append(BASE + number, number * 10)
    index.trim()
    index = offsets(fs, max_bytes=80, fresh=False)
    index.takes_appends = True
    index.append(BASE + 20, 200)
    index.write_pending()
    index.truncate_to(BASE + 15)
    assert index.entries() == [(number, number * 10) for number in range(15)]


def test_time_index_on_the_disk(fs: MemoryFileSystem):
    index = times(fs)
    index.append_if_later(7, BASE + 3)
    index.append_if_later(7, BASE + 4)
    index.append_if_later(6, BASE + 5)
    index.append_if_later(1 << 40, BASE + 5)
    index.trim()
    assert fs.read_bytes("/d/t.timeindex") == bytes.fromhex("0000000000000007 00000003 0000010000000000 00000005")
    assert index.last_entry == (1 << 40, BASE + 5)


def test_full(fs: MemoryFileSystem):
    index, time_index = offsets(fs, 24), times(fs, 36)
    for number in range(3):
        assert not index.is_full
        index.append(BASE + number, number)
    assert index.is_full
    time_index.append_if_later(1, BASE)
    assert not time_index.is_full
    time_index.append_if_later(2, BASE)
    assert time_index.is_full, "a slot is left for the entry made on roll"
    time_index.append_if_later(3, BASE)
    assert time_index.entries() == [(1, 0), (2, 0), (3, 0)]


def test_offsets_must_ascend_and_fit(fs: MemoryFileSystem):
    index, time_index = offsets(fs), times(fs)
    for offset in (BASE - 1, BASE + (1 << 31)):
        with pytest.raises(IndexOffsetError):
            index.append(offset, 0)
        with pytest.raises(IndexOffsetError):
            time_index.append_if_later(1, offset)
    index.append(BASE + 0x7FFFFFFF, 1)
    with pytest.raises(IndexOffsetError):
        index.append(BASE + 0x7FFFFFFF, 2)
    time_index.append_if_later(1, BASE + 4)
    with pytest.raises(IndexOffsetError):
        time_index.append_if_later(2, BASE + 3)
    assert (index.count, time_index.count) == (1, 1), "a refused entry is not added"


def test_empty_indexes(fs: MemoryFileSystem):
    for fresh in (True, False):
        index, time_index = offsets(fs, fresh=fresh), times(fs, fresh=fresh)
        assert (index.count, index.last_offset, index.floor_position(BASE + 9)) == (0, BASE, 0)
        assert index.entry_above_position(0) is None
        assert (time_index.count, time_index.last_entry, time_index.floor_entry(9)) == (0, (-1, BASE), None)


def test_a_partial_entry_at_the_end_of_a_file_is_ignored(fs: MemoryFileSystem):
    fs.open("/d/o.index", create=True).write_pieces(0, [bytes(7) + b"\x01" + bytes(3)], 11)
    assert offsets(fs, fresh=False).entries() == [(0, 1)]


def test_an_index_that_shrank_is_an_error(fs: MemoryFileSystem):
    index = offsets(fs)
    for number in range(900):
        index.append(BASE + number, number)
    index.trim()
    index = offsets(fs, fresh=False)
    assert index.count == 900
    fs.open("/d/o.index").truncate(8)
    with pytest.raises(OSError, match="is shorter than its entries"):
        index.floor_position(BASE)


def test_reset_of_an_index_that_was_not_read(fs: MemoryFileSystem):
    index = offsets(fs)
    index.append(BASE + 1, 1)
    index.trim()
    index = offsets(fs, fresh=False)
    index.reset()
    index.append(BASE + 3, 5)
    index.trim()
    assert offsets(fs, fresh=False).entries() == [(3, 5)]


def test_truncated_entries_read_as_zeros(fs: MemoryFileSystem):
    index = offsets(fs, 80)
    index.takes_appends = True
    for number in range(5):
        index.append(BASE + number * 10, number)
    index.write_pending()
    index.truncate_to(BASE + 20)
    assert fs.read_bytes("/d/o.index") == bytes.fromhex("00000000 00000000 0000000a 00000001") + bytes(64)
    index.append(BASE + 11, 9)
    assert index.entries() == [(0, 0), (10, 1), (11, 9)]


# Steps that combine blocks of 512 entries with pending ones.
STEPS = st.lists(
    st.tuples(st.sampled_from(["append", "append", "write", "truncate", "reopen"]), st.integers(0, 700)), max_size=12
)


@given(STEPS, st.lists(st.integers(-5, 5000), max_size=20))
def test_lookups_agree_with_a_list(steps, targets):
    fs = MemoryFileSystem()
    fs.make_directory("/d")
    index, time_index, model = offsets(fs, 1 << 20), times(fs, 1 << 20), []
    for step, number in steps:
        if step == "append":
            for _ in range(number):
                relative = model[-1] + 2 if model else 3
                index.append(BASE + relative, relative * 10)
                time_index.append_if_later(relative * 100, BASE + relative)
                model.append(relative)
        elif step == "write":
            index.write_pending()
            time_index.write_pending()
        elif step == "truncate":
            index.truncate_to(BASE + number)
            time_index.truncate_to(BASE + number)
            model = [relative for relative in model if relative < number]
        else:
            index.trim()
            time_index.trim()
            index, time_index = offsets(fs, 1 << 20, fresh=False), times(fs, 1 << 20, fresh=False)
        for target in targets:
            floor = max((relative for relative in model if relative <= target), default=0)
            assert index.floor_position(BASE + target) == floor * 10
            expected = (floor * 100, BASE + floor) if any(relative <= target for relative in model) else None
            assert time_index.floor_entry(target * 100) == expected
            above = min((relative for relative in model if relative >= target), default=None)
            assert index.entry_above_position(target * 10) == (None if above is None else (BASE + above, above * 10))
        assert index.count == len(index) == len(model)
        last = model[-1] if model else 0
        assert index.last_offset == BASE + last
        assert time_index.last_entry == ((last * 100, BASE + last) if model else (-1, BASE))
    assert index.entries() == [(relative, relative * 10) for relative in model]


@pytest.mark.parametrize("made", [offsets, times])
def test_an_index_that_outgrew_its_limit_keeps_its_entries(fs: MemoryFileSystem, made):
    """segment.index.bytes was lowered, or recovery found more to index than an append would have."""
    index = made(fs, max_bytes=120)
    for number in range(9):
        offset, other = BASE + 2 * number + 1, 100 * (number + 1)
        index.append(offset, other) if made is offsets else index.append_if_later(other, offset)
    index.trim()
    before = made(fs, fresh=False).entries()
    index = made(fs, max_bytes=64, fresh=False)
    index.takes_appends = True
    index.trim()
    assert made(fs, fresh=False).entries() == before
