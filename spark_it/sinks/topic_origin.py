"""Search for the source record of a record that is too large for the sink's topic.

The search computes the batch again, because encoded records do not contain their origin. It runs only before such a
record stops the pipeline.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from odradek.spark_it.dead_letters.headers import RecordOrigin
from odradek.spark_it.kafka.record_sizes import HEADER_FRAME_BYTES
from odradek.spark_it.sinks.topic_records import HEADERS
from odradek.spark_it.spark.internals import add_source_columns

_ORIGIN = "__odradek_origin"
"""The column of `transforms.plan` with the origin of rows that depend on a single record of a topic."""


def find_too_large_record(records: DataFrame, max_bytes: int) -> tuple[RecordOrigin, int] | None:
    """Return the first source record whose encoded record is larger than `max_bytes`, and the size of the encoded
    record. None if there is none, or if a row may depend on several records."""
    with_origin = add_source_columns(records, [_ORIGIN])
    if with_origin is None:
        return None
    sized = with_origin.select(f.col(_ORIGIN).alias("origin"), _measure_records(with_origin).alias("size"))
    row = sized.filter((f.col("size") > max_bytes) & f.col("origin").isNotNull()).first()
    return None if row is None else (RecordOrigin(*row.origin), row.size)


def _measure_records(records: DataFrame) -> Column:
    """Return a column with the size of each record, equal to `record_sizes.measure_record`."""
    size = _measure_column("key") + _measure_column("value")
    if HEADERS not in records.columns:
        return size

    def add_header(total: Column, header: Column) -> Column:
        value = f.coalesce(f.octet_length(header["value"]), f.lit(0))
        return total + f.octet_length(header["key"]) + value + HEADER_FRAME_BYTES

    return size + f.coalesce(f.aggregate(HEADERS, f.lit(0), add_header), f.lit(0))


def _measure_column(column: str) -> Column:
    return f.coalesce(f.octet_length(column), f.lit(0))
