"""The fast structural check agrees with a slow one, whatever the mixture of record lengths."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.protocol.records import InvalidRecordError, build_batch, check_record_chain

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


@pytest.mark.parametrize("extra", [1, 2, 3])
def test_overlong_lengths_are_read(extra):
    for count in (1, 3, 100):
        records = (varint(20, extra) + bytes(20)) * count
        batch = HEADER + struct.pack(">i", count) + records
        assert slow_check(batch)
        assert fast_check(batch)
        assert fast_check(memoryview(batch))
