"""Long work on the reactor thread, in slices: other requests are served between them.

All work shares one slice per reactor iteration, so that the bound holds for any number of requests that do long work.
"""

from collections.abc import Callable, Generator
from typing import Any, Final, TypeVar

from twisted.internet.defer import CancelledError, Deferred, fail, succeed
from twisted.internet.task import Cooperator, TaskStopped
from twisted.python.failure import Failure

T = TypeVar("T")

SLICE_S: Final = 0.002
"""Length of a slice. A step of the work should take far less: a slice ends after the step that exceeds it."""


ROWS_PER_STEP: Final = 128
"""Rows of a request or a response that a step handles where one takes a few microseconds."""


class Slices:
    """Runs generators, each `next()` of which is a step, for up to `slice_s` seconds per reactor iteration in total.

    With `slice_s=0` every step is a slice of its own, which the simulation uses to interleave other events.

    Only a slice that is used up is renewed, in the next iteration: short work costs no timer, but one request in many
    waits for an iteration without need.
    """

    def __init__(self, clock: Any, monotonic: Callable[[], float], slice_s: float = SLICE_S) -> None:
        self._monotonic = monotonic
        self._slice_s = slice_s
        self._used_s = 0.0
        self._clock = clock
        self._renewal: Any = None
        self._cooperator = Cooperator(self._measure, lambda tick: clock.callLater(0, tick))

    def run(self, work: Generator[None, None, T]) -> Deferred[T]:
        """Run `work` to its end, and return a Deferred of its return value.

        It begins at once with what is left of the slice: short work costs no reactor iteration. Cancelling the Deferred
        closes the generator. Work that is left at `stop` ends with `SchedulerStopped`.
        """
        is_over = self.begin()
        if is_over is None:
            return self._continue(work)
        try:
            next(work)
            while not is_over():
                next(work)
        except StopIteration as end:
            is_over()
            return succeed(end.value)
        except Exception as error:
            is_over()
            return fail(error)
        return self._continue(work)

    def begin(self) -> Callable[[], bool] | None:
        """Begin work at once; None if the slice is used up.

        What is returned is to be called after each step: it counts the time, and returns whether the slice is over.
        """
        return None if 0 < self._slice_s <= self._used_s else self._measure()

    def stop(self) -> None:
        """Run no further step."""
        self._cooperator.stop()
        if self._renewal is not None:
            self._renewal.cancel()
            self._renewal = None

    def _continue(self, work: Generator[None, None, T]) -> Deferred[T]:
        returned: list[T] = []

        def steps() -> Generator[None, None, None]:
            returned.append((yield from work))

        task = self._cooperator.cooperate(steps())

        def cancel(_: Deferred[Any]) -> None:
            task.stop()
            work.close()

        def failed(failure: Failure) -> Failure:
            if isinstance(failure.value, TaskStopped):
                raise CancelledError
            return failure

        outcome: Deferred[T] = Deferred(cancel)
        task.whenDone().addCallbacks(lambda _: returned[0], failed).chainDeferred(outcome)
        return outcome

    def _measure(self) -> Callable[[], bool]:
        """Return a function that counts the time since this call as used, and returns whether the slice is over."""
        begin_s = self._monotonic() - self._used_s

        def is_over() -> bool:
            self._used_s = self._monotonic() - begin_s
            if self._used_s < self._slice_s:
                return False
            if self._renewal is None and self._slice_s:
                self._renewal = self._clock.callLater(0, self._renew)
            return True

        return is_over

    def _renew(self) -> None:
        self._renewal = None
        self._used_s = 0.0
