"""Scheduled work in small steps, with blocking calls on threads.

`Schedule` has the monotonic clock and is given delays. Its owner calls `run_due(now_ms)`, with the wall clock, which is
what records are compared with, and calls again after the time it returns. Blocking work goes through a `RunInThread`:
the server gives Twisted's thread pool, tests and tools run it at once.
"""

import heapq
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Generic, TypeVar

logger = logging.getLogger(__name__)

Done = Callable[[Exception | None], None]
RunInThread = Callable[[Callable[[], None], Done], None]
"""Run the first in any thread, then call the second in the caller's thread with the exception it raised, or None."""

RunAll = Callable[[Sequence[Callable[[], None]], int], None]
"""Run all of them, in up to this many threads, and return when all have ended (`parallel.run_all`)."""

Item = TypeVar("Item")
T = TypeVar("T")

STEP_S: Final = 0.002
"""Longest time of a step: the rest runs after other work."""

_LEAST_INTERVAL_MS = 10
"""Some properties may set an interval of 0, with which a job would use all of the reactor's time."""


def run_inline(work: Callable[[], None], done: Done) -> None:
    """A RunInThread without threads."""
    try:
        work()
    except Exception as error:
        done(error)
    else:
        done(None)


def drain(items: list[Item]) -> Iterator[Item]:
    """Yield the items in order. Each is released when the next one is taken, since a log may be deleted meanwhile."""
    items.reverse()
    while items:
        yield items.pop()


class Job:
    """Periodic work. `step(now_ms)` does a small part and returns whether there is more to do at once.

    `due_ms` is on the schedule's monotonic clock, `now_ms` the wall clock.
    """

    __slots__ = ("due_ms", "interval_ms", "step")

    def __init__(self, step: Callable[[int], bool], interval_ms: int, first_due_ms: int) -> None:
        self.step = step
        self.interval_ms = interval_ms
        self.due_ms = first_due_ms


class Sweep(Generic[Item]):
    """A step that visits all items of a changing collection, a few at a time.

    A step ends after `visits_per_step`, or when it has lasted STEP_S by the clock `monotonic`. A visit that raises is
    logged, and the others continue.
    """

    __slots__ = ("_items", "_monotonic", "_remaining", "_visit", "_visits")

    def __init__(
        self,
        items: Callable[[], list[Item]],
        visit: Callable[[Item, int], None],
        visits_per_step: int,
        monotonic: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._items = items
        self._visit = visit
        self._visits = visits_per_step
        self._monotonic = monotonic
        self._remaining: Iterator[Item] | None = None

    def __call__(self, now_ms: int) -> bool:
        if self._remaining is None:
            self._remaining = drain(self._items())
        end_s = self._monotonic() + STEP_S
        for _ in range(self._visits):
            try:
                item = next(self._remaining)
            except StopIteration:
                self._remaining = None
                return False
            try:
                self._visit(item, now_ms)
            except Exception:
                logger.exception("background work failed and will be tried again; please report it item=%r", item)
            if self._monotonic() > end_s:
                break
        return True


class Schedule:
    """Jobs, and actions that run once at their time, by the monotonic clock in seconds.

    A step of the wall clock neither delays nor hastens them.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self.jobs: list[Job] = []
        self._once: list[tuple[int, int, Callable[[], None]]] = []
        self._added = 0

    def add(self, step: Callable[[int], bool], interval_ms: int, first_delay_ms: int) -> Job:
        job = Job(step, interval_ms, self.monotonic_ms() + first_delay_ms)
        self.jobs.append(job)
        return job

    def once(self, delay_ms: int, action: Callable[[], None]) -> None:
        self._added += 1
        heapq.heappush(self._once, (self.monotonic_ms() + delay_ms, self._added, action))

    def run_due(self, now_ms: int) -> int:
        """Run due work for STEP_S and a step, the longest overdue first; return after how many ms to call again.

        Work that raises is logged; a job then waits for its next time.
        """
        monotonic_ms = self.monotonic_ms()
        end_s = self._monotonic() + STEP_S
        for job in sorted((job for job in self.jobs if job.due_ms <= monotonic_ms), key=lambda job: job.due_ms):
            if not self._run_once_until(job.due_ms, end_s) or self._monotonic() > end_s:
                return 0
            job.due_ms = monotonic_ms + max(job.interval_ms, _LEAST_INTERVAL_MS)
            if _done(job.step, now_ms):
                job.due_ms = self.monotonic_ms()
        if not self._run_once_until(monotonic_ms, end_s):
            return 0
        dues = [job.due_ms for job in self.jobs]
        if self._once:
            dues.append(self._once[0][0])
        return max(0, min(dues, default=monotonic_ms) - self.monotonic_ms())

    def monotonic_ms(self) -> int:
        """The monotonic clock, ms."""
        return round(self._monotonic() * 1000)

    def _run_once_until(self, due_ms: int, end_s: float) -> bool:
        """Run the actions that are due; return whether there was time for all of them."""
        while self._once and self._once[0][0] <= due_ms:
            if self._monotonic() > end_s:
                return False
            _done(heapq.heappop(self._once)[2])
        return True


def _done(action: Callable[..., T], *arguments: int) -> T | None:
    """Return the result of an action; None if it raises."""
    try:
        return action(*arguments)
    except Exception:
        logger.exception("background work failed and will be tried again; please report it")
        return None
