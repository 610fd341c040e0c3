"""Declarations of metrics: each has the Kafka MBean that it corresponds to, from which its exported name is derived.

    BYTES_IN = meter("kafka.server:type=BrokerTopicMetrics,name=BytesInPerSec", "Bytes appended.")
    BYTES_IN.name       # kafka_server_brokertopicmetrics_bytesin_total

Names, labels and types are those that the example rules of the JMX exporter (kafka-2_0_0.yml, kafka-kraft-3_0_0.yml)
give to Kafka's MBeans, so that dashboards and alerts for Kafka show the data of Odradek. A metric without an MBean has
the prefix `odradek_`.
"""

import re
from collections.abc import Generator, Iterable, Iterator
from typing import Final, NamedTuple

from odradek.log.background.histogram import Histogram, quantiles

COUNTER: Final = "counter"
GAUGE: Final = "gauge"

QUANTILES: Final = ((0.5, "0.50"), (0.75, "0.75"), (0.95, "0.95"), (0.98, "0.98"), (0.99, "0.99"), (0.999, "0.999"))
"""The percentiles of Kafka's histograms, with their labels in the exporter's rules."""

Number = int | float
Sample = tuple[str, Number]
"""The labels as text, empty or `{name="value",...}`, and the value."""

_MBEAN: Final = re.compile(r"kafka\.([\w.]+):type=([\w-]+)(?:,name=([\w-]+))?")
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Metric(NamedTuple):
    """One metric in the Prometheus text format.

    mbean: Kafka's MBean and its attribute; empty for a metric of Odradek alone
    """

    name: str
    kind: str
    help: str
    mbean: str = ""


class HistogramMetric(NamedTuple):
    """A histogram of Kafka: a gauge for each percentile, and a counter."""

    quantiles: Metric
    observations: Metric


class PercentageMetric(NamedTuple):
    """A part of 1, whose gauge has a name of its own in each of the exporter's files of rules."""

    percent: Metric
    value: Metric


class IdleMeter(NamedTuple):
    """A meter of idle time: a gauge for its rate, which is a part of 1, and a counter of ns."""

    percent: Metric
    idle_ns: Metric


class Family(NamedTuple):
    """A metric with its samples."""

    metric: Metric
    samples: Iterable[Sample]


Collected = Generator["Family | None", None, None]
"""The families of a collector. It yields None as a pause, in which requests are served."""


def meter(mbean: str, help: str) -> Metric:
    """Declare a counter for a meter, whose name ends with PerSec; Prometheus computes its rate."""
    domain, kind, name = _split(mbean)
    return Metric(f"kafka_{domain}_{kind}_{name.removesuffix('persec')}_total", COUNTER, help, f"{mbean} Count")


def gauge(mbean: str, help: str) -> Metric:
    """Declare a gauge for a value."""
    domain, kind, name = _split(mbean)
    return Metric(f"kafka_{domain}_{kind}_{name}", GAUGE, help, f"{mbean} Value")


def percentage(mbean: str, help: str) -> PercentageMetric:
    """Declare the gauges for a part of 1, whose name ends with Percent.

    In kafka-2_0_0.yml the rule of all gauges precedes that of names with Percent; in Strimzi's rules it follows.
    """
    other = gauge(mbean, "The same, by the name in kafka-2_0_0.yml.")
    return PercentageMetric(Metric(_name_percent(mbean), GAUGE, help, f"{mbean} Value"), other)


def idle_meter(mbean: str, help: str, count_help: str) -> IdleMeter:
    """Declare a meter of idle time, whose name ends with Percent. It has no value, so its gauge has one name."""
    domain, kind, name = _split(mbean)
    idle_ns = Metric(f"kafka_{domain}_{kind}_{name}_count", COUNTER, count_help, f"{mbean} Count")
    return IdleMeter(Metric(_name_percent(mbean), GAUGE, help, f"{mbean} MeanRate"), idle_ns)


def histogram(mbean: str, help: str) -> HistogramMetric:
    """Declare a histogram."""
    domain, kind, name = _split(mbean)
    prefix = f"kafka_{domain}_{kind}_{name}"
    return HistogramMetric(
        Metric(prefix, GAUGE, f"{help} Quantiles of the last five minutes.", f"{mbean} 50thPercentile ..."),
        Metric(f"{prefix}_count", COUNTER, f"{help} Number of observations.", f"{mbean} Count"),
    )


def histogram_families(metric: HistogramMetric, times: Histogram) -> Iterator[Family]:
    """Return the quantiles in ms and the number of durations."""
    found = quantiles(times.recent_buckets(), [fraction for fraction, _ in QUANTILES])
    samples = [(labels(quantile=label), round(one * 1000, 3)) for (_, label), one in zip(QUANTILES, found, strict=True)]
    yield Family(metric.quantiles, samples)
    yield Family(metric.observations, [("", times.count)])


def own_gauge(name: str, help: str) -> Metric:
    """Declare a gauge that Kafka does not have."""
    return Metric(f"odradek_{name}", GAUGE, help)


def own_counter(name: str, help: str) -> Metric:
    """Declare a counter that Kafka does not have; `name` ends with `_total`."""
    return Metric(f"odradek_{name}", COUNTER, help)


def labels(**values: object) -> str:
    """Return labels as text. A trailing underscore of a name, as in `from_`, is removed."""
    pairs = ",".join(f'{name.rstrip("_")}="{escape(str(value))}"' for name, value in values.items())
    return f"{{{pairs}}}"


def escape(text: str) -> str:
    """Escape a label's value."""
    return text.translate(_ESCAPES)


def _name_percent(mbean: str) -> str:
    domain, kind, name = _split(mbean)
    return f"kafka_{domain}_{kind}_{name.removesuffix('percent')}_percent"


def _split(mbean: str) -> tuple[str, str, str]:
    match = _MBEAN.match(mbean)
    if match is None:
        raise ValueError(f"not an MBean of Kafka: {mbean}")
    domain, kind, name = match.groups()
    domain, kind, name = (part.replace(".", "_").replace("-", "_").lower() for part in (domain, kind, name or ""))
    return domain, kind, name
