"""Interfaces between a connection and its transport, plain TCP or TLS, and of a transport to the reactor."""

import socket
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from twisted.python.failure import Failure

from odradek.protocol.types import FileRegionLike
from odradek.server.work.clock import Clock
from odradek.server.work.listening_port import Address

if TYPE_CHECKING:
    from odradek.server.network.scheduler import RequestScheduler
    from odradek.server.network.writers.write_coalescer import WriteCoalescer

Piece = bytes | bytearray | memoryview | FileRegionLike
"""A part of a response. The records of a fetch are file regions, which a transport may send without reading them."""


def count_bytes(pieces: Iterable[Piece]) -> int:
    """Return the total size of pieces."""
    return sum(len(one) if isinstance(one, (bytes, bytearray, memoryview)) else one.size_bytes for one in pieces)


class ResponseWriter(Protocol):
    """Sends responses in order. It queues the bytes that the peer does not accept.

    When the queue becomes empty it calls `Connection.output_drained`, never from within one of its methods.
    """

    @property
    def is_idle(self) -> bool:
        """True if the peer has accepted all bytes, except those that wait for the end of the reactor iteration."""

    def send_one(self, data: bytearray, /) -> None:
        """Send a response of one piece; it may wait for the end of the reactor iteration."""

    def send(self, pieces: list[Piece], /) -> None:
        """Send a response of several pieces."""

    def flush(self) -> None:
        """Send the responses that wait for the end of the reactor iteration."""


class ConnectionTransport(Protocol):
    """The transport of one connection."""

    @property
    def writer(self) -> ResponseWriter: ...

    @property
    def scheduler(self) -> "RequestScheduler": ...

    def pause_reading(self) -> None:
        """Read nothing until `resume_reading`."""

    def resume_reading(self) -> None:
        """Read again."""

    def limit_frames(self, max_frame_bytes: int) -> None:
        """Set the maximum size of the content of the frames that follow."""

    def close(self) -> None:
        """Close the connection. Calls `Connection.closing`."""


class TransportReactor(Clock, Protocol):
    """The reactor of connections."""

    scheduler: "RequestScheduler"
    write_coalescer: "WriteCoalescer"


class TcpTransport(Protocol):
    """A TCP connection of the reactor. Twisted's interfaces have no types."""

    bufferSize: int
    connected: bool
    reactor: TransportReactor

    def getHandle(self) -> socket.socket: ...

    def getPeer(self) -> Address: ...

    def setTcpNoDelay(self, enabled: bool, /) -> None: ...

    def setTcpKeepAlive(self, enabled: bool, /) -> None: ...

    def registerProducer(self, producer: object, streaming: bool, /) -> None: ...

    def unregisterProducer(self) -> None: ...

    def startReading(self) -> None: ...

    def stopReading(self) -> None: ...

    def startWriting(self) -> None: ...

    def loseConnection(self) -> None: ...

    def abortConnection(self) -> None: ...

    def connectionLost(self, reason: Failure, /) -> None: ...
