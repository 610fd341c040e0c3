"""Creation of many partitions: its time, the delays of another client meanwhile, and the memory of brokers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from benchmarks import wire
from benchmarks.cluster.contestant import ClusterContestant
from benchmarks.cluster.topics import wait_until
from benchmarks.fairness.ping import Delays, measure_delays
from benchmarks.measure import Pace, Values
from benchmarks.procfs import resident_bytes
from benchmarks.rows import Row

PARTITIONS = 1000
SETTLE_S = 1.0
IDLE_S = 4.0
TIMEOUT_S = 120.0


def partitions(contestant: ClusterContestant, row: Row, pace: Pace) -> Values:
    """Create one topic of 1,000 partitions.

    One time ends when all brokers report them in sync, another one when a record has been acknowledged in each, which
    requires the logs of all replicas. Another client sends a small request to one of the brokers each millisecond until
    then. Memory is the largest of the brokers'; the CPU of all processes is measured while the partitions are idle.
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
            _produce_to_all(contestant, name)
            first_records_s = time.monotonic() - begin_s
        time.sleep(SETTLE_S)
        cpu_s, idle_from_s = contestant.cpu_seconds(), time.monotonic()
        time.sleep(IDLE_S)
        idle_cpu_share = (contestant.cpu_seconds() - cpu_s) / (time.monotonic() - idle_from_s)
        largest_bytes = max(resident_bytes(pid) for pid in contestant.broker_pids)
    finally:
        contestant.delete(name)
    return {
        "create_s": create_s,
        "first_records_s": first_records_s,
        "p999_ms": delays[0].p999_ms,
        "broker_mb": largest_bytes / 1e6,
        "idle_cpu_share": idle_cpu_share,
    }


def _produce_to_all(contestant: ClusterContestant, topic: str) -> None:
    """Return when each partition has acknowledged a record with acks=all. Raises WireError, OSError."""
    ports = contestant.leader_ports(topic, PARTITIONS)
    with ThreadPoolExecutor(len(set(ports))) as pool:
        led = [[index for index in range(PARTITIONS) if ports[index] == port] for port in set(ports)]
        for _ in pool.map(partial(_produce, topic), set(ports), led):
            pass


def _produce(topic: str, port: int, partitions: Sequence[int]) -> None:
    """Send a record to each partition, and again to those that refuse it, until all have acknowledged one."""
    waiting = list(partitions)
    batch = wire.record_batch(100, 1, wire.now_ms())

    def is_acknowledged() -> bool:
        with wire.Admin(port, timeout_s=TIMEOUT_S) as connection:
            response = connection.exchange(wire.produce_to_all_frame(topic, waiting, batch))
        waiting[:] = [index for index, code in wire.read_produce_errors(response, topic).items() if code]
        return not waiting

    wait_until(is_acknowledged, f"a record in each partition of {topic}", TIMEOUT_S)
