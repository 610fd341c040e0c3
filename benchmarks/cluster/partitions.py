"""Creation of many partitions: its time, the delays of another client meanwhile, and the memory of brokers."""

from __future__ import annotations

import time

from benchmarks.cluster.contestant import ClusterContestant
from benchmarks.fairness.ping import Delays, measure_delays
from benchmarks.measure import Pace, Values
from benchmarks.procfs import resident_bytes
from benchmarks.rows import Row

PARTITIONS = 1000
SETTLE_S = 1.0
IDLE_S = 4.0


def partitions(contestant: ClusterContestant, row: Row, pace: Pace) -> Values:
    """Create one topic of 1,000 partitions. The time ends when all brokers report them in sync.

    Another client sends a small request to one of the brokers each millisecond until then. Memory is the largest of the
    brokers'; the CPU of all processes is measured while the partitions are idle.
    """
    name = contestant.next_name()
    delays: list[Delays] = []
    try:
        with measure_delays(contestant.any_port, delays):
            # The other client's connection and code are warm.
            time.sleep(SETTLE_S)
            begin_s = time.monotonic()
            contestant.create(name, PARTITIONS)
            contestant.await_whole(name, PARTITIONS)
            create_s = time.monotonic() - begin_s
        time.sleep(SETTLE_S)
        cpu_s, idle_from_s = contestant.cpu_seconds(), time.monotonic()
        time.sleep(IDLE_S)
        idle_cpu_share = (contestant.cpu_seconds() - cpu_s) / (time.monotonic() - idle_from_s)
        largest_bytes = max(resident_bytes(pid) for pid in contestant.broker_pids)
    finally:
        contestant.delete(name)
    return {
        "create_s": create_s,
        "p999_ms": delays[0].p999_ms,
        "broker_mb": largest_bytes / 1e6,
        "idle_cpu_share": idle_cpu_share,
    }
