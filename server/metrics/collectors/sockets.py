"""Metrics of the listeners' connections, by Kafka's names for a selector, which are those of a client.

So responses are `request`: in Kafka's selector that is what is sent.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from odradek.server.metrics.declaration import COUNTER, GAUGE, Collected, Family, Metric, labels

if TYPE_CHECKING:
    from odradek.server.measurements.authentications import AuthenticationCounts
    from odradek.server.measurements.socket_counts import SocketCounts

MBEAN: Final = "kafka.server:type=socket-server-metrics"


class CountedMetric(NamedTuple):
    """A counter by listener, and its rate since the last scrape."""

    total: Metric
    rate: Metric


def selector_metric(name: str, kind: str, help: str) -> Metric:
    """Declare a metric of Kafka's selector."""
    text = name.replace("_", "-")
    return Metric(f"kafka_server_socket_server_metrics_{name}", kind, help, f"{MBEAN} {text}")


def _declare(name: str, help: str) -> CountedMetric:
    return CountedMetric(
        selector_metric(f"{name}_total", COUNTER, help),
        selector_metric(f"{name}_rate", GAUGE, "The same, per second since the last scrape."),
    )


_OF_SOCKETS: Final = (
    (_declare("connection_creation", "Connections that were accepted."), "created"),
    (_declare("connection_close", "Connections that were closed."), "closed"),
    (_declare("incoming_byte", "Bytes received, with TLS after decryption."), "received_bytes"),
    (_declare("outgoing_byte", "Bytes sent, with TLS before encryption."), "sent_bytes"),
    (_declare("request", "Responses, which Kafka counts by this name."), "responses"),
    (_declare("response", "Requests, which Kafka counts by this name."), "requests"),
)
_OF_AUTHENTICATIONS: Final = (
    (_declare("successful_authentication", "Clients that have authenticated themselves."), "successful"),
    (_declare("failed_authentication", "Clients whose authentication has failed."), "failed"),
    (
        _declare("successful_reauthentication", "Sessions whose clients have authenticated themselves again."),
        "reauthenticated",
    ),
    (_declare("failed_reauthentication", "Sessions whose clients have failed to do so."), "failed_again"),
)
EXPIRED: Final = selector_metric(
    "expired_connections_killed_count",
    GAUGE,
    "Connections that were closed because their clients did not authenticate themselves again, by listener.",
)

METRICS: Final = (
    *(metric for counted, _ in _OF_SOCKETS for metric in counted),
    *(metric for counted, _ in _OF_AUTHENTICATIONS for metric in counted),
    EXPIRED,
)

_Totals = dict[tuple[str, str], int]


class SocketRates:
    """The rates of the counters between two scrapes."""

    def __init__(self, now_s: float) -> None:
        self._now_s = now_s
        self._totals: _Totals = {}
        self._elapsed_s = 0.0
        self._increases: _Totals = {}

    def measure(self, now_s: float, totals: _Totals) -> None:
        """Set the rates of the time since the last call."""
        if now_s > self._now_s:
            self._elapsed_s = now_s - self._now_s
            self._increases = {key: total - self._totals.get(key, 0) for key, total in totals.items()}
            self._now_s, self._totals = now_s, totals

    def find(self, key: tuple[str, str]) -> float:
        """Return the rate per second of a counter."""
        return round(self._increases.get(key, 0) / self._elapsed_s, 3) if self._elapsed_s else 0.0


def collect_sockets(
    counts: "Mapping[str, SocketCounts]",
    authentications: "Mapping[str, AuthenticationCounts]",
    rates: SocketRates,
    now_s: float,
) -> Collected:
    """Return the counters of the listeners; authentications are 0 on a listener that has none, as in Kafka."""
    counted = (*_OF_SOCKETS, *_OF_AUTHENTICATIONS)
    totals: _Totals = {}
    for listener in counts:
        totals.update({(listener, name): getattr(counts[listener], name) for _, name in _OF_SOCKETS})
        of_clients = authentications.get(listener)
        totals.update({(listener, name): getattr(of_clients, name, 0) for _, name in _OF_AUTHENTICATIONS})
    rates.measure(now_s, totals)
    # The exporter's rules keep both labels; there is one thread.
    texts = {listener: labels(listener=listener, networkProcessor=0) for listener in counts}
    for metric, name in counted:
        yield Family(metric.total, [(text, totals[listener, name]) for listener, text in texts.items()])
        yield Family(metric.rate, [(text, rates.find((listener, name))) for listener, text in texts.items()])
    yield Family(
        EXPIRED, [(text, getattr(authentications.get(listener), "expired", 0)) for listener, text in texts.items()]
    )
