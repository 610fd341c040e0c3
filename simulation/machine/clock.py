"""Simulated time: a queue of calls; nothing runs except through this queue."""

import heapq
from collections.abc import Callable
from typing import Any

from twisted.internet.error import AlreadyCalled, AlreadyCancelled


class Call:
    """A scheduled call: the used part of Twisted's IDelayedCall."""

    __slots__ = ("_args", "_clock", "_function", "_is_cancelled", "_kwargs", "time")

    def __init__(
        self, clock: "SimulatedClock", time: float, function: Callable[..., Any], args: Any, kwargs: Any
    ) -> None:
        self.time = time
        self._clock = clock
        self._function: Callable[..., Any] | None = function
        self._args = args
        self._kwargs = kwargs
        self._is_cancelled = False

    def active(self) -> bool:
        """Return whether the call is pending."""
        return self._function is not None

    def cancel(self) -> None:
        """Cancel the call. Raises AlreadyCancelled, AlreadyCalled."""
        if self._is_cancelled:
            raise AlreadyCancelled
        if self._function is None:
            raise AlreadyCalled
        self._is_cancelled = True
        self._function = self._args = self._kwargs = None

    def reset(self, delay: float) -> None:
        """Reschedule the call to `delay` seconds from now. Raises as `cancel`."""
        if self._function is None:
            raise AlreadyCancelled if self._is_cancelled else AlreadyCalled
        self.time = self._clock.seconds() + delay
        self._clock.push(self)

    def getTime(self) -> float:  # noqa: N802 - Twisted's name
        """Return the time of the call."""
        return self.time

    def calls(self, function: Callable[..., Any]) -> bool:
        """Return whether this is a pending call of a function."""
        return self._function == function

    def run(self) -> None:
        """Make the call."""
        function, args, kwargs = self._function, self._args, self._kwargs
        self._function = self._args = self._kwargs = None
        assert function is not None
        function(*args, **kwargs)


class SimulatedClock:
    """Twisted's IReactorTime. `step` advances to the next call and makes it; calls of one time run in order."""

    def __init__(self) -> None:
        self.steps = 0
        self._now = 0.0
        self._queue: list[tuple[float, int, Call]] = []
        self._added = 0

    def seconds(self) -> float:
        """Return the seconds since the start of the simulation."""
        return self._now

    def callLater(self, delay: float, callable: Callable[..., Any], *args: Any, **kwargs: Any) -> Call:  # noqa: N802
        """Schedule a call in `delay` seconds."""
        assert delay >= 0, f"{delay} is in the past"
        call = Call(self, self._now + delay, callable, args, kwargs)
        self.push(call)
        return call

    def push(self, call: Call) -> None:
        """Insert a call at its time."""
        self._added += 1
        heapq.heappush(self._queue, (call.time, self._added, call))

    def postpone(self, function: Callable[..., Any], time: float) -> None:
        """Reschedule all calls of a function that are due before a time to this time, in their order."""
        for due, _, call in sorted(self._queue, key=lambda entry: entry[:2]):
            if due < time and call.time == due and call.calls(function):
                call.time = time
                self.push(call)

    def getDelayedCalls(self) -> list[Call]:  # noqa: N802 - Twisted's name
        """Return all pending calls."""
        return [call for time, _, call in sorted(self._queue) if call.active() and call.time == time]

    def step(self) -> bool:
        """Make the next call. Return False if there is none."""
        queue = self._queue
        while queue:
            time, _, call = heapq.heappop(queue)
            # The entry is stale if its call was cancelled, or rescheduled and therefore has a second entry.
            if not call.active() or call.time != time:
                continue
            self._now = time
            self.steps += 1
            call.run()
            return True
        return False
