"""Registry of the open client connections. It closes idle connections and reports stalls."""

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

_CHECK_INTERVAL_S: Final = 5.0
_CHECKS_PER_IDLE_TIME: Final = 8
_CHECKS_PER_ITERATION: Final = 256
"""Connections that are checked in one reactor iteration, which takes less than 1 ms."""


class ConnectionRegistry:
    """The open connections. `find_timeout_ms` returns the timeout in a request, see `stalls`.

    From `start` on every connection is checked every few seconds. A connection is idle, and is closed, if no bytes were
    received or sent for `max_idle_ms` (Kafka: `connections.max.idle.ms`, -1: never). As in Kafka this includes
    connections with a request in progress, and clients that do not read their responses; a throttled client is not
    idle. Before a client is authenticated, its bytes are no activity, so that this time is also that of an
    authentication. The time of the last activity is that of the check that found it, so a connection is never closed
    too early, and at most two checks too late. A check also closes connections that were reset without an event
    (`KafkaTransport.is_broken`).
    """

    def __init__(self, clock: Clock, find_timeout_ms: Callable[[Message | None], int], max_idle_ms: int) -> None:
        self._clock = clock
        self._find_timeout_ms = find_timeout_ms
        self._max_idle_s = max_idle_ms / 1000
        self._interval_s = _CHECK_INTERVAL_S
        if max_idle_ms > 0:
            self._interval_s = min(_CHECK_INTERVAL_S, self._max_idle_s / _CHECKS_PER_IDLE_TIME)
        self._open: dict[KafkaTransport, _Activity] = {}
        self._call: DelayedCall | None = None

    def __len__(self) -> int:
        return len(self._open)

    def list_open(self) -> "list[KafkaTransport]":
        """Return the open connections."""
        return list(self._open)

    def add(self, connection: "KafkaTransport") -> None:
        """Add a new connection."""
        self._open[connection] = _Activity(self._clock.seconds())

    def remove(self, connection: "KafkaTransport") -> None:
        """Remove a lost connection."""
        self._open.pop(connection, None)

    def start(self) -> None:
        """Begin to check the connections."""
        self._call = self._clock.callLater(self._interval_s, self._check_all)

    def stop(self) -> None:
        """Close all connections."""
        if self._call is not None:
            self._call.cancel()
            self._call = None
        for connection in list(self._open):
            _close(connection)

    def close_least_active(self, count: int, spared_listener: str) -> None:
        """Close `count` connections that have been inactive for the longest time, none of them of `spared_listener`."""
        candidates = [
            (observed.active_s, connection)
            for connection, observed in self._open.items()
            if connection.connection.context.listener_name != spared_listener
        ]
        for _, connection in nsmallest(count, candidates, key=itemgetter(0)):
            logger.info(
                "closing the least active connection: there are more than max.connections client=%s",
                connection.connection.context.client_host,
            )
            _close(connection)

    def _check_all(self) -> None:
        """Check every connection, a few in each reactor iteration."""
        self._check_some(list(self._open), 0)

    def _check_some(self, connections: "list[KafkaTransport]", start: int) -> None:
        clock = self._clock
        end = start + _CHECKS_PER_ITERATION
        if end < len(connections):
            self._call = clock.callLater(0, self._check_some, connections, end)
        else:
            self._call = clock.callLater(self._interval_s, self._check_all)
        now_s = clock.seconds()
        for connection in connections[start:end]:
            observed = self._open.get(connection)
            if observed is None:
                continue
            try:
                self._check(connection, observed, now_s)
            except Exception:
                logger.exception("connection could not be checked; closing it; please report it")
                _abort(connection)

    def _check(self, connection: "KafkaTransport", observed: "_Activity", now_s: float) -> None:
        if connection.is_broken():
            connection.writer.abort()
            return
        stall = observed.stall
        stall.check(connection, self._find_timeout_ms, now_s, connection.writer.has_progressed)
        client = connection.connection
        if client.is_muted or (connection.take_activity() and not client.is_authenticating):
            observed.active_s = now_s
        idle_s = now_s - observed.active_s
        if 0 < self._max_idle_s <= idle_s:
            level = logging.WARNING if stall.has_pending else logging.DEBUG
            context = connection.connection.context
            logger.log(
                level,
                "closing idle connection client=%s client_id=%s idle_s=%.0f has_unanswered_request=%s",
                context.client_host, context.client_id, idle_s, stall.has_pending,
            )  # fmt: skip
            _close(connection)


def _close(connection: "KafkaTransport") -> None:
    """Close a connection. A failure is logged, and affects no other connection."""
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


class _Activity:
    """Results of the checks of one connection."""

    __slots__ = ("active_s", "stall")

    def __init__(self, now_s: float) -> None:
        self.active_s = now_s
        self.stall = StallWatch()
