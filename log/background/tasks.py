"""Scheduled work in small steps, with blocking calls on threads.

Due times are on the monotonic clock. The owner of a `Schedule` calls `run_due(now_ms)`, and again after the time that
it returns; `now_ms` is the wall clock, for comparison with records' timestamps. Blocking work is passed to a
`RunInThread`: the server passes Twisted's thread pool, tests and tools a function that runs it immediately.
"""

import heapq
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Generic, TypeVar

logger = logging.getLogger(__name__)

Done = Callable[[Exception | None], None]
RunInThread = Callable[[Callable[[], None], Done], None]
"""Run the first argument in any thread; then call the second in the caller's thread with its exception, or None."""

RunAll = Callable[[Sequence[Callable[[], None]], int], None]
"""Run all actions, in up to the given number of threads, and return when all have ended (`parallel.run_all`)."""

Item = TypeVar("Item")

STEP_S: Final = 0.002
"""Maximum duration of a step; the remaining work runs after other work of the reactor."""

SHORTAGE_RETRY_MS: Final = 5_000
"""Time until work is repeated for which disk space, descriptors or memory was short."""

_MIN_INTERVAL_MS = 10
"""Some properties allow an interval of 0, with which a job would use all of the reactor's time."""


class Postponed(Exception):  # noqa: N818 - not an error
    """Work that cannot be completed now, and is to be begun again later."""


def run_inline(work: Callable[[], None], done: Done) -> None:
    """Implement RunInThread without threads."""
    try:
        work()
    except Exception as error:
        done(error)
    else:
        done(None)


def drain(items: list[Item]) -> Iterator[Item]:
    """Yield the items in order and remove each from the list, so that the list keeps no deleted log in memory."""
    items.reverse()
    while items:
        yield items.pop()


class Job:
    """Periodic work. `step(now_ms)` does a part of it and returns whether more is to be done immediately.

    `due_ms` is on the monotonic clock, `now_ms` on the wall clock.
    """

    __slots__ = ("due_ms", "interval_ms", "step")

    def __init__(self, step: Callable[[int], bool], interval_ms: int, first_due_ms: int) -> None:
        self.step = step
        self.interval_ms = interval_ms
        self.due_ms = first_due_ms


class Sweep(Generic[Item]):
    """A job's step that visits all items of a changing collection, a few items per step.

    A step ends after `visits_per_step` visits, or after STEP_S on the clock `monotonic`. An exception of a visit is
    logged, and the sweep continues.
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
                logger.exception("background work failed and will be retried; please report it item=%r", item)
            if self._monotonic() > end_s:
                break
        return True


class Schedule:
    """Periodic jobs and one-time actions, due on the monotonic clock (s).

    A change of the wall clock neither delays nor hastens them. `now_ms` is the wall clock of the last `run_due`.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self.now_ms = 0
        self.jobs: list[Job] = []
        self._once: list[tuple[int, int, Callable[[], None]]] = []
        self._added = 0

    def add(self, step: Callable[[int], bool], interval_ms: int, first_delay_ms: int) -> Job:
        """Schedule a periodic job."""
        job = Job(step, interval_ms, self.monotonic_ms() + first_delay_ms)
        self.jobs.append(job)
        return job

    def once(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Schedule a one-time action."""
        self._added += 1
        heapq.heappush(self._once, (self.monotonic_ms() + delay_ms, self._added, action))

    def run_due(self, now_ms: int) -> int:
        """Run due work, the longest overdue first; begin no step after STEP_S. Return the delay (ms) to the next call.

        Exceptions are logged; a job continues after its interval, a one-time action is not repeated.
        """
        self.now_ms = now_ms
        monotonic_ms = self.monotonic_ms()
        end_s = self._monotonic() + STEP_S
        for job in sorted((job for job in self.jobs if job.due_ms <= monotonic_ms), key=lambda job: job.due_ms):
            if not self._run_once_until(job.due_ms, end_s) or self._monotonic() > end_s:
                return 0
            job.due_ms = monotonic_ms + max(job.interval_ms, _MIN_INTERVAL_MS)
            if _run_step(job, now_ms):
                job.due_ms = self.monotonic_ms()
        if not self._run_once_until(monotonic_ms, end_s):
            return 0
        dues = [job.due_ms for job in self.jobs]
        if self._once:
            dues.append(self._once[0][0])
        return max(0, min(dues, default=monotonic_ms) - self.monotonic_ms())

    def monotonic_ms(self) -> int:
        """Return the monotonic clock (ms)."""
        return round(self._monotonic() * 1000)

    def _run_once_until(self, due_ms: int, end_s: float) -> bool:
        """Run the actions due by `due_ms`; return whether all of them were run before `end_s`."""
        while self._once and self._once[0][0] <= due_ms:
            if self._monotonic() > end_s:
                return False
            action = heapq.heappop(self._once)[2]
            try:
                action()
            except Exception:
                logger.exception("background work failed and is not retried; please report it")
        return True


def _run_step(job: Job, now_ms: int) -> bool:
    """Return whether more is to be done immediately; not if the step raises, which is logged."""
    try:
        return job.step(now_ms)
    except Exception:
        logger.exception("background work failed and will be retried; please report it")
        return False
