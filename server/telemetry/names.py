"""Names of metrics and labels in Prometheus, as Prometheus translates those of OpenTelemetry.

`org.apache.kafka.producer.request.latency.avg` becomes `org_apache_kafka_producer_request_latency_avg`; a unit is
appended, `ratio` for a gauge without dimension, and `total` for a counter. Names that do not begin as Kafka's get a
prefix, so that they are never those of the broker's own metrics.

Source: Prometheus' specification of OpenTelemetry names (otlptranslator, with underscores and suffixes).
"""

import re
from functools import lru_cache
from typing import Final

from odradek.server.telemetry.otlp import Attributes, Kind

KAFKA_PREFIX: Final = "org_apache_kafka_"
OTHER_PREFIX: Final = "kafka_client_metric_"
LABEL_CLIENT_ID: Final = "client_id"
LABEL_INSTANCE_ID: Final = "client_instance_id"
LABEL_SOFTWARE_NAME: Final = "client_software_name"
LABEL_SOFTWARE_VERSION: Final = "client_software_version"
_OWN_LABELS: Final = frozenset({LABEL_CLIENT_ID, LABEL_INSTANCE_ID, LABEL_SOFTWARE_NAME, LABEL_SOFTWARE_VERSION})
_RESERVED_LABELS: Final = frozenset({"le", "quantile", *_OWN_LABELS})

_SEPARATORS: Final = re.compile(r"[^a-zA-Z0-9:]+")
_NOT_IN_LABELS: Final = re.compile(r"[^a-zA-Z0-9_]")

_UNITS: Final = {
    "d": "days", "h": "hours", "min": "minutes", "s": "seconds", "ms": "milliseconds", "us": "microseconds",
    "ns": "nanoseconds", "By": "bytes", "KiBy": "kibibytes", "MiBy": "mebibytes", "GiBy": "gibibytes",
    "TiBy": "tibibytes", "KBy": "kilobytes", "MBy": "megabytes", "GBy": "gigabytes", "TBy": "terabytes", "m": "meters",
    "V": "volts", "A": "amperes", "J": "joules", "W": "watts", "g": "grams", "Cel": "celsius", "Hz": "hertz", "1": "",
    "%": "percent",
}  # fmt: skip
_UNITS_PER: Final = {
    "s": "second", "m": "minute", "h": "hour", "d": "day", "w": "week", "mo": "month", "y": "year",
}  # fmt: skip


@lru_cache(maxsize=2048)
def make_metric_name(name: str, unit: str, kind: Kind) -> str:
    """Return the name of a metric in Prometheus."""
    tokens = [token for token in _SEPARATORS.split(name) if token]
    for suffix in _list_unit_tokens(unit):
        if suffix not in tokens:
            tokens.append(suffix)
    ending = {Kind.COUNTER: "total", Kind.GAUGE: "ratio" if unit == "1" else ""}.get(kind, "")
    if ending:
        tokens = [*(token for token in tokens if token != ending), ending]
    text = "_".join(tokens)
    return text if text.startswith(KAFKA_PREFIX) else f"{OTHER_PREFIX}{text}"


def _list_unit_tokens(unit: str) -> list[str]:
    """Return the tokens of a unit: `ms` is milliseconds, `By/s` is bytes per second, `{requests}` is none."""
    main, _, per = unit.partition("/")
    tokens: list[str] = []
    if main and "{" not in main:
        tokens += _SEPARATORS.split(_UNITS.get(main.strip(), main))
    if per and "{" not in per:
        tokens += ["per", *_SEPARATORS.split(_UNITS_PER.get(per.strip(), per))]
    return [token for token in tokens if token]


def make_labels(attributes: Attributes) -> Attributes:
    """Return the labels for attributes, sorted by name. Those that the broker sets itself get the prefix exported_."""
    labels = {_make_label_name(name): value for name, value in attributes}
    return tuple(sorted(labels.items()))


@lru_cache(maxsize=2048)
def _make_label_name(name: str) -> str:
    text = _NOT_IN_LABELS.sub("_", name)
    if text[0].isdigit():
        text = f"key_{text}"
    elif text.startswith("_"):
        text = f"key{text}"
    return f"exported_{text}" if text in _RESERVED_LABELS else text
