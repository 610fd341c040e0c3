"""Batches for tests of sinks, without a stream: a test can write a batch again, as after a crash."""

from typing import Any

from pyspark.sql import DataFrame, SparkSession

from odradek.spark_it.definition.reader import parse
from odradek.spark_it.definition.spec import Pipeline
from odradek.spark_it.interfaces.sink import BatchSink, SinkBatch
from odradek.spark_it.sinks.connectors import make_sink

GENERATION = 29_000_000


class DeadLetters:
    """Dead letters in memory, in place of a topic."""

    def __init__(self) -> None:
        self.records: list[tuple[bytes | None, bytes, dict[str, bytes | None]]] = []

    def write(self, dead: DataFrame) -> int:
        found = [
            (row.key, bytes(row.value), {key: value if value is None else bytes(value) for key, value in row.headers})
            for row in dead.collect()
        ]
        self.records += found
        return len(found)


def pipeline_of(sink: str, folder: Any, *, name: str = "orders", tolerance: str = "all") -> Pipeline:
    """A pipeline with that `[sink]`; its source is never read."""
    text = f"""
name = "{name}"
[source.orders]
connector = "generator"
[sink]
{sink}
[errors]
tolerance = "{tolerance}"
deadletterqueue.topic.name = "dead"
"""
    return parse(text, {}, file="p.toml", folder=folder)


def sink_for(pipeline: Pipeline, spark: SparkSession, dead_letters: DeadLetters | None = None) -> BatchSink:
    return make_sink(pipeline, None, spark, dead_letters or DeadLetters())  # type: ignore[arg-type]


def batch(spark: SparkSession, number: int, generation: int = GENERATION, state: str = "") -> SinkBatch:
    return SinkBatch(number, generation, spark, state=state)
