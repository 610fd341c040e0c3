"""Limits on background work: an I/O rate, and short breaks in which the main thread runs."""

from collections.abc import Callable

_BUSY_SECONDS = 0.003
_BREAK_SECONDS = 0.001
_MAX_SLEEP_SECONDS = 0.1


class Throttle:
    """Limit of the I/O rate: a call with the bytes of each read and write sleeps while the rate is exceeded.

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
        self._started = self._last_break = monotonic()
        self._bytes = 0

    def __call__(self, size_bytes: int) -> None:
        self._check()
        self._bytes += size_bytes
        self._limit_rate()

    def _limit_rate(self) -> float:
        """Sleep while the rate is exceeded, and return the current time."""
        now = self._monotonic()
        ahead = self._bytes / self._rate - (now - self._started)
        while ahead > 0:
            self._sleep(min(ahead, _MAX_SLEEP_SECONDS))
            self._check()
            ahead -= _MAX_SLEEP_SECONDS
            now = self._last_break = self._monotonic()
        return now


class Pacer(Throttle):
    """Throttle for background threads, with a short break every few milliseconds.

    A busy thread holds the interpreter's lock, and the main thread waits for it.
    """

    def __call__(self, size_bytes: int) -> None:
        self._check()
        self._bytes += size_bytes
        if self._limit_rate() - self._last_break >= _BUSY_SECONDS:
            self._sleep(_BREAK_SECONDS)
            self._last_break = self._monotonic()


class Pause:
    """Breaks of a background thread, as in `Pacer`, without a limit of the I/O rate. To be called often."""

    __slots__ = ("_last_break", "_monotonic", "_sleep")

    def __init__(self, monotonic: Callable[[], float], sleep: Callable[[float], None]) -> None:
        self._monotonic = monotonic
        self._sleep = sleep
        self._last_break = monotonic()

    def __call__(self) -> None:
        if self._monotonic() - self._last_break >= _BUSY_SECONDS:
            self._sleep(_BREAK_SECONDS)
            self._last_break = self._monotonic()
