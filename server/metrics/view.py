"""The broker as its metrics server shows it: its state, and the collectors of its metrics."""

from collections.abc import Callable, Collection, Iterable
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from odradek.server.config import BrokerConfig
from odradek.server.measurements.request_times import RequestTimes
from odradek.server.measurements.response_errors import ResponseErrors
from odradek.server.metrics.collectors import (
    clients,
    controller,
    coordinators,
    followers,
    logs,
    network,
    partitions,
    process,
    readers,
    requests,
    security,
    sockets,
    traffic,
    zookeeper,
)
from odradek.server.metrics.collectors.network import ReactorLoad, ReactorState
from odradek.server.metrics.collectors.partitions import LATE_MS
from odradek.server.metrics.collectors.process import CollectionTimes
from odradek.server.metrics.collectors.sockets import SocketRates
from odradek.server.metrics.declaration import Family, Metric
from odradek.server.metrics.readiness import find_unready
from odradek.server.network.reactor import read_load

if TYPE_CHECKING:
    from odradek.server.environment import Environment
    from odradek.server.listeners import BrokerListeners
    from odradek.server.services import Services
    from odradek.server.work.slices import Slices

STARTING: Final = 1
RUNNING: Final = 3
STOPPING: Final = 7


class _Collector(NamedTuple):
    """A collector with the metrics that it may return. `has_others` is True if their names are not all declared."""

    metrics: Iterable[Metric]
    collect: Callable[[], Iterable[Family | None]]
    has_others: bool = False


class BrokerView:
    """The broker as the server shows it.

    state: a number of Kafka's BrokerState
    services: None before the logs are loaded
    """

    def __init__(
        self, config: BrokerConfig, environment: "Environment", listeners: "BrokerListeners", slices: "Slices"
    ) -> None:
        self.config = config
        self.environment = environment
        self.slices = slices
        self.listeners = listeners
        self.state = STARTING
        self.services: Services | None = None
        self.times: RequestTimes | None = None
        self.errors: ResponseErrors | None = None
        self.collections = CollectionTimes(environment.monotonic)
        self._load = ReactorLoad(environment.monotonic(), 0.0)
        self._rates = SocketRates(environment.monotonic())

    def find_obstacle(self) -> str:
        """Return why the broker is not ready to serve clients; empty if it is."""
        if self.services is None or self.state != RUNNING:
            return "the broker is stopping" if self.state == STOPPING else "the broker is starting"
        unready = find_unready(self.services.replicas, self.config.node_id)
        if not unready:
            return ""
        names = ", ".join(unready[:3]) + (", ..." if len(unready) > 3 else "")
        return f"{len(unready)} partitions are offline: {names}"

    def collect(self, names: Collection[str] = ()) -> Iterable[Family | None]:
        """Return all metrics; those of requests and partitions only once the broker has loaded its logs.

        With `names` only collectors that may have one of them are called.
        """
        if self.times is not None:
            self.times.end_old_windows()
        collectors = self._list_collectors()
        if names:
            declared = {metric.name for one in collectors for metric in one.metrics}
            has_others = any(name not in declared for name in names)
            collectors = [
                one
                for one in collectors
                if (has_others and one.has_others) or any(metric.name in names for metric in one.metrics)
            ]
        return chain.from_iterable(one.collect() for one in collectors)

    def _list_collectors(self) -> list["_Collector"]:
        collectors = [_Collector(process.METRICS, lambda: process.collect_process(self.state, self.collections))]
        services = self.services
        if services is not None:
            collectors += self._list_of_services(services)
        times, errors = self.times, self.errors
        if times is not None and errors is not None:
            apis = () if services is None else services.apis.values()
            collectors.append(_Collector(requests.METRICS, lambda: requests.collect_requests(times, errors, apis)))
        return collectors

    def _list_of_services(self, services: "Services") -> list["_Collector"]:
        limit = self.config.metrics_max_partitions
        names = [listener.name for listener in self.config.endpoints]
        connections, counts = self.listeners.connections, self.listeners.authentication_counts
        replicas, known_readers = services.replicas, services.readers
        collectors = [
            _Collector(controller.METRICS, lambda: controller.collect_controller(services.controller)),
            _Collector(
                zookeeper.METRICS,
                lambda: zookeeper.collect_zookeeper(zookeeper.find_zookeeper(services.controller.store)),
            ),
            _Collector(logs.METRICS, lambda: logs.collect_logs(services.logs)),
            _Collector(
                network.METRICS,
                lambda: network.collect_network(names, connections, services.fetch_sessions, self._read_reactor()),
            ),
            _Collector(
                sockets.METRICS,
                lambda: sockets.collect_sockets(
                    self.listeners.socket_counts, counts, self._rates, self.environment.monotonic()
                ),
            ),
            _Collector(
                security.METRICS,
                lambda: chain(
                    security.collect_security(counts), security.collect_quotas(services.quotas.active, limit)
                ),
            ),
            _Collector(
                coordinators.METRICS,
                lambda: chain(
                    coordinators.collect_groups(services.groups_in_use),
                    coordinators.collect_transactions(services.transactions_in_use),
                ),
            ),
            _Collector(clients.METRICS, lambda: clients.collect_clients(services.telemetry_in_use), has_others=True),
            _Collector(traffic.METRICS, lambda: traffic.collect_traffic(replicas.traffic, limit)),
            _Collector(followers.METRICS, lambda: followers.collect_followers(replicas.fetchers.list_fetched(), limit)),
            _Collector(
                partitions.METRICS,
                lambda: partitions.collect_partitions(
                    replicas,
                    services.metadata,
                    limit,
                    services.now_ms() - services.config.transaction_max_timeout_ms - LATE_MS,
                ),
            ),
        ]
        if known_readers is not None:
            collectors.append(_Collector(readers.METRICS, lambda: readers.collect_readers(known_readers)))
        return collectors

    def _read_reactor(self) -> ReactorState:
        load = read_load(self.environment.reactor)
        measured = self._load
        measured.measure(self.environment.monotonic(), load.busy_s)
        return ReactorState(measured.idle, measured.idle_s, load.busy_s, load.waiting)
