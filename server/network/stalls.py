"""Stalls: requests and connections without progress for longer than their timeout.

A client that gets no response reports only a timeout. Each stall is therefore logged once, with a description of the
wait. `ConnectionRegistry` checks every connection every few seconds; requests have no timers for this. The age is the
time since the check that first found the stall, and too small by at most the interval of checks.
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

As long as a client's default request.timeout.ms: most clients have given up a request that is reported."""

_TIMEOUT_FIELDS: Final = ("max_wait_ms", "timeout_ms")
"""Fields of requests that bound the wait for the response: Fetch, and Produce with the requests that change topics."""


def find_timeout_ms(groups: "GroupCoordinatorRuntime | None", request: Message | None) -> int:
    """Return the timeout in a request's fields; 0 if it has none, or is not decoded yet.

    `groups` are the group coordinators, if there are any yet.
    """
    if groups is not None and isinstance(request, (JoinGroupRequest, SyncGroupRequest)):
        return groups.shard(groups.index_of(request.group_id)).rebalance_timeout_ms(request.group_id)
    return max(getattr(request, name, 0) for name in _TIMEOUT_FIELDS)


class StallWatch:
    """Detects stalls of one connection."""

    __slots__ = ("_is_reported", "_since_s", "_subject")

    def __init__(self) -> None:
        self._subject: object = None
        self._since_s = 0.0
        self._is_reported = False

    @property
    def has_pending(self) -> bool:
        """True if the last check found a request without a response, or an unsent response."""
        return self._subject is not None

    def check(
        self,
        transport: "KafkaTransport",
        find_timeout_ms: Callable[[Message | None], int],
        now_s: float,
        has_sent: bool,
    ) -> None:
        """Report a request or a response that is pending for too long.

        find_timeout_ms: returns the timeout in a request
        has_sent: the socket has accepted bytes since the last check
        """
        request, writer = transport.connection.in_progress, transport.writer
        connection = transport.connection
        subject = request or (connection.next_frame if writer.is_idle else writer)
        if connection.is_in_line or (connection.is_muted and subject is connection.next_frame):
            # It waits for other connections, or is throttled, which is not a stall.
            subject = None
        if subject is None or subject is not self._subject or (subject is writer and has_sent):
            self._subject, self._since_s, self._is_reported = subject, now_s, False
            return
        age_s = now_s - self._since_s
        if self._is_reported or age_s <= MARGIN_S:
            return
        if request is not None:
            timeout_ms = find_timeout_ms(request.request)
            if age_s <= timeout_ms / 1000 + MARGIN_S:
                return
            _report_request(transport, request, age_s, timeout_ms)
        elif subject is writer:
            _report_unsent(transport, age_s)
        else:
            _report_lost_turn(transport, age_s)
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


def _report_unsent(transport: "KafkaTransport", age_s: float) -> None:
    """Report a response that waits for the disk or the client."""
    context, writer = transport.connection.context, transport.writer
    if writer.is_loading:
        what, waits_for = "records are not read from the disk yet; check the disks of log.dirs", "disk"
    else:
        what, waits_for = (
            "client does not read its responses, and is closed after connections.max.idle.ms; check the client and the "
            "network"
        ), "socket"
    logger.warning(
        "%s client=%s client_id=%s age_s=%.0f waits_for=%s unsent_bytes=%d",
        what,
        context.client_host,
        context.client_id,
        age_s,
        waits_for,
        writer.unsent_bytes,
    )


def _report_lost_turn(transport: "KafkaTransport", age_s: float) -> None:
    context = transport.connection.context
    logger.error(
        "connection begins no request although it does not have to wait; please report it client=%s client_id=%s "
        "age_s=%.0f",
        context.client_host,
        context.client_id,
        age_s,
    )
