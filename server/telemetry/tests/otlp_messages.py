"""Messages of OpenTelemetry's metrics protocol, encoded by the protobuf package."""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]

_PACKAGE = "odradek.tests.otlp"
_TYPES = {
    "double": 1, "int64": 3, "int32": 5, "fixed64": 6, "bool": 8, "string": 9, "bytes": 12, "uint32": 13,
    "sfixed64": 16,
}  # fmt: skip
_MESSAGES = {
    "MetricsData": "*resource_metrics ResourceMetrics 1",
    "ResourceMetrics": "resource Resource 1, *scope_metrics ScopeMetrics 2, schema_url string 3",
    "Resource": "*attributes KeyValue 1, dropped_attributes_count uint32 2",
    "ScopeMetrics": "scope Scope 1, *metrics Metric 2, schema_url string 3",
    "Scope": "name string 1, version string 2",
    "Metric": "name string 1, description string 2, unit string 3, gauge Gauge 5, sum Sum 7, histogram Histogram 9, "
    "exponential_histogram Empty 10, summary Summary 11",
    "Empty": "",
    "Gauge": "*data_points NumberDataPoint 1",
    "Sum": "*data_points NumberDataPoint 1, aggregation_temporality int32 2, is_monotonic bool 3",
    "Histogram": "*data_points HistogramDataPoint 1, aggregation_temporality int32 2",
    "Summary": "*data_points SummaryDataPoint 1",
    "NumberDataPoint": "start_time_unix_nano fixed64 2, time_unix_nano fixed64 3, as_double double 4, "
    "as_int sfixed64 6, *attributes KeyValue 7, flags uint32 8",
    "HistogramDataPoint": "count fixed64 4, sum double 5, *bucket_counts fixed64 6, *explicit_bounds double 7, "
    "*attributes KeyValue 9, flags uint32 10, min double 11, max double 12",
    "SummaryDataPoint": "count fixed64 4, sum double 5, *quantile_values ValueAtQuantile 6, *attributes KeyValue 7, "
    "flags uint32 8",
    "ValueAtQuantile": "quantile double 1, value double 2",
    "KeyValue": "key string 1, value AnyValue 2",
    "AnyValue": "string_value string 1, bool_value bool 2, int_value int64 3, double_value double 4, "
    "array_value ArrayValue 5, bytes_value bytes 7",
    "ArrayValue": "*values AnyValue 1",
}
"""Fields: `*` for repeated ones, name, type and number. Those of an oneof are encoded like others with presence."""


def _make_classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="odradek_tests_otlp.proto", package=_PACKAGE, syntax="proto2")
    for message_name, fields in _MESSAGES.items():
        message = file.message_type.add(name=message_name)
        for text in filter(None, fields.split(", ")):
            name, kind, number = text.split()
            is_repeated = name.startswith("*")
            field = message.field.add(name=name.lstrip("*"), number=int(number), label=3 if is_repeated else 1)
            if kind in _TYPES:
                field.type = _TYPES[kind]
                if is_repeated:
                    field.options.packed = True
            else:
                field.type, field.type_name = 11, f".{_PACKAGE}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _MESSAGES
    }


OTLP = _make_classes()
DELTA, CUMULATIVE = 1, 2


def attributes(values: dict[str, str]) -> list[Any]:
    return [OTLP["KeyValue"](key=key, value=OTLP["AnyValue"](string_value=text)) for key, text in values.items()]


def number(value: float | int, **labels: str) -> Any:
    """Return a data point; an int is encoded as an int."""
    field = {"as_int": value} if isinstance(value, int) else {"as_double": value}
    return OTLP["NumberDataPoint"](attributes=attributes(labels), time_unix_nano=1, **field)


def gauge(name: str, *points: Any, **fields: str) -> Any:
    return OTLP["Metric"](name=name, gauge=OTLP["Gauge"](data_points=points), **fields)


def counter(name: str, *points: Any, temporality: int = CUMULATIVE, is_monotonic: bool = True, **fields: str) -> Any:
    data = OTLP["Sum"](data_points=points, aggregation_temporality=temporality, is_monotonic=is_monotonic)
    return OTLP["Metric"](name=name, sum=data, **fields)


def encode(*metrics: Any, resource: dict[str, str] | None = None) -> bytes:
    """Return MetricsData with one resource and one scope."""
    scope = OTLP["ScopeMetrics"](scope=OTLP["Scope"](name="s"), metrics=metrics)
    of_resource = OTLP["ResourceMetrics"](
        resource=OTLP["Resource"](attributes=attributes(resource or {})), scope_metrics=[scope]
    )
    data: bytes = OTLP["MetricsData"](resource_metrics=[of_resource]).SerializeToString()
    return data
