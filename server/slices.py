"""Long work on the reactor thread, in slices: other requests are served between them.

All work shares one slice per reactor iteration, so that the bound holds for any number of requests that do long work.
"""

from collections.abc import Callable, Generator
from typing import Any, Final, TypeVar

from twisted.internet.defer import CancelledError, Deferred, fail, succeed
from twisted.internet.task import Cooperator, TaskStopped
from twisted.python.failure import Failure

T = TypeVar("T")
Work = Generator[Deferred[Any] | None, None, T]
"""Long work. A step yields None, or a Deferred that the next step has to wait for."""

SLICE_S: Final = 0.002
"""Length of a slice. A step of the work should take far less: a slice ends after the step that exceeds it."""


class Slices:
    """Runs generators, each `next()` of which is a step, for up to `slice_s` seconds per reactor iteration in total.

    With `slice_s=0` every step is a slice of its own, which the simulation uses to interleave other events.
    """

    def __init__(self, clock: Any, monotonic: Callable[[], float], slice_s: float = SLICE_S) -> None:
        self._monotonic = monotonic
        self._slice_s = slice_s
        self._is_spent = False
        self._cooperator = Cooperator(self._begin_slice, lambda tick: clock.callLater(0, self._tick, tick))

    def run(self, work: Work[T]) -> Deferred[T]:
        """Run `work` to its end, and return a Deferred of its return value.

        A step that yields a Deferred is followed by the next when that has fired. The first slice runs at once, unless
        other work has used up this reactor iteration's: short work costs no iteration. Cancelling the Deferred closes
        the generator. Work that is left at `stop` ends with `SchedulerStopped`.
        """
        if self._is_spent:
            return self.run_later(work)
        is_over = self._begin_slice()
        try:
            while True:
                waited_for = next(work)
                if waited_for is not None:
                    return self.run_later(work, waited_for)
                if is_over():
                    break
        except StopIteration as end:
            return succeed(end.value)
        except Exception as error:
            return fail(error)
        self._is_spent = True
        return self.run_later(work)

    def stop(self) -> None:
        """Run no further step."""
        self._cooperator.stop()

    def run_later(self, work: Work[T], waited_for: Deferred[Any] | None = None) -> Deferred[T]:
        """As `run`, from the next reactor iteration on, or after `waited_for`."""
        returned: list[T] = []

        def steps() -> Work[None]:
            if waited_for is not None:
                yield waited_for
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

    def _tick(self, tick: Callable[[], None]) -> None:
        self._is_spent = False
        tick()

    def _begin_slice(self) -> Callable[[], bool]:
        end_s = self._monotonic() + self._slice_s
        return lambda: self._monotonic() >= end_s
