"""Processor time and resident memory of a process and its children, from Linux's /proc."""

from __future__ import annotations

import os
from pathlib import Path

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def process_tree(pid: int) -> list[int]:
    """Return `pid` and all its descendants."""
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            found += [int(child) for child in task.read_text().split()]
    return found


def cpu_seconds(pid: int) -> float:
    """Return user and system time of the tree under `pid` so far (resolution: one tick, 10 ms)."""
    ticks = 0
    for member in process_tree(pid):
        fields = Path(f"/proc/{member}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / TICKS_PER_SECOND


def resident_bytes(pid: int) -> int:
    return sum(int(Path(f"/proc/{p}/statm").read_text().split()[1]) for p in process_tree(pid)) * PAGE_BYTES
