"""Validation of a batch in steps has the same result as validation at once, and each step is small."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.log.config import LogConfig
from odradek.log.tests.support import NOW_MS, append, batch, config, idempotent, misnumbered, open_log, read_all
from odradek.log.validation import batch as validation
from odradek.log.validation.batch import CheckedRecords, Origin, StepwiseValidationRequired, check_batch
from odradek.log.validation.long_batch import check_in_steps
from odradek.log.validation.record import MAX_RECORD_ERRORS, RejectedRecordsError
from odradek.protocol.batches.batch_builder import put_varint
from odradek.protocol.batches.compression import Codec, compress
from odradek.protocol.batches.crc import crc32c
from odradek.protocol.batches.streaming import ThreadCall, run_steps
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.records import HEADER, build_batch, iter_records, read_header

LARGE = 1 << 27
MANY = validation.MAX_RECORDS_PER_STEP + 1
CONFIGS: dict[str, dict[str, object]] = {
    "plain": {},
    "compacted": {"cleanup_policy": "compact"},
    "log append time": {"message_timestamp_type": "LogAppendTime"},
    "lower bound": {"message_timestamp_before_max_ms": 1000},
    "upper bound": {"message_timestamp_after_max_ms": 1000},
    "gzip": {"compression_type": "gzip"},
    "snappy": {"compression_type": "snappy"},
    "lz4": {"compression_type": "lz4"},
    "zstd": {"compression_type": "zstd"},
    "uncompressed": {"compression_type": "uncompressed"},
}


def raw_batch(
    payload: bytes,
    count: int,
    *,
    codec: Codec = Codec.NONE,
    attributes: int = 0,
    max_timestamp: int = NOW_MS,
    last_delta: int | None = None,
) -> memoryview:
    """A batch of records that are encoded already."""
    data = compress(codec, payload)
    header = read_header(batch([b""]))._replace(
        attributes=attributes | codec,
        record_count=count,
        last_offset_delta=count - 1 if last_delta is None else last_delta,
        base_timestamp=NOW_MS,
        max_timestamp=max_timestamp,
        batch_length=len(data) + 49,
    )
    whole = bytearray(HEADER.pack(*header) + data)
    struct.pack_into(">I", whole, 17, crc32c(memoryview(whole)[21:]))
    return memoryview(whole)


def record(offset_delta: int = 0, key: bytes | None = None) -> bytes:
    body = bytearray(2)
    put_varint(body, offset_delta)
    put_varint(body, -1 if key is None else len(key))
    body += (key or b"") + bytes(2)
    size = bytearray()
    put_varint(size, len(body))
    return bytes(size + body)


def many(count: int = MANY, key: bytes | None = None) -> bytes:
    """Records of which the first and the last have the right offset delta."""
    return record(0, key) * (count - 1) + record(count - 1, key)


def steps_of(data: memoryview, cfg: LogConfig) -> tuple[int, int, CheckedRecords]:
    steps = calls = 0
    work = check_in_steps(data, cfg, NOW_MS)
    try:
        while True:
            step = next(work)
            steps += 1
            if isinstance(step, ThreadCall):
                calls += 1
                step()
    except StopIteration as end:
        return steps, calls, end.value


MANY_HEADERS = memoryview(build_batch([(NOW_MS, b"k", b"", [("", None)] * 500)] * 100))

RECORDS = st.lists(
    st.tuples(
        st.sampled_from([NOW_MS, NOW_MS + 1, NOW_MS + 100, NOW_MS - 5000, NOW_MS + 5000, -1]),
        st.none() | st.binary(max_size=3),
        st.none() | st.binary(max_size=200),
        st.just(()) | st.just((("h", b"v"),)),
    ),
    min_size=1,
    max_size=20,
)


@settings(max_examples=150, deadline=None)
@given(RECORDS, st.sampled_from(list(CONFIGS)), st.sampled_from(Codec), st.booleans(), st.booleans(), st.data())
def test_the_result_is_that_of_validation_at_once(records, name, codec, is_misnumbered, client_time, data):
    cfg = config(max_message_bytes=LARGE, **CONFIGS[name])
    produced = memoryview(build_batch(records, codec=codec, log_append_time=NOW_MS if client_time else None))
    if is_misnumbered:
        deltas = data.draw(st.lists(st.integers(0, 200), min_size=len(records), max_size=len(records)))
        produced = misnumbered(produced, deltas)
        changed = bytearray(produced)
        struct.pack_into(">i", changed, 23, len(records) - 1)
        struct.pack_into(">I", changed, 17, crc32c(memoryview(changed)[21:]))
        produced = memoryview(changed)

    def outcome(check):
        try:
            return check()
        except KafkaError as error:
            return error.code, getattr(error, "record_errors", None)

    at_once = outcome(lambda: check_batch(produced, cfg, Origin.CLIENT, NOW_MS))
    in_steps = outcome(lambda: validation.stamp(run_steps(check_in_steps(produced, cfg, NOW_MS)), NOW_MS))
    if at_once == in_steps:
        return
    # The compressed bytes may differ, but not the records.
    first, second = (bytes(checked.head) + bytes(checked.rest) for checked in (at_once, in_steps))
    assert list(iter_records(first)) == list(iter_records(second))
    ignored = {"batch_length": 0, "crc": 0}
    assert read_header(first)._replace(**ignored) == read_header(second)._replace(**ignored)


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("name", ["plain", "log append time", "gzip"])
def test_a_large_batch_is_appended_as_it_is_read(name, codec):
    log = open_log(cfg=config(max_message_bytes=LARGE, internal_segment_bytes=LARGE, **CONFIGS[name]))
    data = raw_batch(many(), MANY, codec=codec)
    with pytest.raises(StepwiseValidationRequired):
        log.append_as_leader(data, leader_epoch=0, now_ms=NOW_MS)
    assert append(log, data).last_offset == MANY - 1
    assert sum(1 for _ in read_all(log, max_bytes=LARGE)) == MANY


@pytest.mark.parametrize(
    ("data", "properties"),
    [
        (raw_batch(many(1025, b"k"), 1025), {"cleanup_policy": "compact"}),
        (raw_batch(record() * 1025, 1025), {}),
        (raw_batch(build_batch([(NOW_MS, None, bytes(20_000), ())])[61:], 1), {"compression_type": "gzip"}),
        (raw_batch(build_batch([(NOW_MS, None, bytes(1 << 20), ())])[61:], 1, codec=Codec.ZSTD), {}),
        (raw_batch(build_batch([(NOW_MS, None, b"", [("", None)] * 1001)])[61:], 1), {}),
        (raw_batch(many(1025), 1025), {"message_timestamp_before_max_ms": 1000}),
        (MANY_HEADERS, {"cleanup_policy": "compact"}),
    ],
    ids=["opened", "renumbered", "compressed", "decompressed", "headers", "bounded", "headers of all"],
)
def test_a_long_validation_is_left_for_later(data, properties):
    cfg = config(max_message_bytes=LARGE, **properties)
    with pytest.raises(StepwiseValidationRequired):
        check_batch(data, cfg, Origin.CLIENT, NOW_MS)
    assert run_steps(check_in_steps(data, cfg, NOW_MS)).config is cfg


@pytest.mark.parametrize(
    "data",
    [
        raw_batch(many(), MANY, last_delta=MANY),
        raw_batch(many(), MANY)[:-1],
        raw_batch(many(), -MANY),
    ],
    ids=["wrong last offset delta", "incomplete", "negative count"],
)
def test_a_wrong_header_is_refused_at_once(data):
    with pytest.raises(KafkaError) as raised:
        check_batch(data, config(max_message_bytes=LARGE), Origin.CLIENT, NOW_MS)
    assert raised.value.code in (ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE)


def test_a_step_is_small():
    """A step is limited to one piece of input and to a number of records."""
    steps, calls, _ = steps_of(raw_batch(many(100_000), 100_000), config())
    assert steps > 100_000 / 4096
    assert calls == 0
    steps, _, _ = steps_of(raw_batch(many(100_000, b"k"), 100_000), config(cleanup_policy="compact"))
    assert steps > 100_000 / 256


def test_a_step_parses_few_headers():
    steps, _, checked = steps_of(MANY_HEADERS, config(cleanup_policy="compact"))
    assert steps > 100 * 500 / 1000
    assert checked.header.record_count == 100


def test_with_a_wrong_count_validation_ends_with_the_bytes():
    payload = many(20_000)
    for count in (20_001, 2_000_000, 19_999):
        with pytest.raises(KafkaError) as raised:
            steps_of(raw_batch(payload, count, codec=Codec.ZSTD), config())
        assert raised.value.code == ErrorCode.INVALID_RECORD


def test_compression_runs_on_a_thread():
    _, calls, checked = steps_of(raw_batch(many(), MANY), config(compression_type="gzip"))
    assert calls > 0
    assert checked.header.codec == Codec.GZIP


def test_errors_of_single_records_are_bounded():
    with pytest.raises(RejectedRecordsError) as raised:
        steps_of(raw_batch(many(), MANY), config(cleanup_policy="compact"))
    assert len(raised.value.record_errors) == MAX_RECORD_ERRORS


def test_a_rewritten_batch_larger_than_max_message_bytes_is_refused():
    with pytest.raises(KafkaError) as raised:
        steps_of(
            raw_batch(record() * 200_000, 200_000, codec=Codec.ZSTD),
            config(max_message_bytes=10_000, compression_type="uncompressed"),
        )
    assert raised.value.code == ErrorCode.MESSAGE_TOO_LARGE


def test_the_result_is_invalid_after_a_change_of_properties():
    log = open_log(cfg=config(max_message_bytes=LARGE, internal_segment_bytes=LARGE))
    data = raw_batch(many(), MANY)
    checked = run_steps(check_in_steps(data, log.config, NOW_MS))
    log.update_config(config(max_message_bytes=LARGE, internal_segment_bytes=LARGE, cleanup_policy="compact"))
    with pytest.raises(StepwiseValidationRequired):
        log.append_as_leader(data, leader_epoch=0, now_ms=NOW_MS, checked=checked)
    assert log.log_end_offset == 0


def test_log_append_time_is_that_of_the_append():
    cfg = config(max_message_bytes=LARGE, internal_segment_bytes=LARGE, message_timestamp_type="LogAppendTime")
    log = open_log(cfg=cfg)
    data = raw_batch(many(), MANY)
    checked = run_steps(check_in_steps(data, log.config, NOW_MS))
    info = log.append_as_leader(data, leader_epoch=0, now_ms=NOW_MS + 7, checked=checked)
    assert info.log_append_time_ms == info.max_timestamp == NOW_MS + 7


def test_a_duplicate_is_not_validated_again():
    log = open_log(cfg=config(max_message_bytes=LARGE, internal_segment_bytes=LARGE, cleanup_policy="compact"))
    data = idempotent(0, 2000)
    first = append(log, data)
    again = log.append_as_leader(data, leader_epoch=0, now_ms=NOW_MS)
    assert (again.is_duplicate, again.first_offset, again.last_offset) == (True, first.first_offset, first.last_offset)
