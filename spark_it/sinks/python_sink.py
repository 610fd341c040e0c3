"""The Python sink, which calls `function(data_frame, batch_id)` for each batch.

If the function returns an integer, that is the number of written rows; otherwise the rows are counted.
"""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from odradek.spark_it.dead_letters.writer import DeadLetterWriter
from odradek.spark_it.definition.guarantees import TransactionKind
from odradek.spark_it.definition.python_functions import import_function
from odradek.spark_it.definition.sink_keys import PythonSink as Settings
from odradek.spark_it.definition.spec import Pipeline
from odradek.spark_it.interfaces.sink import Claim, SinkBatch, SinkError, WrittenCounts


def make(
    pipeline: Pipeline, kind: TransactionKind | None, spark: SparkSession, dead_letters: DeadLetterWriter | None
) -> "PythonBatchSink":
    assert isinstance(pipeline.sink, Settings)
    return PythonBatchSink(pipeline.sink)


class PythonBatchSink:
    takes_dead_letters = False

    def __init__(self, settings: Settings) -> None:
        self._name = settings.connector.removeprefix("python:")
        self._arguments = settings.passed["options."]
        try:
            self._function = import_function(self._name)
        except (ImportError, AttributeError) as error:
            raise SinkError(f"sink {self._name}: {error}") from None

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
            result = self._function(persisted, batch.id, **self._arguments)
            return WrittenCounts(
                result if isinstance(result, int) and not isinstance(result, bool) else persisted.count()
            )
        finally:
            persisted.unpersist()

    def close(self) -> None:
        pass
