"""Waits of requests: Deferreds with a description for the log message about a stalled request, and retries."""

import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Generic, Protocol, TypeVar

from twisted.internet.defer import CancelledError, Deferred, FirstError, gatherResults
from twisted.internet.task import SchedulerStopped
from twisted.python.failure import Failure

from odradek.log.background.tasks import Done, RunInThread
from odradek.protocol.errors import KafkaError

logger = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

AnyDeferred = Deferred[Any]
"""A Deferred of any result, for code that waits for it or cancels it. Any, because Deferred is invariant."""

AsyncWork = Coroutine[AnyDeferred, object, T]
"""A coroutine that awaits Deferreds."""

UNNAMED = "its handler"
_EXPECTED = (KafkaError, CancelledError, SchedulerStopped)


class Retryable(Protocol):
    """A request that waits, and may be complete."""

    def check(self) -> None:
        """Complete the request if that is possible."""


class RetryQueue(Protocol):
    """Checks requests whose wait may have ended, at once or in slices."""

    def add(self, operation: Retryable) -> None:
        """Check a request now or later."""


class _Completion(Generic[T]):
    """A Deferred and the result that it fires with."""

    __slots__ = ("_deferred", "_result")

    def __init__(self, deferred: Deferred[T], result: T) -> None:
        self._deferred = deferred
        self._result = result

    def check(self) -> None:
        self._deferred.callback(self._result)


def complete(queue: RetryQueue, deferred: Deferred[T], result: T) -> None:
    """Fire `deferred` with `result`, at once or in a slice of the queue."""
    queue.add(_Completion(deferred, result))


class Wait(Deferred[T]):
    """A Deferred with a description, which is made only when it is needed.

    shorten: makes it fire soon with the result available by then; None if the wait cannot be shortened
    """

    def __init__(
        self, describe: Callable[[], str], canceller: Callable[[AnyDeferred], None] | None = None
    ) -> None:
        super().__init__(canceller)
        self.describe = describe
        self.shorten: Callable[[], None] | None = None

    def callback(self, result: "T | Failure") -> None:
        """Fire. Drops `describe`, which mostly refers to this object: the cycle would need a garbage collection."""
        self.describe = _describe_ended
        self.shorten = None
        super().callback(result)

    def errback(self, fail: Failure | BaseException | None = None) -> None:
        """Fire with an error, like `callback`."""
        self.describe = _describe_ended
        self.shorten = None
        super().errback(fail)


def _describe_ended() -> str:
    return UNNAMED


def describe_wait(deferred: AnyDeferred) -> str:
    """Describe the wait of `deferred`: its own description, or that of the Deferred that a callback returned."""
    deferred = _find_innermost(deferred)
    return deferred.describe() if isinstance(deferred, Wait) else UNNAMED


def shorten_wait(deferred: AnyDeferred) -> None:
    """Make `deferred`, or the Deferred that a callback returned, fire soon if its wait can be shortened."""
    deferred = _find_innermost(deferred)
    if isinstance(deferred, Wait) and deferred.shorten is not None:
        deferred.shorten()


def _find_innermost(deferred: AnyDeferred) -> AnyDeferred:
    while isinstance(inner := getattr(deferred, "result", None), Deferred):
        deferred = inner
    return deferred


def wait_until_done(start: Callable[[Done], None]) -> Deferred[None]:
    """Call `start` with a function, and return a Deferred that fires when it is called, with its error, if any."""
    outcome: Deferred[None] = Deferred()

    def done(error: Exception | None) -> None:
        if error is None:
            outcome.callback(None)
        else:
            outcome.errback(error)

    start(done)
    return outcome


def call_in_thread(run_in_thread: RunInThread, work: Callable[[], T]) -> Deferred[T]:
    """Call `work` in a thread, and return a Deferred of its result or exception."""
    returned: list[T] = []
    ended = wait_until_done(lambda done: run_in_thread(lambda: returned.append(work()), done))
    return ended.addCallback(lambda _: returned[0])


def carry_through(work: AsyncWork[T]) -> Deferred[T]:
    """Run a coroutine to its end. Return a Deferred of its result, whose cancellation does not stop the coroutine.

    A change that is in the metadata store must be published to the image too, even if the connection is lost.
    """
    return shield(Deferred.fromCoroutine(work))


def map_reply(reply: T | Deferred[T], change: Callable[[T], R | Deferred[R]]) -> R | Deferred[R]:
    """Return `change` of a result, or a Deferred of it if `reply` is a Deferred."""
    if isinstance(reply, Deferred):
        changed: Deferred[R] = reply.addCallback(change)
        return changed
    return change(reply)


def shield(begun: Deferred[T]) -> Deferred[T]:
    """Return a Deferred of the result of work that has begun, whose cancellation does not stop the work."""
    outcome: Wait[T] = Wait(lambda: describe_wait(begun))

    def report_after_cancel(failure: Failure) -> Failure:
        if outcome.called and not isinstance(failure.value, _EXPECTED):
            logger.error("a request failed after its connection was lost; please report it", exc_info=failure.value)
        return failure

    begun.addErrback(report_after_cancel).chainDeferred(outcome)
    return outcome


def wait_for_all(waits: Sequence[Deferred[T]]) -> Deferred[list[T]]:
    """Return a Deferred that fires with all results, or at once with the first error."""
    if len(waits) == 1:
        return waits[0].addCallback(lambda result: [result])
    gathered = gatherResults(waits, consumeErrors=True)

    def describe() -> str:
        return " and ".join(describe_wait(one) for one in waits if not one.called or one.paused)

    def unwrapped(failure: Failure) -> Failure:
        return failure.value.subFailure if isinstance(failure.value, FirstError) else failure

    everything: Wait[list[T]] = Wait(describe, lambda _: gathered.cancel())
    gathered.addErrback(unwrapped)
    gathered.chainDeferred(everything)
    return everything
