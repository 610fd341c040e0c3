"""The check of a run has the same result as checks of its single records."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.protocol.batches.record_batch import InvalidRecordError
from odradek.protocol.batches.record_runs import MAX_RUN, MIN_RUN, Run, records_to_block_end
from odradek.protocol.batches.record_shape import check_record
from odradek.protocol.records import build_batch, iter_records

KEYS = st.none() | st.binary(max_size=4)
VALUES = st.none() | st.binary(max_size=100)
TIMES = st.sampled_from([lambda n: 0, lambda n: n, lambda n: n * 100, lambda n: 5000 - n, lambda n: 1 << 40])


def payload_of(count, first, times, key, value, headers=()):
    """Return records at offset deltas from `first` on."""
    before = [(0, None, None, ())] * first
    records = before + [(times(n), key, value, headers) for n in range(count)]
    return build_batch(records)[len(build_batch(before)) :]


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.integers(1, 100), st.sampled_from([0, 5, 60, 8170]), TIMES, KEYS, VALUES, st.data())
def test_a_run_equals_its_single_records(count, first, times, key, value, data):
    changed = bytearray(payload_of(count, first, times, key, value))
    if data.draw(st.booleans()):
        changed[data.draw(st.integers(0, len(changed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    payload = bytes(changed)
    try:
        run = Run(payload, 0, min(count, records_to_block_end(first)))
    except InvalidRecordError:
        with pytest.raises(InvalidRecordError):
            check_record(payload, 0)
        return
    position, timestamps, numbers = 0, set(), []
    for _ in range(run.count):
        timestamp_delta, offset_delta, has_key, position = check_record(payload, position)
        timestamps.add(timestamp_delta)
        numbers.append(offset_delta)
        assert has_key == run.has_key
    if run.count:
        assert run.end == position
        assert run.timestamp_deltas() == timestamps
        assert run.is_numbered(first) == (numbers == list(range(first, first + run.count)))


def test_long_runs_are_found():
    payload = payload_of(1, 0, lambda n: 0, b"k", b"value") * 3 * MAX_RUN
    assert Run(payload, 0, 3 * MAX_RUN).count == MAX_RUN
    assert Run(payload, 0, MIN_RUN).count == MIN_RUN
    assert Run(payload, 0, MIN_RUN - 1).count == 0


@pytest.mark.parametrize("value", [None, b"", b"v", b"v" * 50, b"v" * 56])
@pytest.mark.parametrize("key", [None, b"", b"k"])
@pytest.mark.parametrize("index", [0, 64, 100, 8192, 20_000, 1 << 20])
def test_a_run_is_renumbered(key, value, index):
    count = 20
    batch = build_batch([(7 * (n % 5), key, value, ()) for n in range(count)])
    run = Run(batch[61:], 0, count)
    assert run.count == count
    renumbered = run.renumbered(index)
    if not renumbered:
        assert len(batch) - 61 > count * 60
        return
    before = list(iter_records(batch))
    position = 0
    for record in before:
        timestamp_delta, offset_delta, has_key, end = check_record(renumbered, position)
        assert (timestamp_delta, offset_delta - index, has_key) == (record.timestamp, record.offset, key is not None)
        assert (record.value or b"") in renumbered[position:end]
        position = end
    assert position == len(renumbered)


@pytest.mark.parametrize("headers", [(("h", b"v"),), (("", None),)])
def test_records_with_headers_are_not_in_runs(headers):
    assert Run(payload_of(100, 0, lambda n: 0, b"k", b"v", headers), 0, 100).count == 0
