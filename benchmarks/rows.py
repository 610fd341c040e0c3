"""The rows of the table: measurement, load, and targets of Odradek.

A row's `load` has fields of loader.LoadSpec; other fields have their defaults. Metrics are named in METRICS; a
measurement returns some of them. A target without `of_kafka` is about Odradek's own value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

LARGE_BATCH: Mapping[str, int] = {
    "value_bytes": 1024,
    "records_per_batch": 1000,
}  # 1,033 kB: just under max.message.bytes
SMALL_BATCH: Mapping[str, int] = {
    "value_bytes": 1024,
    "records_per_batch": 15,
}  # the Java producer's batch.size of 16 KB
ONE_RECORD: Mapping[str, int | float] = {"value_bytes": 100, "records_per_batch": 1, "warm_s": 0.7}
# 100 records of 1 KB in batches as above: seven Produce requests and an end.
TRANSACTIONS: Mapping[str, int] = {**SMALL_BATCH, "records_per_transaction": 100}
# The configuration of each broker that syncs every record to disk before its acknowledgement.
SYNCED: Mapping[str, Mapping[str, str]] = {
    "kafka": {"flush.messages": "1"},
    "odradek": {"flush.before.acks": "true"},
    "baseline": {"flush.before.acks": "true"},
}


class Metric(NamedTuple):
    """One measured quantity and its format."""

    title: str
    unit: str
    digits: int


METRICS: Mapping[str, Metric] = {
    "mb_per_s": Metric("throughput", "MB/s", 0),
    "cpu_s_per_gb": Metric("broker CPU", "s/GB", 2),
    "requests_per_s": Metric("requests", "1/s", 0),
    "handshakes_per_s": Metric("new connections", "1/s", 0),
    "transactions_per_s": Metric("transactions", "1/s", 0),
    "cpu_us_per_request": Metric("broker CPU", "us/request", 1),
    "p50_us": Metric("p50", "us", 0),
    "p99_us": Metric("p99", "us", 0),
    "start_s": Metric("start to first Metadata response", "s", 3),
    "restart_s": Metric("start to ApiVersions, Metadata and the last records", "s", 3),
    "failover_s": Metric("kill -9 to the next acknowledged record", "s", 3),
    "create_s": Metric("creation, as reported", "s", 2),
    "first_records_s": Metric("creation, to a record in each partition", "s", 2),
    "p999_ms": Metric("p99.9 of another client", "ms", 1),
    "broker_mb": Metric("resident, largest broker", "MB", 1),
    "idle_mb": Metric("resident, idle", "MB", 1),
    "loaded_mb": Metric("resident, after load", "MB", 1),
    "idle_cpu_share": Metric("CPU while idle", "cores", 3),
    "loader_cores": Metric("loader CPU", "cores", 2),
}

# In the JSON, and in a warning if the loader uses nearly one core; not a line of the table.
HIDDEN_METRICS = frozenset({"loader_cores"})


class Target(NamedTuple):
    """A limit of `metric`, at least or at most: of the ratio Odradek / Apache Kafka, or of Odradek's value."""

    metric: str
    limit: float
    at_least: bool
    of_kafka: bool = True
    strict: bool = False

    def is_met(self, value: float) -> bool:
        if self.at_least:
            return value >= self.limit
        return value < self.limit if self.strict else value <= self.limit

    def __str__(self) -> str:
        sign = ">=" if self.at_least else "<" if self.strict else "<="
        return f"{sign} {self.limit:g}" + ("x" if self.of_kafka else f" {METRICS[self.metric].unit}")


def at_least(metric: str, ratio: float) -> Target:
    return Target(metric, ratio, at_least=True)


def at_most(metric: str, ratio: float) -> Target:
    return Target(metric, ratio, at_least=False)


def under(metric: str, value: float) -> Target:
    return Target(metric, value, at_least=False, of_kafka=False, strict=True)


class Row(NamedTuple):
    """One row of the table. `kind` names its measurement in measure.MEASUREMENTS.

    `topic_configs` are the properties of its topic, by the broker's name.
    """

    name: str
    title: str
    kind: str
    load: Mapping[str, int | float] = {}
    targets: tuple[Target, ...] = ()
    in_quick: bool = True
    topic_configs: Mapping[str, Mapping[str, str]] = {}


def _produce(name: str, title: str, ratio: float, **load: int | float) -> Row:
    return Row(name, title, "produce", load, (at_least("mb_per_s", ratio), at_most("cpu_s_per_gb", 0.7)))


def _requests(connections: int, ratio: float) -> Row:
    return Row(
        f"requests-{connections}",
        f"one 100 B record a request, acks=all, {connections} connection{'s' if connections > 1 else ''}",
        "requests",
        {**ONE_RECORD, "connections": connections},
        (at_least("requests_per_s", ratio), at_most("p99_us", 1.0)),
    )


def _transactions(producers: int) -> Row:
    return Row(
        f"transactions-{producers}",
        f"transactions of 100 records of 1 KB, {producers} producer{'s' if producers > 1 else ''}, one partition",
        "transactions",
        {**TRANSACTIONS, "connections": producers},
        (at_least("transactions_per_s", 1.0),),
    )


def _synced(producers: int, *targets: Target) -> Row:
    return Row(
        f"synced-{producers}",
        f"one 1 KB record a request, on disk before its response, {producers} producer{'s' if producers > 1 else ''}",
        "requests",
        {**ONE_RECORD, "value_bytes": 1024, "connections": producers},
        targets,
        topic_configs=SYNCED,
    )


ROWS: tuple[Row, ...] = (
    _produce("produce-1k-large", "produce 1 KB records, 1 MB batches, acks=all", 1.2, **LARGE_BATCH),
    _produce("produce-1k-16k", "produce 1 KB records, 16 KB batches, acks=all", 1.8, **SMALL_BATCH),
    _produce(
        "produce-100b", "produce 100 B records, 1 MB batches, acks=all", 1.1, value_bytes=100, records_per_batch=9000
    ),
    _produce(
        "produce-100b-16k",
        "produce 100 B records, 16 KB batches, acks=all",
        1.1,
        value_bytes=100,
        records_per_batch=150,
    ),
    Row(
        "produce-1k-16k-x4",
        "1 KB records in 16 KB batches over 4 connections to 4 partitions",
        "produce",
        {**SMALL_BATCH, "connections": 4, "partitions": 4},
        in_quick=False,
    ),
    Row(
        "consume",
        "consume 1 KB records, 1 MB a fetch",
        "consume",
        SMALL_BATCH,
        (at_least("mb_per_s", 1.1), at_most("cpu_s_per_gb", 0.7)),
    ),
    Row(
        "consume-x4",
        "consume 1 KB records over 4 connections at once",
        "consume",
        {**SMALL_BATCH, "connections": 4},
        in_quick=False,
    ),
    _requests(1, 1.0),
    _requests(8, 1.0),
    _requests(64, 0.75),
    _requests(256, 0.75),
    _transactions(1),
    _transactions(8),
    Row(
        "client-transactions",
        "librdkafka's producer, transactions of 100 records of 1 KB",
        "client_transactions",
        TRANSACTIONS,
        (at_least("transactions_per_s", 1.0),),
        in_quick=False,
    ),
    Row(
        "read-committed",
        "consume 1 KB records of transactions, every tenth aborted, read_committed",
        "consume",
        {**TRANSACTIONS, "isolation_level": 1},
        (at_least("mb_per_s", 1.0),),
    ),
    _synced(1),
    _synced(16, at_least("requests_per_s", 2.0)),
    Row("tool-produce", "Kafka's ProducerPerformance, 1 KB records, acks=all", "tool_produce", in_quick=False),
    Row("tool-consume", "Kafka's ConsumerPerformance, 1 KB records", "tool_consume", in_quick=False),
    Row("start", "an empty broker", "start", targets=(under("start_s", 0.5),)),
    Row(
        "restart",
        "after kill -9 with 10 GB of log (--quick: 2 GB) in 4 partitions",
        "restart",
        targets=(at_most("restart_s", 0.5),),
    ),
    Row("memory", "this run's broker", "memory", targets=(under("idle_mb", 60), under("loaded_mb", 120))),
)
BY_NAME = {row.name: row for row in ROWS}
