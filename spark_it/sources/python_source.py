"""A source written in Python: a `pyspark.sql.datasource.DataSource` with a stream reader."""

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from odradek.spark_it.definition.python_functions import import_function
from odradek.spark_it.definition.source_keys import PythonSource
from odradek.spark_it.definition.spec import Pipeline
from odradek.spark_it.interfaces.kafka_types import TopicPartition
from odradek.spark_it.interfaces.source import SourceError, Stream
from odradek.spark_it.spark.columns import decoded_rows


def make(name: str, source: PythonSource, pipeline: Pipeline) -> "PythonStream":
    return PythonStream(name, source)


class PythonStream(Stream):
    """Passes the options of the file to the class unchanged."""

    def __init__(self, name: str, source: PythonSource) -> None:
        self._name = name
        self._options = source.passed["options."]
        said = source.connector.removeprefix("python:")
        try:
            found = import_function(said)
        except (ImportError, AttributeError) as error:
            raise SourceError(f"source {name}: {said}: {error}") from None
        if not (isinstance(found, type) and issubclass(found, DataSource)):
            raise SourceError(f"source {name}: {said} is no pyspark.sql.datasource.DataSource")
        self._class = found

    def schema(self, spark: SparkSession) -> StructType:
        try:
            schema = self._class(self._options).schema()
            return schema if isinstance(schema, StructType) else _struct(schema)
        except Exception as error:
            raise SourceError(f"source {self._name}: its schema: {type(error).__name__}: {error}") from error

    def raw(self, spark: SparkSession, start: Mapping[TopicPartition, int] | None) -> DataFrame:
        spark.dataSource.register(self._class)
        return spark.readStream.format(self._class.name()).options(**self._options).load()

    def decoded(self, raw: DataFrame) -> DataFrame:
        return decoded_rows(raw)


def _struct(ddl: str) -> StructType:
    found = StructType.fromDDL(ddl)
    if not isinstance(found, StructType):
        raise TypeError(f"{ddl} has no columns")
    return found
