"""Rows become records of a topic: key, value and headers, each encoded as the sink's keys say.

A row that its format refuses, as Avro and Protobuf may, becomes a dead letter in the task that would write it; the
record has its `error` then, and `row`, the row as JSON.
"""

from collections.abc import Mapping
from typing import NamedTuple, Protocol, runtime_checkable

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import DataType, StructField, StructType

from odradek.spark_it.definition.durations import WRITTEN
from odradek.spark_it.definition.sink_keys import TopicSink
from odradek.spark_it.definition.spec import Pipeline
from odradek.spark_it.formats.format import Format, FormatError, Side, format_of
from odradek.spark_it.interfaces.sink import SinkError
from odradek.spark_it.spark.columns import HEADERS_TYPE, column

OF_THE_SOURCE = ("_key", "_topic", "_partition", "_offset", "_timestamp", "_headers")
"""Columns that a topic source has beside those of its value. They can be the key, and are no part of the value."""
HEADERS = "headers"
OPTIONAL = {HEADERS: HEADERS_TYPE, "error": "string", "error_class": "string", "row": "binary"}
"""Columns that records may have beside `key` and `value`, and their types."""
_RAW_FORMATS = ("string", "bytes")


@runtime_checkable
class _MayRefuse(Protocol):
    """A format that cannot write every value of a type."""

    def encode_or_error(self, column: Column, data_type: DataType) -> Column:
        """STRUCT<value: BINARY, error: STRING>."""


class _Part(NamedTuple):
    """A side of a record; with `may_fail` the column is what `encode_or_error` gives."""

    encoded: Column
    format_name: str = ""
    may_fail: bool = False


class RecordMaker:
    """Makes records of rows with a schema. Raises SinkError for a schema of which there can be none."""

    def __init__(self, pipeline: Pipeline, sink: TopicSink, schema: StructType) -> None:
        self._pipeline = pipeline
        self._sink = sink
        fields = {field.name.casefold(): field for field in schema.fields}
        for name in [*sink.key_fields, *([HEADERS] if sink.include_headers else [])]:
            if name.casefold() not in fields:
                raise SinkError(f"sink: there is no column {name}; there are {', '.join(schema.fieldNames())}")
        self._names = schema.fieldNames()
        self._parts: dict[str, _Part] = {
            "key": self._part("key", [fields[name.casefold()] for name in sink.key_fields]),
            "value": self._part("value", self._of_value(fields)),
        }

    def _of_value(self, fields: Mapping[str, StructField]) -> list[StructField]:
        aside = {*OF_THE_SOURCE, *([HEADERS] if self._sink.include_headers else [])}
        if self._sink.value_format in _RAW_FORMATS:
            aside |= {name.casefold() for name in self._sink.key_fields}
        return [field for name, field in fields.items() if name not in aside]

    def _part(self, side: Side, fields: list[StructField]) -> _Part:
        if side == "key" and not fields:
            return _Part(f.lit(None).cast("binary"))
        said = self._sink.part(side)
        try:
            form = format_of(said, self._pipeline, self._sink.topic, side)
            if said.format not in _RAW_FORMATS:
                if not fields:
                    raise SinkError("sink: there is no column for the value")
                columns = f.struct(*(column(field.name) for field in fields))
                return self._encoded(form, columns, StructType(fields))
            if len(fields) != 1:
                there = ", ".join(field.name for field in fields) or "none"
                raise SinkError(f"sink: {side}.format {said.format} takes one column, and there are: {there}")
            return self._encoded(form, column(fields[0].name), fields[0].dataType)
        except FormatError as error:
            raise SinkError(f"sink: {error}") from None

    def _encoded(self, form: Format, of: Column, data_type: DataType) -> _Part:
        if self._pipeline.errors.tolerance == "all" and isinstance(form, _MayRefuse):
            return _Part(form.encode_or_error(of, data_type), form.name, may_fail=True)
        return _Part(form.encode(of, data_type))

    def check(self, spark: SparkSession, schema: StructType) -> None:
        """Has Spark look at it. Raises SinkError."""
        try:
            self(spark.createDataFrame([], schema))
        except AnalysisException as error:
            raise SinkError(f"sink: the columns cannot be written: {str(error).splitlines()[0]}") from None

    def __call__(self, rows: DataFrame) -> DataFrame:
        """Records: `key`, `value`, and where there are any `headers`, `error`, `error_class` and `row`."""
        headers = [f.col(HEADERS).cast(HEADERS_TYPE).alias(HEADERS)] if self._sink.include_headers else []
        encoded = [part.encoded.alias(side) for side, part in self._parts.items()]
        failing = {side: part for side, part in self._parts.items() if part.may_fail}
        if not failing:
            return rows.select(*encoded, *headers)
        # In two steps, so that a row is encoded once for all that is taken of it.
        made = rows.select(*encoded, *headers, f.struct(*(column(name) for name in self._names)).alias("row"))
        errors = {side: f.col(side)["error"] for side in failing}
        messages = [f.concat(f.lit(f"{side}: "), error) for side, error in errors.items()]
        classes = [f.when(error.isNotNull(), f.lit(failing[side].format_name)) for side, error in errors.items()]
        is_bad = f.coalesce(*errors.values()).isNotNull()
        return made.select(
            *((f.col(side)["value"] if side in failing else f.col(side)).alias(side) for side in self._parts),
            *([HEADERS] if headers else []),
            f.coalesce(*messages).alias("error"),
            f.coalesce(*classes).alias("error_class"),
            f.when(is_bad, f.to_json(f.col("row"), WRITTEN)).cast("binary").alias("row"),
        )
