"""Long work on the reactor thread, in slices: other requests are served between them.

All work shares one slice per reactor iteration, so that the bound holds for any number of requests that do long work.
Only the retries of requests that wait (`CompletionQueue`) have a slice of their own besides.
"""

from collections.abc import Callable, Generator
from typing import Final, TypeVar

from twisted.internet.defer import CancelledError, Deferred, fail, succeed
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.task import CooperativeTask, Cooperator, TaskStopped
from twisted.python.failure import Failure

from odradek.server.work.clock import Clock, DelayedCall
from odradek.server.work.waits import AnyDeferred

T = TypeVar("T")
R = TypeVar("R")
Work = Generator[AnyDeferred | None, None, T]
"""Long work. A step yields None, or a Deferred that the next step has to wait for."""

SLICE_S: Final = 0.002
"""Length of a slice. A step of the work should take far less: a slice ends after the step that exceeds it."""

ROWS_PER_STEP: Final = 128
"""Rows of a request or a response that a step handles where one takes a few microseconds."""

SMALL_REQUEST_STEPS: Final = 8
"""Steps that a request may take at once: those of a small one."""


class Slices:
    """Runs generators, each `next()` of which is a step, for up to `slice_s` seconds per reactor iteration in total.

    With `slice_s=0` every step is a slice of its own, which the simulation uses to interleave other events.

    Only a slice that is used up is renewed, in the next iteration: short work costs no timer, but one request in many
    waits for an iteration without need.
    """

    def __init__(self, clock: Clock, monotonic: Callable[[], float], slice_s: float = SLICE_S) -> None:
        self._monotonic = monotonic
        self._slice_s = slice_s
        self._used_s = 0.0
        self._clock = clock
        self._renewal: DelayedCall | None = None
        # Twisted's interfaces carry no types: a DelayedCall is an IDelayedCall.
        schedule: Callable[[Callable[[], None]], IDelayedCall] = lambda tick: clock.callLater(0, tick)  # type: ignore[assignment, return-value]  # noqa: E731
        self._cooperator = Cooperator(self._measure, schedule)
        self._tasks: dict[CooperativeTask[Work[None]], None] = {}
        self._separate: list[Slices] = []

    def separate(self, slice_s: float) -> "Slices":
        """Return slices of up to `slice_s` in addition to these, for work that must not wait for long work.

        They stop when these stop.
        """
        separate = Slices(self._clock, self._monotonic, min(slice_s, self._slice_s))
        self._separate.append(separate)
        return separate

    def run(self, work: Work[T], at_once: int = 0) -> Deferred[T]:
        """Run `work` to its end, and return a Deferred of its return value.

        It begins at once with what is left of the slice, and with up to `at_once` steps where nothing is left: a small
        request does not wait for large ones. Short work costs no reactor iteration. A step that yields a
        Deferred is followed by the next when that has fired. Cancelling the Deferred closes the generator. Work that is
        left at `stop` ends with `SchedulerStopped`.
        """
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
        """Begin work at once; None if the slice is used up.

        What is returned is to be called after each step: it counts the time, and returns whether the slice is over.
        """
        return None if 0 < self._slice_s <= self._used_s else self._measure()

    def stop(self) -> None:
        """Run no further step."""
        for separate in self._separate:
            separate.stop()
        # `Cooperator.stop` alone would end every second task only. A task that is resumed after it is ended, too.
        tasks = list(self._tasks)
        for task in tasks:
            task.pause()
        self._cooperator.stop()
        for task in tasks:
            task.resume()
        if self._renewal is not None:
            self._renewal.cancel()
            self._renewal = None

    def run_later(self, work: Work[T], waited_for: AnyDeferred | None = None) -> Deferred[T]:
        """As `run`, from the next reactor iteration on, or after `waited_for`."""
        returned: list[T] = []
        raised: list[Exception] = []

        def steps() -> Work[None]:
            try:
                if waited_for is not None:
                    yield waited_for
                returned.append((yield from work))
            except Exception as error:
                # The task would keep it, and its traceback the task: until the garbage collector runs, which may take
                # long, all that the work held (a large request) would stay.
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
