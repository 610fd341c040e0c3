"""The interface of a source."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from odradek.spark_it.interfaces.kafka_types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType


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
