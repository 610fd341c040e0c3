"""Work that is due at a time, in small steps, with whatever blocks handed to a thread.

The owner of the clock calls `run_due(now_ms)` and comes again at the time it returns. Blocking work goes through a
`RunInThread`: the server gives Twisted's thread pool, tests and tools run it at once.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

Done = Callable[[Exception | None], None]
RunInThread = Callable[[Callable[[], None], Done], None]
"""Run the first anywhere, then call the second in the caller's thread with the exception it raised, or None."""

RunAll = Callable[[Sequence[Callable[[], None]], int], None]
"""Do all of them, in up to so many threads, and return when all is done (`parallel.run_all`)."""

Item = TypeVar("Item")

_LEAST_INTERVAL_MS = 10
"""Some properties may set an interval of 0, with which a job would take all of the reactor's time."""


def run_inline(work: Callable[[], None], done: Done) -> None:
    """A RunInThread without threads."""
    try:
        work()
    except Exception as error:
        done(error)
    else:
        done(None)


class Job:
    """Something done again and again. `step(now_ms)` does a small part; whether there is more to do at once."""

    __slots__ = ("due_ms", "interval_ms", "step")

    def __init__(self, step: Callable[[int], bool], interval_ms: int, first_due_ms: int) -> None:
        self.step = step
        self.interval_ms = interval_ms
        self.due_ms = first_due_ms


class Sweep(Generic[Item]):
    """A step that visits all items of a changing collection, a few at a time."""

    __slots__ = ("_items", "_remaining", "_visit", "_visits")

    def __init__(
        self, items: Callable[[], list[Item]], visit: Callable[[Item, int], None], visits_per_step: int
    ) -> None:
        self._items = items
        self._visit = visit
        self._visits = visits_per_step
        self._remaining: Iterator[Item] | None = None

    def __call__(self, now_ms: int) -> bool:
        if self._remaining is None:
            self._remaining = iter(self._items())
        for _ in range(self._visits):
            try:
                item = next(self._remaining)
            except StopIteration:
                self._remaining = None
                return False
            self._visit(item, now_ms)
        return True


class Schedule:
    """Jobs, and actions that are done once at their time."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self._once: list[tuple[int, int, Callable[[], None]]] = []
        self._added = 0

    def add(self, step: Callable[[int], bool], interval_ms: int, first_due_ms: int) -> Job:
        job = Job(step, interval_ms, first_due_ms)
        self.jobs.append(job)
        return job

    def once(self, due_ms: int, action: Callable[[], None]) -> None:
        self._added += 1
        heapq.heappush(self._once, (due_ms, self._added, action))

    def run_due(self, now_ms: int) -> int:
        """Do what is due; when to come again. A job that throws is left for its next time."""
        for job in self.jobs:
            if job.due_ms <= now_ms:
                job.due_ms = now_ms + max(job.interval_ms, _LEAST_INTERVAL_MS)
                if job.step(now_ms):
                    job.due_ms = now_ms
        while self._once and self._once[0][0] <= now_ms:
            heapq.heappop(self._once)[2]()
        dues = [job.due_ms for job in self.jobs]
        if self._once:
            dues.append(self._once[0][0])
        return max(now_ms, min(dues, default=now_ms))
