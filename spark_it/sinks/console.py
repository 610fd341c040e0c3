"""The console sink, which prints rows."""

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from odradek.spark_it.dead_letters.writer import DeadLetterWriter
from odradek.spark_it.definition.guarantees import TransactionKind
from odradek.spark_it.definition.sink_keys import ConsoleSink as Settings
from odradek.spark_it.definition.spec import Pipeline
from odradek.spark_it.interfaces.sink import Claim, SinkBatch, WrittenCounts


def make(
    pipeline: Pipeline, kind: TransactionKind | None, spark: SparkSession, dead_letters: DeadLetterWriter | None
) -> "ConsoleBatchSink":
    assert isinstance(pipeline.sink, Settings)
    return ConsoleBatchSink(pipeline.sink)


class ConsoleBatchSink:
    takes_dead_letters = False

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def prepare(self, schema: StructType) -> None:
        pass

    def read_marker(self) -> int:
        return 0

    def read_owners(self) -> frozenset[str]:
        return frozenset()

    def claim(self, claim: Claim) -> None:
        """Do nothing: there are no markers."""

    def write(self, rows: DataFrame, dead: DataFrame | None, batch: SinkBatch) -> WrittenCounts:
        persisted = rows.persist()
        try:
            count = persisted.count()
            sys.stdout.write(f"batch {batch.id}\n")
            persisted.show(self._settings.rows, truncate=self._settings.truncate)
        finally:
            persisted.unpersist()
        sys.stdout.flush()
        return WrittenCounts(count)

    def close(self) -> None:
        pass
