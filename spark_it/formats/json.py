"""Format json: objects with a schema in Spark's DDL. Fields outside the schema are dropped; missing ones are null.

A text is bad unless it is exactly one object of the schema, and each column can store its value exactly.
"""

from pyspark.errors import PySparkException
from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, DataType, LongType, StringType, StructField, StructType

from odradek.spark_it.definition.durations import TIMESTAMP_OPTIONS
from odradek.spark_it.definition.settings import PartFormat
from odradek.spark_it.definition.spec import Pipeline
from odradek.spark_it.formats.format import FormatError, Side
from odradek.spark_it.formats.json_changes import ChangeDetector, make_inexact_message

_CORRUPT = "__odradek_corrupt"
_OBJECTS = "__odradek_objects"
_LENGTH = "__odradek_length"


def make_format(part: PartFormat, pipeline: Pipeline, topic: str | None, side: Side) -> "JsonFormat":
    return JsonFormat(part.schema, f"{side}.schema")


def parse_struct(ddl: str, key: str) -> StructType:
    """Parse columns in Spark's DDL. `key` is the key in the pipeline file. Raises FormatError."""
    try:
        found = StructType.fromDDL(ddl)
    except PySparkException as error:
        reason = str(error).strip().split("\n")[0]
        raise FormatError(f"{key} is not a schema such as id BIGINT, name STRING: {reason}") from None
    if not isinstance(found, StructType):
        raise FormatError(f"{key} = {ddl} has no columns; write them as id BIGINT, name STRING")
    return found


class JsonFormat:
    """JSON objects with the columns of `ddl`, which is the value of `key` in the pipeline file; None for a sink."""

    name = "json"

    def __init__(self, ddl: str | None, key: str) -> None:
        self._ddl = ddl
        self._key = key
        self._schema: StructType | None = None

    def schema(self) -> DataType:
        return self._get_struct()

    def _get_struct(self) -> StructType:
        if self._schema is None:
            if self._ddl is None:
                raise FormatError(f"{self._key} is missing")
            self._schema = parse_struct(self._ddl, self._key)
        return self._schema

    def decode(self, column: Column) -> Column:
        return self.decode_parsed(self.parse(column), column)

    def parse(self, column: Column) -> Column:
        """Parse a text for `decode_parsed`. The result should be a column of the frame, so that it is computed once."""
        return _parse_single_value(column, self._get_struct())

    def decode_parsed(self, found: Column, column: Column) -> Column:
        """Return the result of `decode` for `column`; `found` is the result of `parse` for it."""
        schema, text = self._get_struct(), column.cast("string")
        record = _get_single_value(found)
        value = f.struct(*(record[field.name].alias(field.name) for field in schema.fields))
        is_one = found[_CORRUPT].isNull() & (found[_LENGTH] == f.octet_length(column)) & record.isNotNull()
        is_good = is_one & (f.size(found[_OBJECTS]) == 1)
        message = f.when(~f.coalesce(is_good, f.lit(False)), f.lit(f"is not a JSON object with {self._ddl}"))
        # Spark replaces invalid UTF-8 by U+FFFD.
        message = message.when(~f.is_valid_utf8(text), f.lit("is not UTF-8"))
        detector = ChangeDetector(schema)
        if detector.second_schema.fields:
            unchanged = _get_single_value(_parse_single_value(column, detector.second_schema))
            changed = f.transform(f.array(unchanged), lambda one: detector.list_changed(record, one, text)).getItem(0)
            message = message.when(
                detector.needs_second_parse(record, text), f.when(changed != "", make_inexact_message(changed))
            )
        return f.struct(value.alias("value"), f.when(column.isNotNull(), message).alias("error"))

    def encode(self, column: Column, data_type: DataType) -> Column:
        return f.to_json(column, TIMESTAMP_OPTIONS).cast("binary")


def _parse_single_value(column: Column, schema: StructType) -> Column:
    """Parse a text as the only element of an array that is followed by the text's length: a struct, null for null.

    Spark ignores what follows the first value of a text. Here a second value makes a second element or a syntax error,
    and a bracket that ends the array early hides the length. An empty text, for which Spark's generated code raises a
    NullPointerException, makes an empty array.
    """
    text = column.cast("string")
    length = f.octet_length(column).cast("string")
    array = f.concat(f.lit(f'{{"{_OBJECTS}":['), text, f.lit(f'],"{_LENGTH}":'), length, f.lit("}"))
    wanted = StructType(
        [
            StructField(_OBJECTS, ArrayType(schema)),
            StructField(_LENGTH, LongType()),
            StructField(_CORRUPT, StringType()),
        ]
    )
    return f.from_json(array, wanted, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT})


def _get_single_value(found: Column) -> Column:
    return f.get(found[_OBJECTS], f.lit(0))


def collect_unknown_fields(column: Column, schema: StructType) -> Column:
    """Return the fields of an object that are not in a schema, as JSON; null if there are none."""
    text = column.cast("string")
    # For a text without a value Spark's generated code raises a NullPointerException.
    fields = f.from_json(f.when(f.trim(text) != "", text), "map<string,variant>")
    known = [field.name for field in schema.fields]
    others = f.map_filter(fields, lambda name, _: ~name.isin(known))
    return f.when(f.size(others) > 0, f.to_json(others))
