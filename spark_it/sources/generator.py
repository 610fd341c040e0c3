"""The generator source: numbered rows, identical in every run, with Spark's `rate-micro-batch`."""

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import LongType, StructField, StructType, TimestampType

from odradek.spark_it.definition.settings import AVAILABLE_NOW
from odradek.spark_it.definition.source_keys import GeneratorSource
from odradek.spark_it.definition.spec import Pipeline
from odradek.spark_it.interfaces.kafka_types import TopicPartition
from odradek.spark_it.interfaces.source import Stream
from odradek.spark_it.spark.columns import make_decoded_rows


def make(name: str, source: GeneratorSource, pipeline: Pipeline) -> "GeneratorStream":
    return GeneratorStream(source, is_single_batch=pipeline.settings.trigger == AVAILABLE_NOW)


class GeneratorStream(Stream):
    """A `Stream` of generated rows. With trigger available-now Spark reads a single batch of the source, so with
    `is_single_batch` this batch has all rows."""

    def __init__(self, source: GeneratorSource, *, is_single_batch: bool) -> None:
        self._source = source
        self._is_single_batch = is_single_batch

    def schema(self, spark: SparkSession) -> StructType:
        return StructType([StructField("value", LongType()), StructField("timestamp", TimestampType())])

    def read_stream(self, spark: SparkSession, start: Mapping[TopicPartition, int] | None) -> DataFrame:
        source = self._source
        batch_size = source.iterations if self._is_single_batch else None
        reader = spark.readStream.format("rate-micro-batch").option(
            "rowsPerBatch", batch_size or source.rows_per_trigger
        )
        rows = reader.option("startTimestamp", 0).load()
        return rows if source.iterations is None else rows.filter(f.col("value") < source.iterations)

    def decode(self, raw: DataFrame) -> DataFrame:
        source = self._source
        time_ms = f.lit(source.start_timestamp_ms) + f.col("value") * f.lit(source.interval_ms)
        return make_decoded_rows(raw.select("value", f.timestamp_millis(time_ms).alias("timestamp")))
