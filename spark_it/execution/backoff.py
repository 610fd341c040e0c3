"""Exponential backoff for transient failures: delays up to `retry.delay.max.ms`, until `retry.timeout` is exceeded."""

import time
from collections.abc import Callable

from odradek.spark_it.definition.settings import ErrorSettings

FIRST_DELAY_S = 0.5


class Backoff:
    """The delays between restarts of one pipeline's query."""

    def __init__(self, errors: ErrorSettings, now: Callable[[], float] = time.monotonic) -> None:
        self._longest_s = errors.retry_delay_max_ms / 1000
        self._timeout_s = None if errors.retry_timeout < 0 else errors.retry_timeout / 1000
        self._now = now
        self.reset()

    def reset(self) -> None:
        """Start again with the first delay, after a success."""
        self._first_at: float | None = None
        self._delay_s = min(FIRST_DELAY_S, self._longest_s)

    def next_delay_s(self) -> float | None:
        """Return the delay before the next attempt, and double it; None if it would exceed the timeout."""
        now = self._now()
        if self._first_at is None:
            self._first_at = now
        delay_s = self._delay_s
        if self._timeout_s is not None and now + delay_s > self._first_at + self._timeout_s:
            return None
        self._delay_s = min(delay_s * 2, self._longest_s)
        return delay_s
