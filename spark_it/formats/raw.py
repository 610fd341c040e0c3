"""Formats string and bytes. A string is UTF-8; invalid bytes are replaced, as by Kafka's StringDeserializer."""

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql.types import BinaryType, DataType, StringType

from odradek.spark_it.definition.settings import PartFormat
from odradek.spark_it.definition.spec import Pipeline
from odradek.spark_it.formats.format import Side


def make_format(part: PartFormat, pipeline: Pipeline, topic: str | None, side: Side) -> "RawFormat":
    return RawFormat(part.format)


class RawFormat:
    """Strings or bytes, according to `name`. No record is bad."""

    def __init__(self, name: str) -> None:
        self.name = name

    def schema(self) -> DataType:
        return StringType() if self.name == "string" else BinaryType()

    def decode(self, column: Column) -> Column:
        value = f.make_valid_utf8(column.cast("string")) if self.name == "string" else column
        return f.struct(value.alias("value"), f.lit(None).cast("string").alias("error"))

    def encode(self, column: Column, data_type: DataType) -> Column:
        return column.cast("string").cast("binary") if self.name == "string" else column.cast("binary")
