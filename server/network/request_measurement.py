"""Measurement of requests for the request log, which may begin and end while the broker runs."""

import math
from collections.abc import Callable, Iterable

from odradek.protocol.headers import split_api_code
from odradek.server.dispatch import Dispatch
from odradek.server.event_log.request_log import RequestLog, StageTimes
from odradek.server.measurements.request_times import EndedRequest, RequestTimes
from odradek.server.network.connection import Connection
from odradek.server.request import RequestContext
from odradek.server.work.clock import Reactor


class RequestMeasurement:
    """Passes requests to the request log. Measures requests only while it needs the times, unless metrics do.

    list_connections: returns the open connections
    """

    def __init__(
        self,
        log: RequestLog,
        dispatch: Dispatch,
        reactor: Reactor,
        list_connections: Callable[[], Iterable[Connection]],
    ) -> None:
        self._log = log
        self._dispatch = dispatch
        self._reactor = reactor
        self._list_connections = list_connections
        self._own_times: RequestTimes | None = None

    def set_threshold(self, threshold_ms: int) -> None:
        """Apply `request.slow.log.ms`."""
        self._log.set_threshold(threshold_ms)
        self.update()

    def update(self) -> None:
        """Measure as the log requires, whose threshold or level has changed."""
        least_s = self._log.least_s
        is_measured = self._dispatch.request_times is not None
        if least_s < math.inf and not is_measured:
            self._own_times = RequestTimes(
                self._reactor.seconds, self._dispatch.is_served, self._reactor.write_coalescer
            )
            self._measure(self._own_times)
        elif least_s == math.inf and self._own_times is not None:
            self._own_times = None
            self._measure(None)
        times = self._dispatch.request_times
        if times is not None:
            times.logged_s = least_s
            times.on_logged = None if least_s == math.inf else self._on_logged

    def _measure(self, times: RequestTimes | None) -> None:
        self._dispatch.request_times = times
        for connection in self._list_connections():
            connection.measure()

    def _on_logged(self, request: EndedRequest, response_queue_s: float, send_s: float) -> None:
        connection, api, queue_s, local_s, remote_s, _ = request
        context = connection.context
        assert isinstance(context, RequestContext)
        key, version = split_api_code(int.from_bytes(api.code[:4], "big"))
        times = StageTimes(queue_s, local_s, remote_s, response_queue_s, send_s)
        self._log.record(self._dispatch.find_name(key), version, context, times)
