"""A function of one's own, `function(data_frame, batch_id)`. What it returns, if it is a number, are the rows that it
has written; otherwise they are counted."""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from odradek.spark_it.dead_letters.writer import DeadLetterWriter
from odradek.spark_it.definition.guarantees import TransactionKind
from odradek.spark_it.definition.python_functions import import_function
from odradek.spark_it.definition.sink_keys import PythonSink as Settings
from odradek.spark_it.definition.spec import Pipeline
from odradek.spark_it.interfaces.sink import Batch, Claim, SinkError, Written


def make(
    pipeline: Pipeline, kind: TransactionKind | None, spark: SparkSession, dead_letters: DeadLetterWriter | None
) -> "PythonSink":
    assert isinstance(pipeline.sink, Settings)
    return PythonSink(pipeline.sink)


class PythonSink:
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

    def recorded(self) -> int:
        return 0

    def owners(self) -> frozenset[str]:
        return frozenset()

    def claim(self, claim: Claim) -> None:
        """There are no markers."""

    def write(self, rows: DataFrame, dead: DataFrame | None, batch: Batch) -> Written:
        kept = rows.persist()
        try:
            said = self._function(kept, batch.id, **self._arguments)
            return Written(said if isinstance(said, int) and not isinstance(said, bool) else kept.count())
        finally:
            kept.unpersist()

    def close(self) -> None:
        pass
