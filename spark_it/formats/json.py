"""JSON by a schema in Spark's DDL. Fields that the schema does not have are left out; fields that are not there are
null."""

from pyspark.errors import PySparkException
from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql.types import DataType, StringType, StructField, StructType

from odradek.spark_it.formats import FormatError, Side
from odradek.spark_it.settings import PartFormat
from odradek.spark_it.spec import Pipeline
from odradek.spark_it.times import WRITTEN

_CORRUPT = "__odradek_corrupt"


def make(part: PartFormat, pipeline: Pipeline, topic: str | None, side: Side) -> "JsonFormat":
    return JsonFormat(part.schema, f"{side}.schema")


def struct_of(ddl: str, key: str) -> StructType:
    """Columns in Spark's DDL. `key` is what the file calls it. Raises FormatError."""
    try:
        found = StructType.fromDDL(ddl)
    except PySparkException as error:
        reason = str(error).strip().split("\n")[0]
        raise FormatError(f"{key} is no schema such as id BIGINT, name STRING: {reason}") from None
    if not isinstance(found, StructType):
        raise FormatError(f"{key} = {ddl} has no columns; write them as id BIGINT, name STRING")
    return found


class JsonFormat:
    """`ddl` is None where JSON is only written."""

    name = "json"

    def __init__(self, ddl: str | None, key: str) -> None:
        self._ddl = ddl
        self._key = key
        self._schema: StructType | None = None

    def schema(self) -> DataType:
        return self._struct()

    def _struct(self) -> StructType:
        if self._schema is None:
            if self._ddl is None:
                raise FormatError(f"{self._key} is missing")
            self._schema = struct_of(self._ddl, self._key)
        return self._schema

    def decode(self, column: Column) -> Column:
        return self.of_parsed(self.parsed(column), column)

    def parsed(self, column: Column) -> Column:
        """The columns and, if it is bad, the text; as a column of its own it is parsed once for all that reads it."""
        wanted = StructType([*self._struct().fields, StructField(_CORRUPT, StringType())])
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
        return f.from_json(column.cast("string"), wanted, options)

    def of_parsed(self, found: Column, column: Column) -> Column:
        """What `decode` gives, of what `parsed` gave for a column."""
        value = f.struct(*(found[field.name].alias(field.name) for field in self._struct().fields))
        is_bad = column.isNotNull() & (found.isNull() | found[_CORRUPT].isNotNull())
        message = f.when(is_bad, f.lit(f"is no JSON object with {self._ddl}"))
        return f.struct(value.alias("value"), message.alias("error"))

    def encode(self, column: Column, data_type: DataType) -> Column:
        return f.to_json(column, WRITTEN).cast("binary")


def rescued(column: Column, schema: StructType) -> Column:
    """The fields of an object that a schema does not have, as JSON; null if there are none."""
    fields = f.from_json(column.cast("string"), "map<string,variant>")
    known = [field.name for field in schema.fields]
    others = f.map_filter(fields, lambda name, _: ~name.isin(known))
    return f.when(f.size(others) > 0, f.to_json(others))
