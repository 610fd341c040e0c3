"""All open client connections: to be closed at the end, and when they have been idle for too long."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from odradek.server.transport import KafkaTransport


class ConnectionRegistry:
    """Knows the open connections.

    `start` begins to look for idle ones, every half of `max_idle_ms` (Kafka: `connections.max.idle.ms`, -1: never). A
    connection that was silent between two looks, and has no request in progress, is closed; so one is idle for at
    least half and at most the whole of that time.
    """

    def __init__(self, reactor: Any, max_idle_ms: int) -> None:
        self._reactor = reactor
        self._interval_s = max_idle_ms / 2000
        self._open: dict[KafkaTransport, None] = {}
        self._call: Any = None

    def __len__(self) -> int:
        return len(self._open)

    def add(self, connection: "KafkaTransport") -> None:
        """A client has connected."""
        self._open[connection] = None

    def remove(self, connection: "KafkaTransport") -> None:
        """A client is gone."""
        self._open.pop(connection, None)

    def start(self) -> None:
        """Begin to look for idle connections."""
        if self._interval_s > 0:
            self._call = self._reactor.callLater(self._interval_s, self._look)

    def stop(self) -> None:
        """Close all connections."""
        if self._call is not None:
            self._call.cancel()
            self._call = None
        for connection in list(self._open):
            connection.close()

    def _look(self) -> None:
        for connection in list(self._open):
            if connection.was_active:
                connection.was_active = False
            elif not connection.connection.is_busy:
                connection.close()
        self._call = self._reactor.callLater(self._interval_s, self._look)
