"""The network between clients and brokers: byte streams with delays, fragmentation and broken connections.

A broker's end is a TCP transport of Twisted with a socket, so that the broker's `KafkaTransport` runs on it
unchanged. A client's end is a `ByteStream`. Connections between two brokers have a transport at both ends.

A cut stops everything from one host to another one, including the end of a connection, until it is healed. Then the
bytes arrive, as TCP sends them again.
"""

import errno
from collections.abc import Callable, Iterable
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, cast

from twisted.internet import error as tcp_errors
from twisted.internet.defer import Deferred
from twisted.internet.error import CannotListenError, ConnectionDone
from twisted.internet.error import ConnectionLost as TcpConnectionLost
from twisted.internet.interfaces import IHalfCloseableProtocol
from twisted.python.failure import Failure

from odradek.log.storage.filesystem import File
from odradek.simulation.api import ConnectionLost

if TYPE_CHECKING:
    from odradek.simulation.machine.broker_process import ProcessReactor
    from odradek.simulation.machine.clock import SimulatedClock

Address = tuple[str, int]
Route = tuple[str, str]
"""Source and target host."""

CLIENT_HOST: Final = "client"
"""The host of all simulated clients."""
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


class Pipe:
    """One direction of a connection: delivers bytes in order, with delay, in pieces of any size, then the end."""

    def __init__(
        self, network: "Network", route: Route, deliver: Callable[[bytes], None], ended: Callable[[bool], None]
    ) -> None:
        self._network = network
        self._route = route
        self._deliver_bytes = deliver
        self._ended = ended
        self._buffer = bytearray()
        self._call: Any = None
        self._is_closing = False
        self._is_broken = False
        self._is_held = False
        self.is_dead = False
        self.on_room: Callable[[], None] = lambda: None

    @property
    def room_bytes(self) -> int:
        """Return how many bytes may be written now."""
        if self.is_dead:
            return 1 << 30
        return max(0, self._network.habits.buffer_bytes - len(self._buffer))

    def write(self, data: bytes) -> None:
        """Write bytes; they are dropped if the connection has ended."""
        if self.is_dead or self._is_closing:
            return
        self._buffer += data
        self._schedule()

    def close(self) -> None:
        """Deliver the end after the bytes in transit."""
        self._is_closing = True
        self._schedule()

    def break_off(self, random: Random) -> None:
        """Break the connection: the bytes in transit arrive up to a random byte."""
        del self._buffer[random.randint(0, len(self._buffer)) :]
        self._is_closing = self._is_broken = True
        self._is_held = False
        self._schedule()

    def die(self) -> None:
        """Stop all deliveries, including the end."""
        self.is_dead = True
        self._buffer.clear()
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def hold(self) -> None:
        """Pause: the receiver does not read."""
        self._is_held = True

    def release(self) -> None:
        """Resume: the receiver reads again."""
        self._is_held = False
        self._schedule()

    def healed(self) -> None:
        """Called when a cut that stopped this pipe is healed."""
        self._schedule()

    def _schedule(self) -> None:
        if self._call is None and not self.is_dead and not self._is_held and (self._buffer or self._is_closing):
            self._call = self._network.clock.callLater(self._network.delay_s(), self._deliver)

    def _deliver(self) -> None:
        self._call = None
        if self._is_held or self._network.stops(self._route, self):
            return
        if not self._buffer:
            self.is_dead = True
            self._ended(self._is_broken)
            return
        size = self._network.piece_bytes(len(self._buffer))
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        self._schedule()
        self._network.note_bytes(data)
        self._deliver_bytes(data)
        self.on_room()


class NetworkConnection:
    """A connection: two pipes, and faults that affect both.

    route: host that connected, and host of the broker that accepted
    reactor, client_reactor: the broker that accepted, and the one that connected, None if that was a client
    was_cut: true if a cut has affected the connection
    """

    def __init__(
        self,
        network: "Network",
        reactor: "ProcessReactor",
        route: Route,
        client_reactor: "ProcessReactor | None" = None,
    ) -> None:
        self.network = network
        self.reactor = reactor
        self.route = route
        self.client_reactor = client_reactor
        self.was_cut = False
        self.to_broker: Pipe
        self.to_client: Pipe
        self.broker_end: BrokerTransport | None = None

    def break_off(self, random: Random) -> None:
        """Break the connection: both ends are notified with delay, or one of them never is."""
        self.network.forget(self)
        silent = random.random()
        for pipe, is_silent in ((self.to_broker, silent < 0.15), (self.to_client, silent > 0.85)):
            if is_silent:
                pipe.die()
            else:
                pipe.break_off(random)


class SimulatedSocket:
    """The non-blocking socket that `KafkaTransport` writes to."""

    def __init__(self, network: "Network", pipe: Pipe) -> None:
        self._network = network
        self._pipe = pipe

    def send(self, data: bytes | bytearray | memoryview, flags: int = 0) -> int:
        """Send bytes; return how many were accepted. Raises BlockingIOError."""
        size = self._taken_bytes(len(data))
        self._pipe.write(bytes(memoryview(data)[:size]))
        return size

    def send_file(self, file: File, position: int, size_bytes: int) -> int:
        """Send bytes of a file (`sendfile`), read at the time of the call."""
        data = file.pread(position, self._taken_bytes(size_bytes))
        self._pipe.write(data)
        return len(data)

    def getsockopt(self, level: int, option: int) -> int:
        """Return 0 for SO_ERROR: a broken connection is reported to the protocol immediately."""
        return 0

    def _taken_bytes(self, size_bytes: int) -> int:
        size_bytes = min(size_bytes, self._pipe.room_bytes)
        if not size_bytes:
            raise BlockingIOError(errno.EAGAIN, "the buffer is full")
        return self._network.taken_bytes(size_bytes)


class Peer(NamedTuple):
    host: str
    port: int


class BrokerTransport:
    """A broker's end: the used part of Twisted's ITCPTransport."""

    def __init__(
        self, reactor: "ProcessReactor", link: NetworkConnection, peer: Peer, *, incoming: Pipe, outgoing: Pipe
    ) -> None:
        self.reactor = reactor
        self.connected = True
        self.bufferSize = 65536
        self.protocol: Any = None
        self._link = link
        self._peer = peer
        self._incoming = incoming
        self._outgoing = outgoing
        self._socket = SimulatedSocket(link.network, outgoing)
        self._producer: Any = None
        self._is_waiting_for_room = False
        self._is_closing = False
        self.on_lost: Callable[[Any], None] = lambda reason: None
        outgoing.on_room = self._room_made

    # ITransport

    def write(self, data: bytes) -> None:
        if self.connected and not self._is_closing:
            self._outgoing.write(data)

    def writeSequence(self, pieces: Iterable[bytes]) -> None:  # noqa: N802
        self.write(b"".join(pieces))

    def getHandle(self) -> SimulatedSocket:  # noqa: N802
        return self._socket

    def getPeer(self) -> Peer:  # noqa: N802
        return self._peer

    def setTcpNoDelay(self, enabled: bool) -> None:  # noqa: N802
        pass

    def setTcpKeepAlive(self, enabled: bool) -> None:  # noqa: N802
        pass

    def loseConnection(self) -> None:  # noqa: N802
        self._is_closing = True
        self._finish_if_idle()

    def connectionLost(self, reason: Any) -> None:  # noqa: N802
        self.lost(False)

    def abortConnection(self) -> None:  # noqa: N802
        if self.connected:
            self._outgoing.break_off(self._link.network.random)
            self.reactor.callLater(0, self.lost, True)

    def stopReading(self) -> None:  # noqa: N802
        self._incoming.hold()

    def startReading(self) -> None:  # noqa: N802
        self._incoming.release()

    def startWriting(self) -> None:  # noqa: N802
        self._is_waiting_for_room = True

    def registerProducer(self, producer: Any, streaming: bool) -> None:  # noqa: N802
        assert self._producer is None
        assert not streaming
        if not self.connected:
            producer.stopProducing()
            return
        self._producer = producer
        producer.resumeProducing()

    def unregisterProducer(self) -> None:  # noqa: N802
        self._producer = None
        self._finish_if_idle()

    # Events from the network

    def received(self, data: bytes) -> None:
        """Called with bytes from the other end."""
        if self.connected and not self._is_closing:
            self.protocol.dataReceived(data)

    def input_ended(self, is_broken: bool) -> None:
        """Called when the other end closes its side or has lost the connection."""
        if is_broken:
            self.lost(True)
        elif self.connected:
            if IHalfCloseableProtocol.providedBy(self.protocol):
                self.protocol.readConnectionLost()
            else:
                self.lost(False)

    def refuse(self) -> None:
        """End a connection that has no protocol."""
        self.connected = False
        self._link.network.forget(self._link)
        self._incoming.die()
        self._outgoing.break_off(self._link.network.random)

    def lost(self, is_broken: bool) -> None:
        """Called at the end of the connection."""
        if not self.connected:
            return
        if self.protocol is None:
            self.refuse()
            return
        self.connected = False
        self._link.network.forget(self._link)
        self._incoming.die()
        self._outgoing.close()
        if self._producer is not None:
            self._producer.stopProducing()
            self._producer = None
        failure: Any = Failure
        reason = failure(TcpConnectionLost() if is_broken else ConnectionDone())
        self.protocol.connectionLost(reason)
        self.on_lost(reason)

    def _room_made(self) -> None:
        if self._is_waiting_for_room:
            self._is_waiting_for_room = False
            self.reactor.callLater(0, self._resume)

    def _resume(self) -> None:
        if self._producer is not None and self.connected:
            self._producer.resumeProducing()

    def _finish_if_idle(self) -> None:
        if self._is_closing and self._producer is None and self.connected:
            self._outgoing.close()
            self.reactor.callLater(0, self.lost, False)


class Port:
    """A listening port of a broker; connections wait until it accepts them."""

    def __init__(self, network: "Network", reactor: "ProcessReactor", address: Address, factory: Any) -> None:
        self.reactor = reactor
        self._network = network
        self._address = address
        self._factory = factory
        self._is_reading = True
        self._backlog: list[Callable[[], None]] = []

    def getHost(self) -> Peer:  # noqa: N802
        return Peer(*self._address)

    def startReading(self) -> None:  # noqa: N802
        self._is_reading = True
        waiting, self._backlog = self._backlog, []
        for accept in waiting:
            accept()

    def stopReading(self) -> None:  # noqa: N802
        self._is_reading = False

    def stopListening(self) -> None:  # noqa: N802
        self._network.close_port(self._address, self)

    def come(self, link: NetworkConnection, peer: Peer) -> None:
        """Called when a client connects."""

        def accept() -> None:
            self.reactor.run(self._accept, link, peer)

        if self._is_reading:
            accept()
        else:
            self._backlog.append(accept)

    def _accept(self, link: NetworkConnection, peer: Peer) -> None:
        if link.to_broker.is_dead:
            return
        transport = BrokerTransport(self.reactor, link, peer, incoming=link.to_broker, outgoing=link.to_client)
        transport.protocol = protocol = self._factory.buildProtocol(None)
        link.broker_end = transport
        protocol.makeConnection(transport)
        link.to_broker.release()


class ByteStream:
    """The client's end of a connection: `write` sends, `on_data` receives, `on_lost` is called once at the end."""

    def __init__(self, link: NetworkConnection) -> None:
        self.on_data: Callable[[bytes], None] = lambda data: None
        self.on_lost: Callable[[], None] = lambda: None
        self.is_lost = False
        self._link = link

    @property
    def is_intact(self) -> bool:
        """Return whether no fault has affected the connection: all sent bytes arrive, in both directions."""
        return self._link in self._link.network.links and not self._link.was_cut

    def write(self, data: bytes) -> None:
        """Send bytes."""
        self._link.to_broker.write(data)

    def stop_reading(self) -> None:
        """Stop reading, so that the broker's socket fills up."""
        self._link.to_client.hold()

    def read_again(self) -> None:
        """Resume reading."""
        self._link.to_client.release()

    def close(self) -> None:
        """Close this end."""
        if not self.is_lost:
            self.is_lost = True
            self._link.network.forget(self._link)
            self._link.to_client.die()
            self._link.to_broker.close()

    def received(self, data: bytes) -> None:
        """Called with bytes from the broker."""
        if not self.is_lost:
            self.on_data(data)

    def ended(self, is_broken: bool) -> None:
        """Called at the end of the broker's bytes."""
        if not self.is_lost:
            self.close()
            self.on_lost()


# Twisted's errors have no types.
_TIMED_OUT: Final[Callable[[], Exception]] = cast(Any, tcp_errors.TimeoutError)
_STOPPED: Final[Callable[[], Exception]] = cast(Any, tcp_errors.UserError)
_REFUSED: Final[Callable[[], Exception]] = cast(Any, tcp_errors.ConnectionRefusedError)


class Connector:
    """A connection that a broker opens to another one: the used part of Twisted's IConnector."""

    def __init__(
        self,
        network: "Network",
        reactor: "ProcessReactor",
        route: Route,
        address: Address,
        factory: Any,
        timeout: float,
    ) -> None:
        self.reactor = reactor
        self.route = route
        self._network = network
        self._address = address
        self._factory = factory
        self._transport: BrokerTransport | None = None
        self._is_over = False
        self._timeout = reactor.callLater(timeout, self.failed, _TIMED_OUT())
        factory.doStart()
        factory.startedConnecting(self)

    def getDestination(self) -> Peer:  # noqa: N802
        return Peer(*self._address)

    def stopConnecting(self) -> None:  # noqa: N802
        self.failed(_STOPPED())

    def disconnect(self) -> None:
        if self._transport is not None:
            self._transport.loseConnection()
        else:
            self.stopConnecting()

    @property
    def is_waiting(self) -> bool:
        """Return whether the connection is neither established nor given up."""
        return self._transport is None and not self._is_over and self.reactor.is_alive

    def failed(self, error: Exception) -> None:
        """Give up connecting."""
        if not self.is_waiting:
            return
        self._is_over = True
        if self._timeout.active():
            self._timeout.cancel()
        failure: Any = Failure
        self._factory.clientConnectionFailed(self, failure(error))
        self._factory.doStop()

    def established(self, transport: BrokerTransport) -> None:
        """Called when the other broker has accepted the connection."""
        if not self.is_waiting:
            transport.refuse()
            return
        if not transport.connected:
            self.failed(_REFUSED())
            return
        self._timeout.cancel()
        protocol = self._factory.buildProtocol(transport.getPeer())
        if protocol is None:
            self._is_over = True
            transport.refuse()
            return
        self._transport = transport
        transport.on_lost = self._lost
        transport.protocol = protocol
        protocol.makeConnection(transport)

    def _lost(self, reason: Any) -> None:
        self._is_over = True
        self._factory.clientConnectionLost(self, reason)
        self._factory.doStop()


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
        connector = Connector(self, reactor, (host, address[0]), address, factory, timeout)
        self.clock.callLater(self.delay_s(), self._broker_arrives, connector, address)
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

    def _broker_arrives(self, connector: Connector, address: Address) -> None:
        route = connector.route
        if not connector.is_waiting or self.is_cut(route) or self.is_cut(route[::-1]):
            return
        port = self._ports.get(address)
        if port is None:
            self.clock.callLater(self.delay_s(), connector.reactor.run, connector.failed, _REFUSED())
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
