"""Long work on the reactor thread, in slices, between which other requests are served.

All work shares one slice per reactor iteration, which bounds its time for any number of requests with long work. Only
retries of delayed requests and the responses of coordinators to replicated requests have slices of their own
(`make_separate`).
"""

from collections.abc import Callable, Generator
from typing import Any, Final, TypeVar

from twisted.internet.defer import CancelledError, Deferred, fail, succeed
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.task import CooperativeTask, Cooperator, TaskStopped
from twisted.python.failure import Failure

from odradek.server.work.clock import Clock
from odradek.server.work.next_iteration import NextIteration
from odradek.server.work.waits import AnyDeferred

T = TypeVar("T")
R = TypeVar("R")
Work = Generator[AnyDeferred | None, None, T]
"""Long work. Each step yields None, or a Deferred for which the next step waits."""

SLICE_S: Final = 0.002
"""Length of a slice. A step should take much less, because a slice ends only after a step."""

ROWS_PER_STEP: Final = 128
"""Rows of a request or a response that one step handles if each takes a few microseconds."""

SMALL_REQUEST_STEPS: Final = 8
"""Steps that a request may take at once, which complete a small request."""


def run_first_steps(steps: Generator[None, None, T], most_steps: int) -> T | None:
    """Return the result of `steps` if there are at most that many, without the cost of a Deferred; else None."""
    try:
        for _ in range(most_steps):
            next(steps)
    except StopIteration as end:
        result: T = end.value
        return result
    return None


class Slices:
    """Runs generators, each `next()` of which is a step, for up to `slice_s` seconds per reactor iteration in total.

    meter: measures the time of work for the request that begins it, if some client has a quota of request time

    A slice that was used up by events begins anew in the next iteration, not with the timers of this one. `count_polls`
    is that of `NextIteration`.

    With `slice_s=0` every step is a slice of its own, which the simulation uses to interleave other events.

    A slice begins anew in the iteration after it was used up, not in every iteration. Therefore short work costs no
    timer, but work may wait for the next iteration because of work in earlier ones.
    """

    def __init__(
        self,
        clock: Clock,
        monotonic: Callable[[], float],
        slice_s: float = SLICE_S,
        count_polls: Callable[[], int] | None = None,
    ) -> None:
        self.meter: Callable[[Work[Any]], Work[Any]] | None = None
        self._monotonic = monotonic
        self._slice_s = slice_s
        self._count_polls = count_polls
        self._used_s = 0.0
        self._clock = clock
        self._renewal = NextIteration(clock, count_polls)
        # Twisted's interfaces have no types: a DelayedCall is an IDelayedCall.
        schedule: Callable[[Callable[[], None]], IDelayedCall] = lambda tick: clock.callLater(0, tick)  # type: ignore[assignment, return-value]  # noqa: E731
        self._cooperator = Cooperator(self._measure, schedule)
        self._tasks: dict[CooperativeTask[Work[None]], None] = {}
        self._separate: list[Slices] = []

    def make_separate(self, slice_s: float) -> "Slices":
        """Return slices of up to `slice_s` in addition to these, for work that must not wait for long work.

        They stop when these stop.
        """
        separate = Slices(self._clock, self._monotonic, min(slice_s, self._slice_s), self._count_polls)
        self._separate.append(separate)
        return separate

    def run(self, work: Work[T], at_once: int = 0) -> Deferred[T]:
        """Run `work` to its end, and return a Deferred of its return value.

        It begins at once in the rest of the slice. If the slice is used up, it takes up to `at_once` steps, so that a
        small request does not wait for large ones. Short work costs no reactor iteration. After a step that yields a
        Deferred, the next follows when that has fired. Cancelling the returned Deferred closes the generator. Work that
        is unfinished at `stop` ends with `SchedulerStopped`.
        """
        if self.meter is not None:
            work = self.meter(work)
        is_over = self.begin()
        if is_over is None:
            if not at_once:
                return self.run_later(work)
            is_over = self._measure()
        try:
            while True:
                waited_for = next(work)
                at_once -= 1
                is_used_up = is_over()
                if waited_for is not None:
                    return self.run_later(work, waited_for)
                if is_used_up and at_once <= 0:
                    break
        except StopIteration as end:
            is_over()
            return succeed(end.value)
        except Exception as error:
            is_over()
            return fail(error)
        return self.run_later(work)

    def begin(self) -> Callable[[], bool] | None:
        """Begin work at once. Return a function to call after each step, or None if the slice is used up.

        The function counts the time of the step, and returns whether the slice is used up.
        """
        return None if 0 < self._slice_s <= self._used_s else self._measure()

    def stop(self) -> None:
        """Run no further step."""
        for separate in self._separate:
            separate.stop()
        # `Cooperator.stop` alone would end only every second task. Tasks that are resumed after it end too.
        tasks = list(self._tasks)
        for task in tasks:
            task.pause()
        self._cooperator.stop()
        for task in tasks:
            task.resume()
        self._renewal.cancel()

    def run_later(self, work: Work[T], waited_for: AnyDeferred | None = None) -> Deferred[T]:
        """Run `work` like `run`, from the next reactor iteration on, or after `waited_for`."""
        returned: list[T] = []
        raised: list[Exception] = []

        def steps() -> Work[None]:
            try:
                if waited_for is not None:
                    yield waited_for
                returned.append((yield from work))
            except Exception as error:
                # The task would refer to the exception, and its traceback to the task: this cycle would keep the memory
                # of the work (a large request) until the garbage collector runs.
                raised.append(error)

        def ended(_: object) -> "T | Failure":
            return Failure(raised.pop()) if raised else returned[0]  # type: ignore[no-untyped-call]

        task = self._cooperator.cooperate(steps())

        def cancel(_: AnyDeferred) -> None:
            task.stop()
            work.close()

        def over(result: R) -> R:
            self._tasks.pop(task, None)
            return result

        def failed(failure: Failure) -> Failure:
            if isinstance(failure.value, TaskStopped):
                raise CancelledError
            return failure

        outcome: Deferred[T] = Deferred(cancel)
        self._tasks[task] = None
        task.whenDone().addBoth(over).addCallbacks(ended, failed).chainDeferred(outcome)
        return outcome

    def _measure(self) -> Callable[[], bool]:
        """Return a function that counts the time since this call, and returns whether the slice is used up."""
        begin_s = self._monotonic() - self._used_s

        def is_over() -> bool:
            self._used_s = self._monotonic() - begin_s
            if self._used_s < self._slice_s:
                return False
            if self._slice_s and not self._renewal.is_scheduled:
                self._renewal.schedule(self._renew)
            return True

        return is_over

    def _renew(self) -> None:
        self._used_s = 0.0
