"""The measurements: one turn of one row against a running broker, as a mapping of metric names to values."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import brokers, restarts, wire
from benchmarks.brokers import RestartableBroker, RunningBroker
from benchmarks.loader import LoadResult
from benchmarks.procfs import cpu_seconds, resident_bytes
from benchmarks.rows import LARGE_BATCH, ONE_RECORD, SMALL_BATCH, TRANSACTIONS, Row

ROOT = Path(__file__).resolve().parent.parent
LOADER_TIMEOUT_S = 120
TOOL_TIMEOUT_S = 180
FILL_TIMEOUT_S = 400
TOOL_RECORDS, TOOL_WARM_UP_RECORDS, TOOL_RECORD_BYTES = 600_000, 200_000, 1024
CONSUMER_PERFORMANCE_FIELDS = 10
MEBIBYTE = 1_048_576
MARKERS_TIMEOUT_S, MARKERS_DELAY_S = 5.0, 0.2
TRANSACTIONS_ARE_SLOWER = 2

Values = dict[str, float]


class MeasurementError(Exception):
    """A broker or a client failed; the message contains the failure."""


class Pace(NamedTuple):
    """Durations of windows and warm-ups, and sizes: of the writes of one window, and of the log that is read.

    `restart_bytes` is the size of the log of a broker that is killed and started again, `missed_bytes` of what a
    follower lacks after its start.
    """

    seconds: float
    warm_up_seconds: float
    max_bytes: int
    log_bytes: int = 400_000_000
    restart_bytes: int = 10_000_000_000
    missed_bytes: int = 5_000_000_000


FULL = Pace(seconds=3.0, warm_up_seconds=5.0, max_bytes=1_500_000_000)
QUICK = Pace(
    seconds=1.0,
    warm_up_seconds=2.0,
    max_bytes=500_000_000,
    restart_bytes=2_000_000_000,
    missed_bytes=1_000_000_000,
)


class Contestant:
    """A running broker, and its state before any load."""

    def __init__(self, broker: RunningBroker, name: str = "odradek") -> None:
        self.broker = broker
        self.name = name
        self.topics = 0
        self.idle_mb = 0.0
        self.idle_cpu_share = 0.0

    def observe_idle(self, seconds: float) -> None:
        before, start = cpu_seconds(self.broker.pid), time.monotonic()
        time.sleep(seconds)
        self.idle_cpu_share = (cpu_seconds(self.broker.pid) - before) / (time.monotonic() - start)
        self.idle_mb = resident_bytes(self.broker.pid) / 1e6

    @contextmanager
    def topic(self, partitions: int, configs: Mapping[str, str] = wire.NONE) -> Iterator[str]:
        """Create a topic; its name is equally long for both brokers, and so are the frames."""
        self.topics += 1
        name = f"bench-{self.topics:05d}"
        with wire.Admin(self.broker.port) as admin:
            admin.create_topic(name, partitions, configs)
        try:
            yield name
        finally:
            with wire.Admin(self.broker.port) as admin:
                admin.delete_topic(name)
            brokers.wait_until_gone(self.broker, name)

    def end_offsets(self, topic: str, partitions: int) -> int:
        with wire.Admin(self.broker.port) as admin:
            return sum(admin.end_offset(topic, partition) for partition in range(partitions))

    def await_end_offsets(self, topic: str, partitions: int, expected: int) -> int:
        """Return the end once it is as expected, or after a time limit: the last markers follow their responses."""
        give_up = time.monotonic() + MARKERS_TIMEOUT_S
        while (held := self.end_offsets(topic, partitions)) < expected and time.monotonic() < give_up:
            time.sleep(0.01)
        return held


def run_loader(contestant: Contestant, *, timeout_s: float = LOADER_TIMEOUT_S, **fields: Any) -> LoadResult:
    """Run one load on a broker in its own process. Raises MeasurementError with the loader's error output."""
    broker = contestant.broker
    return start_loader({"ports": [broker.port], "broker_pids": [broker.pid], **fields}, timeout_s)


def start_loader(spec: Mapping[str, Any], timeout_s: float = LOADER_TIMEOUT_S) -> LoadResult:
    """Run one load, whose fields are those of `LoadSpec`, in its own process. Raises MeasurementError."""
    process = subprocess.run(
        [sys.executable, "-m", "benchmarks.loader", json.dumps(spec)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=timeout_s,
    )
    if process.returncode:
        raise MeasurementError(process.stderr.strip().splitlines()[-1] if process.stderr else "the loader failed")
    return LoadResult(**json.loads(process.stdout))


def acknowledged_load(contestant: Contestant, row: Row, pace: Pace) -> LoadResult:
    """Produce to a new topic and check that the log contains exactly the acknowledged records."""
    partitions = int(row.load.get("partitions", 1))
    with contestant.topic(partitions, row.topic_configs.get(contestant.name, wire.NONE)) as topic:
        load: dict[str, Any] = {"topic": topic, "seconds": pace.seconds, "max_bytes": pace.max_bytes, **row.load}
        result = run_loader(contestant, kind=row.kind, **load)
        held = contestant.await_end_offsets(topic, partitions, result.acked_records)
    if held != result.acked_records:
        raise MeasurementError(f"{result.acked_records} records acknowledged, {held} in the log")
    return result


def reading_load(contestant: Contestant, row: Row, pace: Pace) -> LoadResult:
    """Fill a topic, then read it from the start repeatedly; the log stays in the page cache."""
    with contestant.topic(1) as topic:
        if row.load.get("isolation_level"):
            fill_with_transactions(contestant, topic, pace.log_bytes // TRANSACTIONS_ARE_SLOWER)
        else:
            fill(contestant, topic, pace.log_bytes)
        return run_loader(contestant, kind=row.kind, topic=topic, **{"seconds": pace.seconds, **row.load})


def fill_with_transactions(contestant: Contestant, topic: str, payload_bytes: int) -> None:
    """Write interleaved transactions of eight producers; every tenth is aborted."""
    load = {**TRANSACTIONS, "connections": 8, "abort_every": 10}
    run_loader(contestant, kind="transactions", topic=topic, warm_s=0, seconds=60, max_bytes=payload_bytes, **load)
    time.sleep(MARKERS_DELAY_S)


def fill(contestant: Contestant, topic: str, payload_bytes: int) -> None:
    run_loader(contestant, kind="produce", topic=topic, warm_s=0, seconds=60, max_bytes=payload_bytes, **SMALL_BATCH)


LOADS: Mapping[str, Callable[[Contestant, Row, Pace], LoadResult]] = {
    "produce": acknowledged_load,
    "requests": acknowledged_load,
    "consume": reading_load,
    "transactions": acknowledged_load,
}


def _throughput(contestant: Contestant, row: Row, pace: Pace) -> Values:
    result = LOADS[row.kind](contestant, row, pace)
    if not result.payload_bytes:
        raise MeasurementError("no bytes were transferred")
    return {
        "mb_per_s": result.payload_bytes / result.seconds / 1e6,
        "cpu_s_per_gb": result.broker_cpu_s / result.payload_bytes * 1e9,
        "loader_cores": result.loader_cpu_s / result.seconds,
    }


def _requests(contestant: Contestant, row: Row, pace: Pace) -> Values:
    result = LOADS[row.kind](contestant, row, pace)
    if not result.requests:
        raise MeasurementError("no request was answered")
    return {
        "requests_per_s": result.requests / result.seconds,
        "p50_us": result.p50_us,
        "p99_us": result.p99_us,
        "cpu_us_per_request": result.broker_cpu_s / result.requests * 1e6,
        "loader_cores": result.loader_cpu_s / result.seconds,
    }


def _transactions(contestant: Contestant, row: Row, pace: Pace) -> Values:
    result = LOADS[row.kind](contestant, row, pace)
    if not result.requests:
        raise MeasurementError("no transaction was completed")
    return {
        "transactions_per_s": result.requests / result.seconds,
        "cpu_s_per_gb": result.broker_cpu_s / result.payload_bytes * 1e9,
        "p50_us": result.p50_us,
        "p99_us": result.p99_us,
        "loader_cores": result.loader_cpu_s / result.seconds,
    }


def _timed_tool(contestant: Contestant, tool: str, arguments: Mapping[str, object]) -> tuple[str, float]:
    """Return the tool's output, and the processor seconds that the broker used meanwhile."""
    from compat_tests.apache_kafka import tools

    before = cpu_seconds(contestant.broker.pid)
    words = ["--bootstrap-server", contestant.broker.bootstrap_servers]
    words += [str(word) for pair in arguments.items() for word in pair]
    output = tools.run(tool, *words, timeout=TOOL_TIMEOUT_S, heap="512m", jvm_options=()).stdout
    return output, cpu_seconds(contestant.broker.pid) - before


def _tool_produce(contestant: Contestant, row: Row, pace: Pace) -> Values:
    from compat_tests.apache_kafka.tools import PRODUCER_PERFORMANCE

    with contestant.topic(1) as topic:
        arguments = {
            "--topic": topic,
            "--num-records": TOOL_RECORDS,
            "--warmup-records": TOOL_WARM_UP_RECORDS,
            "--record-size": TOOL_RECORD_BYTES,
            "--throughput": -1,
            "--command-property": "acks=all",
        }
        output, used_s = _timed_tool(contestant, PRODUCER_PERFORMANCE, arguments)
    rates = re.findall(r"([0-9.]+) records/sec .* 99\.9th", output)
    if not rates:
        raise MeasurementError(f"ProducerPerformance printed: {output.strip()[-200:]}")
    return {
        "mb_per_s": float(rates[-1]) * TOOL_RECORD_BYTES / 1e6,
        "cpu_s_per_gb": used_s / (TOOL_RECORDS * TOOL_RECORD_BYTES / 1e9),
    }


def _tool_consume(contestant: Contestant, row: Row, pace: Pace) -> Values:
    """Measure with a group and its offsets; the value is that of fetching alone, without the joining of the group."""
    from compat_tests.apache_kafka.tools import CONSUMER_PERFORMANCE

    with contestant.topic(1) as topic:
        fill(contestant, topic, TOOL_RECORDS * TOOL_RECORD_BYTES)
        arguments = {"--topic": topic, "--num-records": TOOL_RECORDS, "--group": f"group-{topic}"}
        output, used_s = _timed_tool(contestant, CONSUMER_PERFORMANCE, arguments)
    fields = [field.strip() for field in output.strip().splitlines()[-1].split(",")]
    if len(fields) != CONSUMER_PERFORMANCE_FIELDS:
        raise MeasurementError(f"ConsumerPerformance printed: {output.strip()[-200:]}")
    read_mebibytes, fetch_mebibytes_per_s = float(fields[2]), float(fields[8])
    return {
        "mb_per_s": fetch_mebibytes_per_s * MEBIBYTE / 1e6,
        "cpu_s_per_gb": used_s / (read_mebibytes * MEBIBYTE / 1e9),
    }


def _client_transactions(contestant: Contestant, row: Row, pace: Pace) -> Values:
    with contestant.topic(1) as topic:
        arguments = [contestant.broker.bootstrap_servers, topic]
        arguments += [str(row.load["records_per_transaction"]), str(row.load["value_bytes"]), f"{pace.seconds:.0f}"]
        process = subprocess.run(
            [sys.executable, "-m", "benchmarks.client_transactions", *arguments],
            capture_output=True,
            text=True,
            cwd=ROOT,
            timeout=LOADER_TIMEOUT_S,
        )
    if process.returncode:
        raise MeasurementError(f"librdkafka's producer failed: {process.stderr.strip()[-300:]}")
    count, seconds = process.stdout.split()
    return {"transactions_per_s": int(count) / float(seconds)}


def start(name: str, row: Row, pace: Pace) -> Values:
    """Measure the start of a new broker."""
    return {"start_s": brokers.start_seconds(name)}


def restart(name: str, row: Row, pace: Pace) -> Values:
    """Fill a new broker and measure its restart."""

    def fill_all(broker: RestartableBroker, topic: str, partitions: int) -> None:
        load = {**LARGE_BATCH, "partitions": partitions, "connections": partitions}
        whole = {"warm_s": 0, "seconds": FILL_TIMEOUT_S - 20, "max_bytes": pace.restart_bytes}
        filled = run_loader(Contestant(broker), timeout_s=FILL_TIMEOUT_S, kind="produce", topic=topic, **whole, **load)
        if filled.payload_bytes < pace.restart_bytes:
            raise MeasurementError(f"only {filled.payload_bytes / 1e9:.1f} GB written in {filled.seconds:.0f} s")

    return {"restart_s": restarts.restart_seconds(name, fill_all)}


def _memory(contestant: Contestant, row: Row, pace: Pace) -> Values:
    return {
        "idle_mb": contestant.idle_mb,
        "loaded_mb": resident_bytes(contestant.broker.pid) / 1e6,
        "idle_cpu_share": contestant.idle_cpu_share,
    }


# Measurements of a start, by the broker's name: each starts its own broker.
STARTS: Mapping[str, Callable[[str, Row, Pace], Values]] = {"start": start, "restart": restart}

MEASUREMENTS: Mapping[str, Callable[[Contestant, Row, Pace], Values]] = {
    "produce": _throughput,
    "consume": _throughput,
    "requests": _requests,
    "transactions": _transactions,
    "client_transactions": _client_transactions,
    "tool_produce": _tool_produce,
    "tool_consume": _tool_consume,
    "memory": _memory,
}

WARM_UP_ROWS = (
    Row("warm-up-requests", "", "requests", {**ONE_RECORD, "connections": 64}),
    Row("warm-up-small", "", "produce", SMALL_BATCH),
    Row("warm-up-large", "", "produce", LARGE_BATCH),
    Row("warm-up-consume", "", "consume", SMALL_BATCH),
)


def warm_up(contestant: Contestant, row: Row, pace: Pace) -> None:
    """Run one unmeasured turn of a row, long enough for the JVM to compile the code."""
    pace = pace._replace(seconds=pace.warm_up_seconds, max_bytes=2 * pace.max_bytes)
    MEASUREMENTS[row.kind](contestant, row, pace)
