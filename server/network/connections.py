"""All open client connections: closed at the end, and when idle; looked after for stalls."""

import logging
from collections.abc import Callable
from heapq import nsmallest
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from odradek.protocol.schema import Message
from odradek.server.network.stalls import StallWatch
from odradek.server.work.clock import Clock, DelayedCall

if TYPE_CHECKING:
    from odradek.server.network.transport import KafkaTransport

logger = logging.getLogger(__name__)

_LOOK_INTERVAL_S: Final = 5.0
_LOOKS_PER_IDLE_TIME: Final = 8
_LOOKS_AT_ONCE: Final = 256
"""Connections that are looked at in one reactor iteration: less than 1 ms."""


class ConnectionRegistry:
    """The open connections. `own_timeout_ms` returns the wait that a request allows itself, see `stalls`.

    From `start` on every connection is looked at every few seconds. It is idle, and is closed, when no bytes were
    received or sent for `max_idle_ms` (Kafka: `connections.max.idle.ms`, -1: never). As in Kafka that includes
    connections whose request is in progress, and clients that do not read their responses. The last activity counts
    from the look that found it, so a connection is never closed too early, and at most two looks too late. A look also
    closes connections that are broken without an event (`KafkaTransport.is_broken`).
    """

    def __init__(self, clock: Clock, own_timeout_ms: Callable[[Message | None], int], max_idle_ms: int) -> None:
        self._clock = clock
        self._own_timeout_ms = own_timeout_ms
        self._max_idle_s = max_idle_ms / 1000
        self._interval_s = _LOOK_INTERVAL_S
        if max_idle_ms > 0:
            self._interval_s = min(_LOOK_INTERVAL_S, self._max_idle_s / _LOOKS_PER_IDLE_TIME)
        self._open: dict[KafkaTransport, _Observed] = {}
        self._call: DelayedCall | None = None

    def __len__(self) -> int:
        return len(self._open)

    def add(self, connection: "KafkaTransport") -> None:
        """A client has connected."""
        self._open[connection] = _Observed(self._clock.seconds())

    def remove(self, connection: "KafkaTransport") -> None:
        """A client is gone."""
        self._open.pop(connection, None)

    def start(self) -> None:
        """Begin to look at the connections."""
        self._call = self._clock.callLater(self._interval_s, self._look)

    def stop(self) -> None:
        """Close all connections."""
        if self._call is not None:
            self._call.cancel()
            self._call = None
        for connection in list(self._open):
            _close(connection)

    def close_least_active(self, count: int, spared_listener: str) -> None:
        """Close those without activity for the longest time, but for the connections of one listener."""
        candidates = [
            (observed.active_s, connection)
            for connection, observed in self._open.items()
            if connection.connection.context.listener_name != spared_listener
        ]
        for _, connection in nsmallest(count, candidates, key=itemgetter(0)):
            logger.info(
                "closing a connection: there are more than max.connections allows client=%s",
                connection.connection.context.client_host,
            )
            _close(connection)

    def _look(self) -> None:
        """Look at every connection, some of them in each reactor iteration; after the last the next look is due."""
        self._look_at_some(list(self._open), 0)

    def _look_at_some(self, connections: "list[KafkaTransport]", start: int) -> None:
        clock = self._clock
        end = start + _LOOKS_AT_ONCE
        if end < len(connections):
            self._call = clock.callLater(0, self._look_at_some, connections, end)
        else:
            self._call = clock.callLater(self._interval_s, self._look)
        now_s = clock.seconds()
        for connection in connections[start:end]:
            observed = self._open.get(connection)
            if observed is None:
                continue
            try:
                self._look_at(connection, observed, now_s)
            except Exception:
                logger.exception("connection could not be looked at; closing it; please report it")
                _abort(connection)

    def _look_at(self, connection: "KafkaTransport", observed: "_Observed", now_s: float) -> None:
        if connection.is_broken():
            connection.writer.abort()
            return
        stall = observed.stall
        stall.look(connection, self._own_timeout_ms, now_s, connection.writer.has_progressed)
        if connection.take_activity():
            observed.active_s = now_s
        idle_s = now_s - observed.active_s
        if 0 < self._max_idle_s <= idle_s:
            level = logging.WARNING if stall.holds_something else logging.DEBUG
            context = connection.connection.context
            logger.log(
                level,
                "closing idle connection client=%s client_id=%s idle_s=%.0f has_unanswered_request=%s",
                context.client_host, context.client_id, idle_s, stall.holds_something,
            )  # fmt: skip
            _close(connection)


def _close(connection: "KafkaTransport") -> None:
    """Close a connection. A failure affects no other connection, and nothing that comes after."""
    try:
        connection.close()
    except Exception:
        logger.exception("connection could not be closed; aborting it; please report it")
        _abort(connection)


def _abort(connection: "KafkaTransport") -> None:
    try:
        connection.writer.abort()
    except Exception:
        logger.exception("connection could not be aborted; please report it")


class _Observed:
    """The looks at one connection so far."""

    __slots__ = ("active_s", "stall")

    def __init__(self, now_s: float) -> None:
        self.active_s = now_s
        self.stall = StallWatch()
