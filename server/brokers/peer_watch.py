"""Idle connections to other brokers, by which the end of a process is detected long before its session expires.

The connections of a process that ends are closed, and from then on its address refuses new ones. A paused process and a
machine that cannot be reached refuse nothing.
"""

from collections.abc import Callable, Iterable
from typing import Final

from twisted.internet.error import ConnectionRefusedError
from twisted.internet.interfaces import IAddress, IConnector
from twisted.internet.protocol import ClientFactory, Protocol, connectionDone
from twisted.python.failure import Failure

from odradek.replication.metadata.image import BrokerMetadata
from odradek.server.brokers.connection import Connect
from odradek.server.work.clock import Clock, Connector, DelayedCall

FIRST_PAUSE_S: Final = 0.02
LAST_PAUSE_S: Final = 1.0


class PeerWatch:
    """Watches brokers over their listener `listener_name`.

    on_refused: called when the address of a watched broker refuses a connection, once until it accepts one again
    """

    def __init__(
        self, listener_name: str, on_refused: Callable[[BrokerMetadata], None], *, connect: Connect, clock: Clock
    ) -> None:
        self._listener_name = listener_name
        self._on_refused = on_refused
        self._connect = connect
        self._clock = clock
        self._watched: dict[BrokerMetadata, _WatchedBroker] = {}

    def watch(self, brokers: Iterable[BrokerMetadata]) -> None:
        """Watch these brokers, and no others."""
        # In the given order: the order of a set of registrations differs from process to process.
        wanted = dict.fromkeys(brokers)
        for broker in [broker for broker in self._watched if broker not in wanted]:
            self._watched.pop(broker).close()
        for broker in wanted:
            if broker in self._watched:
                continue
            endpoint = broker.endpoint(self._listener_name)
            if endpoint is not None:
                watched = self._watched[broker] = _WatchedBroker(
                    broker, endpoint.host, endpoint.port, self._on_refused, self._connect, self._clock
                )
                watched.connect()

    def close(self) -> None:
        """Close all connections."""
        self.watch(())


class _IdleConnection(Protocol):
    """A connection over which nothing is sent."""

    def __init__(self, watched: "_WatchedBroker") -> None:
        self._watched = watched

    def connectionMade(self) -> None:
        self._watched.made()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._watched.lost()


class _WatchedBroker(ClientFactory):
    """Keeps a connection to one broker, until `close`: it connects again after a loss or a failure."""

    noisy = False

    def __init__(
        self,
        broker: BrokerMetadata,
        host: str,
        port: int,
        on_refused: Callable[[BrokerMetadata], None],
        connect: Connect,
        clock: Clock,
    ) -> None:
        self._broker = broker
        self._host = host
        self._port = port
        self._on_refused = on_refused
        self._connect = connect
        self._clock = clock
        self._connector: Connector | None = None
        self._pause: DelayedCall | None = None
        self._pause_s = FIRST_PAUSE_S
        self._made_s = 0.0
        self._is_reported = False
        self._is_closed = False

    def connect(self) -> None:
        """Begin to connect."""
        self._pause = None
        self._connector = self._connect(self._host, self._port, self)

    def close(self) -> None:
        """Close the connection, and do not connect again."""
        self._is_closed = True
        if self._pause is not None:
            self._pause.cancel()
        elif self._connector is not None:
            self._connector.disconnect()

    def made(self) -> None:
        """Called when a connection is established."""
        self._made_s = self._clock.seconds()
        self._is_reported = False

    def lost(self) -> None:
        """Called when a connection is lost."""
        if self._clock.seconds() - self._made_s > LAST_PAUSE_S:
            self._pause_s = FIRST_PAUSE_S
        self._connect_later()

    def buildProtocol(self, addr: IAddress | None) -> _IdleConnection:
        return _IdleConnection(self)

    def clientConnectionFailed(self, connector: IConnector, reason: Failure) -> None:
        """Twisted: the connection could not be established."""
        if self._is_closed:
            return
        self._connect_later()
        if isinstance(reason.value, ConnectionRefusedError) and not self._is_reported:
            self._is_reported = True
            self._on_refused(self._broker)

    def _connect_later(self) -> None:
        if self._is_closed:
            return
        self._pause = self._clock.callLater(self._pause_s, self.connect)
        self._pause_s = min(2 * self._pause_s, LAST_PAUSE_S)
