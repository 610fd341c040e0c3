"""Pacing of long metadata changes on the reactor thread, between which other requests are served."""

import logging
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.task import SchedulerStopped
from twisted.python.failure import Failure

from odradek.log.background.tasks import RunInThread
from odradek.replication.metadata.store import Waiter
from odradek.server.work.clock import Clock
from odradek.server.work.next_iteration import NextIteration
from odradek.server.work.slices import SLICE_S, Slices, Work
from odradek.server.work.waits import call_in_thread

logger = logging.getLogger(__name__)

T = TypeVar("T")


class ReactorPacing:
    """The pacing of a metadata store (`store.Pacing`), and the executor of the controller (`events.Executor`).

    count_polls: as for `NextIteration`. With it a pause sets no timer, which would cost a follower a reactor iteration
        for each response of its leader
    """

    def __init__(
        self,
        reactor: Clock,
        slices: Slices,
        monotonic: Callable[[], float],
        run_in_thread: RunInThread,
        slice_s: float = SLICE_S,
        count_polls: Callable[[], int] | None = None,
    ) -> None:
        self._reactor = reactor
        self._slices = slices
        self._monotonic = monotonic
        self._run_in_thread = run_in_thread
        self._slice_s = slice_s
        self._count_polls = count_polls
        self._paused_at = -1
        self._next_iteration = NextIteration(reactor)
        self._end_s = 0.0

    def run(self, steps: Generator[None, None, T], /) -> Awaitable[T]:
        """Run short steps in slices, and return their result."""
        return self._slices.run(steps)

    def run_to_stop(self, steps: Generator[Waiter | None, None, None], /) -> Awaitable[None]:
        """Run work of the broker itself, like `run`. It ends when the broker stops; no exception is raised.

        After a step that yields a waiter of this pacing, the next follows when that has ended.
        """
        work: Work[None] = steps  # type: ignore[assignment]  # its waiters are Deferreds
        return self._slices.run(work).addErrback(_report)

    def in_thread(self, work: Callable[[], None], /) -> Awaitable[None]:
        """Call a blocking function in another thread. Raises its exception."""
        return call_in_thread(self._run_in_thread, work)

    def waiter(self) -> Waiter:
        """Return a new waiter, which can be awaited and fired."""
        return Deferred()

    def soon(self, action: Callable[[], None], /) -> None:
        """Call `action` in the next reactor iteration."""
        self._reactor.callLater(0, action)

    def start(self, work: Coroutine[Any, Any, None], /) -> None:
        """Run a coroutine of the broker itself, whose result is not awaited; no exception is raised."""
        Deferred.fromCoroutine(work).addErrback(_report)

    async def pause(self) -> None:
        """Wait for the next reactor iteration if work that calls this has used its slice of this iteration."""
        if self._is_first_of_iteration():
            self._end_s = self._monotonic() + self._slice_s
        elif self._monotonic() >= self._end_s:
            over: Deferred[None] = Deferred()
            self._reactor.callLater(0, over.callback, None)
            await over

    def _is_first_of_iteration(self) -> bool:
        """Return whether this is the first pause of a reactor iteration."""
        if self._count_polls is None:
            if self._next_iteration.is_scheduled:
                return False
            self._next_iteration.schedule(_do_nothing)
            return True
        polls = self._count_polls()
        if polls == self._paused_at:
            return False
        self._paused_at = polls
        return True


def _do_nothing() -> None:
    """The beginning of an iteration needs no work."""


def _report(failure: Failure) -> None:
    if isinstance(failure.value, Exception) and not isinstance(failure.value, SchedulerStopped):
        logger.error("internal work of the broker failed; please report it", exc_info=failure.value)
