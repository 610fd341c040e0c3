"""Calls in the reactor's next iteration, which begins with a poll of the sockets.

An iteration has events and then timers: a timer without delay that an event has set is called in the same iteration.
"""

import itertools
from collections.abc import Callable

from odradek.server.work.clock import Clock, DelayedCall


class NextIteration:
    """One action at a time.

    `count_polls` returns how often the reactor has polled; an iteration lasts from one poll to the next. By default the
    reactor polls between any two calls of its timers.
    """

    __slots__ = ("_action", "_call", "_clock", "_count_polls", "_scheduled_at")

    def __init__(self, clock: Clock, count_polls: Callable[[], int] | None = None) -> None:
        self._clock = clock
        self._count_polls = count_polls or itertools.count().__next__
        self._action: Callable[[], None] | None = None
        self._call: DelayedCall | None = None
        self._scheduled_at = -1

    @property
    def is_scheduled(self) -> bool:
        """True until the action is called or cancelled."""
        return self._call is not None

    def schedule(self, action: Callable[[], None]) -> None:
        """Call `action` in the next iteration. No other one may be scheduled."""
        self._action = action
        self._scheduled_at = self._count_polls()
        self._call = self._clock.callLater(0, self._check)

    def cancel(self) -> None:
        """Do not call the action, if one is scheduled."""
        if self._call is not None:
            self._call.cancel()
            self._call = self._action = None

    def _check(self) -> None:
        if self._count_polls() == self._scheduled_at:
            self._call = self._clock.callLater(0, self._check)
            return
        action, self._action, self._call = self._action, None, None
        if action is not None:
            action()
