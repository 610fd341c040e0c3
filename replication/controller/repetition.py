"""Repetition of failed work, at growing intervals."""

from collections.abc import Callable, Coroutine
from typing import Any, Final

FIRST_REPETITION_MS: Final = 1_000
LONGEST_REPETITION_MS: Final = 60_000
"""First and longest time from a failure to the repetition."""

RunLater = Callable[[int, Callable[[], Coroutine[Any, Any, None]]], None]
"""Runs a task after a delay in ms."""


class Repetition:
    """Schedules the repetition of one kind of work. After each failure it begins later.

    The interval is short again after `succeed`, or if the work fails later than LONGEST_REPETITION_MS after the last
    repetition: the outcome of some work is known only if it fails.
    """

    def __init__(self, run_later: RunLater, begin: Callable[[], None], monotonic_ms: Callable[[], int]) -> None:
        self.is_scheduled = False
        self._run_later = run_later
        self._begin = begin
        self._monotonic_ms = monotonic_ms
        self._begun_ms = monotonic_ms()
        self._interval_ms = FIRST_REPETITION_MS

    def schedule(self) -> None:
        """Repeat the work later, unless its repetition is scheduled already."""
        if self.is_scheduled:
            return
        self.is_scheduled = True
        if self._monotonic_ms() - self._begun_ms > LONGEST_REPETITION_MS:
            self.succeed()
        self._run_later(self._interval_ms, self._run)
        self._interval_ms = min(2 * self._interval_ms, LONGEST_REPETITION_MS)

    async def _run(self) -> None:
        self.is_scheduled = False
        self._begun_ms = self._monotonic_ms()
        self._begin()

    def succeed(self) -> None:
        """Let the next repetition begin soon after its failure."""
        self._interval_ms = FIRST_REPETITION_MS
