"""Decoding of pushed metrics, encoded by protobuf, and of malformed and hostile bytes."""

import random
from itertools import pairwise

import pytest

from odradek.server.telemetry import otlp
from odradek.server.telemetry.otlp import (
    DecodedMetrics,
    HistogramValue,
    Kind,
    OtlpError,
    SummaryValue,
    decode_metrics_in_steps,
)
from odradek.server.telemetry.tests.otlp_messages import DELTA, OTLP, attributes, counter, encode, gauge, number


def decode(data: bytes) -> DecodedMetrics:
    steps = decode_metrics_in_steps(data)
    try:
        while True:
            next(steps)
    except StopIteration as end:
        result: DecodedMetrics = end.value
        return result


def test_numbers_have_names_units_attributes_and_kinds():
    decoded = decode(
        encode(
            gauge("g", number(1.5, topic="t", partition="0"), number(-3), description="text", unit="ms"),
            counter("c", number(7)),
            counter("d", number(1), temporality=DELTA),
            counter("u", number(2), is_monotonic=False),
            resource={"group_id": "g1", "client_rack": "r"},
        )
    )
    assert decoded.resource == (("group_id", "g1"), ("client_rack", "r"))
    found = [(p.metric.name, p.metric.kind, p.metric.is_delta, p.attributes, p.value) for p in decoded.points]
    assert found == [
        ("g", Kind.GAUGE, False, (("topic", "t"), ("partition", "0")), 1.5),
        ("g", Kind.GAUGE, False, (), -3.0),
        ("c", Kind.COUNTER, False, (), 7.0),
        ("d", Kind.COUNTER, True, (), 1.0),
        ("u", Kind.GAUGE, False, (), 2.0),
    ]
    assert (decoded.points[0].metric.description, decoded.points[0].metric.unit) == ("text", "ms")
    assert decoded.skipped == 0


def test_histograms_and_summaries():
    histogram = OTLP["HistogramDataPoint"](
        count=6, sum=9.5, bucket_counts=[1, 2, 3], explicit_bounds=[0.5, 1.0], attributes=attributes({"a": "b"})
    )
    quantile = OTLP["ValueAtQuantile"](quantile=0.5, value=3.0)
    summary = OTLP["SummaryDataPoint"](count=4, sum=8.0, quantile_values=[quantile])
    histograms = OTLP["Histogram"](data_points=[histogram], aggregation_temporality=DELTA)
    decoded = decode(
        encode(
            OTLP["Metric"](name="h", histogram=histograms),
            OTLP["Metric"](name="s", summary=OTLP["Summary"](data_points=[summary])),
        )
    )
    assert [(p.metric.kind, p.metric.is_delta, p.attributes, p.value) for p in decoded.points] == [
        (Kind.HISTOGRAM, True, (("a", "b"),), HistogramValue(6, 9.5, (0.5, 1.0), (1, 2, 3))),
        (Kind.SUMMARY, False, (), SummaryValue(4, 8.0, ((0.5, 3.0),))),
    ]


def test_values_of_attributes_are_texts():
    value = OTLP["AnyValue"]
    values = {
        "bool": value(bool_value=True), "int": value(int_value=-5), "double": value(double_value=0.5),
        "array": value(array_value=OTLP["ArrayValue"](values=[value(int_value=1)])), "bytes": value(bytes_value=b"x"),
        "none": value(), "long": value(string_value="\u00e4" * 1000),
    }  # fmt: skip
    point = number(1)
    point.attributes.extend(OTLP["KeyValue"](key=key, value=one) for key, one in values.items())
    (found,) = decode(encode(gauge("g", point))).points
    expected = {"bool": "true", "int": "-5", "double": "0.5", "long": "\u00e4" * otlp.MAX_VALUE_LENGTH}
    assert dict(found.attributes) == expected


def test_what_is_not_supported_is_skipped_and_counted():
    no_value = OTLP["NumberDataPoint"](flags=1, as_int=1)
    histogram = OTLP["HistogramDataPoint"](bucket_counts=[1, 2], explicit_bounds=[1.0, 2.0])
    long = OTLP["HistogramDataPoint"](bucket_counts=[1] * 100, explicit_bounds=[1.0] * 99)
    decoded = decode(
        encode(
            gauge("g", no_value, OTLP["NumberDataPoint"](), number(1)),
            OTLP["Metric"](name="e", exponential_histogram=OTLP["Empty"]()),
            OTLP["Metric"](name="h", histogram=OTLP["Histogram"](data_points=[histogram, long])),
            gauge("n" * 201, number(1)),
            gauge("", number(1)),
        )
    )
    assert [point.value for point in decoded.points] == [1.0]
    assert decoded.skipped == 2 + 1 + 2 + 1 + 1


def test_attributes_are_limited():
    point = number(1, **{f"k{n}": "v" for n in range(40)})
    (found,) = decode(encode(gauge("g", point))).points
    assert len(found.attributes) == otlp.MAX_ATTRIBUTES


def test_unknown_fields_and_fields_of_another_wire_type_are_skipped():
    data = encode(gauge("g", number(1)))
    assert decode(b"\x98\x06\x05" + b"\x9d\x06abcd" + b"\x08\x01" + data).points == decode(data).points
    assert decode(b"").points == []


@pytest.mark.parametrize(
    "data",
    [b"\x0a", b"\x0a\x05", b"\x0b", b"\x0c", b"\x0f", b"\xff" * 20, b"\x09\x00", b"\x0d\x00", b"\x08", b"\x00\x00",
     b"\x0a\x02\x12\x05", b"\x0a\x04\x12\x02\x12\x7f", b"abc"],
)  # fmt: skip
def test_malformed_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(OtlpError):
        decode(data)


def test_any_damage_is_refused_or_decoded():
    source = random.Random(3)
    data = encode(gauge("g", number(1.5, topic="t"), unit="ms"), counter("c", number(7)), resource={"a": "b"})
    refused = 0
    for _ in range(3000):
        damaged = bytearray(data)
        for _ in range(source.randrange(1, 4)):
            damaged[source.randrange(len(damaged))] = source.randrange(256)
        del damaged[source.randrange(len(damaged) // 2, len(damaged) + 1) :]
        try:
            decode(bytes(damaged))
        except OtlpError:
            refused += 1
    assert 0 < refused < 3000


def nest(*numbers: int, content: bytes) -> bytes:
    """Return `content` within messages, the outermost first; fields have numbers below 16."""
    for each in reversed(numbers):
        size, length = len(content), b""
        while size > 0x7F:
            length += bytes([size & 0x7F | 0x80])
            size >>= 7
        content = bytes([each << 3 | 2]) + length + bytes([size]) + content
    return content


EMPTY_FIELDS = {
    "resources": nest(content=b"\x0a\x00" * 300_000),
    "scopes": nest(1, content=b"\x12\x00" * 300_000),
    "metrics": nest(1, 2, content=b"\x12\x00" * 300_000),
    "fields of a metric": nest(1, 2, 2, content=b"\x0a\x00" * 300_000),
    "points": nest(1, 2, 2, content=b"\x0a\x01g" + nest(5, content=b"\x0a\x00" * 300_000)),
    "fields of a point": nest(1, 2, 2, content=b"\x0a\x01g" + nest(5, 1, content=b"\x40\x00" * 300_000)),
    "attributes of a resource": nest(1, 1, content=b"\x0a\x00" * 300_000),
    "fields of an attribute": nest(1, 1, 1, content=b"\x0a\x00" * 300_000),
}


@pytest.mark.parametrize("data", EMPTY_FIELDS.values(), ids=EMPTY_FIELDS)
def test_the_number_of_fields_is_limited_also_within_a_step(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    readers: list[otlp._Reader] = []

    class Watched(otlp._Reader):
        def __init__(self, data: bytes) -> None:
            super().__init__(data)
            readers.append(self)

    monkeypatch.setattr(otlp, "_Reader", Watched)
    steps = decode_metrics_in_steps(data)
    left = [otlp.MAX_FIELDS]
    with pytest.raises(OtlpError, match="too many fields"):
        while True:
            next(steps)
            left.append(readers[0]._fields_left)
    left.append(readers[0]._fields_left)
    assert max(before - after for before, after in pairwise(left)) < 2 * otlp._FIELDS_PER_STEP


def test_a_large_push_is_decoded_in_steps():
    metrics = [gauge(f"org.apache.kafka.m{n}", number(1.0 * n, topic="t", partition=str(n))) for n in range(5000)]
    decoded = decode(encode(*metrics))
    assert (len(decoded.points), decoded.skipped) == (5000, 0)
    assert sum(1 for _ in decode_metrics_in_steps(encode(*metrics))) > 50


def test_many_empty_points_are_decoded_in_steps():
    points = nest(5, content=b"\x0a\x00" * 100_000)
    data = nest(1, 2, 2, content=b"\x0a\x01g" + points)
    assert decode(data).skipped == 100_000
    assert sum(1 for _ in decode_metrics_in_steps(data)) >= 2 * 100_000 / otlp._FIELDS_PER_STEP


ATTRIBUTE = nest(1, content=b"k")
POINT = b"\x21" + bytes(8) + nest(7, content=ATTRIBUTE) * 200
EQUAL_ATTRIBUTES = {
    "of a resource": nest(1, 1, content=nest(1, content=ATTRIBUTE) * 200),
    "of a point": nest(1, 2, 2, content=b"\x0a\x01g" + nest(5, 1, content=POINT)),
}


@pytest.mark.parametrize("data", EQUAL_ATTRIBUTES.values(), ids=EQUAL_ATTRIBUTES)
def test_attributes_with_the_same_key_are_decoded_up_to_a_limit(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[bytes] = []
    monkeypatch.setattr(otlp, "_take_attribute", lambda reader, span, found: decoded.append(reader.data[slice(*span)]))
    decode(data)
    assert decoded == [ATTRIBUTE] * otlp._MAX_ATTRIBUTES_READ
