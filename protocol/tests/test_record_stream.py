"""Records read through a window equal those of the whole payload, for any division into pieces."""

import random

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from odradek.protocol.batches.record_batch import InvalidRecordError
from odradek.protocol.batches.record_chain import LargestDelta, check_records
from odradek.protocol.batches.record_shape import MAX_HEADERS, StepLimitError, check_record
from odradek.protocol.batches.record_stream import RecordStream
from odradek.protocol.batches.streaming import PIECE_BYTES, run_steps
from odradek.protocol.records import build_batch

pytestmark = pytest.mark.slow

LARGE = b"v" * (2 * PIECE_BYTES + 1)
RECORDS = st.lists(
    st.tuples(
        st.integers(0, 1 << 40),
        st.none() | st.binary(max_size=100),
        st.none() | st.binary(max_size=300) | st.just(LARGE),
        st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3),
    ),
    min_size=1,
    max_size=40,
)


def payload_of(records):
    return build_batch(records)[61:]


def stream_of(payload, seed=0, longest=PIECE_BYTES):
    """Return a stream of the payload in pieces of any length, including empty ones."""
    source = random.Random(seed)

    def pieces():
        start = 0
        while start < len(payload):
            end = start + source.choice((0, 1, source.randrange(40), source.randrange(longest) + 1))
            yield payload[start:end]
            start = end

    return RecordStream(pieces())


def read_all(stream, count):
    def steps():
        found = []
        for _ in range(count):
            fields = yield from stream.read_record()
            found.append((*fields, stream.read_bytes))
        yield from stream.expect_end()
        return found

    return run_steps(steps())


def follow(stream, count, largest):
    def steps():
        yield from stream.follow(count, largest)
        yield from stream.expect_end()

    run_steps(steps())


@settings(max_examples=60, deadline=None)
@given(RECORDS, st.integers(0, 99))
def test_each_record_is_found(records, seed):
    payload = payload_of(records)
    expected, position = [], 0
    for _ in records:
        *_, position = fields = check_record(payload, position)
        expected.append(tuple(fields))
    assert read_all(stream_of(payload, seed), len(records)) == expected


@settings(max_examples=60, deadline=None)
@given(RECORDS, st.integers(0, 99), st.integers(0, 1 << 40))
def test_the_largest_delta_is_found(records, seed, expected):
    payload = payload_of(records)
    largest = LargestDelta(expected)
    follow(stream_of(payload, seed), len(records), largest)
    assert largest.value == check_records(payload, len(records), expected)[1]


@settings(max_examples=60, deadline=None)
@given(RECORDS, st.integers(0, 99), st.data())
def test_truncated_records_and_remaining_bytes_are_refused(records, seed, data):
    payload = payload_of(records)
    cut = data.draw(st.integers(0, len(payload) - 1))
    for damaged in (payload[:cut], payload + bytes(cut % 7 + 1)):
        for read in (read_all, lambda stream, count: follow(stream, count, LargestDelta(0))):
            with pytest.raises(InvalidRecordError):
                read(stream_of(damaged, seed), len(records))


@settings(max_examples=100, deadline=None)
@given(RECORDS, st.integers(0, 99), st.data())
def test_changed_bytes_have_the_same_result_as_in_the_whole(records, seed, data):
    payload = bytearray(payload_of(records))
    payload[data.draw(st.integers(0, min(len(payload), 500) - 1))] = data.draw(st.integers(0, 255))

    def whole():
        position = 0
        for _ in records:
            position = check_record(payload, position)[3]
        if position != len(payload):
            raise InvalidRecordError

    def outcome(work):
        try:
            work()
        except InvalidRecordError:
            return InvalidRecordError
        return None

    try:
        expected = outcome(whole)
    except StepLimitError:
        # A changed number of headers is too large for one step.
        reject()
    stream = stream_of(bytes(payload), seed)
    assert outcome(lambda: read_all(stream, len(records))) == expected


def test_many_headers_are_read_in_steps():
    payload = payload_of([(0, b"k", b"v", [("", None)] * (20 * MAX_HEADERS))])
    with pytest.raises(StepLimitError):
        check_record(payload, 0)
    stream = stream_of(payload)
    steps = sum(1 for _ in stream.read_record())
    assert steps > 20
    assert stream.read_bytes == len(payload)


def test_records_are_followed_in_bounded_steps_and_memory():
    payload = payload_of([(0, None, b"", ())]) * 100_000
    stream = stream_of(payload, longest=PIECE_BYTES)
    steps = 0
    for _ in stream.follow(100_000, LargestDelta(0)):
        steps += 1
        assert len(stream.window) <= 2 * PIECE_BYTES
    assert steps > 100_000 / 4096
    assert stream.read_bytes == len(payload)


def test_a_large_record_is_not_kept_in_memory():
    payload = payload_of([(0, b"k", bytes(100 * PIECE_BYTES), ())])
    stream = RecordStream(payload[start : start + PIECE_BYTES] for start in range(0, len(payload), PIECE_BYTES))
    assert all(len(stream.window) <= 2 * PIECE_BYTES for _ in stream.read_record())
    assert stream.read_bytes == len(payload)
