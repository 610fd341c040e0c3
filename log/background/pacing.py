"""Limits on background work: a rate for the disk, and short breaks for the main thread."""

from collections.abc import Callable

_BUSY_SECONDS = 0.003
_BREAK_SECONDS = 0.001
_LONGEST_SLEEP_SECONDS = 0.1


class Throttle:
    """Sleeps so that reads and writes keep to a rate; called with the bytes of each.

    `check` is called often, and may raise to end the work.
    """

    def __init__(
        self,
        bytes_per_second: float,
        monotonic: Callable[[], float],
        sleep: Callable[[float], None],
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._rate = bytes_per_second
        self._monotonic = monotonic
        self._sleep = sleep
        self._check = check
        self._started = self._rested = monotonic()
        self._bytes = 0

    def __call__(self, size_bytes: int) -> None:
        self._check()
        self._bytes += size_bytes
        self._keep_to_rate()

    def _keep_to_rate(self) -> float:
        """Sleep while the rate is exceeded, and return the current time."""
        now = self._monotonic()
        ahead = self._bytes / self._rate - (now - self._started)
        while ahead > 0:
            self._sleep(min(ahead, _LONGEST_SLEEP_SECONDS))
            self._check()
            ahead -= _LONGEST_SLEEP_SECONDS
            now = self._rested = self._monotonic()
        return now


class Pacer(Throttle):
    """A throttle for a thread beside the main one.

    It takes a short break every few milliseconds, since a busy thread holds the interpreter and the main thread has
    to wait for it.
    """

    def __call__(self, size_bytes: int) -> None:
        self._check()
        self._bytes += size_bytes
        if self._keep_to_rate() - self._rested >= _BUSY_SECONDS:
            self._sleep(_BREAK_SECONDS)
            self._rested = self._monotonic()


class Pause:
    """Called often by a thread beside the main one: takes a short break every few milliseconds, as `Pacer`."""

    __slots__ = ("_monotonic", "_rested", "_sleep")

    def __init__(self, monotonic: Callable[[], float], sleep: Callable[[float], None]) -> None:
        self._monotonic = monotonic
        self._sleep = sleep
        self._rested = monotonic()

    def __call__(self) -> None:
        if self._monotonic() - self._rested >= _BUSY_SECONDS:
            self._sleep(_BREAK_SECONDS)
            self._rested = self._monotonic()
