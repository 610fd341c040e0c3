"""The network between clients and brokers: byte streams with delays, fragmentation and broken connections.

The broker's end is a TCP transport of Twisted with a socket, so that the broker's `KafkaTransport` runs on it
unchanged. The client's end is a `ByteStream`.
"""

import errno
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from twisted.internet.defer import Deferred
from twisted.internet.error import CannotListenError, ConnectionDone
from twisted.internet.error import ConnectionLost as TcpConnectionLost
from twisted.python.failure import Failure

from odradek.log.storage.filesystem import File
from odradek.simulation.api import ConnectionLost

if TYPE_CHECKING:
    from odradek.simulation.machine.broker_process import ProcessReactor
    from odradek.simulation.machine.clock import SimulatedClock

Address = tuple[str, int]


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

    def __init__(self, network: "Network", deliver: Callable[[bytes], None], ended: Callable[[bool], None]) -> None:
        self._network = network
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

    def _schedule(self) -> None:
        if self._call is None and not self.is_dead and not self._is_held and (self._buffer or self._is_closing):
            self._call = self._network.clock.callLater(self._network.delay_s(), self._deliver)

    def _deliver(self) -> None:
        self._call = None
        if self._is_held:
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
    """A connection: two pipes, and faults that affect both."""

    def __init__(self, network: "Network", reactor: "ProcessReactor") -> None:
        self.network = network
        self.reactor = reactor
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
    """The broker's end: the used part of Twisted's ITCPTransport."""

    def __init__(self, reactor: "ProcessReactor", link: NetworkConnection, peer: Peer) -> None:
        self.reactor = reactor
        self.connected = True
        self.bufferSize = 65536
        self.protocol: Any = None
        self._link = link
        self._peer = peer
        self._socket = SimulatedSocket(link.network, link.to_client)
        self._producer: Any = None
        self._is_waiting_for_room = False
        self._is_closing = False
        link.to_client.on_room = self._room_made

    # ITransport

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
            self._link.to_client.break_off(self._link.network.random)
            self.reactor.callLater(0, self.lost, True)

    def stopReading(self) -> None:  # noqa: N802
        self._link.to_broker.hold()

    def startReading(self) -> None:  # noqa: N802
        self._link.to_broker.release()

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
        """Called with bytes from the client."""
        if self.connected and not self._is_closing:
            self.protocol.dataReceived(data)

    def input_ended(self, is_broken: bool) -> None:
        """Called when the client closes its side or has lost the connection."""
        if is_broken:
            self.lost(True)
        elif self.connected:
            self.protocol.readConnectionLost()

    def lost(self, is_broken: bool) -> None:
        """Called at the end of the connection."""
        if not self.connected:
            return
        self.connected = False
        self._link.network.forget(self._link)
        self._link.to_broker.die()
        self._link.to_client.close()
        if self._producer is not None:
            self._producer.stopProducing()
            self._producer = None
        failure: Any = Failure
        self.protocol.connectionLost(failure(TcpConnectionLost() if is_broken else ConnectionDone()))

    def _room_made(self) -> None:
        if self._is_waiting_for_room:
            self._is_waiting_for_room = False
            self.reactor.callLater(0, self._resume)

    def _resume(self) -> None:
        if self._producer is not None and self.connected:
            self._producer.resumeProducing()

    def _finish_if_idle(self) -> None:
        if self._is_closing and self._producer is None and self.connected:
            self._link.to_client.close()
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
        transport = BrokerTransport(self.reactor, link, peer)
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
        return self._link in self._link.network.links

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


class Network:
    """All listening ports and connections."""

    def __init__(self, clock: "SimulatedClock", random: Random, habits: NetworkHabits) -> None:
        self.clock = clock
        self.random = random
        self.habits = habits
        self.note_bytes: Callable[[bytes], None] = lambda data: None
        self.links: dict[NetworkConnection, None] = {}
        self._ports: dict[Address, Port] = {}
        self._last_client_port = 40_000

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

    def connect(self, address: Address) -> "Deferred[ByteStream]":
        """Connect to a port. Fails with ConnectionLost if it is closed."""
        deferred: Deferred[ByteStream] = Deferred()
        self.clock.callLater(self.delay_s(), self._arrive, address, deferred)
        return deferred

    def _arrive(self, address: Address, deferred: "Deferred[ByteStream]") -> None:
        port = self._ports.get(address)
        if port is None:
            self.clock.callLater(self.delay_s(), deferred.errback, ConnectionLost("connection refused"))
            return
        link = NetworkConnection(self, port.reactor)
        stream = ByteStream(link)

        def to_broker(data: bytes) -> None:
            if link.broker_end is not None:
                link.reactor.run(link.broker_end.received, data)

        def broker_side_ended(is_broken: bool) -> None:
            if link.broker_end is not None:
                link.reactor.run(link.broker_end.input_ended, is_broken)

        link.to_broker = Pipe(self, to_broker, broker_side_ended)
        link.to_client = Pipe(self, stream.received, stream.ended)
        link.to_broker.hold()
        self.links[link] = None
        self._last_client_port += 1
        port.come(link, Peer("client", self._last_client_port))
        self.clock.callLater(self.delay_s(), deferred.callback, stream)

    def process_died(self, reactor: "ProcessReactor") -> None:
        """Close all ports and connections of a broker at once; clients are notified with delay."""
        for address, port in list(self._ports.items()):
            if port.reactor is reactor:
                del self._ports[address]
        for link in [link for link in self.links if link.reactor is reactor]:
            self.forget(link)
            link.to_broker.die()
            link.to_client.break_off(self.random)

    def forget(self, link: NetworkConnection) -> None:
        """Remove a connection that has ended."""
        self.links.pop(link, None)

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
