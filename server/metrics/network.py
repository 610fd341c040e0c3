"""Metrics of connections, of delayed requests, of fetch sessions and of the reactor thread."""

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from odradek.server.metrics.declaration import Collected, Family, Metric, gauge, labels, own_counter, percentage

if TYPE_CHECKING:
    from odradek.server.fetching.session_cache import FetchSessionCache
    from odradek.server.network.connections import ConnectionRegistry

CONNECTIONS: Final = Metric(
    "kafka_server_socket_server_metrics_connection_count",
    "gauge",
    "Open connections, by listener.",
    "kafka.server:type=socket-server-metrics connection-count",
)
PURGATORY: Final = gauge(
    "kafka.server:type=DelayedOperationPurgatory,name=PurgatorySize", "Requests that wait, by kind."
)
DELAYED: Final = gauge(
    "kafka.server:type=DelayedOperationPurgatory,name=NumDelayedOperations", "The same: none of them is complete."
)
QUEUE: Final = gauge("kafka.network:type=RequestChannel,name=RequestQueueSize", "Connections whose next request waits.")
SESSIONS: Final = gauge(
    "kafka.server:type=FetchSessionCache,name=NumIncrementalFetchSessions", "Fetch sessions (KIP-227)."
)
SESSION_PARTITIONS: Final = gauge(
    "kafka.server:type=FetchSessionCache,name=NumIncrementalFetchPartitionsCached", "Partitions in fetch sessions."
)
NETWORK_IDLE: Final = percentage(
    "kafka.network:type=SocketServer,name=NetworkProcessorAvgIdlePercent",
    "Part of the time since the last scrape in which the reactor thread had no work.",
)
HANDLER_IDLE: Final = percentage(
    "kafka.server:type=KafkaRequestHandlerPool,name=RequestHandlerAvgIdlePercent",
    "The same: one thread reads, handles and answers requests.",
)
BUSY: Final = own_counter("reactor_busy_seconds_total", "Time in which the reactor thread had work.")

METRICS: Final = (
    CONNECTIONS,
    PURGATORY,
    DELAYED,
    QUEUE,
    SESSIONS,
    SESSION_PARTITIONS,
    NETWORK_IDLE,
    HANDLER_IDLE,
    BUSY,
)

_CONNECTIONS_PER_STEP: Final = 200
_DELAYED: Final = ("Produce", "Fetch")


class ReactorLoad:
    """The part of the time without work between two scrapes."""

    def __init__(self, now_s: float, busy_s: float) -> None:
        self._now_s, self._busy_s = now_s, busy_s
        self._idle = 1.0

    def measure(self, now_s: float, busy_s: float) -> float:
        """Return the part since the last call, between 0 and 1."""
        elapsed_s = now_s - self._now_s
        if elapsed_s > 0:
            self._idle = min(1.0, max(0.0, 1.0 - (busy_s - self._busy_s) / elapsed_s))
            self._now_s, self._busy_s = now_s, busy_s
        return self._idle


class ReactorState(NamedTuple):
    """The reactor at the time of a scrape.

    idle: the part of the time without work
    busy_s: the time with work since the start
    waiting: connections whose next request waits
    """

    idle: float
    busy_s: float
    waiting: int


def collect_network(
    listeners: Iterable[str], connections: "ConnectionRegistry", sessions: "FetchSessionCache", reactor: ReactorState
) -> Collected:
    """Return the metrics of the network; a listener without connections has a 0."""
    by_listener = Counter(dict.fromkeys(listeners, 0))
    delayed: Counter[str] = Counter()
    for number, transport in enumerate(connections.list_open()):
        if number % _CONNECTIONS_PER_STEP == 0:
            yield None
        connection = transport.connection
        by_listener[connection.context.listener_name] += 1
        if connection.in_progress is not None:
            delayed[connection.in_progress.api.name] += 1
    # The exporter's rules keep both labels; there is one thread.
    yield Family(
        CONNECTIONS, [(labels(listener=name, networkProcessor=0), count) for name, count in by_listener.items()]
    )
    yield Family(PURGATORY, [(labels(delayedOperation=name), delayed[name]) for name in _DELAYED])
    yield Family(DELAYED, [(labels(delayedOperation=name), delayed[name]) for name in _DELAYED])
    yield Family(QUEUE, [("", reactor.waiting)])
    yield Family(SESSIONS, [("", len(sessions))])
    yield Family(SESSION_PARTITIONS, [("", sessions.partition_count)])
    yield Family(NETWORK_IDLE, [("", round(reactor.idle, 4))])
    yield Family(HANDLER_IDLE, [("", round(reactor.idle, 4))])
    yield Family(BUSY, [("", round(reactor.busy_s, 6))])
