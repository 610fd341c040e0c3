"""Produce throughput, latency and CPU under replication factor 3 with acks=all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.cluster.contestant import ClusterContestant
from benchmarks.loader import LoadResult
from benchmarks.measure import MeasurementError, Pace, Values, start_loader
from benchmarks.rows import Row

LOADER_TIMEOUT_S = 600


def run_load(
    contestant: ClusterContestant, topic: str, partitions: int, measured_pids: Sequence[int], **fields: Any
) -> LoadResult:
    """Run one load on the leaders of a topic."""
    ports = contestant.leader_ports(topic, partitions)
    spec = {"topic": topic, "ports": ports, "broker_pids": measured_pids, "partitions": partitions, **fields}
    return start_loader(spec, LOADER_TIMEOUT_S)


def acknowledged_load(contestant: ClusterContestant, row: Row, pace: Pace) -> LoadResult:
    """Produce to a new topic and check that the log contains exactly the acknowledged records."""
    partitions = int(row.load.get("partitions", 1))
    with contestant.topic(partitions) as topic:
        load: dict[str, Any] = {"seconds": pace.seconds, "max_bytes": pace.max_bytes, **row.load, "kind": row.kind}
        load.pop("partitions", None)
        result = run_load(contestant, topic, partitions, contestant.pids, **load)
        held = contestant.end_offsets(topic, partitions)
    if held != result.acked_records:
        raise MeasurementError(f"{result.acked_records} records acknowledged, {held} in the log")
    if not result.requests:
        raise MeasurementError("no request was answered")
    return result


def produce(contestant: ClusterContestant, row: Row, pace: Pace) -> Values:
    """Measure throughput, latency, and CPU of all processes of the cluster for each GB of values (not of replicas)."""
    result = acknowledged_load(contestant, row, pace)
    return {
        "mb_per_s": result.payload_bytes / result.seconds / 1e6,
        "p50_us": result.p50_us,
        "p99_us": result.p99_us,
        "cpu_s_per_gb": result.broker_cpu_s / result.payload_bytes * 1e9,
        "loader_cores": result.loader_cpu_s / result.seconds,
    }


def requests(contestant: ClusterContestant, row: Row, pace: Pace) -> Values:
    """Measure latency with one request at a time on each connection."""
    result = acknowledged_load(contestant, row, pace)
    return {
        "requests_per_s": result.requests / result.seconds,
        "p50_us": result.p50_us,
        "p99_us": result.p99_us,
        "cpu_us_per_request": result.broker_cpu_s / result.requests * 1e6,
        "loader_cores": result.loader_cpu_s / result.seconds,
    }


def warm_up(contestant: ClusterContestant, row: Row, pace: Pace) -> None:
    """Run one unmeasured turn of a row, long enough for the JVM to compile the code."""
    acknowledged_load(
        contestant, row, pace._replace(seconds=pace.warm_up_seconds, max_bytes=2 * pace.max_bytes)
    )
