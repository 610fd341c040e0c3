"""Slow requests: a warning of the logger `odradek.request` for each, with the times of its stages.

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

MAX_LINES_PER_S: Final = 10
"""Lines in a second. Requests are slow together: lines for all of them would make the broker slower."""

WAITING_APIS: Final = frozenset({"Fetch", "JoinGroup", "ShareFetch", "SyncGroup"})
"""APIs whose clients ask for a wait, for records or for the other members of a group. The wait does not count."""

_INTERVAL_MS: Final = 1000

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


class SlowRequestLog:
    """Logs slow requests, up to MAX_LINES_PER_S in a second; the others are counted.

    threshold_s: the shortest duration of a slow request; infinite if none is logged

    run_later: calls a coroutine function after some ms
    """

    def __init__(self, monotonic_ms: Callable[[], int], run_later: RunLater) -> None:
        self._monotonic_ms = monotonic_ms
        self._run_later = run_later
        self.threshold_s = math.inf
        self._second = -1
        self._written = 0
        self._omitted = 0
        self._longest_s = 0.0
        self._is_report_due = False

    def set_threshold(self, threshold_ms: int) -> None:
        """Change `request.slow.log.ms`; -1 for no lines."""
        self.threshold_s = threshold_ms / 1000 if threshold_ms >= 0 else math.inf

    def record(self, api_name: str, version: int, client: Client, times: StageTimes) -> None:
        """Log a request if it is slow."""
        total_s = sum(times)
        counted_s = total_s - times.remote_s if api_name in WAITING_APIS else total_s
        if counted_s < self.threshold_s or not logger.isEnabledFor(logging.WARNING):
            return
        second = self._monotonic_ms() // _INTERVAL_MS
        if second != self._second:
            self._report_omitted()
            self._second, self._written = second, 0
        if self._written >= MAX_LINES_PER_S:
            self._omit(counted_s)
            return
        self._written += 1
        logger.warning(
            "slow request api=%s version=%d client=%s client_id=%s principal=%s listener=%s client_software=%s "
            "total_ms=%.1f request_queue_ms=%.1f local_ms=%.1f remote_ms=%.1f response_queue_ms=%.1f send_ms=%.1f",
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
        """Log the number of slow requests without a line, and begin to count again."""
        if self._omitted:
            logger.warning(
                "slow requests were not logged, because there were too many count=%d longest_ms=%.1f",
                self._omitted,
                self._longest_s * 1000,
            )
        self._omitted, self._longest_s = 0, 0.0
