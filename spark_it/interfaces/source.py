"""The interface of a source."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from odradek.spark_it.interfaces.kafka_types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType


class SourceError(Exception):
    """A source cannot be read; `str()` has the reason and the remedy."""


class Stream(Protocol):
    """A source of one run of a pipeline."""

    def schema(self, spark: "SparkSession") -> "StructType":
        """Return the columns of the source in SQL. Only a source whose columns the file does not declare requests them
        from a database or registry.

        Raises SourceError, and `formats.format.FormatError` for a schema that cannot be read.
        """

    def read_stream(self, spark: "SparkSession", start: Mapping[TopicPartition, int] | None) -> "DataFrame":
        """Return the source's streaming frame. Without a checkpoint a topic starts at `start`. Raises SourceError."""

    def decode(self, raw: "DataFrame") -> "DataFrame":
        """Return the frame with the columns of `spark.columns.DECODED`, for a streaming frame or that of one batch."""

    def start_background_work(self, query: "StreamingQuery") -> None:
        """Start background work of the source, for one run of the query on the frame that `read_stream` returned."""
        return

    def close(self) -> None:
        """Stop the work that `start_background_work` began. Called after each run of the query, even one that failed to
        start."""
        return
