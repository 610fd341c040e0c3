"""Deferreds with a description of what they wait for, for the report of a stalled request."""

import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from twisted.internet.defer import CancelledError, Deferred, FirstError, gatherResults
from twisted.internet.task import SchedulerStopped
from twisted.python.failure import Failure

from odradek.log.background.tasks import Done, RunInThread
from odradek.protocol.errors import KafkaError

logger = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

AnyDeferred = Deferred[Any]
"""A Deferred of any result, for code that waits for it or cancels it. No other type fits: Deferred is invariant."""

Work = Coroutine[AnyDeferred, object, T]
"""A coroutine that awaits Deferreds."""

UNNAMED = "its handler"
_EXPECTED = (KafkaError, CancelledError, SchedulerStopped)


class Wait(Deferred[T]):
    """A Deferred with a description, which is made only when it is asked for.

    hasten: have it fire soon, with what there is by then; None where it has to take its time
    """

    def __init__(
        self, describe: Callable[[], str], canceller: Callable[[AnyDeferred], None] | None = None
    ) -> None:
        super().__init__(canceller)
        self.describe = describe
        self.hasten: Callable[[], None] | None = None

    def callback(self, result: "T | Failure") -> None:
        """Fire. What describes the wait mostly refers to this: kept, it would be garbage only a collection frees."""
        self.describe = _is_over
        self.hasten = None
        super().callback(result)

    def errback(self, fail: Failure | BaseException | None = None) -> None:
        """Fire with an error; see `callback`."""
        self.describe = _is_over
        self.hasten = None
        super().errback(fail)


def _is_over() -> str:
    return UNNAMED


def describe_wait(deferred: AnyDeferred) -> str:
    """Describe the wait of `deferred`: its own description, or that of the Deferred that a callback returned."""
    deferred = _innermost(deferred)
    return deferred.describe() if isinstance(deferred, Wait) else UNNAMED


def hasten_wait(deferred: AnyDeferred) -> None:
    """Have `deferred`, or the Deferred that a callback returned, fire soon if it may."""
    deferred = _innermost(deferred)
    if isinstance(deferred, Wait) and deferred.hasten is not None:
        deferred.hasten()


def _innermost(deferred: AnyDeferred) -> AnyDeferred:
    while isinstance(inner := getattr(deferred, "result", None), Deferred):
        deferred = inner
    return deferred


def wait_until_done(start: Callable[[Done], None]) -> Deferred[None]:
    """Call `start` with a function, and return a Deferred that fires when that is called: with its error, if any."""
    outcome: Deferred[None] = Deferred()

    def done(error: Exception | None) -> None:
        if error is None:
            outcome.callback(None)
        else:
            outcome.errback(error)

    start(done)
    return outcome


def call_in_thread(run_in_thread: RunInThread, work: Callable[[], T]) -> Deferred[T]:
    """Call `work` in a thread, and return a Deferred of what it returns or raises."""
    returned: list[T] = []
    ended = wait_until_done(lambda done: run_in_thread(lambda: returned.append(work()), done))
    return ended.addCallback(lambda _: returned[0])


def carry_through(work: Work[T]) -> Deferred[T]:
    """Run a coroutine to its end, and return a Deferred of its result, the cancellation of which does not stop it.

    A change that the metadata store has must reach the image too, although the client that asked for it is gone.
    """
    return shield(Deferred.fromCoroutine(work))


def then(reply: T | Deferred[T], change: Callable[[T], R | Deferred[R]]) -> R | Deferred[R]:
    """Call `change` with a result: at once, or when the Deferred of it fires."""
    if isinstance(reply, Deferred):
        changed: Deferred[R] = reply.addCallback(change)
        return changed
    return change(reply)


def shield(begun: Deferred[T]) -> Deferred[T]:
    """Return a Deferred of the result of work that has begun, the cancellation of which does not stop the work."""
    outcome: Wait[T] = Wait(lambda: describe_wait(begun))

    def report_unheard(failure: Failure) -> Failure:
        if outcome.called and not isinstance(failure.value, _EXPECTED):
            logger.error("the request of a client that is gone failed; please report it", exc_info=failure.value)
        return failure

    begun.addErrback(report_unheard).chainDeferred(outcome)
    return outcome


def wait_for_all(waits: Sequence[Deferred[T]]) -> Deferred[list[T]]:
    """Fire with all results once the last has come, or with the first error at once."""
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
