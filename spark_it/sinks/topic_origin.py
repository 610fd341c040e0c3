"""The source record of a record that is too large for the sink's topic.

It is looked up only after the pipeline was stopped, because encoded records do not contain their origin.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from odradek.spark_it.dead_letters.headers import Origin
from odradek.spark_it.kafka.record_sizes import HEADER_FRAME_BYTES
from odradek.spark_it.sinks.topic_records import HEADERS
from odradek.spark_it.spark.internals import with_source_columns

_ORIGIN = "__odradek_origin"
"""The column of `transforms.plan` with the origin, for rows that depend on a single record of a topic."""


def too_large(records: DataFrame, max_bytes: int) -> tuple[Origin, int] | None:
    """Return the first source record whose encoded record is larger than `max_bytes`, and the size of the latter. None
    if there is none, or if a row may depend on several records."""
    with_origin = with_source_columns(records, [_ORIGIN])
    if with_origin is None:
        return None
    sized = with_origin.select(f.col(_ORIGIN).alias("origin"), _size(with_origin).alias("size"))
    row = sized.filter((f.col("size") > max_bytes) & f.col("origin").isNotNull()).first()
    return None if row is None else (Origin(*row.origin), row.size)


def _size(records: DataFrame) -> Column:
    """Return the size of each record as a column, equal to `record_sizes.size`."""
    size = _bytes("key") + _bytes("value")
    if HEADERS not in records.columns:
        return size

    def and_header(total: Column, header: Column) -> Column:
        value = f.coalesce(f.octet_length(header["value"]), f.lit(0))
        return total + f.octet_length(header["key"]) + value + HEADER_FRAME_BYTES

    return size + f.coalesce(f.aggregate(HEADERS, f.lit(0), and_header), f.lit(0))


def _bytes(column: str) -> Column:
    return f.coalesce(f.octet_length(column), f.lit(0))
