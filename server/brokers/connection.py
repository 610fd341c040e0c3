"""A connection to another broker: one frame out, one frame in.

The Deferreds of a `ConnectionAttempt` and of an exchange fail with BrokerUnavailableError if there is no connection, or
when it is lost.
"""

import logging
import math
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

from twisted.internet.defer import Deferred, fail
from twisted.internet.interfaces import IAddress, IConnector
from twisted.internet.protocol import ClientFactory, connectionDone
from twisted.internet.protocol import Protocol as TwistedProtocol
from twisted.python.failure import Failure

from odradek.protocol.framing import FrameError, FrameSplitter
from odradek.protocol.types import DecodeError
from odradek.replication.remote import BrokerUnavailableError
from odradek.server.brokers.request_codec import read_correlation_id
from odradek.server.work.clock import Connector

logger = logging.getLogger(__name__)

READ_BYTES: Final = 122_880
LARGE_READ_BYTES: Final = 1_048_576
_LARGE_REST_BYTES: Final = 262_144
"""Sizes of one read, as in `network.transport`: the larger while more than this part of a frame is missing."""

VersionRange = tuple[int, int]


class Connect(Protocol):
    """Begins to connect, like `IReactorTCP.connectTCP`.

    Calls `factory.buildProtocol` and `makeConnection` of the protocol, or `factory.clientConnectionFailed`.
    """

    def __call__(self, host: str, port: int, factory: ClientFactory, /) -> Connector: ...


class Socket(Protocol):
    """The used part of a non-blocking socket."""

    def send(self, data: bytes, /) -> int: ...


class TcpTransport(Protocol):
    """The used part of Twisted's ITCPTransport. Twisted's interfaces have no types."""

    bufferSize: int

    def getHandle(self) -> Socket: ...

    def setTcpNoDelay(self, enabled: bool, /) -> None: ...

    def setTcpKeepAlive(self, enabled: bool, /) -> None: ...

    def write(self, data: bytes, /) -> None: ...

    def abortConnection(self) -> None: ...


class BrokerConnection(TwistedProtocol):
    """An open connection: idle, waiting for a response, or lost.

    name: of the broker, for messages
    versions: the peer's first and last version by API key; None before they are requested
    authenticate_s: time from which on this broker must authenticate itself (again) before a request
    lost_why: the reason for the end of the connection; empty before it
    """

    transport: TcpTransport  # type: ignore[assignment] # Twisted's ITransport has no types

    def __init__(
        self,
        name: str,
        max_frame_bytes: int,
        on_made: Callable[["BrokerConnection"], None],
        on_lost: Callable[["BrokerConnection"], None],
    ) -> None:
        self.name = name
        self.versions: dict[int, VersionRange] | None = None
        self.authenticate_s = math.inf
        self.lost_why = ""
        self._on_made = on_made
        self._on_lost = on_lost
        self._splitter = FrameSplitter(max_frame_bytes)
        self._read_bytes = READ_BYTES
        self._correlation_id = 0
        self._response: Deferred[bytes | memoryview] | None = None
        # None after the socket has not accepted a whole request.
        self._socket: Socket | None = None

    def exchange(self, frame: bytes, correlation_id: int) -> Deferred[bytes | memoryview]:
        """Send a request while none is in flight. Return a Deferred of the response's frame."""
        if self.lost_why:
            return fail(BrokerUnavailableError(self.lost_why))
        self._correlation_id = correlation_id
        response: Deferred[bytes | memoryview] = Deferred()
        self._response = response
        self._write(frame)
        return response

    def _write(self, frame: bytes) -> None:
        """Write to the socket directly: Twisted's transport would poll until it is writable, which takes an iteration.

        The transport writes the bytes that the socket does not accept, and from then on everything, because its buffer
        may not be empty. It also handles a broken connection.
        """
        socket, sent_bytes = self._socket, 0
        if socket is not None:
            with suppress(OSError):
                sent_bytes = socket.send(frame)
        if sent_bytes < len(frame):
            self._socket = None
            self.transport.write(frame[sent_bytes:])

    def refuse(self, why: str) -> None:
        """Close the connection because of bytes that are no response to the request, with one log line."""
        if not self.lost_why:
            logger.warning("closing connection to %s why=%r", self.name, why)
            self.close(why)

    def close(self, why: str) -> None:
        """Close the connection at once. A request in flight fails with BrokerUnavailableError."""
        if not self.lost_why:
            self.lost_why = why
            self.transport.abortConnection()
            self._end()

    def connectionMade(self) -> None:
        transport = self.transport
        transport.setTcpNoDelay(True)
        transport.setTcpKeepAlive(True)
        transport.bufferSize = READ_BYTES
        self._socket = transport.getHandle()
        self._on_made(self)

    def dataReceived(self, data: bytes) -> None:
        if self.lost_why:
            return
        error = ""
        try:
            frames = self._splitter.feed(data)
        except FrameError as malformed:
            frames, error = malformed.frames, str(malformed)
        for frame in frames:
            if self.lost_why:
                return
            self._frame_received(frame)
        if error:
            self.refuse(error)
        elif not self.lost_why:
            self._choose_read_size()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if not self.lost_why:
            self.lost_why = f"connection to {self.name} lost: {reason.getErrorMessage()}"
            self._end()

    def _frame_received(self, frame: bytes | memoryview) -> None:
        response = self._response
        if response is None:
            self.refuse("received a response without a request")
            return
        try:
            correlation_id = read_correlation_id(frame)
        except DecodeError as error:
            self.refuse(str(error))
            return
        if correlation_id != self._correlation_id:
            self.refuse(f"received correlation id {correlation_id} instead of {self._correlation_id}")
            return
        self._response = None
        response.callback(frame)

    def _choose_read_size(self) -> None:
        read_bytes = LARGE_READ_BYTES if self._splitter.missing_bytes > _LARGE_REST_BYTES else READ_BYTES
        if read_bytes != self._read_bytes:
            self._read_bytes = read_bytes
            transport = self.transport
            transport.bufferSize = read_bytes

    def _end(self) -> None:
        self._socket = None
        self._splitter.clear()
        self._on_lost(self)
        response, self._response = self._response, None
        if response is not None:
            response.errback(BrokerUnavailableError(self.lost_why))


class ConnectionAttempt(ClientFactory):
    """Twisted's factory for one connection.

    outcome: fires with the connection, or fails with BrokerUnavailableError
    """

    noisy = False

    def __init__(self, name: str, max_frame_bytes: int, on_lost: Callable[[BrokerConnection], None]) -> None:
        self._name = name
        self._max_frame_bytes = max_frame_bytes
        self._on_lost = on_lost
        self._connector: Connector | None = None
        self._given_up_why = ""
        self.outcome: Deferred[BrokerConnection] = Deferred()

    def begin(self, connect: Connect, host: str, port: int) -> None:
        """Begin to connect."""
        self._connector = connect(host, port, self)

    def give_up(self, why: str) -> None:
        """Stop connecting, unless the attempt has ended."""
        if self.outcome.called:
            return
        self._given_up_why = why
        if self._connector is not None:
            self._connector.disconnect()
        self._fail(why)

    def buildProtocol(self, addr: IAddress | None) -> BrokerConnection | None:
        if self._given_up_why:
            return None
        return BrokerConnection(self._name, self._max_frame_bytes, self.outcome.callback, self._on_lost)

    def clientConnectionFailed(self, connector: IConnector, reason: Failure) -> None:
        """Twisted: the connection could not be established."""
        self._fail(self._given_up_why or f"cannot connect to {self._name}: {reason.getErrorMessage()}")

    def _fail(self, why: str) -> None:
        if not self.outcome.called:
            self.outcome.errback(BrokerUnavailableError(why))
