"""A connection above the connection rate of its address (KIP-612)."""

from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure

from odradek.server.network.connection_transport import TcpTransport
from odradek.server.work.clock import DelayedCall


class ThrottledConnection(Protocol):
    """Reads nothing, and closes the connection after `delay_s`.

    A client that were closed at once would connect again at once.
    """

    transport: TcpTransport  # type: ignore[assignment] # Twisted's ITransport has no types

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self._call: DelayedCall | None = None

    def connectionMade(self) -> None:
        transport = self.transport
        transport.stopReading()
        self._call = transport.reactor.callLater(self._delay_s, transport.loseConnection)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if self._call is not None and self._call.active():
            self._call.cancel()
