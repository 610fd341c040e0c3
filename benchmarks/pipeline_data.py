"""Input of the pipelines' benchmark, and counts of its output, both without Spark."""

from __future__ import annotations

import json
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from benchmarks.measure import MeasurementError

PARTITIONS = 4
SCHEMA = "order_id BIGINT, customer STRING, amount DECIMAL(12,2), placed TIMESTAMP"
SQL = "SELECT order_id, customer, amount, placed FROM orders WHERE amount > 100"
TABLE = "(order_id BIGINT, customer TEXT, amount NUMERIC(12,2), placed TIMESTAMPTZ)"
_ROUND = 1000
_LEFT_OUT = 100
_TIMEOUT_S = 30
_AT_ONCE = 10_000


def kept(count: int) -> int:
    """Return the number of result rows of SQL for `count` records, a multiple of a thousand."""
    assert count % _ROUND == 0
    return count // _ROUND * (_ROUND - _LEFT_OUT)


def produce(servers: str, topic: str, count: int) -> None:
    """Write `count` JSON records of 100 to 106 B to a topic, the same ones each time. Raises MeasurementError."""
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 50})
    for number in range(count):
        order = {
            "order_id": number,
            "customer": f"customer-{number * 7919 % 10_000:05d}",
            "amount": number % _ROUND + 0.5,
            "placed": f"2026-01-01T{number // 3600 % 24:02d}:{number // 60 % 60:02d}:{number % 60:02d}.000Z",
        }
        value = json.dumps(order).encode()
        while True:
            try:
                producer.produce(topic, value, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
        if number % _ROUND == 0:
            producer.poll(0)
    if left := producer.flush(_TIMEOUT_S):
        raise MeasurementError(f"{left} of {count} records were not acknowledged")


def count_records(servers: str, topic: str) -> int:
    """Return the number of records of a topic for a read_committed reader."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "count",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        found = 0
        ended: set[int] = set()
        while len(ended) < PARTITIONS:
            messages = consumer.consume(_AT_ONCE, timeout=_TIMEOUT_S)
            if not messages:
                raise MeasurementError(f"{topic} does not end")
            for message in messages:
                error = message.error()
                if error is None:
                    found += 1
                elif error.code() == KafkaError._PARTITION_EOF:
                    partition = message.partition()
                    assert partition is not None
                    ended.add(partition)
                else:
                    raise MeasurementError(f"{topic}: {error.str()}")
        return found
    finally:
        consumer.close()


def count_in_files(folder: Path) -> int:
    """Return the number of rows in the Parquet files below a folder."""
    from pyarrow import dataset

    return int(dataset.dataset(folder, format="parquet").count_rows())
