"""Long work on the reactor thread, in slices: other requests are served between them.

All work shares one slice per reactor iteration, so that the bound holds for any number of requests that do long work.
Work may begin at once, for at most one slice in `SHARE_S` in total: what ends within that costs no reactor iteration.
"""

from collections.abc import Callable, Generator
from typing import Any, Final, TypeVar

from twisted.internet.defer import CancelledError, Deferred, fail, succeed
from twisted.internet.task import Cooperator, TaskStopped
from twisted.python.failure import Failure

T = TypeVar("T")

SLICE_S: Final = 0.002
"""Length of a slice. A step of the work should take far less: a slice ends after the step that exceeds it."""

SHARE_S: Final = 5 * SLICE_S
"""Length of the period in which what is done at once may take a slice: several requests of one reactor iteration share
it, however many there are."""


class Slices:
    """Runs generators, each `next()` of which is a step, for up to `slice_s` seconds per reactor iteration in total.

    With `slice_s=0` every step is a slice of its own, which the simulation uses to interleave other events.
    """

    def __init__(self, clock: Any, monotonic: Callable[[], float], slice_s: float = SLICE_S) -> None:
        self.monotonic = monotonic
        self._slice_s = slice_s
        self._cooperator = Cooperator(self._begin_slice, lambda tick: clock.callLater(0, tick))
        self._share_end_s = float("-inf")
        self._share_left_s = slice_s

    def run(self, work: Generator[None, None, T]) -> Deferred[T]:
        """Run `work` to its end, and return a Deferred of its return value.

        It begins at once, if other work has left time for it. Cancelling the Deferred closes the generator. Work that
        is left at `stop` ends with `SchedulerStopped`.
        """
        began_s, end_s = self.begin()
        if end_s <= began_s and self._slice_s:
            return self._continue(work)
        try:
            while True:
                next(work)
                if self.monotonic() >= end_s:
                    break
        except StopIteration as end:
            return succeed(end.value)
        except Exception as error:
            return fail(error)
        finally:
            self.end(began_s)
        return self._continue(work)

    def begin(self) -> tuple[float, float]:
        """Return the time now, and until when work may be done at once: monotonic, the same if not at all."""
        now_s = self.monotonic()
        if now_s >= self._share_end_s:
            self._share_end_s = now_s + SHARE_S
            self._share_left_s = self._slice_s
        return now_s, now_s + max(0.0, self._share_left_s)

    def end(self, began_s: float) -> None:
        """Count the time since `begin` against the share."""
        self._share_left_s -= self.monotonic() - began_s

    def stop(self) -> None:
        """Run no further step."""
        self._cooperator.stop()

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

    def _begin_slice(self) -> Callable[[], bool]:
        end_s = self.monotonic() + self._slice_s
        return lambda: self.monotonic() >= end_s
