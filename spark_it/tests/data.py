"""Rows for the tests: made, produced, and recognised again by number, distinct number and content."""

import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

REQUEST_TIMEOUT_S = 30
NULL = "<null>"
NOT_YET = (
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
)

Row = tuple[bytes | None, bytes | None]
Headers = Sequence[tuple[str, bytes | None]]


class Digest(NamedTuple):
    """What a set of rows comes down to: a lost, doubled, altered or invented row changes it."""

    count: int
    distinct: int
    checksum: int


NOTHING = Digest(0, 0, 0)


def digest_of(rows: Iterable[Row]) -> Digest:
    """The digest of rows at hand."""
    joined = [b"|".join(NULL.encode() if part is None else part for part in row) for row in rows]
    return Digest(len(joined), len(set(joined)), sum(map(zlib.crc32, joined)))


def digest(frame: DataFrame) -> Digest:
    """The digest of a frame with the columns `key` and `value`, worked out by Spark."""
    null = f.lit(NULL).cast("binary")
    parts = [f.coalesce(f.col(name).cast("binary"), null) for name in ("key", "value")]
    joined = frame.select(f.concat(parts[0], f.lit("|").cast("binary"), parts[1]).alias("row"))
    found = joined.agg(f.count("row"), f.countDistinct("row"), f.sum(f.crc32("row"))).first()
    assert found is not None
    return Digest(found[0], found[1], found[2] or 0)


def rows(count: int, start: int = 0) -> list[Row]:
    """Rows like no others: (number, a text that holds it)."""
    return [(str(n).encode(), f"row {n:08d} ".encode() * 3) for n in range(start, start + count)]


def rows_in_spark(spark: SparkSession, count: int) -> DataFrame:
    """The same rows as `rows`, made where they are used."""
    number = f.col("id")
    text = f.repeat(f.format_string("row %08d ", number), 3)
    return spark.range(count).select(
        number.cast("string").cast("binary").alias("key"), text.cast("binary").alias("value")
    )


class Topics:
    """Topics on a broker, and what the tests do to them besides Spark."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self._admin = AdminClient({"bootstrap.servers": bootstrap_servers})

    def create(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        """Creates a topic and returns its name."""
        topic = NewTopic(name, partitions, 1, config=dict(config or {}))
        self._wait(self._admin.create_topics([topic], request_timeout=REQUEST_TIMEOUT_S))
        return name

    def add_partitions(self, name: str, total: int) -> None:
        self._wait(self._admin.create_partitions([NewPartitions(name, total)], request_timeout=REQUEST_TIMEOUT_S))

    def delete_records_before(self, name: str, partition: int, offset: int) -> None:
        self._wait(
            self._admin.delete_records([TopicPartition(name, partition, offset)], request_timeout=REQUEST_TIMEOUT_S)
        )

    def ends(self, name: str, partition: int) -> tuple[int, int]:
        """Earliest and latest offset of a partition."""
        give_up_at = time.monotonic() + REQUEST_TIMEOUT_S
        consumer = Consumer({"bootstrap.servers": self.bootstrap_servers, "group.id": "ends"})
        try:
            while True:
                try:
                    return consumer.get_watermark_offsets(TopicPartition(name, partition), timeout=REQUEST_TIMEOUT_S)
                except KafkaException as error:
                    # A broker that has just started may serve before it leads.
                    if error.args[0].code() not in NOT_YET or time.monotonic() > give_up_at:
                        raise
                consumer.poll(0.1)
        finally:
            consumer.close()

    def produce(
        self,
        topic: str,
        given: Iterable[Row],
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
        **config: Any,
    ) -> None:
        """Produces rows with librdkafka and returns when all are acknowledged.

        `config` are producer properties, with `_` for `.`.
        """
        failures: list[Any] = []
        properties = {name.replace("_", "."): value for name, value in config.items()}
        producer = Producer({"bootstrap.servers": self.bootstrap_servers, "linger.ms": 20, **properties})
        options: dict[str, Any] = {}
        if partition is not None:
            options["partition"] = partition
        if timestamp_ms is not None:
            options["timestamp"] = timestamp_ms
        if headers is not None:
            options["headers"] = list(headers)
        for key, value in given:
            producer.produce(
                topic,
                value,
                key,
                on_delivery=lambda error, _: failures.append(error) if error else None,
                **options,
            )
            producer.poll(0)
        left = producer.flush(REQUEST_TIMEOUT_S)
        assert not left and not failures, f"{left} rows not acknowledged, {len(failures)} refused: {failures[:1]}"

    def _wait(self, futures: Mapping[Any, Any]) -> None:
        for future in futures.values():
            future.result(REQUEST_TIMEOUT_S)
