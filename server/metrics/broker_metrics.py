"""The metrics of one broker: measurements of its requests, and the HTTP server that shows them."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from odradek.server.config import BrokerConfig, Listener
from odradek.server.fetching.readers import Readers
from odradek.server.measurements.request_times import RequestTimes
from odradek.server.measurements.response_errors import ResponseErrors
from odradek.server.metrics.collectors.zookeeper import find_zookeeper
from odradek.server.metrics.endpoint import MetricsEndpoint
from odradek.server.metrics.view import RUNNING, STOPPING, BrokerView

if TYPE_CHECKING:
    from odradek.server.environment import Environment
    from odradek.server.listeners import BrokerListeners
    from odradek.server.services import Services
    from odradek.server.work.slices import Slices


class BrokerMetrics:
    """Measurements from the first request on.

    times, errors: for the dispatch of requests
    """

    def __init__(
        self,
        endpoint: Listener,
        config: BrokerConfig,
        environment: "Environment",
        listeners: "BrokerListeners",
        slices: "Slices",
        is_served: Callable[[int], bool],
    ) -> None:
        """Bind the port of `metrics.listener`. Raises ListenError.

        is_served: returns whether an API key and version are served (`Dispatch.is_served`)
        """
        self._view = view = BrokerView(config, environment, listeners, slices)
        reactor = environment.reactor
        self.times = view.times = RequestTimes(reactor.seconds, is_served, reactor.write_coalescer)
        self.errors = view.errors = ResponseErrors()
        self._endpoint = MetricsEndpoint(endpoint, view)
        view.collections.start()

    @property
    def address(self) -> str:
        """`host:port` of the HTTP server."""
        return self._endpoint.address

    def begin(self, services: "Services") -> None:
        """Show the broker as running."""
        self._view.services = services
        event_times = services.controller.measure_events(self._view.environment.monotonic)
        self.times.others += [services.logs.flush_task.times, event_times.queue, event_times.processing]
        zookeeper = find_zookeeper(services.controller.store)
        if zookeeper is not None:
            self.times.others.append(zookeeper.measure_requests(self._view.environment.monotonic))
        self._view.state = RUNNING
        services.readers = Readers(services.now_ms, services.monotonic_ms)

    def begin_stop(self) -> None:
        """Show the broker as stopping."""
        self._view.state = STOPPING

    def stop(self) -> None:
        """Close the HTTP server."""
        self._view.collections.stop()
        self._endpoint.stop()
