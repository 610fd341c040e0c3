"""Coroutines that run after a delay, unless the broker stops first."""

import logging
from collections.abc import Callable

from twisted.internet.defer import Deferred
from twisted.internet.task import SchedulerStopped
from twisted.python.failure import Failure

from odradek.server.work.clock import Clock, DelayedCall
from odradek.server.work.waits import AsyncWork

logger = logging.getLogger(__name__)


class DelayedTasks:
    """Runs coroutines after a delay. `clock` is the reactor."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._timers: set[DelayedCall] = set()
        self._is_stopped = False

    def run_later(self, delay_ms: int, task: Callable[[], AsyncWork[None]]) -> None:
        """Run a task after `delay_ms`, unless `stop` is called first."""
        if self._is_stopped:
            return

        def run() -> None:
            self._timers.discard(timer)
            Deferred.fromCoroutine(task()).addErrback(_report)

        timer = self._clock.callLater(delay_ms / 1000, run)
        self._timers.add(timer)

    def stop(self) -> None:
        """Cancel the tasks that have not begun."""
        self._is_stopped = True
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()


def _report(failure: Failure) -> None:
    if isinstance(failure.value, SchedulerStopped):
        # The broker is stopping; its next start continues the task.
        return
    logger.error("a delayed task failed; please report it", exc_info=failure.value)
