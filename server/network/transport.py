"""Transport of a connection: Twisted's protocol, with the only `dataReceived` in Odradek.

Received bytes are split into frames and passed to `Connection`. `SocketWriter` sends responses within the same reactor
iteration, and queues the bytes that the socket does not accept; `sendfile` sends record bytes from the file.
"""

import logging
import socket
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from twisted.internet.interfaces import IAddress, IHalfCloseableProtocol, IPullProducer
from twisted.internet.protocol import Factory, connectionDone
from twisted.internet.protocol import Protocol as TwistedProtocol
from twisted.python.failure import Failure
from zope.interface import implementer

from odradek.log.storage.filesystem import File, FileRegion
from odradek.protocol.framing import FrameError, FrameSplitter
from odradek.server.network.connection import Connection
from odradek.server.network.connection_quotas import Acceptor, unmap_ipv4
from odradek.server.network.connection_transport import Piece, ResponseWriter, count_bytes
from odradek.server.network.connections import ConnectionRegistry
from odradek.server.network.scheduler import RequestScheduler
from odradek.server.network.write_coalescer import WriteCoalescer
from odradek.server.work.clock import Clock
from odradek.server.work.listening_port import Address

if TYPE_CHECKING:
    from odradek.server.measurements.socket_counts import SocketCounts

logger = logging.getLogger(__name__)

SendFile = Callable[[socket.socket, File, int, int], int]
"""Sends a part of a file (position, size) to a socket; returns the number of bytes sent (`Environment.send_file`)."""

READ_BYTES: Final = 122_880
LARGE_READ_BYTES: Final = 1_048_576
"""Sizes of one read from a socket; the larger is used only while a large part of a frame is missing. The smaller is
below 128 KiB, from which on the C library maps and unmaps memory for each read, which costs more than the read."""

_LARGE_REST_BYTES: Final = 262_144
ITERATION_LIMIT_BYTES: Final = 4194304
"""Bytes that one connection may send in one reactor iteration, so that a fast reader does not starve the others."""

_MIN_PIECE_BYTES: Final = 8_192
"""Smallest size that is counted for a piece: a fetch of 10,000 partitions with one record each has 20,000 pieces, each
of which is a system call. An iteration sends up to 512 of them."""

_PENDING_LIMIT_BYTES: Final = 262_144
"""Total size from which on small responses are sent at once instead of at the end of the reactor iteration.

A read of `READ_BYTES` may contain thousands of requests. Without a limit all their responses would be in memory before
the first is sent. With it, a response that the socket does not accept delays the next request."""


class TransportReactor(Clock, Protocol):
    """The reactor of connections."""

    scheduler: RequestScheduler
    write_coalescer: WriteCoalescer


class TcpTransport(Protocol):
    """A TCP connection of the reactor. Twisted's interfaces have no types."""

    bufferSize: int
    connected: bool
    reactor: TransportReactor

    def getHandle(self) -> socket.socket: ...

    def getPeer(self) -> Address: ...

    def setTcpNoDelay(self, enabled: bool, /) -> None: ...

    def setTcpKeepAlive(self, enabled: bool, /) -> None: ...

    def registerProducer(self, producer: "SocketWriter", streaming: bool, /) -> None: ...

    def unregisterProducer(self) -> None: ...

    def startReading(self) -> None: ...

    def stopReading(self) -> None: ...

    def startWriting(self) -> None: ...

    def loseConnection(self) -> None: ...

    def abortConnection(self) -> None: ...

    def connectionLost(self, reason: Failure, /) -> None: ...


@implementer(IPullProducer)
class SocketWriter:
    """Sends pieces, bytes and file regions, in order.

    Small responses wait for the end of the reactor iteration (`WriteCoalescer`). While the socket does not accept all
    bytes, the writer is registered as the transport's pull producer: Twisted's own write buffer stays empty, and only
    this object writes to the socket.

    A connection reads `is_idle` to determine whether it has to wait. `on_drained` ends a wait: it is called at a write
    event of the reactor, when the queue has become empty, never from within `send_one`, `send` or `flush`.

    has_progressed: set when the socket accepts bytes; `ConnectionRegistry` resets it
    counts: of the listener; None if they are not used, or another writer counts
    """

    def __init__(
        self,
        transport: TcpTransport,
        write_coalescer: WriteCoalescer,
        send_file: SendFile,
        on_drained: Callable[[], None],
        counts: "SocketCounts | None" = None,
    ) -> None:
        self.has_progressed = False
        self._counts = counts
        self._transport = transport
        self._write_coalescer = write_coalescer
        self._send_file = send_file
        self._on_drained = on_drained
        self._socket: socket.socket = transport.getHandle()
        self._pending: bytearray | None = None
        self._queue: deque[Piece] = deque()
        self._region_sent_bytes = 0
        self._is_registered = False
        self._is_closed = False

    @property
    def is_idle(self) -> bool:
        """Return whether the socket has accepted all bytes, except those that wait for the end of the iteration.

        Always False after the connection has failed.
        """
        return not self._queue and not self._is_closed

    @property
    def unsent_bytes(self) -> int:
        """The number of bytes that the socket has not accepted: at most `_PENDING_LIMIT_BYTES` and two responses."""
        return len(self._pending or b"") - self._region_sent_bytes + count_bytes(self._queue)

    def send_one(self, data: bytearray) -> None:
        """Send a response of one piece at the end of the iteration."""
        if self._counts is not None:
            self._counts.responses += 1
        if self._queue:
            self._queue.append(data)
        elif self._pending is not None:
            self._pending += data
            if len(self._pending) >= _PENDING_LIMIT_BYTES:
                self.flush()
        else:
            self._pending = data
            self._write_coalescer.add(self)

    def flush(self) -> None:
        """Send the responses that wait for the end of the iteration."""
        data = self._pending
        if data is None or self._is_closed:
            return
        self._pending = None
        try:
            sent = self._socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._fail(error)
            return
        if sent:
            self.has_progressed = True
            if self._counts is not None:
                self._counts.sent_bytes += sent
        if sent < len(data):
            self._queue.append(memoryview(data)[sent:])
            self.wait_for_room()

    def send(self, pieces: list[Piece]) -> None:
        """Send a response of several pieces."""
        if self._is_closed:
            return
        if self._counts is not None:
            self._counts.responses += 1
        if self._pending is not None:
            self._queue.append(self._pending)
            self._pending = None
        self._queue.extend(pieces)
        if not self._is_registered and not self._send_queue():
            self.wait_for_room()

    def end(self) -> None:
        """Do nothing: the end of plaintext needs no bytes."""

    def abort(self) -> None:
        """Drop unsent bytes, and close the connection at once."""
        self.close()
        self._transport.abortConnection()

    def close(self) -> None:
        """Drop unsent bytes: the connection is closed, or about to be closed."""
        self._is_closed = True
        self._queue.clear()
        self._pending = None
        # The owner of the function may refer to this object, and only the garbage collector would free such a cycle.
        self._on_drained = _do_nothing

    def resumeProducing(self) -> None:
        """Twisted: the socket is writable.

        Twisted also calls this from within `registerProducer`, when the socket may not be writable. That call only
        registers for write events.
        """
        if not self._is_registered or not self._send_queue():
            if not self._is_closed:
                self._transport.startWriting()
            return
        self._is_registered = False
        self._transport.unregisterProducer()
        self._on_drained()

    def stopProducing(self) -> None:
        """Twisted: the connection is closed."""
        self.close()

    def wait_for_room(self) -> None:
        """Call `on_drained` at a later write event of the reactor, also if nothing is queued."""
        if not self._is_registered and not self._is_closed:
            self._transport.registerProducer(self, False)
            self._is_registered = True

    def _send_queue(self) -> bool:
        """Send until the queue is empty; return False if the socket, the iteration's limit or an error prevents it."""
        queue, counts = self._queue, self._counts
        budget_bytes = ITERATION_LIMIT_BYTES
        try:
            while queue:
                if budget_bytes <= 0:
                    return False
                piece = queue[0]
                if isinstance(piece, (bytes, bytearray, memoryview)):
                    flags = socket.MSG_MORE if len(queue) > 1 else 0
                    sent = self._socket.send(piece, flags)
                    if counts is not None:
                        counts.sent_bytes += sent
                    if sent < len(piece):
                        queue[0] = memoryview(piece)[sent:]
                        self.has_progressed = True
                        return False
                    queue.popleft()
                else:
                    sent = self._send_region(piece)  # type: ignore[arg-type] # of a log
                    if counts is not None:
                        counts.sent_bytes += sent
                self.has_progressed = True
                budget_bytes -= max(sent, _MIN_PIECE_BYTES)
        except BlockingIOError:
            return False
        except OSError as error:
            self._fail(error)
            return False
        return True

    def _send_region(self, region: FileRegion) -> int:
        """Call `sendfile` once for the rest of the region at the head of the queue."""
        already = self._region_sent_bytes
        sent = self._send_file(self._socket, region.file, region.position + already, region.size_bytes - already)
        if sent == 0:
            raise OSError(f"segment file ends {region.size_bytes - already} bytes before the end of the file region")
        self._region_sent_bytes += sent
        if self._region_sent_bytes == region.size_bytes:
            self._region_sent_bytes = 0
            self._queue.popleft()
        return sent

    def _fail(self, error: OSError) -> None:
        logger.debug("write failed error=%s", error)
        self.abort()


def _do_nothing() -> None:
    """Replaces `on_drained` when the connection is closed."""


class TransportWriter(ResponseWriter, Protocol):
    """The writer of one connection, to its transport.

    has_progressed: set when the socket accepts bytes; `ConnectionRegistry` resets it
    """

    has_progressed: bool

    @property
    def unsent_bytes(self) -> int:
        """The number of bytes that the socket has not accepted."""

    def end(self) -> None:
        """Send what ends the stream of bytes, before `flush` and the end of the connection."""

    def abort(self) -> None:
        """Drop unsent bytes, and close the connection at once."""

    def close(self) -> None:
        """Drop unsent bytes: the connection is closed, or about to be closed."""


MakeWriter = Callable[[TcpTransport, Callable[[], None]], TransportWriter]
"""Makes the writer of a connection, given the function that it calls when it is idle again."""


def plaintext_writers(send_file: SendFile, counts: "SocketCounts | None" = None) -> MakeWriter:
    """Return a function that makes writers without encryption."""

    def make(transport: TcpTransport, on_drained: Callable[[], None]) -> SocketWriter:
        return SocketWriter(transport, transport.reactor.write_coalescer, send_file, on_drained, counts)

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
            transport.abortConnection()

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
