"""The request log, which is the logger `odradek.request`, Kafka's `kafka.request.logger`.

A request that takes `request.slow.log.ms` or more is a warning. While the level of the logger itself is DEBUG, each
other request has a line too. Both have the times of the request's stages:

    slow request api=Produce version=12 client=/10.0.0.7 client_id="billing" principal="User:alice" listener=SASL_SSL
    client_software="apache-kafka-java 4.3.0" total_ms=812.4 request_queue_ms=0.1 local_ms=1.2 remote_ms=810.9
    response_queue_ms=0.1 send_ms=0.1

(in one line). The stages are those of Kafka's request log. Names come from clients: they are quoted and shortened.
"""

import logging
import math
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple, Protocol

from odradek.server.event_log.text_lines import quote

logger = logging.getLogger("odradek.request")

MAX_SLOW_PER_S: Final = 10
"""Lines of slow requests in a second. Requests are slow together: lines for all would make the broker slower."""

MAX_COMPLETED_PER_S: Final = 500
"""Lines of other requests in a second."""

MAX_COMPLETED_AT_ONCE: Final = 10
"""Lines of other requests in each 20 ms: each takes some 0.1 ms of the reactor thread."""

WAITING_APIS: Final = frozenset({"Fetch", "JoinGroup", "ShareFetch", "SyncGroup"})
"""APIs whose clients ask for a wait, for records or for the other members of a group. The wait does not count."""

_INTERVAL_MS: Final = 1000
_PORTION_MS: Final = 20

RunLater = Callable[[int, Callable[[], Coroutine[Any, Any, None]]], object]


class Client(Protocol):
    """The used part of a request's context."""

    client_host: str
    client_id: str
    client_software: tuple[str, str]
    listener_name: str
    principal: Any


class StageTimes(NamedTuple):
    """The times of a request's stages, in seconds."""

    request_queue_s: float
    local_s: float
    remote_s: float
    response_queue_s: float
    send_s: float


class RequestLog:
    """Logs slow requests, and all with DEBUG.

    threshold_s: the shortest duration of a slow request; infinite if none is logged
    run_later: calls a coroutine function after some ms
    """

    def __init__(self, monotonic_ms: Callable[[], int], run_later: RunLater) -> None:
        self.threshold_s = math.inf
        slow, completed = (MAX_SLOW_PER_S, MAX_SLOW_PER_S), (MAX_COMPLETED_PER_S, MAX_COMPLETED_AT_ONCE)
        self._slow = _LineLimit("slow requests", *slow, logging.WARNING, monotonic_ms, run_later)
        self._completed = _LineLimit("requests", *completed, logging.DEBUG, monotonic_ms, run_later)

    def set_threshold(self, threshold_ms: int) -> None:
        """Change `request.slow.log.ms`; -1 for no lines."""
        self.threshold_s = threshold_ms / 1000 if threshold_ms >= 0 else math.inf

    @property
    def least_s(self) -> float:
        """Return the shortest duration of a request that has a line; infinite if none has."""
        return 0.0 if self._has_all else self.threshold_s

    @property
    def _has_all(self) -> bool:
        # Only a level of this logger counts: `--log-level debug` would write a line for each request.
        return logging.NOTSET < logger.level <= logging.DEBUG

    def record(self, api_name: str, version: int, client: Client, times: StageTimes) -> None:
        """Log a request if it is slow, or if all requests are logged."""
        total_s = sum(times)
        counted_s = total_s - times.remote_s if api_name in WAITING_APIS else total_s
        is_slow = counted_s >= self.threshold_s
        limit = self._slow if is_slow else self._completed
        if not (is_slow or self._has_all) or not limit.permits(counted_s):
            return
        logger.log(
            limit.level,
            f"{'slow request' if is_slow else 'completed request'} api=%s version=%d client=%s client_id=%s "
            "principal=%s listener=%s client_software=%s total_ms=%.1f request_queue_ms=%.1f local_ms=%.1f "
            "remote_ms=%.1f response_queue_ms=%.1f send_ms=%.1f",
            api_name,
            version,
            client.client_host,
            quote(client.client_id),
            quote(str(client.principal)),
            client.listener_name,
            quote(" ".join(client.client_software)),
            total_s * 1000,
            *(stage_s * 1000 for stage_s in times),
        )


class _LineLimit:
    """Permits up to `most` lines in a second, and reports the number of the others.

    what: the requests that the lines are about
    most_at_once: lines in each portion of a second
    level: of the lines
    """

    def __init__(
        self,
        what: str,
        most: int,
        most_at_once: int,
        level: int,
        monotonic_ms: Callable[[], int],
        run_later: RunLater,
    ) -> None:
        self.level = level
        self._what = what
        self._most = most
        self._most_at_once = most_at_once
        self._monotonic_ms = monotonic_ms
        self._run_later = run_later
        self._second = -1
        self._written = 0
        self._portion = -1
        self._written_at_once = 0
        self._omitted = 0
        self._longest_s = 0.0
        self._is_report_due = False

    def permits(self, duration_s: float) -> bool:
        """Return whether a request is to have a line; count it otherwise."""
        if not logger.isEnabledFor(self.level):
            return False
        now_ms = self._monotonic_ms()
        second, portion = now_ms // _INTERVAL_MS, now_ms // _PORTION_MS
        if second != self._second:
            self._report_omitted()
            self._second, self._written = second, 0
        if portion != self._portion:
            self._portion, self._written_at_once = portion, 0
        if self._written >= self._most or self._written_at_once >= self._most_at_once:
            self._omit(duration_s)
            return False
        self._written += 1
        self._written_at_once += 1
        return True

    def _omit(self, duration_s: float) -> None:
        self._omitted += 1
        self._longest_s = max(self._longest_s, duration_s)
        if not self._is_report_due:
            self._is_report_due = True
            self._run_later(_INTERVAL_MS, self._report)

    async def _report(self) -> None:
        self._is_report_due = False
        self._report_omitted()

    def _report_omitted(self) -> None:
        """Log the number of requests without a line, and begin to count again."""
        if self._omitted:
            logger.log(
                self.level,
                "%s were not logged, because there were too many count=%d longest_ms=%.1f",
                self._what,
                self._omitted,
                self._longest_s * 1000,
            )
        self._omitted, self._longest_s = 0, 0.0
