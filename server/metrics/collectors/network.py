"""Metrics of connections, of delayed requests, of fetch sessions and of the reactor thread."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from odradek.server.metrics.collectors.sockets import selector_metric
from odradek.server.metrics.declaration import (
    GAUGE,
    Collected,
    Family,
    Sample,
    gauge,
    idle_meter,
    labels,
    meter,
    own_counter,
    percentage,
)

if TYPE_CHECKING:
    from odradek.server.fetching.session_cache import FetchSessionCache
    from odradek.server.network.connections import ConnectionRegistry

CONNECTIONS: Final = selector_metric("connection_count", GAUGE, "Open connections, by listener.")
SOFTWARE: Final = selector_metric(
    "connections_software", GAUGE, "Open connections, by listener and by the name and version of the client's software."
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
EVICTIONS: Final = meter(
    "kafka.server:type=FetchSessionCache,name=IncrementalFetchSessionEvictionsPerSec",
    "Fetch sessions that the broker has ended because there were too many.",
)
NETWORK_IDLE: Final = percentage(
    "kafka.network:type=SocketServer,name=NetworkProcessorAvgIdlePercent",
    "Part of the time since the last scrape in which the reactor thread had no work.",
)
PROCESSOR_IDLE: Final = percentage(
    "kafka.network:type=Processor,name=IdlePercent", "The same: one thread reads, handles and answers requests."
)
HANDLER_IDLE: Final = idle_meter(
    "kafka.server:type=KafkaRequestHandlerPool,name=RequestHandlerAvgIdlePercent",
    "The same: one thread reads, handles and answers requests.",
    "Time since the start in which the reactor thread had no work, in ns.",
)
BROKER_HANDLER_IDLE: Final = idle_meter(
    "kafka.server:type=KafkaRequestHandlerPool,name=BrokerRequestHandlerAvgIdlePercent",
    "The same: Kafka counts the requests of its controller apart.",
    "The same: Kafka counts the requests of its controller apart.",
)
BUSY: Final = own_counter("reactor_busy_seconds_total", "Time in which the reactor thread had work.")

METRICS: Final = (
    CONNECTIONS,
    SOFTWARE,
    PURGATORY,
    DELAYED,
    QUEUE,
    SESSIONS,
    SESSION_PARTITIONS,
    EVICTIONS,
    *NETWORK_IDLE,
    *PROCESSOR_IDLE,
    *HANDLER_IDLE,
    *BROKER_HANDLER_IDLE,
    BUSY,
)

_CONNECTIONS_PER_STEP: Final = 200
_UNKNOWN: Final = ("unknown", "unknown")
_MAX_SOFTWARE: Final = 100
"""Kinds of software with a metric of their own: the names come from clients."""
_MAX_SOFTWARE_LENGTH: Final = 100

_DELAYED: Final = ("Produce", "Fetch")


class ReactorLoad:
    """The time without work, in total and between two scrapes.

    idle: the part between the last two scrapes, from 0 to 1
    idle_s: all time without work
    """

    def __init__(self, now_s: float, busy_s: float) -> None:
        self._now_s, self._busy_s = now_s, busy_s
        self.idle = 1.0
        self.idle_s = 0.0

    def measure(self, now_s: float, busy_s: float) -> None:
        """Add the time since the last call. `busy_s` lacks the present iteration, whose work the next call finds."""
        elapsed_s = now_s - self._now_s
        if elapsed_s > 0:
            idle_s = min(elapsed_s, max(0.0, elapsed_s - (busy_s - self._busy_s)))
            self.idle = idle_s / elapsed_s
            self.idle_s += idle_s
            self._now_s, self._busy_s = now_s, busy_s


class ReactorState(NamedTuple):
    """The reactor at the time of a scrape.

    idle: the part of the time without work
    idle_s, busy_s: the time without and with work since the start
    waiting: connections whose next request waits
    """

    idle: float
    idle_s: float
    busy_s: float
    waiting: int


def collect_network(
    listeners: Iterable[str], connections: "ConnectionRegistry", sessions: "FetchSessionCache", reactor: ReactorState
) -> Collected:
    """Return the metrics of the network; a listener without connections has a 0."""
    by_listener = Counter(dict.fromkeys(listeners, 0))
    # Connections whose software is unknown have a 0 too, as in Kafka.
    by_software = Counter({(*_UNKNOWN, name): 0 for name in by_listener})
    delayed: Counter[str] = Counter()
    for number, transport in enumerate(connections.list_open()):
        if number % _CONNECTIONS_PER_STEP == 0:
            yield None
        connection = transport.connection
        context = connection.context
        by_listener[context.listener_name] += 1
        by_software[*context.client_software, context.listener_name] += 1
        if connection.in_progress is not None:
            delayed[connection.in_progress.api.name] += 1
    # The exporter's rules keep both labels; there is one thread.
    yield Family(
        CONNECTIONS, [(labels(listener=name, networkProcessor=0), count) for name, count in by_listener.items()]
    )
    yield Family(SOFTWARE, _software_samples(by_software))
    yield Family(PURGATORY, [(labels(delayedOperation=name), delayed[name]) for name in _DELAYED])
    yield Family(DELAYED, [(labels(delayedOperation=name), delayed[name]) for name in _DELAYED])
    yield Family(QUEUE, [("", reactor.waiting)])
    yield Family(SESSIONS, [("", len(sessions))])
    yield Family(SESSION_PARTITIONS, [("", sessions.partition_count)])
    yield Family(EVICTIONS, [("", sessions.evictions)])
    idle, idle_ns = round(reactor.idle, 4), int(reactor.idle_s * 1e9)
    for metric in NETWORK_IDLE:
        yield Family(metric, [("", idle)])
    for metric in PROCESSOR_IDLE:
        yield Family(metric, [(labels(networkProcessor=0), idle)])
    for of_pool in (HANDLER_IDLE, BROKER_HANDLER_IDLE):
        yield Family(of_pool.percent, [("", idle)])
        yield Family(of_pool.idle_ns, [("", idle_ns)])
    yield Family(BUSY, [("", round(reactor.busy_s, 6))])


def _software_samples(by_software: Counter[tuple[str, str, str]]) -> Iterator[Sample]:
    """Return the samples of the most frequent kinds of software. Long names are cut, and may then be the same."""
    shown: Counter[tuple[str, str, str]] = Counter()
    for (name, version, listener), count in by_software.most_common(_MAX_SOFTWARE):
        shown[name[:_MAX_SOFTWARE_LENGTH], version[:_MAX_SOFTWARE_LENGTH], listener] += count
    for (name, version, listener), count in shown.items():
        names = labels(clientSoftwareName=name, clientSoftwareVersion=version, listener=listener, networkProcessor=0)
        yield names, count
