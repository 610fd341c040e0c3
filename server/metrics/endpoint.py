"""The HTTP server of `metrics.listener`: /metrics, /healthz and /readyz.

A scrape is written in short slices of its own, between which the broker serves requests: with 10,000 partitions it
takes some 100 ms, and none of its steps more than a few tenths of a millisecond.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice
from typing import Any, Final, cast

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IPushProducer
from twisted.internet.protocol import Factory
from twisted.internet.task import SchedulerStopped
from twisted.protocols.policies import WrappingFactory
from twisted.python.failure import Failure
from twisted.web.http import HTTPChannel
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Request, Site
from zope.interface import implementer

from odradek.server.config import Listener
from odradek.server.listeners import open_port
from odradek.server.metrics.declaration import Family
from odradek.server.metrics.exposition import CONTENT_TYPE, SAMPLES_PER_STEP, write_families
from odradek.server.metrics.view import BrokerView
from odradek.server.work.clock import DelayedCall
from odradek.server.work.slices import Work

logger = logging.getLogger(__name__)

MAX_SCRAPES: Final = 4
"""Scrapes at the same time; others get the status 503."""

SLICE_S: Final = 0.001
"""Length of the slices of all scrapes together. A request may wait for two of them and for the bytes that they send."""

SCRAPE_TIMEOUT_S: Final = 60
"""Time after which a scrape ends, also one whose client does not read it."""

IDLE_TIMEOUT_S: Final = 60
"""Time after which a connection without a request is closed."""

MAX_CONNECTIONS: Final = 64
"""Open connections; further ones are closed at once, because descriptors are needed for logs and clients."""

MAX_REQUEST_BYTES: Final = 65_536
"""Bytes of a request, and of those that a client sends before its response. Twisted would write a body to a file, and
keep any number of requests for a client that does not read."""


class MetricsEndpoint:
    """The HTTP server. It is bound before the broker loads its logs, so that /healthz and /readyz answer at once.

    address: `host:port` with the bound port
    """

    def __init__(self, listener: Listener, view: BrokerView) -> None:
        """Bind the port. Raises ListenError."""
        self._factory = make_factory(view)
        factory = cast("Factory[Any]", self._factory)
        self._port = open_port(view.environment.reactor, listener, factory, "metrics.listener")
        self.address = listener._replace(port=self._port.getHost().port).address
        logger.info("metrics address=http://%s/metrics", self.address)

    def stop(self) -> None:
        """Close the port and all connections."""
        self._port.stopListening()
        for connection in list(self._factory.protocols):
            _abort(connection.transport)


def make_factory(view: BrokerView) -> WrappingFactory:
    """Return the factory of connections."""
    root: Any = Resource()
    root.putChild(b"metrics", _Metrics(view))
    root.putChild(b"healthz", _Health(lambda: ""))
    root.putChild(b"readyz", _Health(view.find_obstacle))
    return _Connections(_QuietSite(root, timeout=IDLE_TIMEOUT_S, reactor=view.environment.reactor))


class _Connections(WrappingFactory):
    """The open connections, up to MAX_CONNECTIONS. `protocols` is a list of them."""

    noisy = False

    def buildProtocol(self, addr: Any) -> Any:
        """Twisted: accept a connection; None closes it."""
        return None if len(self.protocols) >= MAX_CONNECTIONS else super().buildProtocol(addr)


class _Channel(HTTPChannel):
    """A connection that is closed if the client sends more than MAX_REQUEST_BYTES before it has a response."""

    _received = 0

    def dataReceived(self, data: bytes) -> None:
        """Twisted: accept bytes of requests."""
        self._received += len(data)
        if self._received > MAX_REQUEST_BYTES:
            _abort(self.transport)
        else:
            super().dataReceived(data)

    def requestDone(self, request: Any) -> None:
        """Twisted: the response is written."""
        self._received = 0
        super().requestDone(request)


class _QuietSite(Site):
    """Twisted's HTTP server without an access log: a scrape each few seconds is no news."""

    noisy = False
    protocol = cast(Any, _Channel)

    def log(self, request: Any) -> None:
        """Do nothing."""


def _abort(transport: Any) -> None:
    """Close a connection at once. Twisted's transports have no types."""
    if transport is not None:
        transport.abortConnection()


class _Health(Resource):
    """200, or 503 with the reason."""

    isLeaf = True

    def __init__(self, find_obstacle: Callable[[], str]) -> None:
        super().__init__()
        self._find_obstacle = find_obstacle

    def render_GET(self, request: Request) -> bytes:
        """Twisted: handle GET and HEAD."""
        obstacle = self._find_obstacle()
        request.setHeader(b"content-type", b"text/plain; charset=utf-8")
        if obstacle:
            request.setResponseCode(503)
        return f"{obstacle or 'ok'}\n".encode()


def _select(families: Iterable[Family | None], names: Collection[str]) -> Iterator[Family | None]:
    """Return the samples with some names. A sample's labels may begin with a suffix of the name of its family."""
    for family in families:
        if family is None or family.metric.name in names:
            yield family
            continue
        if any(name.startswith(family.metric.name) for name in names):
            yield from _select_samples(family, names)


def _select_samples(family: Family, names: Collection[str]) -> Iterator[Family | None]:
    """Return the samples of one family with some names, in parts: a client's metric may have many series."""
    metric, samples = family.metric, iter(family.samples)
    while part := list(islice(samples, SAMPLES_PER_STEP)):
        yield Family(metric, [sample for sample in part if metric.name + sample[0].partition("{")[0] in names])
        yield None


class _Metrics(Resource):
    """All metrics in Prometheus' text format, or those with the names in the query parameters `name[]`."""

    isLeaf = True

    def __init__(self, view: BrokerView) -> None:
        super().__init__()
        self._view = view
        self._slices = view.slices.make_separate(SLICE_S)
        self._scrapes = 0

    def render_GET(self, request: Request) -> bytes | int:
        """Twisted: handle GET and HEAD."""
        if self._scrapes >= MAX_SCRAPES:
            request.setResponseCode(503)
            return b"too many scrapes at the same time\n"
        request.setHeader(b"content-type", CONTENT_TYPE)
        self._scrapes += 1
        response = _PacedResponse(request)
        timeout = self._view.environment.reactor.callLater(SCRAPE_TIMEOUT_S, response.abort)
        names = frozenset(name.decode("utf-8", "replace") for name in request.args.get(b"name[]", ()))
        families = self._view.collect(names)
        scrape = self._slices.run_later(response.write_all(_select(families, names) if names else families))
        scrape.addBoth(self._end, response, timeout)
        return NOT_DONE_YET

    def _end(self, outcome: Failure | None, response: "_PacedResponse", timeout: DelayedCall) -> None:
        self._scrapes -= 1
        if timeout.active():
            timeout.cancel()
        if not isinstance(outcome, Failure):
            response.finish()
            return
        if not outcome.check(SchedulerStopped):
            logger.error("a scrape failed; please report it", exc_info=outcome.value)
        response.abort()


@implementer(IPushProducer)
class _PacedResponse:
    """A response that is made as fast as the client reads it.

    Otherwise Twisted would keep some megabytes, and copy them with each part that is sent.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        self._is_gone = False
        self._room: Deferred[None] | None = None
        request.notifyFinish().addErrback(lambda _: self.stopProducing())
        request.registerProducer(self, True)

    def write_all(self, families: Iterable[Family | None]) -> Work[None]:
        """Write families in steps. It ends early if the client has left."""
        # Twisted replaces the method `write` of a HEAD request.
        for _ in write_families(families, lambda data: self._request.write(data)):
            if self._is_gone:
                return
            yield self._room

    def finish(self) -> None:
        """End the response."""
        if not self._is_gone:
            self._request.unregisterProducer()
            self._request.finish()

    def abort(self) -> None:
        """Close the connection: the response is not complete."""
        if not self._is_gone:
            _abort(self._request.transport)

    def pauseProducing(self) -> None:
        """Twisted: the client does not read at present."""
        if self._room is None:
            self._room = Deferred()

    def resumeProducing(self) -> None:
        """Twisted: all that was written is sent."""
        room, self._room = self._room, None
        if room is not None:
            room.callback(None)

    def stopProducing(self) -> None:
        """Twisted: the client has left."""
        self._is_gone = True
        self.resumeProducing()
