"""Columns of decoded frames, and columns by their name."""

from typing import TYPE_CHECKING

from odradek.spark_it.definition.durations import TIMESTAMP_OPTIONS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

DECODED = """
    row STRUCT<columns visible in SQL>: undefined for a record with an error
    error STRUCT<stage STRING, class_name STRING, exception_class_name STRING, message STRING>: null for a valid record
    origin STRUCT<topic STRING, partition INT, offset BIGINT>: null unless the source is a topic
    key BINARY, value BINARY, headers ARRAY<STRUCT<key STRING, value BINARY>>: the original record; for other sources
      than topics the value is the row's text or JSON
"""
"""The columns of a decoded frame."""

ERROR_TYPE = "struct<stage:string,class_name:string,exception_class_name:string,message:string>"
ORIGIN_TYPE = "struct<topic:string,partition:int,offset:bigint>"
HEADERS_TYPE = "array<struct<key:string,value:binary>>"


def make_decoded_rows(rows: "DataFrame") -> "DataFrame":
    """Return a frame with the columns of DECODED for valid rows of a source other than a topic."""
    from pyspark.sql import functions as f

    def null(data_type: str) -> "Column":
        return f.lit(None).cast(data_type)

    row = f.struct(*(column(name) for name in rows.columns))
    return rows.select(
        row.alias("row"),
        null(ERROR_TYPE).alias("error"),
        null(ORIGIN_TYPE).alias("origin"),
        null("binary").alias("key"),
        f.to_json(row, TIMESTAMP_OPTIONS).cast("binary").alias("value"),
        null(HEADERS_TYPE).alias("headers"),
    )


def column(name: str) -> "Column":
    """Return the column with exactly this name, which may contain dots and quotes."""
    from pyspark.sql import functions as f

    return f.col(f"`{name.replace('`', '``')}`")
