"""The measurements: one turn of one row against one broker that runs, as a mapping of metric names to values."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks import brokers, wire
from benchmarks.brokers import Broker
from benchmarks.loader import LoadResult
from benchmarks.procfs import cpu_seconds, resident_bytes
from benchmarks.rows import LARGE_BATCH, ONE_RECORD, SMALL_BATCH, Row

ROOT = Path(__file__).resolve().parent.parent
LOADER_TIMEOUT_S = 120
TOOL_TIMEOUT_S = 180
CONSUME_LOG_BYTES = 400_000_000
TOOL_RECORDS, TOOL_WARM_UP_RECORDS, TOOL_RECORD_BYTES = 600_000, 200_000, 1024

Values = dict[str, float]


class MeasurementError(Exception):
    """A broker or a client did not do its part; the message says which and how."""


class Pace(NamedTuple):
    """How long a window and a warm-up last, and how much one window may write."""

    seconds: float
    warm_up_seconds: float
    max_bytes: int


FULL = Pace(seconds=3.0, warm_up_seconds=5.0, max_bytes=1_500_000_000)
QUICK = Pace(seconds=1.0, warm_up_seconds=2.0, max_bytes=500_000_000)


class Contestant:
    """A broker that runs, and what was seen of it before any load."""

    def __init__(self, name: str, broker: Broker) -> None:
        self.name = name
        self.broker = broker
        self.topics = 0
        self.idle_mb = 0.0
        self.idle_cpu_share = 0.0

    def observe_idle(self, seconds: float) -> None:
        before, start = cpu_seconds(self.broker.pid), time.monotonic()
        time.sleep(seconds)
        self.idle_cpu_share = (cpu_seconds(self.broker.pid) - before) / (time.monotonic() - start)
        self.idle_mb = resident_bytes(self.broker.pid) / 1e6

    @contextmanager
    def topic(self, partitions: int) -> Iterator[str]:
        """A fresh topic; its name is as long for both brokers, so that the frames are too."""
        self.topics += 1
        name = f"bench-{self.topics:05d}"
        with wire.Admin(self.broker.port) as admin:
            admin.create_topic(name, partitions)
        try:
            yield name
        finally:
            with wire.Admin(self.broker.port) as admin:
                admin.delete_topic(name)
            brokers.wait_until_gone(self.broker, name)

    def end_offsets(self, topic: str, partitions: int) -> int:
        with wire.Admin(self.broker.port) as admin:
            return sum(admin.end_offset(topic, partition) for partition in range(partitions))


def run_loader(contestant: Contestant, **fields: object) -> LoadResult:
    """One load in its own process. Raises MeasurementError with what the loader said."""
    spec = {"port": contestant.broker.port, "broker_pid": contestant.broker.pid, **fields}
    process = subprocess.run(
        [sys.executable, "-m", "benchmarks.loader", json.dumps(spec)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=LOADER_TIMEOUT_S,
    )
    if process.returncode:
        raise MeasurementError(process.stderr.strip().splitlines()[-1] if process.stderr else "the loader failed")
    return LoadResult(**json.loads(process.stdout))


def _throughput(result: LoadResult) -> Values:
    if not result.payload_bytes:
        raise MeasurementError("nothing came through")
    return {
        "mb_per_s": result.payload_bytes / result.seconds / 1e6,
        "cpu_s_per_gb": result.broker_cpu_s / result.payload_bytes * 1e9,
        "loader_cores": result.loader_cpu_s / result.seconds,
    }


def _acknowledged_load(contestant: Contestant, row: Row, pace: Pace) -> LoadResult:
    """Produces to a fresh topic and checks that the log holds exactly what was acknowledged."""
    partitions = int(row.load.get("partitions", 1))
    with contestant.topic(partitions) as topic:
        result = run_loader(
            contestant,
            **{"kind": row.kind, "topic": topic, "seconds": pace.seconds, "max_bytes": pace.max_bytes, **row.load},
        )
        held = contestant.end_offsets(topic, partitions)
    if held != result.acked_records:
        raise MeasurementError(f"{result.acked_records} records acknowledged, {held} in the log")
    return result


def produce(contestant: Contestant, row: Row, pace: Pace) -> Values:
    return _throughput(_acknowledged_load(contestant, row, pace))


def requests(contestant: Contestant, row: Row, pace: Pace) -> Values:
    result = _acknowledged_load(contestant, row, pace)
    if not result.requests:
        raise MeasurementError("no request was answered")
    return {
        "requests_per_s": result.requests / result.seconds,
        "p50_us": result.p50_us,
        "p99_us": result.p99_us,
        "cpu_us_per_request": result.broker_cpu_s / result.requests * 1e6,
        "loader_cores": result.loader_cpu_s / result.seconds,
    }


def consume(contestant: Contestant, row: Row, pace: Pace) -> Values:
    """Fills a topic, then reads it from the start again and again; the log stays in the page cache."""
    with contestant.topic(1) as topic:
        run_loader(
            contestant, kind="produce", topic=topic, warm_s=0, seconds=30, max_bytes=CONSUME_LOG_BYTES, **SMALL_BATCH
        )
        load = {"kind": "consume", "topic": topic, "seconds": pace.seconds, **row.load}
        return _throughput(run_loader(contestant, **load))


def _tool(tool: str, *arguments: str) -> str:
    from compat_tests.apache_kafka import tools

    return tools.run(tool, *arguments, timeout=TOOL_TIMEOUT_S, heap="512m", jvm_options=()).stdout


def _produce_by_tool(contestant: Contestant, topic: str) -> Values:
    from compat_tests.apache_kafka.tools import PRODUCER_PERFORMANCE

    before = cpu_seconds(contestant.broker.pid)
    arguments = {
        "--bootstrap-server": contestant.broker.bootstrap_servers,
        "--topic": topic,
        "--num-records": TOOL_RECORDS,
        "--warmup-records": TOOL_WARM_UP_RECORDS,
        "--record-size": TOOL_RECORD_BYTES,
        "--throughput": -1,
        "--command-property": "acks=all",
    }
    output = _tool(PRODUCER_PERFORMANCE, *[str(part) for pair in arguments.items() for part in pair])
    used = cpu_seconds(contestant.broker.pid) - before
    found = re.findall(r"([0-9.]+) records/sec \(([0-9.]+) MB/sec\).* 99\.9th", output)
    if not found:
        raise MeasurementError(f"ProducerPerformance said: {output.strip()[-200:]}")
    gigabytes = TOOL_RECORDS * TOOL_RECORD_BYTES / 1e9
    return {"mb_per_s": float(found[-1][0]) * TOOL_RECORD_BYTES / 1e6, "cpu_s_per_gb": used / gigabytes}


def tool_produce(contestant: Contestant, row: Row, pace: Pace) -> Values:
    with contestant.topic(1) as topic:
        return _produce_by_tool(contestant, topic)


def tool_consume(contestant: Contestant, row: Row, pace: Pace) -> Values:
    """Group, offsets and all; the figure is that of fetching alone, without the joining of the group."""
    from compat_tests.apache_kafka.tools import CONSUMER_PERFORMANCE

    batches = TOOL_RECORDS // SMALL_BATCH["records_per_batch"]
    payload_bytes = batches * SMALL_BATCH["records_per_batch"] * SMALL_BATCH["value_bytes"]
    with contestant.topic(1) as topic:
        run_loader(
            contestant, kind="produce", topic=topic, warm_s=0, seconds=60, max_bytes=payload_bytes, **SMALL_BATCH
        )
        before = cpu_seconds(contestant.broker.pid)
        arguments = {
            "--bootstrap-server": contestant.broker.bootstrap_servers,
            "--topic": topic,
            "--num-records": TOOL_RECORDS,
            "--group": f"group-{topic}",
        }
        output = _tool(CONSUMER_PERFORMANCE, *[str(part) for pair in arguments.items() for part in pair])
        used = cpu_seconds(contestant.broker.pid) - before
    fields = [field.strip() for field in output.strip().splitlines()[-1].split(",")]
    if len(fields) != 10:
        raise MeasurementError(f"ConsumerPerformance said: {output.strip()[-200:]}")
    megabytes_read, fetch_mebibytes_per_s = float(fields[2]), float(fields[8])
    return {
        "mb_per_s": fetch_mebibytes_per_s * 1.048576,
        "cpu_s_per_gb": used / (megabytes_read * 1.048576 / 1000),
    }


def start(contestant: Contestant, row: Row, pace: Pace) -> Values:
    return {"start_s": brokers.start_seconds(brokers.BROKERS[contestant.name])}


def memory(contestant: Contestant, row: Row, pace: Pace) -> Values:
    return {
        "idle_mb": contestant.idle_mb,
        "loaded_mb": resident_bytes(contestant.broker.pid) / 1e6,
        "idle_cpu_share": contestant.idle_cpu_share,
    }


MEASUREMENTS: Mapping[str, Callable[[Contestant, Row, Pace], Values]] = {
    "produce": produce,
    "requests": requests,
    "consume": consume,
    "tool_produce": tool_produce,
    "tool_consume": tool_consume,
    "start": start,
    "memory": memory,
}

WARM_UP_ROWS = (
    Row("warm-up-requests", "", "requests", {**ONE_RECORD, "connections": 64}),
    Row("warm-up-small", "", "produce", SMALL_BATCH),
    Row("warm-up-large", "", "produce", LARGE_BATCH),
    Row("warm-up-consume", "", "consume", SMALL_BATCH),
)


def warm_up(contestant: Contestant, row: Row, pace: Pace) -> None:
    """One unmeasured turn of a row, long enough for the JVM to have compiled its way."""
    pace = pace._replace(seconds=pace.warm_up_seconds, max_bytes=2 * pace.max_bytes)
    MEASUREMENTS[row.kind](contestant, row, pace)
