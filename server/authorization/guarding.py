"""The interface of a guard, and the division of a request into allowed and refused rows."""

from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from odradek.protocol.schema import rows
from odradek.server.security.authorization.operations import Operation, ResourceType
from odradek.server.security.authorization.rights import Rights
from odradek.server.work.slices import ROWS_PER_STEP, SMALL_REQUEST_STEPS, run_first_steps
from odradek.server.work.waits import shield

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from odradek.server.request import Reply, RequestContext
    from odradek.server.work.slices import Slices

Q = TypeVar("Q")
Q_contra = TypeVar("Q_contra", contravariant=True)
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")


class Proceed(Protocol[Q_contra, R_co]):
    """Calls the handler with a request."""

    def __call__(self, request: Q_contra, /) -> "Reply[R_co]": ...


class GuardServices(Protocol):
    """The part of a broker that most guards need."""

    slices: "Slices"


class Guard(Protocol):
    """Checks a request, and calls the handler with the part that the client is authorized to.

    Raises KafkaError if the client is not authorized to the whole request.
    """

    def __call__(
        self,
        rights: Rights,
        services: "GuardServices",
        context: "RequestContext",
        request: Q,
        proceed: Proceed[Q, R],
    ) -> "Reply[R]": ...


def then(
    services: GuardServices,
    steps: Generator[None, None, T],
    proceed: "Callable[[T], Reply[R]]",
    *,
    carries_through: bool = False,
) -> "Reply[R]":
    """Run `steps`, many in slices, and return `proceed` of their result.

    carries_through: the request is completed even if the connection is lost
    """
    result = run_first_steps(steps, SMALL_REQUEST_STEPS)
    if result is not None:
        return proceed(result)
    outcome: Deferred[R] = services.slices.run(steps).addCallback(proceed)
    return shield(outcome) if carries_through else outcome


def finish(services: GuardServices, steps: Generator[None, None, R]) -> "Reply[R]":
    """Run `steps`, many in slices, and return their result."""
    return then(services, steps, lambda result: result)


def join(first: Sequence[T], second: Sequence[T]) -> list[T]:
    """Return the rows of two arrays as one, for a message that is only encoded (`schema.rows`)."""
    count = len(first)
    return rows(lambda number: first[number] if number < count else second[number - count], range(count + len(second)))


def merge_in_order(
    requested: Sequence[T], refused: Sequence[T], found: Iterable[R]
) -> Generator[None, None, "list[T | R]"]:
    """Return the refused rows of a request and the rows that were found for the others, in the order of the request.

    refused: some of the requested rows, in the same order
    """
    merged: list[T | R] = []
    of_others, of_refused = iter(found), iter(refused)
    one = next(of_refused, None)
    for number, row in enumerate(requested, 1):
        if row is one:
            merged.append(row)
            one = next(of_refused, None)
        else:
            merged.append(next(of_others))
        if number % ROWS_PER_STEP == 0:
            yield
    return merged


def divide(
    services: GuardServices,
    rights: Rights,
    resource_type: ResourceType,
    requested: Collection[T],
    find_name: Callable[[T], str | None],
    proceed: "Callable[[list[T], list[T]], Reply[R]]",
    operation: Operation | None = None,
) -> "Reply[R]":
    """Return `proceed` of the requested rows to which the client is authorized, and of the others (`Rights.divide`)."""
    steps = rights.divide(resource_type, requested, find_name, operation)
    return then(services, steps, lambda divided: proceed(*divided))
