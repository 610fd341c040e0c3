"""The rate at which a follower copies what it missed while it was down."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.cluster.contestant import ClusterContestant
from benchmarks.cluster.load import run_load
from benchmarks.cluster.topics import describe, wait_until
from benchmarks.fairness.ping import Delays, measure_delays
from benchmarks.measure import MeasurementError, Pace, Values
from benchmarks.procfs import cpu_seconds
from benchmarks.rows import LARGE_BATCH, Row

PARTITIONS = 3
FILL_S = 500.0
TIMEOUT_S = 500.0
POLL_S = 0.05


def _copied_bytes(data_dir: Path, topic: str) -> int:
    """Return the allocated size of a topic's segments."""
    return sum(512 * file.stat().st_blocks for file in data_dir.glob(f"{topic}-*/*.log"))


def catch_up(contestant: ClusterContestant, row: Row, pace: Pace) -> Values:
    """Stop a broker, produce, start it: from the first bytes that it copies until it is in sync everywhere.

    Another client sends small requests to a leader meanwhile.

    A broker may have copied much before it is ready for clients, so that another thread looks for the first bytes. The
    CPU time includes the start of the follower.
    """
    with contestant.topic(PARTITIONS) as topic, ThreadPoolExecutor(1) as pool:
        follower = max(contestant.ports)
        other_port = contestant.any_port
        data_dir = contestant.cluster.brokers[follower].data_dir
        others = set(contestant.pids) - {contestant.cluster.brokers[follower].pid}
        contestant.cluster.stop_broker(follower)
        try:
            wait_until(lambda: _is_without(other_port, topic, follower), f"broker {follower} is out of the ISR")
            load = {**LARGE_BATCH, "connections": PARTITIONS, "warm_s": 0, "seconds": FILL_S}
            filled = run_load(contestant, topic, PARTITIONS, (), kind="produce", max_bytes=pace.missed_bytes, **load)
            if filled.payload_bytes < pace.missed_bytes:
                raise MeasurementError(f"only {filled.payload_bytes / 1e9:.1f} GB written in {FILL_S:.0f} s")
            cpu_s = sum(cpu_seconds(pid) for pid in others)
            first_bytes_s = pool.submit(_time_of_first_bytes, data_dir, topic)
        finally:
            contestant.cluster.start_broker(follower)
        begin_s = first_bytes_s.result()
        delays: list[Delays] = []
        with measure_delays(other_port, delays):
            wait_until(
                lambda: all(state.is_whole for state in describe(other_port, topic).partitions.values()),
                f"broker {follower} is in sync",
                TIMEOUT_S,
                POLL_S,
            )
        seconds, cpu_s = time.monotonic() - begin_s, contestant.cpu_seconds() - cpu_s
    return {
        "mb_per_s": filled.payload_bytes / seconds / 1e6,
        "cpu_s_per_gb": cpu_s / filled.payload_bytes * 1e9,
        "p999_ms": delays[0].p999_ms,
    }


def _time_of_first_bytes(data_dir: Path, topic: str) -> float:
    """Wait until more of a topic is in a directory; return the time of `time.monotonic`."""
    before_bytes = _copied_bytes(data_dir, topic)
    wait_until(lambda: _copied_bytes(data_dir, topic) > before_bytes, "the first bytes are copied", poll_s=0.005)
    return time.monotonic()


def _is_without(port: int, topic: str, broker: int) -> bool:
    states = describe(port, topic).partitions.values()
    return all(state.leader not in (-1, broker) and broker not in state.isr for state in states)
