"""Creation of the sink for a connector. A sink's module is imported only when a pipeline uses it.

Each module has `make(pipeline, kind, spark, dead_letters) -> BatchSink`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from odradek.spark_it.definition.guarantees import TransactionKind
from odradek.spark_it.definition.settings import PYTHON
from odradek.spark_it.definition.spec import Pipeline
from odradek.spark_it.interfaces.sink import BatchSink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from odradek.spark_it.dead_letters.writer import DeadLetterWriter

MODULES = {
    "topic": "odradek.spark_it.sinks.topic",
    "files": "odradek.spark_it.sinks.files",
    "delta": "odradek.spark_it.sinks.lakehouse",
    "iceberg": "odradek.spark_it.sinks.lakehouse",
    "jdbc": "odradek.spark_it.sinks.jdbc",
    "console": "odradek.spark_it.sinks.console",
    PYTHON: "odradek.spark_it.sinks.python_sink",
}


def make_sink(
    pipeline: Pipeline, kind: TransactionKind | None, spark: "SparkSession", dead_letters: "DeadLetterWriter | None"
) -> BatchSink:
    """Return the sink of a pipeline. `dead_letters` is None if it has no dead-letter topic. Raises SinkError."""
    connector = pipeline.sink.connector.partition(":")[0]
    sink: BatchSink = import_module(MODULES[connector]).make(pipeline, kind, spark, dead_letters)
    return sink
