"""The source record of a row that is too large for the sink's topic.

It is looked up after it has stopped the pipeline, since records do not carry their origin.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from odradek.spark_it.dead_letters.headers import Origin
from odradek.spark_it.kafka.record_sizes import HEADER_FRAME_BYTES
from odradek.spark_it.sinks.topic_records import HEADERS
from odradek.spark_it.spark.internals import with_source_columns

_ORIGIN = "__odradek_origin"
"""The column of `transforms.plan` with the origin, of rows that are each made of one record of a topic."""


def too_large(records: DataFrame, most_bytes: int) -> tuple[Origin, int] | None:
    """The first of the source's records of which one is made that is larger, and the bytes of that; None if there is
    none, or its rows are not each made of one record."""
    known = with_source_columns(records, [_ORIGIN])
    if known is None:
        return None
    sized = known.select(f.col(_ORIGIN).alias("origin"), _size(known).alias("size"))
    row = sized.filter((f.col("size") > most_bytes) & f.col("origin").isNotNull()).first()
    return None if row is None else (Origin(*row.origin), row.size)


def _size(records: DataFrame) -> Column:
    """What `record_sizes.size` says."""
    size = _bytes("key") + _bytes("value")
    if HEADERS not in records.columns:
        return size

    def and_header(total: Column, header: Column) -> Column:
        value = f.coalesce(f.octet_length(header["value"]), f.lit(0))
        return total + f.octet_length(header["key"]) + value + HEADER_FRAME_BYTES

    return size + f.coalesce(f.aggregate(HEADERS, f.lit(0), and_header), f.lit(0))


def _bytes(column: str) -> Column:
    return f.coalesce(f.octet_length(column), f.lit(0))
