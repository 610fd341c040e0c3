"""Coroutines that run after a delay, as long as the broker does."""

import logging
from collections.abc import Callable, Coroutine
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import SchedulerStopped

logger = logging.getLogger(__name__)


class DelayedTasks:
    """Tasks that wait for their time. `clock` is the reactor."""

    def __init__(self, clock: Any) -> None:
        self._clock = clock
        self._timers: set[Any] = set()
        self._is_stopped = False

    def run_later(self, delay_ms: int, task: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a task after `delay_ms`, unless `stop` comes first."""
        if self._is_stopped:
            return

        def run() -> None:
            self._timers.discard(timer)
            Deferred.fromCoroutine(task()).addErrback(_report)

        timer = self._clock.callLater(delay_ms / 1000, run)
        self._timers.add(timer)

    def stop(self) -> None:
        """Drop the tasks that wait."""
        self._is_stopped = True
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()


def _report(failure: Any) -> None:
    if isinstance(failure.value, SchedulerStopped):
        # The broker stops, and whoever starts next takes it up.
        return
    logger.error("a delayed task failed; please report it", exc_info=failure.value)
