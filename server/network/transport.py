"""The edge: Twisted's view of a connection. The only `dataReceived` in Odradek.

Reading: bytes are cut into frames and handed to `Connection`. Writing: `SocketWriter` sends within the same reactor
iteration, and queues only what the socket does not take; record bytes go from file to socket by `sendfile`.
"""

import logging
import socket
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from twisted.internet.interfaces import IAddress, IHalfCloseableProtocol, IPullProducer
from twisted.internet.protocol import Factory, connectionDone
from twisted.internet.protocol import Protocol as TwistedProtocol
from twisted.python.failure import Failure
from zope.interface import implementer

from odradek.log.storage.filesystem import File, FileRegion
from odradek.protocol.framing import FrameError, FrameSplitter
from odradek.server.network.connection import Connection
from odradek.server.network.connection_quotas import Acceptor
from odradek.server.network.connection_transport import Piece
from odradek.server.network.connections import ConnectionRegistry
from odradek.server.network.scheduler import RequestScheduler
from odradek.server.network.write_coalescer import WriteCoalescer
from odradek.server.work.clock import Clock
from odradek.server.work.listening_port import Address

logger = logging.getLogger(__name__)

SendFile = Callable[[socket.socket, File, int, int], int]
"""Send a piece of a file, position and size, to a socket; how many bytes it took (`Environment.send_file`)."""

READ_BYTES: Final = 122_880
LARGE_READ_BYTES: Final = 1_048_576
"""What is asked of the socket at once; the larger only while much of a frame is still to come. The smaller stays below
the 128 KiB from which on the C library maps and unmaps memory anew for each read, which costs more than the read."""

_MUCH_BYTES: Final = 262_144
_TURN_LIMIT_BYTES: Final = 4194304
"""Bytes that one connection may send in one reactor iteration, so that a fast reader does not starve the others."""

_LEAST_PIECE_BYTES: Final = 8_192
"""A piece counts as so many bytes at least: a fetch of 10,000 partitions with a record each has 20,000 pieces, and each
is a system call. An iteration sends up to 512 of them."""

_PENDING_LIMIT_BYTES: Final = 262_144
"""Small responses wait for the end of the reactor iteration up to this size, and then leave at once.

A read of `READ_BYTES` may hold thousands of requests. Without a limit all their responses would be in memory before the
first is sent; with it, the request behind the one whose response the socket does not take waits."""


class TransportReactor(Clock, Protocol):
    """The reactor of connections."""

    scheduler: RequestScheduler
    write_coalescer: WriteCoalescer


class TcpTransport(Protocol):
    """A TCP connection of the reactor. Twisted's interfaces carry no types."""

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

    Small responses wait for the end of the reactor iteration (`turn`). While the socket does not take everything the
    writer is registered as the transport's pull producer, so Twisted's own write buffer stays empty and nothing but
    this object writes to the socket.

    Whether a connection has to wait is never signalled: it reads `is_idle`. `on_drained` only ends a wait. It is called
    for a write event of the reactor, when the queue has become empty, never from within `send_one`, `send` or `flush`.

    has_progressed: set whenever the socket takes bytes; `ConnectionRegistry` resets it
    """

    def __init__(
        self,
        transport: TcpTransport,
        write_coalescer: WriteCoalescer,
        send_file: SendFile,
        on_drained: Callable[[], None],
    ) -> None:
        self.has_progressed = False
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
        """Return whether the socket has taken everything, except what waits for the end of the reactor iteration.

        False for good once the connection has failed.
        """
        return not self._queue and not self._is_closed

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the socket has not taken, at most `_PENDING_LIMIT_BYTES` and two responses."""
        unsent = len(self._pending or b"") - self._region_sent_bytes
        for piece in self._queue:
            unsent += len(piece) if isinstance(piece, (bytes, bytearray, memoryview)) else piece.size_bytes
        return unsent

    def send_one(self, data: bytearray) -> None:
        """Send a response that is one piece, at the end of the iteration."""
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
        """Send what waits for the end of the iteration."""
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
        if sent < len(data):
            self._queue.append(memoryview(data)[sent:])
            self._wait_for_room()

    def send(self, pieces: list[Piece]) -> None:
        """Send a response of several pieces."""
        if self._is_closed:
            return
        if self._pending is not None:
            self._queue.append(self._pending)
            self._pending = None
        self._queue.extend(pieces)
        if not self._is_registered and not self._pump():
            self._wait_for_room()

    def abort(self) -> None:
        """Drop what was not sent, and close the connection without waiting for anything."""
        self.close()
        self._transport.abortConnection()

    def close(self) -> None:
        """Drop what was not sent: the connection is gone, or is about to be."""
        self._is_closed = True
        self._queue.clear()
        self._pending = None

    def resumeProducing(self) -> None:
        """Twisted: the socket may be written to again.

        Twisted also calls this from within `registerProducer`, with no room known of. Then it only asks for the event.
        """
        if not self._is_registered or not self._pump():
            if not self._is_closed:
                self._transport.startWriting()
            return
        self._is_registered = False
        self._transport.unregisterProducer()
        self._on_drained()

    def stopProducing(self) -> None:
        """Twisted: the connection is gone."""
        self.close()

    def _wait_for_room(self) -> None:
        if not self._is_registered and not self._is_closed:
            self._transport.registerProducer(self, False)
            self._is_registered = True

    def _pump(self) -> bool:
        """Send until the queue is empty (True), or until socket, iteration or connection allow no more (False)."""
        queue = self._queue
        budget_bytes = _TURN_LIMIT_BYTES
        try:
            while queue:
                if budget_bytes <= 0:
                    return False
                piece = queue[0]
                if isinstance(piece, (bytes, bytearray, memoryview)):
                    flags = socket.MSG_MORE if len(queue) > 1 else 0
                    sent = self._socket.send(piece, flags)
                    if sent < len(piece):
                        queue[0] = memoryview(piece)[sent:]
                        self.has_progressed = True
                        return False
                    queue.popleft()
                else:
                    sent = self._send_region(piece)  # type: ignore[arg-type] # of a log
                self.has_progressed = True
                budget_bytes -= max(sent, _LEAST_PIECE_BYTES)
        except BlockingIOError:
            return False
        except OSError as error:
            self._fail(error)
            return False
        return True

    def _send_region(self, region: FileRegion) -> int:
        """One `sendfile` of what is left of the region at the head of the queue."""
        already = self._region_sent_bytes
        sent = self._send_file(self._socket, region.file, region.position + already, region.size_bytes - already)
        if sent == 0:
            raise OSError(f"segment ended {region.size_bytes - already} bytes before the promised end")
        self._region_sent_bytes += sent
        if self._region_sent_bytes == region.size_bytes:
            self._region_sent_bytes = 0
            self._queue.popleft()
        return sent

    def _fail(self, error: OSError) -> None:
        logger.debug("write failed error=%s", error)
        self.abort()


@implementer(IHalfCloseableProtocol)
class KafkaTransport(TwistedProtocol):
    """One client connection on a plaintext listener.

    scheduler: the reactor's
    """

    transport: TcpTransport  # type: ignore[assignment] # Twisted's ITransport has no types

    def __init__(
        self,
        make_connection: Callable[["KafkaTransport"], Connection],
        max_frame_bytes: int,
        registry: ConnectionRegistry,
        send_file: SendFile,
    ) -> None:
        self._make_connection = make_connection
        self._send_file = send_file
        self._splitter = FrameSplitter(max_frame_bytes)
        self._read_bytes = READ_BYTES
        self._closing = False
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
        self.writer = SocketWriter(
            transport, transport.reactor.write_coalescer, self._send_file, self.connection.output_drained
        )
        self._registry.add(self)

    def dataReceived(self, data: bytes) -> None:
        if self._closing:
            return
        self._has_received = True
        if self._splitter.is_whole_frame(data):
            self.connection.frame_received(data)
            return
        try:
            frames = self._splitter.feed(data)
        except FrameError as error:
            self._closing = True
            self.connection.frames_received(error.frames)
            self.connection.refuse_in_turn(str(error))
            return
        read_bytes = LARGE_READ_BYTES if self._splitter.missing_bytes > _MUCH_BYTES else READ_BYTES
        if read_bytes != self._read_bytes:
            self._set_read_size(read_bytes)
        if len(frames) == 1:
            self.connection.frame_received(frames[0])
        elif frames:
            self.connection.frames_received(frames)

    def readConnectionLost(self) -> None:
        """Twisted: the client has closed its side. Whether it still reads cannot be seen, and is assumed."""
        self._has_input_ended = True
        self._splitter.clear()
        self.connection.input_ended()

    def writeConnectionLost(self) -> None:
        """Twisted: never called, as this side is never closed alone."""

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Drop everything: without references in a circle it is freed at once, buffers included."""
        self._closing = True
        self._registry.remove(self)
        if self.release is not None:
            self.release()
            self.release = None
        self._splitter.clear()
        self.writer.close()
        self.connection.connection_lost()

    @property
    def peer_host(self) -> str:
        """The address of the client."""
        return self.transport.getPeer().host

    def take_activity(self) -> bool:
        """Return whether bytes were received or sent since the last call."""
        was_active = self._has_received or self.writer.has_progressed
        self._has_received = self.writer.has_progressed = False
        return was_active

    def is_broken(self) -> bool:
        """Return whether the client has reset the connection since the end of its input.

        No event reports that while a request is in progress: the reactor watches the socket neither for reading nor for
        writing. Requests that arrived before the reset are begun all the same.
        """
        if not self._has_input_ended or self.connection.next_frame is not None:
            return False
        transport = self.transport
        error: int = transport.getHandle().getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        return error != 0

    def close(self) -> None:
        """Close. Responses that the socket has taken still arrive, others do not; no further request is begun."""
        self._closing = True
        self.connection.closing()
        self.writer.flush()
        transport = self.transport
        if self.writer.is_idle:
            transport.loseConnection()
            # That waits for a write event. None comes while the client does not read and its responses fill more than
            # two thirds of the send buffer. The kernel delivers what it has taken after the close, too.
            transport.reactor.callLater(0, transport.connectionLost, connectionDone)
        else:
            transport.abortConnection()

    def pause_reading(self) -> None:
        """Read nothing until `resume_reading`."""
        transport = self.transport
        transport.stopReading()

    def resume_reading(self) -> None:
        """The opposite of `pause_reading`."""
        transport = self.transport
        if not self._closing and not self._has_input_ended and transport.connected:
            transport.startReading()

    def _set_read_size(self, size_bytes: int) -> None:
        self._read_bytes = size_bytes
        transport = self.transport
        transport.bufferSize = size_bytes


class KafkaTransportFactory(Factory):
    """Makes a `KafkaTransport` for each connection accepted on a listener.

    acceptor: counts the connections, and refuses what is too many
    """

    noisy = False

    def __init__(
        self,
        make_connection: Callable[[KafkaTransport], Connection],
        max_frame_bytes: int,
        registry: ConnectionRegistry,
        send_file: SendFile,
    ) -> None:
        self._make_connection = make_connection
        self._send_file = send_file
        self._max_frame_bytes = max_frame_bytes
        self._registry = registry
        self.acceptor: Acceptor | None = None

    def buildProtocol(self, addr: IAddress | None) -> KafkaTransport | None:
        release = None
        if self.acceptor is not None:
            release = self.acceptor.admit(getattr(addr, "host", ""))
            if release is None:
                return None
        transport = KafkaTransport(self._make_connection, self._max_frame_bytes, self._registry, self._send_file)
        transport.release = release
        return transport
