"""Short calls of Spark's Kafka source and sink."""

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from compat_tests import limits
from odradek.spark_it.spark.events import Events

QUERY_TIMEOUT_S = limits.READ_S

Options = str | int | bool | Mapping[str, Any]


class KafkaFrames:
    """Frames from and to topics of one broker, and queries that end with the test."""

    def __init__(self, spark: SparkSession, bootstrap_servers: str, directory: Path) -> None:
        self.spark = spark
        self.directory = directory
        self._bootstrap_servers = bootstrap_servers
        self._queries: list[StreamingQuery] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for query in self._queries:
            query.stop()

    def read(self, topic: str | None = None, **options: Options) -> DataFrame:
        """A batch: all records of `topic`, unless options select others. Mappings become JSON."""
        return self._with_options(self.spark.read.format("kafka"), topic, options).load()

    def read_stream(self, topic: str | None = None, **options: Options) -> DataFrame:
        """A stream: `topic` from its beginning, unless an option sets another start."""
        started = {} if any(name.startswith("starting") for name in options) else {"startingOffsets": "earliest"}
        return self._with_options(self.spark.readStream.format("kafka"), topic, {**started, **options}).load()

    def write(self, frame: DataFrame, topic: str | None = None, **options: Options) -> None:
        self._with_options(frame.write.format("kafka"), None, self._to_topic(topic, options)).save()

    def write_stream(
        self, frame: DataFrame, topic: str, checkpoint: str, trigger: Mapping[str, Any], **options: Options
    ) -> StreamingQuery:
        """Start a query from `frame` to `topic`."""
        writer = self._with_options(frame.writeStream.format("kafka"), None, self._to_topic(topic, options))
        return self._start(writer, checkpoint, trigger)

    def to_parquet(
        self, frame: DataFrame, checkpoint: str, trigger: Mapping[str, Any], name: str = "out"
    ) -> StreamingQuery:
        """Start a query from `frame` to files, which contain each row once even if the query is restarted."""
        writer = frame.writeStream.format("parquet").option("path", str(self.directory / name))
        return self._start(writer, checkpoint, trigger)

    def parquet(self, name: str = "out") -> DataFrame:
        """The rows that `to_parquet` has written so far."""
        return self.spark.read.parquet(str(self.directory / name))

    def _start(self, writer: Any, checkpoint: str, trigger: Mapping[str, Any]) -> StreamingQuery:
        located = writer.option("checkpointLocation", str(self.directory / checkpoint))
        query: StreamingQuery = located.trigger(**trigger).start()
        self._queries.append(query)
        return query

    def _with_options(self, target: Any, topic: str | None, options: Mapping[str, Options]) -> Any:
        target = target.option("kafka.bootstrap.servers", self._bootstrap_servers)
        if topic is not None:
            target = target.option("subscribe", topic)
        for name, value in options.items():
            text = json.dumps(value) if isinstance(value, Mapping | bool) else str(value)
            target = target.option(name.replace("kafka_", "kafka.").replace("_", "."), text)
        return target

    @staticmethod
    def _to_topic(topic: str | None, options: Mapping[str, Options]) -> dict[str, Options]:
        return dict(options) if topic is None else {"topic": topic, **options}


def finish(query: StreamingQuery) -> list[dict[str, Any]]:
    """Wait for a query that ends by itself, and return its batches that have rows."""
    assert query.awaitTermination(QUERY_TIMEOUT_S), f"still running: {query.lastProgress}"
    return batches(query)


def batches(query: StreamingQuery) -> list[dict[str, Any]]:
    """The batches so far that have rows."""
    return [dict(made) for made in Events(query).read_new() if made["numInputRows"] > 0]


def has_read(query: StreamingQuery, count: int) -> Callable[[], bool]:
    """A condition for `wait_for`: the batches of the query have `count` rows."""
    return lambda: sum(batch["numInputRows"] for batch in batches(query)) == count


def wait_for(query: StreamingQuery, condition: Callable[[], bool]) -> None:
    """Wait until `condition` holds while a query runs. Raises the query's exception if it fails."""
    give_up_at = time.monotonic() + QUERY_TIMEOUT_S
    while not condition():
        failure = query.exception()
        if failure is not None:
            raise failure
        assert query.isActive, "the query has ended"
        assert time.monotonic() < give_up_at, f"not in {QUERY_TIMEOUT_S} s: {query.lastProgress}"
        query.awaitTermination(0.1)  # type: ignore[arg-type]
