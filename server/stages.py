"""Stages of the request pipeline: decode, authenticate, authorize, quota, handler, encode.

Decode, handler and encode exist for each API version (`dispatch.BoundApi`). The stages between decode and handler are
optional. They are selected when an API version is bound, so that a missing stage costs nothing per request.
"""

from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

from odradek.protocol.schema import Message
from odradek.server.apis import Api
from odradek.server.request import RequestContext

S = TypeVar("S")
R = TypeVar("R")

Check = Callable[[RequestContext, Message | None], None]
"""A stage before the handler. It raises KafkaError to reject a request, or CloseConnection."""

CheckFactory = Callable[[Api, int], Check | None]
"""Makes the check of an API version; None if that version needs none."""

Handler = Callable[[S, RequestContext, Message | None], R]


class Stages(NamedTuple):
    """The optional stages, in the order in which they run."""

    authenticate: CheckFactory | None = None
    authorize: CheckFactory | None = None
    quota: CheckFactory | None = None

    def make_checks(self, api: Api, version: int) -> list[Check]:
        """Make the checks of an API version."""
        made = [factory(api, version) for factory in self if factory is not None]
        return [check for check in made if check is not None]


NO_STAGES: Final = Stages()


def run_after(checks: list[Check], handler: Handler[S, R]) -> Handler[S, R]:
    """Return a handler that runs the checks first; the same handler if there are none."""
    if not checks:
        return handler

    def checked(services: S, context: RequestContext, request: Message | None) -> R:
        for check in checks:
            check(context, request)
        return handler(services, context, request)

    return checked
