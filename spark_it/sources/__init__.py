"""Sources: streaming frames of what comes in, and how a record becomes a row. A module for each connector, imported
when a pipeline has it.

Each module has `make(name, source, pipeline) -> Stream`, where `source` has the keys of `[source.NAME]`; that of topics
also takes a folder for decisions.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from odradek.spark_it.checkpoint import TopicPartition
from odradek.spark_it.settings import PYTHON
from odradek.spark_it.source_settings import Source, TopicSource
from odradek.spark_it.spec import Pipeline
from odradek.spark_it.times import WRITTEN

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

MODULES = {
    "topic": "odradek.spark_it.sources.topic",
    "files": "odradek.spark_it.sources.files",
    "jdbc": "odradek.spark_it.sources.jdbc",
    "generator": "odradek.spark_it.sources.generator",
    PYTHON: "odradek.spark_it.sources.python_source",
}

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


DATA_EXCEPTION = "org.apache.kafka.connect.errors.DataException"
"""What Connect's converters raise."""


class SourceError(Exception):
    """What keeps a source from being read; `str()` says what, and what to do."""


class Stream(Protocol):
    """A source of one run of a pipeline."""

    def schema(self, spark: "SparkSession") -> "StructType":
        """What SQL sees; only a source whose columns the file does not say asks the outside for them.

        Raises SourceError, and formats.FormatError for a schema that cannot be read.
        """

    def raw(self, spark: "SparkSession", start: Mapping[TopicPartition, int] | None) -> "DataFrame":
        """A streaming frame as the source gives it. A topic begins at `start`, unless there is a checkpoint.

        Raises SourceError.
        """

    def decoded(self, raw: "DataFrame") -> "DataFrame":
        """The frame with the columns of DECODED, row by row, of a streaming frame as of one of a batch."""

    def started(self, query: "StreamingQuery") -> None:
        """Starts what the source does beside the query, for one run of it that has begun with `raw`."""
        return

    def close(self) -> None:
        """Ends what `started` has started. Called after each run of the query, whether it began or not."""
        return


def stream_of(name: str, pipeline: Pipeline, decisions: "Path | None" = None) -> Stream:
    """The source of a pipeline by its name. `decisions` is a folder for answers that hold for a batch."""
    source: Source = pipeline.sources[name]
    make = import_module(MODULES[source.connector.partition(":")[0]]).make
    keeps = decisions is not None and isinstance(source, TopicSource)
    made: Stream = make(name, source, pipeline, decisions) if keeps else make(name, source, pipeline)
    return made


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
