"""The output mode of a streaming frame."""

from pyspark.sql import DataFrame

from odradek.spark_it.definition.sink_keys import JdbcSink
from odradek.spark_it.definition.spec import Pipeline
from odradek.spark_it.spark.internals import list_logical_nodes


def find_output_mode(pipeline: Pipeline, rows: DataFrame) -> str:
    """Return the output mode: update if rows replace earlier rows of the same key, else append."""
    upserts = isinstance(pipeline.sink, JdbcSink) and pipeline.sink.insert_mode == "upsert"
    has_aggregates = "Aggregate" in list_logical_nodes(rows)
    return "update" if upserts and has_aggregates else "append"
