"""The fast structural check agrees with a slow one for any mixture of record lengths."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.protocol.batches.record_chain import check_records
from odradek.protocol.records import InvalidRecordError, build_batch, check_record_chain

pytestmark = pytest.mark.slow

HEADER = build_batch([])[:57]

# Lengths around each boundary: shortest, one to two bytes, two to three, and beyond a window.
lengths = st.one_of(
    st.integers(6, 70), st.integers(60, 68), st.integers(600, 900), st.integers(8185, 8200), st.just(40_000)
)
runs = st.lists(st.tuples(lengths, st.integers(1, 80)), min_size=1, max_size=6)


def varint(length, extra=0):
    raw = length << 1
    output = bytearray()
    while raw > 127 or extra:
        output.append(raw & 0x7F | 0x80)
        raw >>= 7
        extra = max(0, extra - 1) if not raw else extra
    output.append(raw)
    return bytes(output)


def batch_of(record_lengths):
    records = b"".join(varint(length) + bytes([length % 251]) * length for length in record_lengths)
    return HEADER + struct.pack(">i", len(record_lengths)) + records


def slow_check(batch):
    (count,) = struct.unpack_from(">i", batch, 57)
    position = 61
    for _ in range(count):
        raw = shift = 0
        while True:
            if position >= len(batch) or shift > 28:
                return False
            byte = batch[position]
            position += 1
            raw |= (byte & 0x7F) << shift
            shift += 7
            if byte < 128:
                break
        raw &= 0xFFFFFFFF
        if raw & 1 or raw >> 1 < 6:
            return False
        position += raw >> 1
        if position > len(batch):
            return False
    return count >= 0 and position == len(batch)


def fast_check(batch):
    try:
        check_record_chain(batch)
    except InvalidRecordError:
        return False
    return True


@settings(max_examples=150, deadline=None)
@given(runs, st.booleans())
def test_whole_batches_pass(parts, interleaved):
    record_lengths = [length for length, times in parts for _ in range(times)]
    if interleaved:
        record_lengths = [length for index in range(40) for length, times in parts if index < times]
    batch = batch_of(record_lengths)
    assert slow_check(batch)
    assert fast_check(batch)
    assert fast_check(memoryview(batch))
    assert fast_check(bytearray(batch))
    for changed in (batch[:-1], batch + b"\x00", batch[:57] + struct.pack(">i", len(record_lengths) + 1) + batch[61:]):
        assert not fast_check(changed)
        assert not fast_check(memoryview(changed))


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.integers(6, 75), st.integers(1, 200)), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_agrees_with_the_slow_check_on_damaged_batches(parts, changes):
    batch = bytearray(batch_of([length for length, times in parts for _ in range(times)]))
    for position, value in changes:
        batch[61 + position % (len(batch) - 61)] = value
    assert fast_check(bytes(batch)) == fast_check(memoryview(batch)) == slow_check(batch)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300), st.integers(-2, 40))
def test_agrees_with_the_slow_check_on_noise(noise, count):
    batch = HEADER + struct.pack(">i", count) + noise
    assert fast_check(batch) == fast_check(memoryview(batch)) == slow_check(batch)


deltas = st.one_of(
    st.integers(0, 70), st.integers(-70, 200), st.integers(-10_000, 20_000), st.integers(-(2**40), 2**54 - 1)
)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(deltas, st.integers(0, 3), st.integers(1, 60), st.integers(0, 200)), min_size=1, max_size=6),
    st.booleans(),
    deltas,
)
def test_finds_the_largest_timestamp_delta(parts, is_shuffled, guess):
    """Records are in runs of one length and in any order, with deltas that grow; any delta may be expected."""
    base = 10**12
    records = [
        (base + delta + step * number, None, b"v" * size, ())
        for delta, step, times, size in parts
        for number in range(times)
    ]
    if is_shuffled:
        records = records[::3] + records[1::3] + records[2::3]
    records.insert(0, (base, None, b"", ()))
    batch = build_batch(records)
    largest = max(timestamp - base for timestamp, *_ in records)
    for expected in (0, largest, max(0, largest - 1), largest // 2, max(0, guess)):
        found = largest if largest >= expected else None
        assert check_record_chain(batch, expected) == check_record_chain(memoryview(batch), expected) == found
        assert check_records(batch[61:], len(records), expected)[1] == found
        assert check_records(memoryview(batch)[61:], len(records), expected)[1] == found
    last, _ = check_records(batch[61:], len(records))
    assert last == len(build_batch(records[:-1])) - 61


@pytest.mark.parametrize("count", [1, 5, 100])
def test_returns_no_largest_delta_if_all_are_negative_or_one_is_long(count):
    for deltas in ([-1] * count, [-(2**40)] * count, [0] * count + [2**60], [0] * count + [-(2**60)]):
        batch = with_deltas(deltas)
        for expected in (0, 5, 2**62):
            assert check_record_chain(batch, expected) is None
            assert check_record_chain(memoryview(batch), expected) is None


def with_deltas(deltas):
    """Return a batch with any timestamp deltas, including that of the first record."""
    records = build_batch([(10**12, None, b"", ())] + [(10**12 + delta, None, b"", ()) for delta in deltas])[61:]
    first_bytes = 1 + records[0] // 2
    return HEADER + struct.pack(">i", len(deltas)) + records[first_bytes:]


@pytest.mark.parametrize("extra", [1, 2, 3])
def test_overlong_lengths_are_read(extra):
    for count in (1, 3, 100):
        records = (varint(20, extra) + bytes(20)) * count
        batch = HEADER + struct.pack(">i", count) + records
        assert slow_check(batch)
        assert fast_check(batch)
        assert fast_check(memoryview(batch))
