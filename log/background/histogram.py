"""Histograms of durations, for metrics: their number, and quantiles of the last minutes."""

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import Final

BUCKETS_PER_ROOT: Final = 200
"""A duration of `s` seconds is counted in bucket `int(s ** 0.25 * 200)`: its width is 20 % at 0.1 ms, 11 % at 1 ms, 6 %
at 10 ms and 2 % at 1 s. The fourth root is cheaper to compute than a logarithm, and the bucket of 0 is 0."""

WINDOW_S: Final = 60.0
WINDOWS: Final = 5
"""Quantiles are those of the last four to five minutes, about the time that Kafka's decaying samples cover."""


class Histogram:
    """Durations of a stage: the number of all of them, and those of the last windows by bucket.

    recent: the buckets of the present window, to which `bucket` is applied by the caller
    """

    __slots__ = ("_earlier", "recent", "windows")

    def __init__(self) -> None:
        self.recent: defaultdict[int, int] = defaultdict(int)
        self.windows: deque[dict[int, int]] = deque(maxlen=WINDOWS - 1)
        self._earlier = 0

    def record(self, duration_s: float) -> None:
        """Count a duration."""
        self.recent[int(duration_s**0.25 * BUCKETS_PER_ROOT)] += 1

    def begin_window(self) -> None:
        """Begin the next window."""
        self._earlier += sum(self.recent.values())
        self.windows.append(self.recent)
        self.recent = defaultdict(int)

    @property
    def count(self) -> int:
        """The number of all durations so far."""
        return self._earlier + sum(self.recent.values())

    def recent_buckets(self) -> defaultdict[int, int]:
        """Return the number of durations in each bucket in the last windows."""
        merged: defaultdict[int, int] = defaultdict(int)
        for window in (*self.windows, self.recent):
            for bucket, count in window.items():
                merged[bucket] += count
        return merged


def quantiles(buckets: Mapping[int, int], fractions: Sequence[float]) -> list[float]:
    """Return the durations in seconds below which these fractions of the durations in the buckets are; 0 without any.

    Within a bucket the durations are taken as evenly distributed. `fractions` are in ascending order.
    """
    total = sum(buckets.values())
    found: list[float] = []
    below = 0
    for bucket in sorted(buckets):
        count = buckets[bucket]
        while count and len(found) < len(fractions) and fractions[len(found)] * total <= below + count:
            part = (fractions[len(found)] * total - below) / count
            found.append(_duration_at(bucket + part) if bucket else 0.0)
        below += count
    return found or [0.0] * len(fractions)


def _duration_at(bucket: float) -> float:
    root = bucket / BUCKETS_PER_ROOT
    return root * root * root * root
