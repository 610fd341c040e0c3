"""Columns of decoded frames, and columns by their name."""

from typing import TYPE_CHECKING

from odradek.spark_it.definition.durations import WRITTEN

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

DECODED = """
    row STRUCT<what SQL sees>: of a bad record it says nothing
    error STRUCT<stage STRING, class_name STRING, exception_class_name STRING, message STRING>: null for a good one
    origin STRUCT<topic STRING, partition INT, offset BIGINT>: null unless it comes from a topic
    key BINARY, value BINARY, headers ARRAY<STRUCT<key STRING, value BINARY>>: the record as it came; of a row that
      comes from elsewhere the value is its text or its JSON
"""
"""The columns of a decoded frame, and no others."""

ERROR_TYPE = "struct<stage:string,class_name:string,exception_class_name:string,message:string>"
ORIGIN_TYPE = "struct<topic:string,partition:int,offset:bigint>"
HEADERS_TYPE = "array<struct<key:string,value:binary>>"


def decoded_rows(rows: "DataFrame") -> "DataFrame":
    """The columns of DECODED for rows of which none is bad, from elsewhere than a topic."""
    from pyspark.sql import functions as f

    def nothing(data_type: str) -> "Column":
        return f.lit(None).cast(data_type)

    row = f.struct(*(column(name) for name in rows.columns))
    return rows.select(
        row.alias("row"),
        nothing(ERROR_TYPE).alias("error"),
        nothing(ORIGIN_TYPE).alias("origin"),
        nothing("binary").alias("key"),
        f.to_json(row, WRITTEN).cast("binary").alias("value"),
        nothing(HEADERS_TYPE).alias("headers"),
    )


def column(name: str) -> "Column":
    """The column of that very name, whatever characters it has."""
    from pyspark.sql import functions as f

    return f.col(f"`{name.replace('`', '``')}`")
