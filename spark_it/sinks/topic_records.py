"""Encodes rows as records of a topic: key, value and headers, in the formats that the sink's keys specify.

A row that the format cannot encode, as with Avro and Protobuf, becomes a dead letter in the task that writes the
records. Then `error` has the reason, and `row` the row as JSON.
"""

from collections.abc import Mapping
from typing import NamedTuple, Protocol, runtime_checkable

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import DataType, StructField, StructType

from odradek.spark_it.definition.durations import TIMESTAMP_OPTIONS
from odradek.spark_it.definition.sink_keys import TopicSink
from odradek.spark_it.definition.spec import Pipeline
from odradek.spark_it.formats.format import Format, FormatError, Side, make_format
from odradek.spark_it.interfaces.sink import SinkError
from odradek.spark_it.spark.columns import HEADERS_TYPE, column

SOURCE_COLUMNS = ("_key", "_topic", "_partition", "_offset", "_timestamp", "_headers")
"""Columns of a topic source besides those of the value. They may be in the key, and are not part of the value."""
HEADERS = "headers"
OPTIONAL = {HEADERS: HEADERS_TYPE, "error": "string", "error_class": "string", "row": "binary"}
"""Optional columns of records besides `key` and `value`, and their types."""
_RAW_FORMATS = ("string", "bytes")


@runtime_checkable
class _FallibleFormat(Protocol):
    """A format that cannot encode every value of a type."""

    def encode_or_error(self, column: Column, data_type: DataType) -> Column:
        """Return a column STRUCT<value: BINARY, error: STRING>."""


class _EncodedPart(NamedTuple):
    """The encoded key or value of a record; with `may_fail` the column is the result of `encode_or_error`."""

    encoded: Column
    format_name: str = ""
    may_fail: bool = False


class RecordEncoder:
    """Encoder of rows of a schema as records. The constructor raises SinkError for a schema that cannot be encoded."""

    def __init__(self, pipeline: Pipeline, sink: TopicSink, schema: StructType) -> None:
        self._pipeline = pipeline
        self._sink = sink
        fields = {field.name.casefold(): field for field in schema.fields}
        for name in [*sink.key_fields, *([HEADERS] if sink.include_headers else [])]:
            if name.casefold() not in fields:
                raise SinkError(f"sink: unknown column {name}; the columns are {', '.join(schema.fieldNames())}")
        self._names = schema.fieldNames()
        self._parts: dict[str, _EncodedPart] = {
            "key": self._encode_part("key", [fields[name.casefold()] for name in sink.key_fields]),
            "value": self._encode_part("value", self._select_value_fields(fields)),
        }

    def _select_value_fields(self, fields: Mapping[str, StructField]) -> list[StructField]:
        excluded = {*SOURCE_COLUMNS, *([HEADERS] if self._sink.include_headers else [])}
        if self._sink.value_format in _RAW_FORMATS:
            excluded |= {name.casefold() for name in self._sink.key_fields}
        return [field for name, field in fields.items() if name not in excluded]

    def _encode_part(self, side: Side, fields: list[StructField]) -> _EncodedPart:
        if side == "key" and not fields:
            return _EncodedPart(f.lit(None).cast("binary"))
        part_format = self._sink.get_part_format(side)
        try:
            format_ = make_format(part_format, self._pipeline, self._sink.topic, side)
            if part_format.format not in _RAW_FORMATS:
                if not fields:
                    raise SinkError("sink: no columns are left for the value")
                columns = f.struct(*(column(field.name) for field in fields))
                return self._encode_column(format_, columns, StructType(fields))
            if len(fields) != 1:
                names = ", ".join(field.name for field in fields) or "none"
                raise SinkError(f"sink: {side}.format {part_format.format} needs a single column; found: {names}")
            return self._encode_column(format_, column(fields[0].name), fields[0].dataType)
        except FormatError as error:
            raise SinkError(f"sink: {error}") from None

    def _encode_column(self, format_: Format, of: Column, data_type: DataType) -> _EncodedPart:
        if self._pipeline.errors.tolerance == "all" and isinstance(format_, _FallibleFormat):
            return _EncodedPart(format_.encode_or_error(of, data_type), format_.name, may_fail=True)
        return _EncodedPart(format_.encode(of, data_type))

    def check(self, spark: SparkSession, schema: StructType) -> None:
        """Let Spark analyse the encoding of an empty frame. Raises SinkError."""
        try:
            self(spark.createDataFrame([], schema))
        except AnalysisException as error:
            raise SinkError(f"sink: the columns cannot be written: {str(error).splitlines()[0]}") from None

    def __call__(self, rows: DataFrame) -> DataFrame:
        """Return the records, with columns `key` and `value`, and if necessary those of OPTIONAL."""
        headers = [f.col(HEADERS).cast(HEADERS_TYPE).alias(HEADERS)] if self._sink.include_headers else []
        encoded = [part.encoded.alias(side) for side, part in self._parts.items()]
        failing = {side: part for side, part in self._parts.items() if part.may_fail}
        if not failing:
            return rows.select(*encoded, *headers)
        # In two steps, so that a row is encoded only once, although several columns use the result.
        encoded_rows = rows.select(*encoded, *headers, f.struct(*(column(name) for name in self._names)).alias("row"))
        errors = {side: f.col(side)["error"] for side in failing}
        messages = [f.concat(f.lit(f"{side}: "), error) for side, error in errors.items()]
        classes = [f.when(error.isNotNull(), f.lit(failing[side].format_name)) for side, error in errors.items()]
        is_bad = f.coalesce(*errors.values()).isNotNull()
        return encoded_rows.select(
            *((f.col(side)["value"] if side in failing else f.col(side)).alias(side) for side in self._parts),
            *([HEADERS] if headers else []),
            f.coalesce(*messages).alias("error"),
            f.coalesce(*classes).alias("error_class"),
            f.when(is_bad, f.to_json(f.col("row"), TIMESTAMP_OPTIONS)).cast("binary").alias("row"),
        )
