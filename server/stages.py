"""Stages of the request pipeline between decode and handler: authorization.

Decode, handler and encode exist for each API version (`dispatch.BoundApi`). A stage wraps the handler when an API
version is bound, so that a missing stage costs nothing per request. Clients are authenticated before, per connection.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from odradek.server.apis import Api

H = TypeVar("H", bound=Callable[..., Any])

Stage = Callable[["Api", int, Callable[..., Any]], Callable[..., Any]]
"""Returns the handler that runs the stage for an API version; the handler that it was given if no stage is needed."""

Stages = tuple[Stage, ...]
"""The stages of a broker; the first one runs first."""


def runs_on_fast_path(stage: Stage) -> bool:
    """Return whether the produce fast path has the effect of a stage (`network.produce_fast_path`)."""
    return bool(getattr(stage, "runs_on_fast_path", False))


def wrap_handler(stages: Stages, api: "Api", version: int, handler: H) -> H:
    """Return the handler of an API version with its stages; the same handler if it has none."""
    wrapped: Any = handler
    for stage in reversed(stages):
        wrapped = stage(api, version, wrapped)
    result: H = wrapped
    return result
