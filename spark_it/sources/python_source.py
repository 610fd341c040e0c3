"""The Python source: a `pyspark.sql.datasource.DataSource` with a stream reader."""

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from odradek.spark_it.definition.python_functions import import_function
from odradek.spark_it.definition.source_keys import PythonSource
from odradek.spark_it.definition.spec import Pipeline
from odradek.spark_it.interfaces.kafka_types import TopicPartition
from odradek.spark_it.interfaces.source import SourceError, Stream
from odradek.spark_it.spark.columns import make_decoded_rows


def make(name: str, source: PythonSource, pipeline: Pipeline) -> "PythonStream":
    return PythonStream(name, source)


class PythonStream(Stream):
    """A `Stream` of a Python class, which gets the options of the file unchanged."""

    def __init__(self, name: str, source: PythonSource) -> None:
        self._name = name
        self._options = source.passed["options."]
        class_name = source.connector.removeprefix("python:")
        try:
            imported = import_function(class_name)
        except (ImportError, AttributeError) as error:
            raise SourceError(f"source {name}: {class_name}: {error}") from None
        if not (isinstance(imported, type) and issubclass(imported, DataSource)):
            raise SourceError(f"source {name}: {class_name} is not a pyspark.sql.datasource.DataSource")
        self._class = imported

    def schema(self, spark: SparkSession) -> StructType:
        try:
            schema = self._class(self._options).schema()
            return schema if isinstance(schema, StructType) else _parse_struct(schema)
        except Exception as error:
            raise SourceError(f"source {self._name}: schema() failed: {type(error).__name__}: {error}") from error

    def read_stream(self, spark: SparkSession, start: Mapping[TopicPartition, int] | None) -> DataFrame:
        spark.dataSource.register(self._class)
        return spark.readStream.format(self._class.name()).options(**self._options).load()

    def decode(self, raw: DataFrame) -> DataFrame:
        return make_decoded_rows(raw)


def _parse_struct(ddl: str) -> StructType:
    struct = StructType.fromDDL(ddl)
    if not isinstance(struct, StructType):
        raise TypeError(f"{ddl} has no columns")
    return struct
