"""The network between clients and brokers: byte streams with delays, fragmentation and broken connections.

A broker's end is a TCP transport of Twisted with a socket, so that the broker's `KafkaTransport` runs on it
unchanged. A client's end is a `ByteStream`. Connections between two brokers have a transport at both ends.

A cut stops everything from one host to another one, including the end of a connection, until it is healed. Then the
bytes arrive, as TCP sends them again.
"""

import errno
from collections.abc import Callable, Iterable
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from twisted.internet.defer import Deferred
from twisted.internet.error import CannotListenError

from odradek.simulation.api import ConnectionLost
from odradek.simulation.machine.broker_sockets import REFUSED, BrokerTransport, Connector, Peer, Port
from odradek.simulation.machine.pipes import Address, ByteStream, NetworkConnection, Pipe, Route

if TYPE_CHECKING:
    from odradek.simulation.machine.broker_process import ProcessReactor
    from odradek.simulation.machine.clock import SimulatedClock

CLIENT_HOST: Final = "client"
"""The host of all simulated clients."""
_FIRST_RETRANSMISSION_S: Final = 1.0
"""Time after which TCP sends the first packet of a connection again; it doubles each time."""
_CONNECT_TIMEOUT_S: Final = 3.0
"""Time after which a client gives up a connection to a host that it cannot reach."""


class NetworkHabits(NamedTuple):
    """Properties of a network, drawn from the seed.

    latency_s: minimum and usual delay; a share of `slow_share` takes up to `slow_s`
    small_piece_share: share of deliveries that end at a random byte instead of delivering all available bytes
    buffer_bytes: capacity of a socket's send buffer
    short_send_share: share of sends that accept fewer bytes than the buffer has room for
    """

    latency_s: float = 0.0005
    slow_share: float = 0.02
    slow_s: float = 0.2
    small_piece_share: float = 0.05
    buffer_bytes: int = 65536
    short_send_share: float = 0.0


class Stoppable(Protocol):
    """A pipe or channel that a cut has stopped."""

    def healed(self) -> None:
        """Called when the cut is healed."""


class Network:
    """All listening ports and connections.

    links: the connections that no fault has broken
    """

    def __init__(self, clock: "SimulatedClock", random: Random, habits: NetworkHabits) -> None:
        self.clock = clock
        self.random = random
        self.habits = habits
        self.note_bytes: Callable[[bytes], None] = lambda data: None
        self.links: dict[NetworkConnection, None] = {}
        self._ports: dict[Address, Port] = {}
        self._last_client_port = 40_000
        self._cuts: dict[Route, None] = {}
        self._stopped: dict[Stoppable, Route] = {}
        self._half_open: dict[str, list[Pipe]] = {}

    def listen(self, reactor: "ProcessReactor", address: Address, factory: Any) -> Port:
        """Bind a port. Raises CannotListenError."""
        if address in self._ports:
            error: Any = CannotListenError
            raise error(address[0], address[1], OSError(errno.EADDRINUSE, "address in use"))
        port = self._ports[address] = Port(self, reactor, address, factory)
        return port

    def close_port(self, address: Address, port: Port) -> None:
        """Close a listening port."""
        if self._ports.get(address) is port:
            del self._ports[address]

    # Connections

    def connect(self, address: Address) -> "Deferred[ByteStream]":
        """Connect a client to a port. Fails with ConnectionLost if it is closed or cannot be reached."""
        deferred: Deferred[ByteStream] = Deferred()
        self.clock.callLater(self.delay_s(), self._arrive, address, deferred)
        return deferred

    def connect_broker(
        self, reactor: "ProcessReactor", host: str, address: Address, factory: Any, timeout: float
    ) -> Connector:
        """Connect a broker on `host` to a port (`reactor.connectTCP`)."""
        connector = Connector(reactor, (host, address[0]), factory, timeout)
        self.clock.callLater(self.delay_s(), self._broker_arrives, connector, address, _FIRST_RETRANSMISSION_S)
        return connector

    def _arrive(self, address: Address, deferred: "Deferred[ByteStream]") -> None:
        route = CLIENT_HOST, address[0]
        if self.is_cut(route) or self.is_cut(route[::-1]):
            self.clock.callLater(_CONNECT_TIMEOUT_S, deferred.errback, ConnectionLost("the host does not answer"))
            return
        port = self._ports.get(address)
        if port is None:
            self.clock.callLater(self.delay_s(), deferred.errback, ConnectionLost("connection refused"))
            return
        link = NetworkConnection(self, port.reactor, route)
        stream = ByteStream(link)
        self._join(link, stream.received, stream.ended)
        port.come(link, self._next_peer(CLIENT_HOST))
        self.clock.callLater(self.delay_s(), deferred.callback, stream)

    def _broker_arrives(self, connector: Connector, address: Address, next_s: float) -> None:
        route = connector.route
        if not connector.is_waiting:
            return
        if self.is_cut(route) or self.is_cut(route[::-1]):
            self.clock.callLater(next_s, self._broker_arrives, connector, address, 2 * next_s)
            return
        port = self._ports.get(address)
        if port is None:
            self.clock.callLater(self.delay_s(), connector.reactor.run, connector.failed, REFUSED())
            return
        link = NetworkConnection(self, port.reactor, route, connector.reactor)
        run = connector.reactor.run
        self._join(
            link,
            lambda data: run(transport.received, data),
            lambda is_broken: run(transport.input_ended, is_broken),
        )
        transport = BrokerTransport(
            connector.reactor, link, Peer(*address), incoming=link.to_client, outgoing=link.to_broker
        )
        link.to_client.hold()
        port.come(link, self._next_peer(route[0]))
        self.clock.callLater(self.delay_s(), run, self._establish, connector, transport, link)

    def _establish(self, connector: Connector, transport: BrokerTransport, link: NetworkConnection) -> None:
        connector.established(transport)
        link.to_client.release()

    def _join(
        self, link: NetworkConnection, to_client: Callable[[bytes], None], ended: Callable[[bool], None]
    ) -> None:
        """Create the pipes of a connection; the broker reads once it has accepted."""

        def to_broker(data: bytes) -> None:
            if link.broker_end is not None:
                link.reactor.run(link.broker_end.received, data)

        def broker_side_ended(is_broken: bool) -> None:
            if link.broker_end is not None:
                link.reactor.run(link.broker_end.input_ended, is_broken)

        link.to_broker = Pipe(self, link.route, to_broker, broker_side_ended)
        link.to_client = Pipe(self, (link.route[1], link.route[0]), to_client, ended)
        link.to_broker.hold()
        self.links[link] = None

    def _next_peer(self, host: str) -> Peer:
        self._last_client_port += 1
        return Peer(host, self._last_client_port)

    def process_died(self, reactor: "ProcessReactor", *, is_silent: bool = False) -> None:
        """Close all ports and connections of a broker at once; the other ends are notified with delay.

        With `is_silent`, as after a power loss, they are notified when the machine is up again.
        """
        for address, port in list(self._ports.items()):
            if port.reactor is reactor:
                del self._ports[address]
        for link in list(self.links):
            if link.reactor is reactor:
                mine, other, host = link.to_broker, link.to_client, link.route[1]
            elif link.client_reactor is reactor:
                mine, other, host = link.to_client, link.to_broker, link.route[0]
            else:
                continue
            self.forget(link)
            mine.die()
            if is_silent:
                self._half_open.setdefault(host, []).append(other)
            else:
                other.break_off(self.random)

    def machine_up(self, host: str) -> None:
        """Break the half-open connections to a machine that is up again."""
        for pipe in self._half_open.pop(host, ()):
            if not pipe.is_dead:
                pipe.break_off(self.random)

    def forget(self, link: NetworkConnection) -> None:
        """Remove a connection that has ended."""
        self.links.pop(link, None)

    # Cuts

    def cut(self, routes: Iterable[Route]) -> None:
        """Stop everything on these routes, until `heal`."""
        for route in routes:
            self._cuts[route] = None
        for link in self.links:
            link.was_cut |= link.route in self._cuts or link.route[::-1] in self._cuts

    def heal(self, routes: Iterable[Route] | None = None) -> None:
        """End the cuts on these routes, or all."""
        for route in list(self._cuts if routes is None else routes):
            self._cuts.pop(route, None)
        for stopped, route in list(self._stopped.items()):
            if route not in self._cuts:
                del self._stopped[stopped]
                stopped.healed()

    @property
    def cuts(self) -> list[Route]:
        """Return the routes that are cut."""
        return list(self._cuts)

    def is_cut(self, route: Route) -> bool:
        """Return whether nothing arrives on a route."""
        return route in self._cuts

    def stops(self, route: Route, stopped: Stoppable) -> bool:
        """Return whether a route is cut; then `stopped` is informed when the cut is healed."""
        if route not in self._cuts:
            return False
        self._stopped[stopped] = route
        return True

    # Draws

    def delay_s(self) -> float:
        """Draw the delay of the next delivery."""
        habits, random = self.habits, self.random
        if random.random() < habits.slow_share:
            return random.uniform(habits.latency_s, habits.slow_s)
        return habits.latency_s * (0.2 + random.random())

    def piece_bytes(self, available: int) -> int:
        """Draw the number of bytes of the next delivery."""
        if available > 1 and self.random.random() < self.habits.small_piece_share:
            return self.random.randint(1, available - 1)
        return available

    def taken_bytes(self, offered: int) -> int:
        """Draw the number of bytes that a socket accepts."""
        share = self.habits.short_send_share
        if share and offered > 1 and self.random.random() < share:
            return self.random.randint(1, offered - 1)
        return offered
