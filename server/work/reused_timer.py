"""A timer for waits that follow each other and seldom last until it expires."""

from collections.abc import Callable

from odradek.server.work.clock import Clock, DelayedCall


class ReusedTimer:
    """The timer of one wait at a time.

    The end of a wait leaves the reactor's delayed call in place, because to create and to cancel one takes longer than
    to read a small request. When the delayed call is made, it is repeated at the end of the wait that has begun since.
    """

    __slots__ = ("_arguments", "_call", "_call_s", "_clock", "_due_s", "_function")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._function: Callable[..., object] | None = None
        self._arguments: tuple[object, ...] = ()
        self._due_s = 0.0
        self._call: DelayedCall | None = None
        self._call_s = 0.0

    def start(self, delay_s: float, function: Callable[..., object], *arguments: object) -> None:
        """Call `function` after `delay_s` seconds unless `stop` is called before. No other wait may be in progress."""
        self._due_s = due_s = self._clock.seconds() + delay_s
        self._function = function
        self._arguments = arguments
        if self._call is None:
            self._schedule(delay_s)
        elif due_s < self._call_s:
            self._call.cancel()
            self._schedule(delay_s)

    def stop(self) -> None:
        """End the wait, if one is in progress."""
        self._function = None
        self._arguments = ()

    def release(self) -> None:
        """End the wait, and cancel the reactor's delayed call."""
        self.stop()
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def _schedule(self, delay_s: float) -> None:
        self._call_s = self._due_s
        self._call = self._clock.callLater(delay_s, self._check)

    def _check(self) -> None:
        self._call = None
        function, arguments = self._function, self._arguments
        if function is None:
            return
        rest_s = self._due_s - self._clock.seconds()
        if rest_s > 0:
            self._schedule(rest_s)
            return
        self.stop()
        function(*arguments)
