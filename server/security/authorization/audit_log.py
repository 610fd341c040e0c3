"""The audit log: one line for each denial (info) and each permission (debug), by the logger `odradek.authorizer`.

    Denied principal="User:alice" host=10.0.0.7 operation=Write resource=Topic:"orders" reason="no ACL"

Names come from clients: they are quoted, so that none can look like another part of the line, and shortened. Source:
Kafka's kafka.authorizer.logger.
"""

import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple

from odradek.protocol.access_control import Operation, ResourceType
from odradek.server.event_log.text_lines import MAX_NAME_LENGTH, quote
from odradek.server.security.authorization.acl_index import Decision

logger = logging.getLogger("odradek.authorizer")

RunLater = Callable[[int, Callable[[], Coroutine[Any, Any, None]]], object]

MAX_DENIALS_PER_S: Final = 1000
"""Lines in a second, besides the first lines of clients. A request may name thousands of resources, and a line takes
some 20 us of the reactor's time."""

MAX_CLIENT_DENIALS_PER_S: Final = 500
"""Lines of one client in a second."""

FIRST_LINES: Final = 5
"""Lines of a client in a second that the lines of other clients never displace."""

MAX_CLIENTS: Final = 500
"""Clients that are distinguished in a second. All further ones count as one client, without a name. So there are at
most 3,500 lines in a second, and the counts take less than 500 kB."""

MAX_ADDRESSES: Final = 20
"""Addresses of one principal that are distinguished in a second. All further ones count as one, which is written as *.
Otherwise one principal with many addresses, such as those of an IPv6 subnet, would count as all MAX_CLIENTS."""

_NAMED_CLIENTS: Final = 3
"""Clients in a line about omitted denials, those with the most."""

_INTERVAL_MS: Final = 1000

_VALUES: Final = "principal=%s host=%s operation=%s resource=%s reason=%s"
_DENIED: Final = f"Denied {_VALUES}"
_ALLOWED: Final = f"Allowed {_VALUES}"


class Attempt(NamedTuple):
    """An operation of a client. Without `name` it is one on every resource of the type."""

    principal: str
    host: str
    operation: Operation
    resource_type: ResourceType
    name: str | None


class _Count:
    """The denials of one client in the current second."""

    __slots__ = ("omitted", "written")

    def __init__(self) -> None:
        self.written = 0
        self.omitted = 0


class AuditLog:
    """Writes the decisions about clients' requests.

    A client is a principal at an address. One that is denied too often in a second does not displace the lines of
    others; its further denials are counted, and a line with their number follows at the end of the second.

    run_later: calls a coroutine function after some ms
    """

    def __init__(self, monotonic_ms: Callable[[], int], run_later: RunLater) -> None:
        self._monotonic_ms = monotonic_ms
        self._run_later = run_later
        self._second = -1
        self._shared = 0
        self._counts: dict[tuple[str, str], _Count] = {}
        self._addresses: Counter[str] = Counter()
        self._others = _Count()
        self._is_report_due = False

    @property
    def has_permissions(self) -> bool:
        """True if allowed operations are logged."""
        return logger.isEnabledFor(logging.DEBUG)

    def denied(self, attempt: Attempt, decision: Decision) -> None:
        """Log a denial."""
        second = self._monotonic_ms() // _INTERVAL_MS
        if second != self._second:
            self._report_omitted()
            self._second = second
        count = self._find_count(attempt)
        if not self._admits(count):
            count.omitted += 1
            self._schedule_report()
            return
        count.written += 1
        logger.info(_DENIED, *_describe(attempt, decision))

    def _find_count(self, attempt: Attempt) -> _Count:
        principal = attempt.principal[:MAX_NAME_LENGTH]
        count = self._counts.get((principal, attempt.host))
        if count is not None:
            return count
        host = attempt.host if self._addresses[principal] < MAX_ADDRESSES else "*"
        count = self._counts.get((principal, host))
        if count is None:
            if len(self._counts) >= MAX_CLIENTS:
                return self._others
            count = self._counts[principal, host] = _Count()
            self._addresses[principal] += 1
        return count

    def _admits(self, count: _Count) -> bool:
        if count.written < FIRST_LINES:
            return True
        if count.written >= MAX_CLIENT_DENIALS_PER_S or self._shared >= MAX_DENIALS_PER_S:
            return False
        self._shared += 1
        return True

    def _schedule_report(self) -> None:
        if not self._is_report_due:
            self._is_report_due = True
            self._run_later(_INTERVAL_MS, self._report)

    async def _report(self) -> None:
        self._is_report_due = False
        if self._monotonic_ms() // _INTERVAL_MS != self._second:
            self._report_omitted()
        elif self._others.omitted or any(count.omitted for count in self._counts.values()):
            # A denial of the present second has reported those of the last one.
            self._schedule_report()

    def _report_omitted(self) -> None:
        """Log the number of denials that were omitted, and begin to count again."""
        omitted = [(count.omitted, *key) for key, count in self._counts.items() if count.omitted]
        total = sum(number for number, _, _ in omitted) + self._others.omitted
        if total:
            most = sorted(omitted, key=lambda row: -row[0])[:_NAMED_CLIENTS]
            logger.warning(
                "denials were not logged, because there were too many count=%d clients=%d others=%d most=%s",
                total,
                len(omitted),
                self._others.omitted,
                ",".join(f"{quote(principal)}@{host}:{number}" for number, principal, host in most),
            )
        self._shared, self._counts, self._addresses, self._others = 0, {}, Counter(), _Count()

    def allowed(self, attempt: Attempt, decision: Decision) -> None:
        """Log a permission."""
        logger.debug(_ALLOWED, *_describe(attempt, decision))


def _describe(attempt: Attempt, decision: Decision) -> tuple[str, ...]:
    """Return the values of a line about an attempt."""
    principal, host, operation, resource_type, name = attempt
    resource = f"{resource_type.title}:{'any' if name is None else quote(name)}"
    return quote(principal), host, operation.title, resource, quote(str(decision), 3 * MAX_NAME_LENGTH)
