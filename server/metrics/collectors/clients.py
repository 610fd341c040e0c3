"""Metrics that clients have pushed (KIP-714), and counts of their pushes."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from odradek.server.metrics.declaration import Collected, Family, Metric, Sample, escape, own_counter, own_gauge

if TYPE_CHECKING:
    from odradek.server.telemetry.client_telemetry import ClientTelemetry
    from odradek.server.telemetry.series import Sample as ClientSample

INSTANCES: Final = own_gauge("client_metrics_instances", "Clients that take part in client metrics.")
SERIES: Final = own_gauge("client_metrics_series", "Series that clients have pushed, limited by telemetry.max.series.")
PUSHES: Final = own_counter("client_metrics_pushes_total", "Pushes whose metrics were stored.")
INVALID: Final = own_counter("client_metrics_invalid_pushes_total", "Pushes that could not be decoded.")
THROTTLED: Final = own_counter("client_metrics_throttled_requests_total", "Requests before the end of a push interval.")
UNKNOWN: Final = own_counter("client_metrics_unknown_subscriptions_total", "Pushes for an earlier subscription.")
DROPPED: Final = own_counter(
    "client_metrics_dropped_points_total", "Data points that are not supported, or exceeded a limit."
)

METRICS: Final = (INSTANCES, SERIES, PUSHES, INVALID, THROTTLED, UNKNOWN, DROPPED)

_UNTYPED: Final = "untyped"
_KINDS: Final = {"unknown": _UNTYPED}


def collect_clients(telemetry: "ClientTelemetry | None") -> Collected:
    """Return the counts and the metrics of clients. Before the first client asks for a subscription there are none."""
    if telemetry is None:
        return
    yield from (Family(metric, [("", count)]) for metric, count in zip(METRICS, telemetry.counts, strict=True))
    for family in telemetry.collect():
        yield None
        # A description comes from a client.
        text = family.help.replace("\\", r"\\").replace("\n", r"\n")
        yield Family(Metric(family.name, _KINDS.get(family.kind, family.kind), text), _make_lines(family.samples))


def _make_lines(samples: "Iterator[ClientSample]") -> Iterator[Sample]:
    """Return the samples, with the suffix of a name before the labels."""
    for suffix, labels, value in samples:
        pairs = ",".join(f'{name}="{escape(text)}"' for name, text in labels)
        yield f"{suffix}{{{pairs}}}", value
