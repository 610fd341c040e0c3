"""Limits on background work: an I/O rate, and short breaks in which the main thread can run."""

from collections.abc import Callable

_BUSY_SECONDS = 0.003
_BREAK_SECONDS = 0.001
_MAX_SLEEP_SECONDS = 0.1


class RateLimiter:
    """Limit of the I/O rate: a call with the bytes of a read or write sleeps while the rate is exceeded.

    `monotonic` and `sleep` are in seconds. `check` is called at every call and during sleeps; it may raise to end the
    work.
    """

    def __init__(
        self,
        bytes_per_second: float,
        monotonic: Callable[[], float],
        sleep: Callable[[float], None],
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._bytes_per_second = bytes_per_second
        self._monotonic = monotonic
        self._sleep = sleep
        self._check = check
        self._started_s = self._last_break_s = monotonic()
        self._done_bytes = 0

    def __call__(self, size_bytes: int) -> None:
        self._check()
        self._done_bytes += size_bytes
        self._limit_rate()

    def _limit_rate(self) -> float:
        """Sleep while the rate is exceeded, and return the current time in seconds."""
        now_s = self._monotonic()
        excess_s = self._done_bytes / self._bytes_per_second - (now_s - self._started_s)
        while excess_s > 0:
            self._sleep(min(excess_s, _MAX_SLEEP_SECONDS))
            self._check()
            excess_s -= _MAX_SLEEP_SECONDS
            now_s = self._last_break_s = self._monotonic()
        return now_s


class Pacer(RateLimiter):
    """RateLimiter for background threads, with a short break every few milliseconds.

    A busy thread holds the interpreter's lock, for which the main thread waits.
    """

    def __call__(self, size_bytes: int) -> None:
        self._check()
        self._done_bytes += size_bytes
        if self._limit_rate() - self._last_break_s >= _BUSY_SECONDS:
            self._sleep(_BREAK_SECONDS)
            self._last_break_s = self._monotonic()


class Pause:
    """Breaks of a background thread, as in `Pacer`, without a limit of the I/O rate. To be called often."""

    __slots__ = ("_last_break_s", "_monotonic", "_sleep")

    def __init__(self, monotonic: Callable[[], float], sleep: Callable[[float], None]) -> None:
        self._monotonic = monotonic
        self._sleep = sleep
        self._last_break_s = monotonic()

    def __call__(self) -> None:
        if self._monotonic() - self._last_break_s >= _BUSY_SECONDS:
            self._sleep(_BREAK_SECONDS)
            self._last_break_s = self._monotonic()
