"""Transport of a connection: Twisted's protocol, with the only `dataReceived` in Odradek.

Received bytes are split into frames and passed to `Connection`. A writer sends the responses.
"""

import logging
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from twisted.internet.interfaces import IAddress, IHalfCloseableProtocol
from twisted.internet.protocol import Factory, connectionDone
from twisted.internet.protocol import Protocol as TwistedProtocol
from twisted.python.failure import Failure
from zope.interface import implementer

from odradek.protocol.framing import FrameError, FrameSplitter
from odradek.server.network.connection import Connection
from odradek.server.network.connection_quotas import Acceptor, unmap_ipv4
from odradek.server.network.connection_transport import ResponseWriter, TcpTransport
from odradek.server.network.connections import ConnectionRegistry
from odradek.server.network.scheduler import RequestScheduler
from odradek.server.network.writers.region_loader import FileSender
from odradek.server.network.writers.socket_writer import SocketWriter

if TYPE_CHECKING:
    from odradek.server.measurements.socket_counts import SocketCounts

logger = logging.getLogger(__name__)

READ_BYTES: Final = 122_880
LARGE_READ_BYTES: Final = 1_048_576
"""Sizes of one read from a socket; the larger is used only while a large part of a frame is missing. The smaller is
below 128 KiB, from which on the C library maps and unmaps memory for each read, which costs more than the read."""

_LARGE_REST_BYTES: Final = 262_144


class TransportWriter(ResponseWriter, Protocol):
    """The writer of one connection, to its transport.

    has_progressed: set when the socket accepts bytes; `ConnectionRegistry` resets it
    """

    has_progressed: bool

    @property
    def unsent_bytes(self) -> int:
        """The number of bytes that the socket has not accepted."""

    @property
    def is_loading(self) -> bool:
        """True while a part of a file region is read from the disk."""

    def end(self) -> None:
        """Send what ends the stream of bytes, before `flush` and the end of the connection."""

    def abort(self) -> None:
        """Drop unsent bytes, and close the connection at once."""

    def close(self) -> None:
        """Drop unsent bytes: the connection is closed, or about to be closed."""


MakeWriter = Callable[[TcpTransport, Callable[[], None]], TransportWriter]
"""Makes the writer of a connection, given the function that it calls when it is idle again."""


def plaintext_writers(files: FileSender, counts: "SocketCounts | None" = None) -> MakeWriter:
    """Return a function that makes writers without encryption."""

    def make(transport: TcpTransport, on_drained: Callable[[], None]) -> SocketWriter:
        return SocketWriter(transport, transport.reactor.write_coalescer, files, on_drained, counts)

    return make


@implementer(IHalfCloseableProtocol)
class KafkaTransport(TwistedProtocol):
    """One client connection: plaintext bytes in, responses out through its writer.

    counts: of the listener; None if they are not used
    scheduler: the reactor's scheduler
    large_read_bytes: size of a read while a large part of a frame is missing
    """

    large_read_bytes = LARGE_READ_BYTES
    transport: TcpTransport  # type: ignore[assignment] # Twisted's ITransport has no types

    def __init__(
        self,
        make_connection: Callable[["KafkaTransport"], Connection],
        max_frame_bytes: int,
        registry: ConnectionRegistry,
        make_writer: MakeWriter,
        counts: "SocketCounts | None" = None,
    ) -> None:
        self._make_connection = make_connection
        self._make_writer = make_writer
        self._counts = counts
        self._splitter = FrameSplitter(max_frame_bytes)
        self._read_bytes = READ_BYTES
        self._is_closing = False
        self._has_input_ended = False
        self._registry = registry
        self._has_received = True
        self.release: Callable[[], None] | None = None

    def connectionMade(self) -> None:
        transport = self.transport
        transport.setTcpNoDelay(True)
        transport.setTcpKeepAlive(True)
        transport.bufferSize = READ_BYTES
        self.scheduler: RequestScheduler = transport.reactor.scheduler
        self.connection = self._make_connection(self)
        self.writer = self._make_writer(transport, self.connection.output_drained)
        self._registry.add(self)
        if self._counts is not None:
            self._counts.created += 1

    def dataReceived(self, data: bytes) -> None:
        if self._is_closing:
            return
        self._has_received = True
        counts = self._counts
        if counts is not None:
            counts.received_bytes += len(data)
        if self._splitter.is_whole_frame(data):
            if counts is not None:
                counts.requests += 1
            self.connection.frame_received(data)
            return
        try:
            frames = self._splitter.feed(data)
        except FrameError as error:
            self._is_closing = True
            if counts is not None:
                counts.requests += len(error.frames)
            self.connection.frames_received(error.frames)
            self.connection.refuse_in_turn(str(error))
            return
        read_bytes = self.large_read_bytes if self._splitter.missing_bytes > _LARGE_REST_BYTES else READ_BYTES
        if read_bytes != self._read_bytes:
            self._set_read_size(read_bytes)
        if counts is not None:
            counts.requests += len(frames)
        if len(frames) == 1:
            self.connection.frame_received(frames[0])
        elif frames:
            self.connection.frames_received(frames)

    def refuse(self, why: str) -> None:
        """Close the connection because of malformed input below the frames."""
        if not self._is_closing:
            self._is_closing = True
            self.connection.refuse(why)

    def readConnectionLost(self) -> None:
        """Twisted: the client has closed its side. It may still read, which cannot be detected."""
        self._has_input_ended = True
        self._splitter.clear()
        self.connection.input_ended()

    def writeConnectionLost(self) -> None:
        """Twisted: never called, because the broker never closes only its own side."""

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Drop all references: without cycles the connection and its buffers are freed at once."""
        self._is_closing = True
        self._registry.remove(self)
        if self._counts is not None:
            self._counts.closed += 1
        if self.release is not None:
            self.release()
            self.release = None
        self._splitter.clear()
        self.writer.close()
        self.connection.connection_lost()

    @property
    def peer_host(self) -> str:
        """The address of the client, that of IPv4 also on a socket of both families, as in Java."""
        return unmap_ipv4(self.transport.getPeer().host)

    @property
    def peer_port(self) -> int:
        """The port of the client."""
        return self.transport.getPeer().port

    def take_activity(self) -> bool:
        """Return whether bytes were received or sent since the last call."""
        was_active = self._has_received or self.writer.has_progressed
        self._has_received = self.writer.has_progressed = False
        return was_active

    def is_broken(self) -> bool:
        """Return whether the client has reset the connection since the end of its input.

        No event reports a reset while a request is in progress, because the reactor watches the socket neither for
        reading nor for writing. Requests that arrived before the reset are still begun.
        """
        if not self._has_input_ended or self.connection.next_frame is not None:
            return False
        transport = self.transport
        error: int = transport.getHandle().getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        return error != 0

    def close(self) -> None:
        """Close the connection. Only responses that the socket has accepted are delivered; no request is begun."""
        self._is_closing = True
        self.connection.closing()
        self.writer.end()
        self.writer.flush()
        transport = self.transport
        if self.writer.is_idle:
            transport.loseConnection()
            # `loseConnection` waits for a write event, which does not occur while the client does not read and its
            # responses fill more than two thirds of the send buffer. The kernel delivers accepted bytes after a close.
            transport.reactor.callLater(0, transport.connectionLost, connectionDone)
        else:
            # At once: a stop of the broker waits for the reads from the disk that are queued for its connections.
            self.writer.abort()

    def pause_reading(self) -> None:
        """Read nothing until `resume_reading`."""
        transport = self.transport
        transport.stopReading()

    def resume_reading(self) -> None:
        """Read again after `pause_reading`, unless the connection is closed or closing."""
        transport = self.transport
        if not self._is_closing and not self._has_input_ended and transport.connected:
            transport.startReading()

    def limit_frames(self, max_frame_bytes: int) -> None:
        """Set the maximum size of the content of the frames that follow."""
        self._splitter.max_frame_bytes = max_frame_bytes

    def _set_read_size(self, size_bytes: int) -> None:
        self._read_bytes = size_bytes
        transport = self.transport
        transport.bufferSize = size_bytes


class KafkaTransportFactory(Factory):
    """Makes a `KafkaTransport` for each connection accepted on a listener.

    acceptor: counts the connections, and rejects those above the limits
    """

    noisy = False

    def __init__(
        self,
        make_connection: Callable[[KafkaTransport], Connection],
        max_frame_bytes: int,
        registry: ConnectionRegistry,
        make_writer: MakeWriter,
        counts: "SocketCounts | None" = None,
    ) -> None:
        self._make_connection = make_connection
        self._make_writer = make_writer
        self._counts = counts
        self._max_frame_bytes = max_frame_bytes
        self._registry = registry
        self.acceptor: Acceptor | None = None

    def buildProtocol(self, addr: IAddress | None) -> TwistedProtocol | None:
        return self.hold(addr) or self.build(addr, self._make_writer)

    def hold(self, addr: IAddress | None) -> TwistedProtocol | None:
        """Return the protocol of a connection that exceeds the rate of its address; None if it may be accepted."""
        if self.acceptor is None:
            return None
        delay_s = self.acceptor.throttle(getattr(addr, "host", ""))
        if delay_s <= 0:
            return None
        # Imported with the first such connection, because most brokers have none.
        from odradek.server.network.throttled_connection import ThrottledConnection

        return ThrottledConnection(delay_s)

    def build(self, addr: IAddress | None, make_writer: MakeWriter) -> KafkaTransport | None:
        """Return the transport of a new connection; None if the acceptor rejects it."""
        release = None
        if self.acceptor is not None:
            release = self.acceptor.admit(getattr(addr, "host", ""))
            if release is None:
                return None
        transport = KafkaTransport(
            self._make_connection, self._max_frame_bytes, self._registry, make_writer, self._counts
        )
        transport.release = release
        return transport
