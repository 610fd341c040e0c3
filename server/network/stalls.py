"""Stalls: requests and connections without progress for longer than they may take.

A client whose request is never answered sees only a timeout. Each stall is therefore logged once, with what it waits
for. `ConnectionRegistry` checks every connection every few seconds; requests have no timers for this. The age counts
from the check that first found the stall, and is too small by at most the interval of checks.
"""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from odradek.protocol.messages.join_group import JoinGroupRequest
from odradek.protocol.messages.sync_group import SyncGroupRequest
from odradek.protocol.schema import Message
from odradek.server.work.waits import describe_wait

if TYPE_CHECKING:
    from odradek.server.coordinators.groups import GroupCoordinatorRuntime
    from odradek.server.network.request_pipeline import RequestInProgress
    from odradek.server.network.transport import KafkaTransport

logger = logging.getLogger(__name__)

MARGIN_S: Final = 30.0
"""Time without progress, beyond the request's own timeout, after which a request or a connection counts as stalled.

As long as a client's default request.timeout.ms: what is reported, most clients have given up."""

_TIMEOUT_FIELDS: Final = ("max_wait_ms", "timeout_ms")
"""Fields of requests that bound the wait for the response: Fetch, and Produce with the requests that change topics."""


def own_timeout_ms(groups: "GroupCoordinatorRuntime | None", request: Message | None) -> int:
    """Return the wait that a request allows by its own fields; 0 for one that has none, or is not decoded yet.

    `groups` are the group coordinators, if there are any yet.
    """
    if groups is not None and isinstance(request, (JoinGroupRequest, SyncGroupRequest)):
        return groups.shard(groups.index_of(request.group_id)).rebalance_timeout_ms(request.group_id)
    return max(getattr(request, name, 0) for name in _TIMEOUT_FIELDS)


class StallWatch:
    """Looks for a stall of one connection."""

    __slots__ = ("_is_reported", "_since_s", "_subject")

    def __init__(self) -> None:
        self._subject: object = None
        self._since_s = 0.0
        self._is_reported = False

    @property
    def holds_something(self) -> bool:
        """Return whether the last look found a request without a response, or a response that was not sent."""
        return self._subject is not None

    def look(
        self, transport: "KafkaTransport", own_timeout_ms: Callable[[Message | None], int], now_s: float, has_sent: bool
    ) -> None:
        """Report a request or a response that is pending for too long.

        own_timeout_ms: the wait that a request allows itself
        has_sent: the socket took bytes since the last look
        """
        request, writer = transport.connection.in_progress, transport.writer
        subject = request or (transport.connection.next_frame if writer.is_idle else writer)
        if transport.connection.is_in_line:
            # Others are served before it, which is no stall.
            subject = None
        if subject is None or subject is not self._subject or (subject is writer and has_sent):
            self._subject, self._since_s, self._is_reported = subject, now_s, False
            return
        age_s = now_s - self._since_s
        if self._is_reported or age_s <= MARGIN_S:
            return
        if request is not None:
            timeout_ms = own_timeout_ms(request.request)
            if age_s <= timeout_ms / 1000 + MARGIN_S:
                return
            _report_request(transport, request, age_s, timeout_ms)
        elif subject is writer:
            _report_unread(transport, age_s)
        else:
            _report_forgotten(transport, age_s)
        self._is_reported = True


def _report_request(
    transport: "KafkaTransport", request: "RequestInProgress", age_s: float, timeout_ms: int
) -> None:
    context = transport.connection.context
    logger.warning(
        "request has no response; check what it waits for api=%s version=%d client=%s client_id=%s correlation_id=%d "
        "age_s=%.0f timeout_ms=%d waits_for=%r",
        request.api.name,
        request.api.version,
        context.client_host,
        context.client_id,
        request.correlation_id,
        age_s,
        timeout_ms,
        describe_wait(request.deferred),
    )


def _report_unread(transport: "KafkaTransport", age_s: float) -> None:
    context = transport.connection.context
    logger.warning(
        "client does not read its responses, and is closed after connections.max.idle.ms; check the client and the "
        "network client=%s client_id=%s age_s=%.0f waits_for=socket unsent_bytes=%d",
        context.client_host,
        context.client_id,
        age_s,
        transport.writer.unsent_bytes,
    )


def _report_forgotten(transport: "KafkaTransport", age_s: float) -> None:
    context = transport.connection.context
    logger.error(
        "connection begins no request although nothing holds it back; please report it client=%s client_id=%s "
        "age_s=%.0f",
        context.client_host,
        context.client_id,
        age_s,
    )
