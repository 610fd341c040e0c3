"""Rates over samples, and token buckets, with the arithmetic of Kafka's metrics (Rate, SampledStat, TokenBucket).

Times are milliseconds of a monotonic clock.
"""

import math
from array import array
from typing import Final, NamedTuple

from odradek.properties import INT32_MAX

_STARTED, _USED, _VALUE = 0, 1, 2
_FIELDS: Final = 3


class Window(NamedTuple):
    """The samples over which a rate is measured."""

    samples: int
    sample_ms: int


class SampledRate:
    """The rate per second of a quantity over the last samples.

    As in Kafka the rate refers to at least all samples but one, so that a burst of that length is permitted.
    """

    __slots__ = ("_current", "_samples")

    def __init__(self) -> None:
        # Start, last use and sum of each sample, in one array: there may be a rate for each of 100,000 clients.
        self._samples = array("d")
        self._current = 0

    def record(self, window: Window, value: float, time_ms: int) -> None:
        """Add a value, which may be negative."""
        samples = self._samples
        if not samples:
            samples.extend((time_ms, time_ms, 0.0))
        at = self._current * _FIELDS
        if time_ms - samples[at + _STARTED] >= window.sample_ms:
            # One sample more than the window has: an old sample counts as long as a part of it is within the window.
            self._current = (self._current + 1) % (window.samples + 1)
            at = self._current * _FIELDS
            samples[at : at + _FIELDS] = array("d", (time_ms, time_ms, 0.0))
        samples[at + _USED] = time_ms
        samples[at + _VALUE] += value

    def measure(self, window: Window, time_ms: int) -> tuple[float, int]:
        """Return the rate, and the length in ms of the window to which it refers."""
        samples = self._samples
        count, sample_ms = window
        duration_ms = count * sample_ms
        oldest_ms: float = time_ms
        total = 0.0
        for at in range(0, len(samples), _FIELDS):
            if time_ms - samples[at + _USED] >= duration_ms:
                samples[at : at + _FIELDS] = array("d", (time_ms, time_ms, 0.0))
            else:
                total += samples[at + _VALUE]
                if samples[at] < oldest_ms:
                    oldest_ms = samples[at]
        elapsed_ms = time_ms - int(oldest_ms)
        missing = count - 1 - elapsed_ms // sample_ms
        if missing > 0:
            elapsed_ms += missing * sample_ms
        window_ms = max(elapsed_ms, 1)
        return total / (window_ms / 1000), window_ms


class TokenBucket:
    """Credits that are refilled at the rate of a quota, up to a burst of the whole window (KIP-599).

    As in Kafka a new bucket is full.
    """

    __slots__ = ("_tokens", "_updated_ms")

    def __init__(self) -> None:
        self._tokens = math.inf
        self._updated_ms = 0

    def measure(self, window: Window, bound: float, time_ms: int) -> float:
        """Return the credits; a negative number if the quota is exhausted."""
        burst = window.samples * window.sample_ms / 1000 * bound
        refilled = self._tokens + bound * (time_ms - self._updated_ms) / 1000
        self._tokens = min(burst, refilled)
        self._updated_ms = time_ms
        return self._tokens

    def record(self, window: Window, bound: float, value: float, time_ms: int) -> None:
        """Spend credits."""
        self._tokens = self.measure(window, bound, time_ms) - value


def round_ms(duration_ms: float) -> int:
    """Return a throttle time in ms, rounded as in Java, within the range of the protocol's field."""
    return min(math.floor(duration_ms + 0.5), INT32_MAX) if duration_ms < INT32_MAX else INT32_MAX


def find_throttle_ms(rate: float, bound: float, window_ms: int) -> int:
    """Return the time after which the rate is `bound`, if nothing is recorded until then; 0 if it does not exceed it.

    With the observed rate O over a window of W, X solves O * W / (W + X) = T.
    """
    if rate <= bound:
        return 0
    return round_ms((rate - bound) / bound * window_ms) if bound > 0 else INT32_MAX
