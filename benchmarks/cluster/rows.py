"""The rows of clusters, and their targets."""

from __future__ import annotations

from benchmarks.rows import LARGE_BATCH, ONE_RECORD, SMALL_BATCH, Row, at_least, at_most, under


def _produce(name: str, title: str, **load: int | float) -> Row:
    targets = (at_least("mb_per_s", 1.0), at_most("p99_us", 1.0), at_most("cpu_s_per_gb", 0.8))
    return Row(name, title, "produce", load, targets)


def _requests(name: str, title: str, connections: int, **load: int | float) -> Row:
    values = {**ONE_RECORD, "partitions": 3, "connections": connections, **load}
    return Row(name, title, "requests", values, (at_least("requests_per_s", 1.0), at_most("p99_us", 1.0)))


ROWS: tuple[Row, ...] = (
    _produce(
        "produce-1k-large", "1 KB records, 1 MB batches, 3 partitions", **LARGE_BATCH, partitions=3, connections=3
    ),
    _produce(
        "produce-1k-16k", "1 KB records, 16 KB batches, 3 partitions", **SMALL_BATCH, partitions=3, connections=3
    ),
    _produce("produce-1k-16k-one", "1 KB records, 16 KB batches, 1 partition", **SMALL_BATCH),
    _requests("requests-3", "one 100 B record a request, 3 connections, 3 partitions", 3),
    _requests("requests-48", "one 100 B record a request, 48 connections, 3 partitions", 48),
    _requests("requests-16k", "one 16 KB batch a request, 3 connections, 3 partitions", 3, **SMALL_BATCH),
    Row(
        "requests-paced",
        "one 100 B record a request, 300 requests a second over 3 connections, 3 partitions",
        "paced",
        {**ONE_RECORD, "partitions": 3, "connections": 3, "requests_per_s": 300.0, "warm_s": 5.0},
        (at_most("p99_us", 1.0),),
    ),
    Row(
        "failover",
        "kill -9 of a leader that is not the controller, to the first acknowledged record of the next leader",
        "failover",
        targets=(at_most("failover_s", 0.5),),
    ),
    Row(
        "failover-controller",
        "the same with the broker that is Odradek's controller; Apache Kafka's is a separate process",
        "failover_controller",
        targets=(at_most("failover_s", 0.5),),
    ),
    Row(
        "partitions",
        "creation of a topic of 1,000 partitions, delays of another client meanwhile, memory afterwards",
        "partitions",
        targets=(
            at_most("create_s", 1.0),
            at_most("first_records_s", 1.0),
            under("p999_ms", 20),
            under("broker_mb", 150),
        ),
    ),
    Row(
        "catch-up",
        "a follower that lacks 5 GB (--quick: 1 GB) in 3 partitions",
        "catch_up",
        targets=(at_least("mb_per_s", 1.0),),
    ),
)
