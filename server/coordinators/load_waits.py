"""Requests that wait for the load of a coordinator's shard."""

from collections import deque
from collections.abc import Callable

from twisted.python.failure import Failure

from odradek.coordinator.steps import Steps
from odradek.server.work.clock import Clock, DelayedCall
from odradek.server.work.slices import Slices
from odradek.server.work.waits import Wait


class LoadWaits:
    """The requests that wait for one load, until it ends but at most `timeout_ms` from the first one on.

    Requests that arrive later do not wait.
    """

    def __init__(
        self, clock: Clock, slices: Slices, timeout_ms: int, report_failure: Callable[[Failure], None]
    ) -> None:
        self._clock = clock
        self._slices = slices
        self._timeout_s = timeout_ms / 1000
        self._report_failure = report_failure
        self._is_over = False
        self._timer: DelayedCall | None = None
        self._waiting: deque[Wait[None]] = deque()

    def add(self, describe: Callable[[], str]) -> Wait[None] | None:
        """Return a Deferred of the end of the wait; None if it is over."""
        if self._is_over:
            return None
        if self._timer is None:
            self._timer = self._clock.callLater(self._timeout_s, self.end)
        wait: Wait[None] = Wait(describe)
        self._waiting.append(wait)
        return wait

    def end(self) -> None:
        """Continue the requests, in slices and in the order of their arrival."""
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._is_over = True
        self._slices.run(self._continue_all()).addErrback(self._report_failure)

    def _continue_all(self) -> Steps[None]:
        while self._waiting:
            wait = self._waiting.popleft()
            # A request ends earlier if its connection is closed.
            if not wait.called:
                wait.callback(None)
            yield
