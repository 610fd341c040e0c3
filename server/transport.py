"""The edge: Twisted's view of a connection. The only `dataReceived` in Odradek.

Reading: bytes are cut into frames and handed to `Connection`. Writing: `SocketWriter` sends within the same reactor
turn, and queues only what the socket does not take; record bytes go from file to socket by `sendfile`.
"""

import logging
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from twisted.internet.interfaces import IAddress, IPullProducer
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.python.failure import Failure
from zope.interface import implementer

from odradek.log.filesystem import File
from odradek.protocol.framing import FrameError, FrameSplitter
from odradek.server.connection import Connection, Piece
from odradek.server.connections import ConnectionRegistry
from odradek.server.turn import Turn

logger = logging.getLogger(__name__)

SendFile = Callable[[socket.socket, File, int, int], int]
"""Send a piece of a file, position and size, to a socket; how many bytes it took (`Surroundings.send_file`)."""

READ_BYTES: Final = 122_880
LARGE_READ_BYTES: Final = 1_048_576
"""What is asked of the socket at once; the larger only while much of a frame is still to come. The smaller stays below
the 128 KiB from which on the C library maps and unmaps memory anew for each read, which costs more than the read."""

_MUCH_BYTES: Final = 262_144
_TURN_LIMIT_BYTES: Final = 4194304
"""What one connection may send in one reactor turn, so that a fast reader does not starve the others."""


@implementer(IPullProducer)
class SocketWriter:
    """Sends pieces, bytes and file regions, in order.

    Small responses wait for the end of the reactor's turn; without a `turn` they leave at once. Whenever something is
    left over it registers itself as the transport's pull producer, so Twisted's own write buffer stays empty and the
    socket is ours. `on_held_back` is called when a small response did not go whole at the end of its turn,
    `on_drained` when the queue has become empty again.
    """

    def __init__(
        self,
        transport: Any,
        turn: Turn | None,
        send_file: SendFile,
        on_held_back: Callable[[], None],
        on_drained: Callable[[], None],
    ) -> None:
        self._transport = transport
        self._turn = turn
        self._send_file = send_file
        self._pending: bytearray | None = None
        self._on_held_back = on_held_back
        self._socket: socket.socket = transport.getHandle()
        self._on_drained = on_drained
        self._queue: deque[Piece] = deque()
        self._region_sent_bytes = 0
        self._registered = False

    @property
    def is_idle(self) -> bool:
        """Whether everything sent so far has reached the socket."""
        return not self._queue

    def send_one(self, data: bytearray) -> bool:
        """Send a response that is one piece, at the end of the turn; False if there is a queue to wait in."""
        if self._queue:
            self._queue.append(data)
            return False
        if self._turn is None:
            self._pending = data
            self.flush()
            return not self._queue
        if self._pending is None:
            self._pending = data
            self._turn.add(self)
        else:
            self._pending += data
        return True

    def flush(self) -> None:
        """Send what waits for the end of the turn."""
        data = self._pending
        if data is None:
            return
        self._pending = None
        try:
            sent = self._socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._fail(error)
            return
        if sent < len(data):
            self._queue.append(memoryview(data)[sent:])
            self._register()
            self._on_held_back()

    def send(self, pieces: list[Piece]) -> bool:
        """Send a response of several pieces; True if the socket took all of it."""
        if self._pending is not None:
            self._queue.append(self._pending)
            self._pending = None
        self._queue.extend(pieces)
        if not self._registered and not self._pump():
            self._register()
        return not self._queue

    def resumeProducing(self) -> None:
        """Twisted: the socket may be written to again."""
        if not self._pump():
            self._transport.startWriting()
        elif self._registered:
            self._registered = False
            self._transport.unregisterProducer()
            self._on_drained()

    def stopProducing(self) -> None:
        """Twisted: the connection is gone."""
        self._queue.clear()
        self._pending = None

    def _register(self) -> None:
        if not self._registered:
            self._registered = True
            self._transport.registerProducer(self, False)

    def _pump(self) -> bool:
        """Send until the queue is empty (True) or the socket or this turn is full (False)."""
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
                        return False
                    queue.popleft()
                else:
                    sent = self._send_region(piece)
                budget_bytes -= sent
        except BlockingIOError:
            return False
        except OSError as error:
            self._fail(error)
        return True

    def _send_region(self, region: Any) -> int:
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
        self._queue.clear()
        self._pending = None
        self._transport.abortConnection()


class KafkaTransport(Protocol):
    """One client connection on a plaintext listener."""

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
        self._registry = registry
        self.was_active = True

    def connectionMade(self) -> None:
        transport: Any = self.transport
        transport.setTcpNoDelay(True)
        transport.bufferSize = READ_BYTES
        self.connection = self._make_connection(self)
        turn = getattr(transport.reactor, "turn", None)
        self.writer = SocketWriter(
            transport, turn, self._send_file, self.connection.output_held_back, self.connection.output_drained
        )
        self._registry.add(self)

    def dataReceived(self, data: bytes) -> None:
        if self._closing:
            return
        self.was_active = True
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
        if frames:
            self.connection.frames_received(frames)
            if len(frames[-1]) > READ_BYTES:
                # One of this size takes a while; those before it should not wait for the next.
                self.writer.flush()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._closing = True
        self._registry.remove(self)
        self.connection.connection_lost()

    def close(self) -> None:
        """Close; answers that have left for the socket still arrive, others do not."""
        self._closing = True
        self.writer.flush()
        transport: Any = self.transport
        if self.writer.is_idle:
            transport.loseConnection()
        else:
            transport.abortConnection()

    def next_turn(self, work: Callable[[], None]) -> None:
        """Do it when everything that is going on now is done."""
        transport: Any = self.transport
        transport.reactor.callLater(0, work)

    def pause_reading(self) -> None:
        """Take no more requests in until `resume_reading`."""
        transport: Any = self.transport
        transport.stopReading()

    def resume_reading(self) -> None:
        """The opposite of `pause_reading`."""
        transport: Any = self.transport
        if not self._closing and transport.connected:
            transport.startReading()

    def _set_read_size(self, size_bytes: int) -> None:
        self._read_bytes = size_bytes
        transport: Any = self.transport
        transport.bufferSize = size_bytes


class KafkaTransportFactory(Factory):
    """Makes a `KafkaTransport` for each connection accepted on a listener."""

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

    def buildProtocol(self, addr: IAddress | None) -> KafkaTransport:
        return KafkaTransport(self._make_connection, self._max_frame_bytes, self._registry, self._send_file)
