"""Simulated time: a queue of calls, and nothing happens but what is in it."""

import heapq
from collections.abc import Callable
from typing import Any

from twisted.internet.error import AlreadyCalled, AlreadyCancelled


class Call:
    """A call to come; Twisted's IDelayedCall as far as it is used."""

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
        """Whether it is still to come."""
        return self._function is not None

    def cancel(self) -> None:
        """Do not call. Raises AlreadyCancelled, AlreadyCalled."""
        if self._is_cancelled:
            raise AlreadyCancelled
        if self._function is None:
            raise AlreadyCalled
        self._is_cancelled = True
        self._function = self._args = self._kwargs = None

    def reset(self, delay: float) -> None:
        """Call `delay` seconds from now instead. Raises as `cancel`."""
        if self._function is None:
            raise AlreadyCancelled if self._is_cancelled else AlreadyCalled
        self.time = self._clock.seconds() + delay
        self._clock.push(self)

    def getTime(self) -> float:  # noqa: N802 - Twisted's name
        """When it will be called."""
        return self.time

    def run(self) -> None:
        """The time has come."""
        function, args, kwargs = self._function, self._args, self._kwargs
        self._function = self._args = self._kwargs = None
        assert function is not None
        function(*args, **kwargs)


class SimulatedClock:
    """Twisted's IReactorTime. `step` goes to the next call and makes it; calls of one time come in the order made."""

    def __init__(self) -> None:
        self.steps = 0
        self._now = 0.0
        self._queue: list[tuple[float, int, Call]] = []
        self._added = 0

    def seconds(self) -> float:
        """Seconds since the world began."""
        return self._now

    def callLater(self, delay: float, callable: Callable[..., Any], *args: Any, **kwargs: Any) -> Call:  # noqa: N802
        """Call it `delay` seconds from now."""
        assert delay >= 0, f"{delay} is in the past"
        call = Call(self, self._now + delay, callable, args, kwargs)
        self.push(call)
        return call

    def push(self, call: Call) -> None:
        """Put a call where its time says."""
        self._added += 1
        heapq.heappush(self._queue, (call.time, self._added, call))

    def getDelayedCalls(self) -> list[Call]:  # noqa: N802 - Twisted's name
        """All calls to come."""
        return [call for time, _, call in sorted(self._queue) if call.active() and call.time == time]

    def step(self) -> bool:
        """Make the next call; False if there is none."""
        queue = self._queue
        while queue:
            time, _, call = heapq.heappop(queue)
            # One that was cancelled, or is in the queue a second time, for later.
            if not call.active() or call.time != time:
                continue
            self._now = time
            self.steps += 1
            call.run()
            return True
        return False
