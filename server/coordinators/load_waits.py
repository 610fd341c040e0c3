"""Requests that wait for the load of a coordinator's shard."""

from collections import deque
from collections.abc import Callable

from twisted.python.failure import Failure

from odradek.coordinator.steps import Steps
from odradek.server.work.clock import Clock, DelayedCall
from odradek.server.work.slices import Slices
from odradek.server.work.waits import Wait


class LoadWaits:
    """The requests that wait for one load, until it ends but at most `timeout_ms` from its begin on.

    They continue in slices after the end, never within it, in the order of their arrival. `on_continued` is called when
    all of them have continued.
    """

    def __init__(
        self,
        clock: Clock,
        slices: Slices,
        timeout_ms: int,
        on_continued: Callable[["LoadWaits"], None],
        report_failure: Callable[[Failure], None],
    ) -> None:
        self._clock = clock
        self._slices = slices
        self._deadline_s = clock.seconds() + timeout_ms / 1000
        self._on_continued = on_continued
        self._report_failure = report_failure
        self._is_over = False
        self._is_continuing_one = False
        self._timer: DelayedCall | None = None
        self._waiting: deque[Wait[None]] = deque()

    def add(self, describe: Callable[[], str], *, in_order: bool) -> Wait[None] | None:
        """Return a Deferred of the end of the wait; None if it is over.

        in_order: the request also waits until those that arrived before have continued
        """
        if self._is_over or self._clock.seconds() >= self._deadline_s:
            if self._is_continuing_one or not (in_order and self._waiting):
                return None
        else:
            self._start_timer()
        wait: Wait[None] = Wait(describe)
        self._waiting.append(wait)
        return wait

    def take_over(self, previous: "LoadWaits") -> None:
        """Let the requests that have not continued after an earlier load wait for this one, before any other.

        The deadline is that of the earlier load: the requests do not wait longer because leaders change repeatedly.
        """
        self._waiting, previous._waiting = previous._waiting, self._waiting
        if self._waiting:
            self._deadline_s = previous._deadline_s
            self._start_timer()

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = self._clock.callLater(max(self._deadline_s - self._clock.seconds(), 0), self.end)

    def end(self) -> None:
        """Continue the requests. Without effect after the first call."""
        if self._is_over:
            return
        self._is_over = True
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        if self._waiting:
            self._slices.run_later(self._continue_all()).addErrback(self._report_failure)
        else:
            self._on_continued(self)

    def _continue_all(self) -> Steps[None]:
        while self._waiting:
            wait = self._waiting.popleft()
            # A request ends earlier if its connection is closed.
            if not wait.called:
                self._is_continuing_one = True
                wait.callback(None)
                self._is_continuing_one = False
            yield
        self._on_continued(self)
