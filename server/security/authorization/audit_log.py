"""The audit log: one line for each denial (info) and each permission (debug), by the logger `odradek.authorizer`.

    Denied principal="User:alice" host=10.0.0.7 operation=Write resource=Topic:"orders" reason="no ACL"

Names come from clients: they are quoted, so that none can look like another part of the line, and shortened. Source:
Kafka's kafka.authorizer.logger.
"""

import json
import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from odradek.protocol.access_control import Operation, ResourceType
from odradek.server.security.authorization.acl_index import Decision

logger = logging.getLogger("odradek.authorizer")

MAX_NAME_LENGTH: Final = 200
"""Characters of a name in a line; longer names are shortened."""

MAX_DENIALS_PER_S: Final = 1000
"""A request may name thousands of resources, and a line takes some 20 us of the reactor's time."""


class Attempt(NamedTuple):
    """An operation of a client. Without `name` it is one on every resource of the type."""

    principal: str
    host: str
    operation: Operation
    resource_type: ResourceType
    name: str | None


class AuditLog:
    """Writes the decisions about clients' requests.

    Denials beyond MAX_DENIALS_PER_S are counted; the next denial is preceded by a line with their number.
    """

    def __init__(self, monotonic_ms: Callable[[], int]) -> None:
        self._monotonic_ms = monotonic_ms
        self._second = -1
        self._written = 0
        self._omitted = 0

    @property
    def has_permissions(self) -> bool:
        """True if allowed operations are logged."""
        return logger.isEnabledFor(logging.DEBUG)

    def denied(self, attempt: Attempt, decision: Decision) -> None:
        """Log a denial."""
        second = self._monotonic_ms() // 1000
        if second != self._second:
            self._second, self._written = second, 0
            if self._omitted:
                logger.warning("denials were not logged, because there were too many count=%d", self._omitted)
                self._omitted = 0
        if self._written >= MAX_DENIALS_PER_S:
            self._omitted += 1
            return
        self._written += 1
        logger.info("%s", _format_line("Denied", attempt, decision))

    def allowed(self, attempt: Attempt, decision: Decision) -> None:
        """Log a permission."""
        logger.debug("%s", _format_line("Allowed", attempt, decision))


def _format_line(outcome: str, attempt: Attempt, decision: Decision) -> str:
    principal, host, operation, resource_type, name = attempt
    resource = "any" if name is None else quote(name)
    return (
        f"{outcome} principal={quote(principal)} host={host} operation={operation.title} "
        f"resource={resource_type.title}:{resource} reason={quote(str(decision), 3 * MAX_NAME_LENGTH)}"
    )


def quote(text: str, max_length: int = MAX_NAME_LENGTH) -> str:
    """Return a name in quotation marks, in printable ASCII, shortened to `max_length` characters before escapes."""
    if len(text) > max_length:
        text = f"{text[:max_length]}... ({len(text)} characters)"
    return json.dumps(text)
