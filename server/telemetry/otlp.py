"""Decoder of the metrics that clients push: MetricsData of OpenTelemetry's protocol, version 1.

Only the fields that the broker uses are decoded, and others are skipped. The input comes from clients: the number of
fields and the lengths of texts are limited, and the work is divided into steps of about a millisecond. The packages
opentelemetry-proto and protobuf are not used: a push would be decoded in one step of any length.

Exponential histograms are skipped, and so are points without a recorded value and attributes that are lists or maps.

Sources: opentelemetry-proto 1.x (metrics.proto, common.proto, resource.proto), Protocol Buffers encoding.
"""

import struct
from collections.abc import Generator, Iterator
from enum import Enum
from typing import Final, NamedTuple

MAX_FIELDS: Final = 250_000
"""Fields in one push. Some 20 belong to a data point."""

MAX_NAME_LENGTH: Final = 200
MAX_TEXT_LENGTH: Final = 256
MAX_KEY_LENGTH: Final = 64
MAX_VALUE_LENGTH: Final = 128
MAX_ATTRIBUTES: Final = 16
MAX_BUCKETS: Final = 64

MAX_FIELDS_OF_METRIC: Final = 64
MAX_FIELDS_OF_POINT: Final = 256
MAX_FIELDS_OF_RESOURCE: Final = 256
_MAX_FIELDS_OF_ATTRIBUTE: Final = 8
"""Fields in one message that is decoded within a step."""

_MAX_ATTRIBUTES_READ: Final = 2 * MAX_ATTRIBUTES
"""Attributes of one message that are decoded, also those with the same key and those that are not supported."""

_FIELDS_PER_STEP: Final = 400

_VARINT: Final = 0
_FIXED_64: Final = 1
_LENGTH: Final = 2
_FIXED_32: Final = 5

_DELTA: Final = 1
_NO_RECORDED_VALUE: Final = 1

_DOUBLE: Final = struct.Struct("<d")
_SFIXED_64: Final = struct.Struct("<q")
_FIXED_64_STRUCT: Final = struct.Struct("<Q")

Attributes = tuple[tuple[str, str], ...]


class OtlpError(ValueError):
    """Bytes that are not MetricsData, or have too many fields."""


class Kind(Enum):
    """Kinds of metrics in Prometheus."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    SUMMARY = "summary"


class HistogramValue(NamedTuple):
    """A histogram: `counts` has the number of values in each bucket, and one more entry than `bounds`."""

    observations: int
    total: float
    bounds: tuple[float, ...]
    counts: tuple[int, ...]


class SummaryValue(NamedTuple):
    """Quantiles, with their values."""

    observations: int
    total: float
    quantiles: tuple[tuple[float, float], ...]


PointValue = float | HistogramValue | SummaryValue


class Metric(NamedTuple):
    """The part of a metric that its points share. `is_delta`: values are those since the previous push."""

    name: str
    description: str
    unit: str
    kind: Kind
    is_delta: bool


class Point(NamedTuple):
    """A data point."""

    metric: Metric
    attributes: Attributes
    value: PointValue


class DecodedMetrics(NamedTuple):
    """The content of a push.

    skipped: the number of metrics and points that are not supported or exceed a limit
    """

    resource: Attributes
    points: list[Point]
    skipped: int


_Span = tuple[int, int]
"""Begin and end of a field's content."""


class _Reader:
    """Reads the fields of messages in one buffer, up to MAX_FIELDS in total."""

    __slots__ = ("_fields_left", "_messages_left", "_next_pause", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._fields_left = MAX_FIELDS
        self._messages_left = _FIELDS_PER_STEP
        self._next_pause = MAX_FIELDS - _FIELDS_PER_STEP

    def is_step_over(self) -> bool:
        """Return whether a step has read enough fields and messages, which may be empty, and begin the next one."""
        self._messages_left -= 1
        if self._fields_left > self._next_pause and self._messages_left > 0:
            return False
        self._messages_left = _FIELDS_PER_STEP
        self._next_pause = self._fields_left - _FIELDS_PER_STEP
        return True

    def fields(self, span: _Span, limit: int = MAX_FIELDS) -> Iterator[tuple[int, int, int, int]]:
        """Iterate over (number, wire type, value or position, end) of up to `limit` fields of a message."""
        position, end = span
        data = self.data
        while position < end:
            if not self._fields_left or not limit:
                raise OtlpError("too many fields")
            self._fields_left -= 1
            limit -= 1
            # Most tags and lengths have one byte.
            tag = data[position]
            if tag < 0x80:
                position += 1
            else:
                tag, position = self._varint(position, end)
            number, kind = tag >> 3, tag & 7
            if number == 0:
                raise OtlpError(f"a field without number ends at byte {position}")
            if kind == _LENGTH:
                if position < end and (size := data[position]) < 0x80:
                    position += 1
                else:
                    size, position = self._varint(position, end)
                following = position + size
            elif kind == _FIXED_64:
                following = position + 8
            elif kind == _VARINT:
                value, position = self._varint(position, end)
                yield number, kind, value, position
                continue
            elif kind == _FIXED_32:
                following = position + 4
            else:
                raise OtlpError(f"wire type {kind} at byte {position}")
            if following > end:
                raise OtlpError(f"a field ends at byte {following}, its message at byte {end}")
            yield number, kind, position, following
            position = following

    def _varint(self, position: int, end: int) -> tuple[int, int]:
        """Return an unsigned integer of up to 64 bits, and the position after it."""
        data = self.data
        value = shift = 0
        while position < end and shift < 70:
            byte = data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & 0xFFFFFFFFFFFFFFFF, position
            shift += 7
        raise OtlpError(f"an integer ends at byte {position}")

    def text(self, start: int, end: int, limit: int) -> str:
        """Return the first `limit` characters of a text."""
        return self.data[start : min(end, start + 4 * limit)].decode(errors="replace")[:limit]

    def double(self, position: int) -> float:
        value: float = _DOUBLE.unpack_from(self.data, position)[0]
        return value

    def unsigned(self, position: int) -> int:
        value: int = _FIXED_64_STRUCT.unpack_from(self.data, position)[0]
        return value

    def signed(self, position: int) -> int:
        value: int = _SFIXED_64.unpack_from(self.data, position)[0]
        return value


def decode_metrics_in_steps(data: bytes) -> Generator[None, None, DecodedMetrics]:
    """Decode a push. Raises OtlpError."""
    reader = _Reader(data)
    resource: dict[str, str] = {}
    points: list[Point] = []
    skipped = 0
    for span in _find_metrics(reader, resource):
        if reader.is_step_over():
            yield
        if span is None:
            continue
        head = _decode_head(reader, span)
        metric, spans = yield from _find_points(reader, head)
        skipped += head.skipped
        for point_span in spans:
            if reader.is_step_over():
                yield
            point = None if metric is None else _decode_point(reader, metric, point_span)
            if point is None:
                skipped += 1
            else:
                points.append(point)
    return DecodedMetrics(tuple(resource.items()), points, skipped)


def _find_metrics(reader: _Reader, resource: dict[str, str]) -> Iterator[_Span | None]:
    """Iterate over the messages Metric, and add the attributes of resources to `resource`; None for other fields."""
    for number, kind, start, end in reader.fields((0, len(reader.data))):
        yield None
        if (number, kind) != (1, _LENGTH):
            continue
        for of_resource, inner_kind, inner_start, inner_end in reader.fields((start, end)):
            yield None
            if (of_resource, inner_kind) == (1, _LENGTH):
                _take_attributes(reader, (inner_start, inner_end), resource)
            elif (of_resource, inner_kind) == (2, _LENGTH):
                for of_scope, metric_kind, metric_start, metric_end in reader.fields((inner_start, inner_end)):
                    yield (metric_start, metric_end) if (of_scope, metric_kind) == (2, _LENGTH) else None


_DATA_FIELDS: Final = {5: Kind.GAUGE, 7: Kind.COUNTER, 9: Kind.HISTOGRAM, 11: Kind.SUMMARY}
_EXPONENTIAL_HISTOGRAM: Final = 10


class _Head(NamedTuple):
    """A metric before its points. `skipped`: 1 for a metric that is not supported."""

    name: str
    description: str
    unit: str
    kind: Kind | None
    data: _Span
    skipped: int


def _decode_head(reader: _Reader, span: _Span) -> _Head:
    name = description = unit = ""
    kind: Kind | None = None
    data: _Span = (0, 0)
    skipped = 0
    for number, wire, start, end in reader.fields(span, MAX_FIELDS_OF_METRIC):
        if wire != _LENGTH:
            continue
        if number == 1:
            name = reader.text(start, end, MAX_NAME_LENGTH + 1)
        elif number == 2:
            description = reader.text(start, end, MAX_TEXT_LENGTH)
        elif number == 3:
            unit = reader.text(start, end, MAX_KEY_LENGTH)
        elif number in _DATA_FIELDS:
            kind, data = _DATA_FIELDS[number], (start, end)
        elif number == _EXPONENTIAL_HISTOGRAM:
            skipped = 1
    if kind is not None and not 0 < len(name) <= MAX_NAME_LENGTH:
        kind, data, skipped = None, (0, 0), 1
    return _Head(name, description, unit, kind, data, skipped)


def _find_points(reader: _Reader, head: _Head) -> Generator[None, None, tuple[Metric | None, list[_Span]]]:
    """Return a metric and the messages of its points; None for a metric that is not supported."""
    points: list[_Span] = []
    is_delta = is_monotonic = False
    for number, wire, start, end in reader.fields(head.data):
        if reader.is_step_over():
            yield
        if (number, wire) == (1, _LENGTH):
            points.append((start, end))
        elif (number, wire) == (2, _VARINT):
            is_delta = start == _DELTA
        elif (number, wire) == (3, _VARINT):
            is_monotonic = bool(start)
    kind = head.kind
    if kind is None:
        return None, points
    if kind is Kind.COUNTER and not is_monotonic:
        kind = Kind.GAUGE
    return Metric(head.name, head.description, head.unit, kind, is_delta), points


def _decode_point(reader: _Reader, metric: Metric, span: _Span) -> Point | None:
    if metric.kind is Kind.HISTOGRAM:
        return _decode_histogram(reader, metric, span)
    if metric.kind is Kind.SUMMARY:
        return _decode_summary(reader, metric, span)
    attributes: list[_Span] = []
    value: float | None = None
    flags = 0
    for number, wire, start, end in reader.fields(span, MAX_FIELDS_OF_POINT):
        if wire == _FIXED_64:
            if number == 4:
                value = reader.double(start)
            elif number == 6:
                value = float(reader.signed(start))
        elif (number, wire) == (7, _LENGTH):
            attributes.append((start, end))
        elif (number, wire) == (8, _VARINT):
            flags = start
    if value is None or flags & _NO_RECORDED_VALUE:
        return None
    return Point(metric, _decode_attributes(reader, attributes), value)


def _decode_histogram(reader: _Reader, metric: Metric, span: _Span) -> Point | None:
    attributes: list[_Span] = []
    count = flags = 0
    total = 0.0
    counts: list[int] = []
    bounds: list[float] = []
    for number, wire, start, end in reader.fields(span, MAX_FIELDS_OF_POINT):
        if (number, wire) == (4, _FIXED_64):
            count = reader.unsigned(start)
        elif (number, wire) == (5, _FIXED_64):
            total = reader.double(start)
        elif number in (6, 7) and wire in (_FIXED_64, _LENGTH):
            size = end - start
            if size % 8 or len(counts) + len(bounds) + size // 8 > 2 * MAX_BUCKETS:
                return None
            if number == 6:
                counts += struct.unpack_from(f"<{size // 8}Q", reader.data, start)
            else:
                bounds += struct.unpack_from(f"<{size // 8}d", reader.data, start)
        elif (number, wire) == (9, _LENGTH):
            attributes.append((start, end))
        elif (number, wire) == (10, _VARINT):
            flags = start
    has_buckets = len(counts) == len(bounds) + 1 or not (counts or bounds)
    if flags & _NO_RECORDED_VALUE or not has_buckets:
        return None
    value = HistogramValue(count, total, tuple(bounds), tuple(counts))
    return Point(metric, _decode_attributes(reader, attributes), value)


def _decode_summary(reader: _Reader, metric: Metric, span: _Span) -> Point | None:
    attributes: list[_Span] = []
    count = flags = 0
    total = 0.0
    quantiles: list[tuple[float, float]] = []
    for number, wire, start, end in reader.fields(span, MAX_FIELDS_OF_POINT):
        if (number, wire) == (4, _FIXED_64):
            count = reader.unsigned(start)
        elif (number, wire) == (5, _FIXED_64):
            total = reader.double(start)
        elif (number, wire) == (6, _LENGTH):
            if len(quantiles) == MAX_BUCKETS:
                return None
            found = {1: 0.0, 2: 0.0}
            for inner, inner_wire, position, _ in reader.fields((start, end), _MAX_FIELDS_OF_ATTRIBUTE):
                if inner in found and inner_wire == _FIXED_64:
                    found[inner] = reader.double(position)
            quantiles.append((found[1], found[2]))
        elif (number, wire) == (7, _LENGTH):
            attributes.append((start, end))
        elif (number, wire) == (8, _VARINT):
            flags = start
    if flags & _NO_RECORDED_VALUE:
        return None
    return Point(metric, _decode_attributes(reader, attributes), SummaryValue(count, total, tuple(quantiles)))


def _take_attributes(reader: _Reader, span: _Span, found: dict[str, str]) -> None:
    """Add the attributes of a Resource to `found`."""
    spans = [
        (start, end)
        for field, wire, start, end in reader.fields(span, MAX_FIELDS_OF_RESOURCE)
        if (field, wire) == (1, _LENGTH)
    ]
    for one in spans[:_MAX_ATTRIBUTES_READ]:
        _take_attribute(reader, one, found)


def _decode_attributes(reader: _Reader, spans: list[_Span]) -> Attributes:
    """Return the attributes of a point."""
    found: dict[str, str] = {}
    for span in spans[:_MAX_ATTRIBUTES_READ]:
        _take_attribute(reader, span, found)
    return tuple(found.items())


def _take_attribute(reader: _Reader, span: _Span, found: dict[str, str]) -> None:
    """Add a KeyValue to `found`, unless its value is a list or a map, or there are too many."""
    if len(found) == MAX_ATTRIBUTES:
        return
    key = ""
    value: str | None = None
    for number, wire, start, end in reader.fields(span, _MAX_FIELDS_OF_ATTRIBUTE):
        if (number, wire) == (1, _LENGTH):
            key = reader.text(start, end, MAX_KEY_LENGTH)
        elif (number, wire) == (2, _LENGTH):
            value = _decode_value(reader, (start, end))
    if key and value is not None:
        found[key] = value


def _decode_value(reader: _Reader, span: _Span) -> str | None:
    """Return an AnyValue as text; None for a list, a map, bytes, or no value."""
    text: str | None = None
    for number, wire, start, end in reader.fields(span, _MAX_FIELDS_OF_ATTRIBUTE):
        if (number, wire) == (1, _LENGTH):
            text = reader.text(start, end, MAX_VALUE_LENGTH)
        elif (number, wire) == (2, _VARINT):
            text = "true" if start else "false"
        elif (number, wire) == (3, _VARINT):
            text = str(start - (1 << 64) if start >= 1 << 63 else start)
        elif (number, wire) == (4, _FIXED_64):
            text = repr(reader.double(start))
    return text
