"""The writer of dead letters to their topic, at least once: a repeated batch writes them again.

Their headers have topic, partition and offset of the record, which identify copies. A dead letter that is too large for
the topic is written without key and value.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaException, Producer
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from odradek.spark_it.dead_letters.headers import shorten_headers
from odradek.spark_it.definition.spec import Pipeline
from odradek.spark_it.exactly_once.transactions import is_transient
from odradek.spark_it.interfaces.sink import SinkError
from odradek.spark_it.kafka.record_sizes import find_size_limits, measure_record
from odradek.spark_it.spark.errors import describe_error

_FLUSH_S = 1.0


class DeadLetterWriter:
    """Writer of frames with the columns `key`, `value` and `headers` to the dead-letter topic."""

    def __init__(self, pipeline: Pipeline) -> None:
        topic = pipeline.errors.deadletterqueue_topic_name
        assert topic is not None
        self.topic = topic
        self._configuration: dict[str, Any] = {
            "bootstrap.servers": ",".join(pipeline.settings.bootstrap_servers),
            "client.id": f"{pipeline.name}.dead-letters",
            "enable.idempotence": True,
            "log_level": 0,
            # The time to wait for the metadata of a missing topic.
            "topic.metadata.propagation.max.ms": 5000,
            "message.timeout.ms": 60_000,
        }
        self._settings = pipeline.settings
        self._largest: int | None = None

    def write(self, dead: DataFrame) -> int:
        """Write all dead letters and return their number. Raises SinkError."""
        topic, configuration, largest = self.topic, self._configuration, self._find_max_size()

        def produce(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield pa.RecordBatch.from_pydict({"rows": [produce_all(topic, configuration, batches, largest)]})

        try:
            counts = dead.select("key", "value", "headers").mapInArrow(produce, "rows bigint").collect()
        except PySparkException as error:
            reason = describe_error(error)
            for prefix, is_retriable in ((_UNWRITTEN, True), (_REFUSED, False)):
                if prefix in reason:
                    message = f"dead letters cannot be written to topic {topic}: {reason.partition(prefix)[2]}"
                    raise SinkError(message, is_retriable=is_retriable) from None
            raise
        return sum(row.rows for row in counts)

    def _find_max_size(self) -> int:
        if self._largest is None:
            passed = self._settings.passed
            servers = {"bootstrap.servers": self._configuration["bootstrap.servers"]}
            limits = find_size_limits([self.topic], servers | passed["admin.override."], passed["producer.override."])
            self._configuration |= limits.configuration
            self._largest = limits.largest[self.topic]
        return self._largest


_UNWRITTEN = "odradek dead letters unwritten: "
_REFUSED = "odradek dead letters refused: "
"""Prefixes of Kafka's error in an exception of a worker: for a transient error and for a permanent one."""


def produce_all(topic: str, configuration: Mapping[str, Any], batches: Iterable[pa.RecordBatch], largest: int) -> int:
    """Produce records; return their number when all are acknowledged. Runs in the workers. Raises RuntimeError."""

    producer: Any = None
    failures: list[Any] = []
    count = 0

    def record_failure(error: Any, _: Any) -> None:
        if error is not None:
            failures.append(error)

    try:
        for batch in batches:
            for row in batch.to_pylist():
                producer = producer or Producer(dict(configuration))
                headers = [(header["key"], header["value"]) for header in row["headers"] or ()]
                key, value = row["key"], row["value"]
                if measure_record(key, value, headers) > largest:
                    key, value, headers = None, None, shorten_headers(headers)
                _produce(producer, topic, key, value, headers, record_failure)
                count += 1
        while producer is not None and producer.flush(_FLUSH_S):
            pass
    except KafkaException as error:
        failures.append(error.args[0])
    if failures:
        # A permanent error takes precedence, because retrying does not help.
        worst = min(failures, key=is_transient)
        raise RuntimeError(f"{_UNWRITTEN if is_transient(worst) else _REFUSED}{worst.str()}")
    return count


def _produce(
    producer: Any, topic: str, key: bytes | None, value: bytes | None, headers: list[Any], record_failure: Any
) -> None:
    while True:
        try:
            producer.produce(topic, value, key, headers=headers, on_delivery=record_failure)
            producer.poll(0)
            return
        except BufferError:
            producer.poll(_FLUSH_S)
