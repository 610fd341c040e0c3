"""The broker as its metrics server shows it: its state, and the collectors of its metrics."""

from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING, Final

from odradek.server.config import BrokerConfig
from odradek.server.measurements.request_times import RequestTimes
from odradek.server.measurements.response_errors import ResponseErrors
from odradek.server.metrics.clients import collect_clients
from odradek.server.metrics.controller import collect_controller
from odradek.server.metrics.coordinators import collect_groups, collect_transactions
from odradek.server.metrics.declaration import Collected, Family
from odradek.server.metrics.followers import collect_followers
from odradek.server.metrics.logs import collect_logs
from odradek.server.metrics.network import ReactorLoad, ReactorState, collect_network
from odradek.server.metrics.partitions import LATE_MS, collect_partitions
from odradek.server.metrics.process import CollectionTimes, collect_process
from odradek.server.metrics.readers import collect_readers
from odradek.server.metrics.readiness import find_unready
from odradek.server.metrics.requests import collect_requests
from odradek.server.metrics.security import collect_quotas, collect_security
from odradek.server.metrics.sockets import SocketRates, collect_sockets
from odradek.server.metrics.traffic import collect_traffic
from odradek.server.metrics.zookeeper import collect_zookeeper, find_zookeeper
from odradek.server.network.reactor import read_load

if TYPE_CHECKING:
    from odradek.server.environment import Environment
    from odradek.server.listeners import BrokerListeners
    from odradek.server.services import Services
    from odradek.server.work.slices import Slices

STARTING: Final = 1
RUNNING: Final = 3
STOPPING: Final = 7


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

    def collect(self) -> Iterable[Family | None]:
        """Return all metrics; those of requests and partitions only once the broker has loaded its logs."""
        collectors: list[Collected] = [collect_process(self.state, self.collections)]
        services = self.services
        if services is not None:
            limit = self.config.metrics_max_partitions
            collectors += [
                collect_controller(services.controller),
                collect_zookeeper(find_zookeeper(services.controller.store)),
                collect_logs(services.logs),
                collect_network(
                    [listener.name for listener in self.config.endpoints],
                    self.listeners.connections,
                    services.fetch_sessions,
                    self._read_reactor(),
                ),
                collect_sockets(
                    self.listeners.socket_counts,
                    self.listeners.authentication_counts,
                    self._rates,
                    self.environment.monotonic(),
                ),
                collect_security(self.listeners.authentication_counts),
                collect_quotas(services.quotas.active, limit),
                collect_groups(services.groups_in_use),
                collect_transactions(services.transactions_in_use),
                collect_clients(services.telemetry_in_use),
                collect_traffic(services.replicas.traffic, limit),
                collect_followers(services.replicas.fetchers.list_fetched(), limit),
                collect_partitions(
                    services.replicas,
                    services.metadata,
                    limit,
                    services.now_ms() - services.config.transaction_max_timeout_ms - LATE_MS,
                ),
            ]
            if services.readers is not None:
                collectors.append(collect_readers(services.readers))
        if self.times is not None and self.errors is not None:
            self.times.end_old_windows()
            apis = () if services is None else services.apis.values()
            collectors.append(collect_requests(self.times, self.errors, apis))
        return chain.from_iterable(collectors)

    def _read_reactor(self) -> ReactorState:
        load = read_load(self.environment.reactor)
        measured = self._load
        measured.measure(self.environment.monotonic(), load.busy_s)
        return ReactorState(measured.idle, measured.idle_s, load.busy_s, load.waiting)
