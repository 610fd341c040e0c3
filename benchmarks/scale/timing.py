"""Medians and maxima of measured times, and the iterations of a broker's event loop."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.procfs import process_tree
from odradek.testing import OdradekBroker

SLOW_ITERATIONS = {"reactor.slow.iteration.ms": "4"}
"""The broker logs longer iterations."""

_SLOW = re.compile(r"reactor iteration was slow.* cpu_ms=(\d+) ")


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


def read_children_cpu_ms() -> float:
    """Return the CPU time so far of all processes that this one has started, such as a broker and a console."""
    total_ns = 0
    for pid in process_tree(os.getpid())[1:]:
        for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            # A thread may end meanwhile.
            with suppress(OSError):
                total_ns += int(task.read_text().split()[0])
    return total_ns / 1e6


class IterationTimes:
    """The iterations of a broker's event loop that it has logged as slow (`SLOW_ITERATIONS`)."""

    def __init__(self, broker: OdradekBroker) -> None:
        self._broker = broker
        self._seen = 0

    def take(self) -> str:
        """Return the most CPU time of an iteration since the last call, in ms."""
        found = [int(text) for text in _SLOW.findall(self._broker.log_text())]
        new, self._seen = found[self._seen :], len(found)
        least = int(SLOW_ITERATIONS["reactor.slow.iteration.ms"])
        longest = max(new, default=0)
        return f"< {least}" if longest < least else str(longest)
