"""Medians and maxima of measured times, and tables of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple


class Times(NamedTuple):
    """The median and the longest of some times."""

    median_ms: float
    max_ms: float

    def __str__(self) -> str:
        return f"{self.median_ms:9.1f} {self.max_ms:9.1f}"


def summarize(times_ms: Sequence[float]) -> Times:
    """Return the median and the longest."""
    return Times(median(times_ms), max(times_ms))


def measure_ms(work: Callable[[], object]) -> float:
    """Return the time that a call takes."""
    began_s = time.perf_counter()
    work()
    return (time.perf_counter() - began_s) * 1000
