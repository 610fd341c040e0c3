"""A broker's end of a simulated connection: the used parts of Twisted's transport, port and connector."""

import errno
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from twisted.internet import error as tcp_errors
from twisted.internet.error import ConnectionDone
from twisted.internet.error import ConnectionLost as TcpConnectionLost
from twisted.internet.interfaces import IHalfCloseableProtocol
from twisted.python.failure import Failure

from odradek.log.storage.filesystem import File
from odradek.simulation.machine.pipes import Address, NetworkConnection, Pipe, Route

if TYPE_CHECKING:
    from odradek.simulation.machine.broker_process import ProcessReactor
    from odradek.simulation.machine.network import Network

# Twisted's errors have no types.
_TIMED_OUT: Final[Callable[[], Exception]] = cast(Any, tcp_errors.TimeoutError)
_STOPPED: Final[Callable[[], Exception]] = cast(Any, tcp_errors.UserError)
REFUSED: Final[Callable[[], Exception]] = cast(Any, tcp_errors.ConnectionRefusedError)


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
        if self._outgoing.room_bytes:
            self._room_made()

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


class Connector:
    """A connection that a broker opens to another one: the used part of Twisted's IConnector."""

    def __init__(self, reactor: "ProcessReactor", route: Route, factory: Any, timeout: float) -> None:
        self.reactor = reactor
        self.route = route
        self._factory = factory
        self._transport: BrokerTransport | None = None
        self._is_over = False
        self._timeout = reactor.callLater(timeout, self.failed, _TIMED_OUT())
        factory.doStart()
        factory.startedConnecting(self)

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
            self.failed(REFUSED())
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
