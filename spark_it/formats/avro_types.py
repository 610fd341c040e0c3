"""Conversion of Avro schemas to Spark types and back. The mapping is that of Spark's own Avro source.

`time-millis` is an INT with milliseconds of the day, `time-micros` a BIGINT with microseconds; unknown logical types
are ignored, as Avro's specification requires. A union may be a type and null, int and long, or float and double. Other
unions, recursive types and null alone have no Spark type.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from fastavro.schema import SchemaParseException, UnknownType, parse_schema
from pyspark.sql import types as t

from odradek.spark_it.formats.format import FormatError

Schema = str | dict[str, Any] | list[Any]

_PLAIN: dict[str, t.DataType] = {
    "boolean": t.BooleanType(),
    "int": t.IntegerType(),
    "long": t.LongType(),
    "float": t.FloatType(),
    "double": t.DoubleType(),
    "bytes": t.BinaryType(),
    "string": t.StringType(),
}
_LOGICAL: dict[tuple[str, str], t.DataType] = {
    ("int", "date"): t.DateType(),
    ("long", "timestamp-millis"): t.TimestampType(),
    ("long", "timestamp-micros"): t.TimestampType(),
    ("long", "local-timestamp-millis"): t.TimestampNTZType(),
    ("long", "local-timestamp-micros"): t.TimestampNTZType(),
}
_MAX_DIGITS = 38
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def parse_schema_text(text: str, what: str) -> Schema:
    """Parse a schema in JSON and resolve its names. Raises FormatError with a message that begins with `what`."""
    try:
        return parse_for_fastavro(json.loads(text))
    except (SchemaParseException, UnknownType, ValueError, TypeError, KeyError, AttributeError) as error:
        why = f"type {error.name} is unknown" if isinstance(error, UnknownType) else str(error)
        raise FormatError(f"{what} is not an Avro schema: {why}") from None
    except RecursionError:
        raise FormatError(f"{what} is not an Avro schema: it is nested too deeply") from None


def parse_for_fastavro(schema: Schema) -> Schema:
    """Parse a schema for fastavro. Raises fastavro's errors."""
    return parse_schema(schema, _write_hint=False)


class NamedTypes:
    """The named types of a schema. Parts of the schema may reference a type by name after its definition.

    Without a schema, `resolve` registers each definition; it must be called in the order of the schema.
    """

    def __init__(self, schema: Schema | None = None) -> None:
        self._types: dict[str, Mapping[str, Any]] = {}
        self._register(schema)

    def _register(self, schema: Schema | None) -> None:
        if isinstance(schema, list):
            for one in schema:
                self._register(one)
        elif isinstance(schema, dict):
            self.resolve(schema)
            fields = (one["type"] for one in schema.get("fields", ()))
            for inner in (schema.get("items"), schema.get("values"), *fields):
                self._register(inner)

    def resolve(self, schema: Schema) -> Schema:
        """Return the definition if a schema is a name; else return the schema, and register its name."""
        if isinstance(schema, dict) and schema["type"] in ("record", "error", "enum", "fixed"):
            self._types[schema["name"]] = schema
        if isinstance(schema, str) and schema in self._types:
            return dict(self._types[schema])
        return schema


def get_kind(schema: Schema) -> str:
    """Return the kind of a schema: `record`, `int`, `union` and so on."""
    if isinstance(schema, list):
        return "union"
    if isinstance(schema, dict):
        inner = schema["type"]
        return inner if isinstance(inner, str) else get_kind(inner)
    return schema


def get_logical_type(schema: Schema) -> str | None:
    """Return the logical type if this module supports it and it is valid for the schema."""
    if not isinstance(schema, dict) or "logicalType" not in schema:
        return None
    logical, kind = str(schema["logicalType"]), get_kind(schema)
    if (kind, logical) in _LOGICAL:
        return logical
    if logical == "decimal" and kind in ("bytes", "fixed"):
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        if isinstance(precision, int) and isinstance(scale, int) and precision > 0 and 0 <= scale <= precision:
            return logical
    return None


def split_union(union: list[Any]) -> tuple[bool, list[Any]]:
    """Return whether a union includes null, and its other branches."""
    others = [one for one in union if get_kind(one) != "null"]
    return len(others) < len(union), others


def find_common_type(others: list[Any]) -> Schema | None:
    """Return the type that stores values of all `others`, the branches of a union without null; None if none does."""
    if len(others) == 1:
        return others[0]  # type: ignore[no-any-return]
    plain = {one if isinstance(one, str) else "" for one in others}
    return "long" if plain == {"int", "long"} else "double" if plain == {"float", "double"} else None


def to_spark_type(schema: Schema, what: str) -> t.DataType:
    """Return the Spark type of a schema. Raises FormatError, whose message begins with `what` and names the field."""
    return _convert_type(schema, NamedTypes(), (), what)


def _convert_type(schema: Schema, named: NamedTypes, enclosing: tuple[str, ...], what: str) -> t.DataType:
    schema = named.resolve(schema)
    kind, logical = get_kind(schema), get_logical_type(schema)
    if isinstance(schema, list):
        _, others = split_union(schema)
        common = find_common_type(others)
        if common is None:
            kinds = ", ".join(get_kind(one) for one in schema)
            raise FormatError(f"{what} is a union of {kinds}: Spark has no such type")
        return _convert_type(common, named, enclosing, what)
    if logical == "decimal":
        assert isinstance(schema, dict)
        if schema["precision"] > _MAX_DIGITS:
            raise FormatError(f"{what} is a decimal of {schema['precision']} digits: Spark has {_MAX_DIGITS} at most")
        return t.DecimalType(schema["precision"], schema.get("scale", 0))
    if logical is not None:
        return _LOGICAL[kind, logical]
    if kind in _PLAIN:
        return _PLAIN[kind]
    if isinstance(schema, dict):
        match kind:
            case "record" | "error":
                name = schema["name"]
                if name in enclosing:
                    raise FormatError(f"{what} is a {name}, which contains itself: Spark has no such type")
                fields = [
                    (one["name"], _convert_type(one["type"], named, (*enclosing, name), f"{what}.{one['name']}"))
                    for one in schema["fields"]
                ]
                return t.StructType([t.StructField(*field) for field in fields])
            case "array":
                return t.ArrayType(_convert_type(schema["items"], named, enclosing, f"{what}[]"))
            case "map":
                return t.MapType(t.StringType(), _convert_type(schema["values"], named, enclosing, f"{what}{{}}"))
            case "fixed":
                return t.BinaryType()
            case "enum":
                return t.StringType()
            case _:
                return _convert_type(schema["type"], named, enclosing, what)
    raise FormatError(f"{what} is {kind}: Spark has no such type")


_PRIMITIVES: tuple[tuple[type[t.DataType], Schema], ...] = (
    (t.BooleanType, "boolean"),
    (t.ByteType, "int"),
    (t.ShortType, "int"),
    (t.IntegerType, "int"),
    (t.LongType, "long"),
    (t.FloatType, "float"),
    (t.DoubleType, "double"),
    (t.BinaryType, "bytes"),
    (t.StringType, "string"),
    (t.DateType, {"type": "int", "logicalType": "date"}),
    (t.TimestampType, {"type": "long", "logicalType": "timestamp-micros"}),
    (t.TimestampNTZType, {"type": "long", "logicalType": "local-timestamp-micros"}),
)


def to_avro_schema(data_type: t.DataType, name: str) -> Schema:
    """Return an Avro schema for a Spark type, with all values nullable. Raises FormatError.

    `name` is the name of the record. A column name that Avro does not allow is an error, because it would be changed.
    """
    if isinstance(data_type, t.StructType):
        for one in data_type.fields:
            if not _NAME.fullmatch(one.name):
                raise FormatError(f"column {one.name} has a name that Avro does not allow; write SELECT ... AS name")
        fields = [
            {"name": one.name, "type": ["null", to_avro_schema(one.dataType, f"{name}_{one.name}")], "default": None}
            for one in data_type.fields
        ]
        return {"type": "record", "name": name, "fields": fields}
    if isinstance(data_type, t.ArrayType):
        return {"type": "array", "items": ["null", to_avro_schema(data_type.elementType, name)]}
    if isinstance(data_type, t.MapType) and isinstance(data_type.keyType, t.StringType):
        return {"type": "map", "values": ["null", to_avro_schema(data_type.valueType, name)]}
    if isinstance(data_type, t.DecimalType):
        digits = {"precision": data_type.precision, "scale": data_type.scale}
        return {"type": "bytes", "logicalType": "decimal", **digits}
    for kind, schema in _PRIMITIVES:
        if isinstance(data_type, kind):
            return schema
    raise FormatError(f"{name}: {data_type.simpleString()} has no counterpart in Avro")


_WRITABLE_TYPES: dict[str, tuple[type[t.DataType], ...]] = {
    "boolean": (t.BooleanType,),
    "int": (t.IntegerType, t.ShortType, t.ByteType),
    "long": (t.LongType, t.IntegerType, t.ShortType, t.ByteType),
    "float": (t.FloatType,),
    "double": (t.DoubleType, t.FloatType, t.IntegerType, t.ShortType, t.ByteType),
    "bytes": (t.BinaryType,),
    "fixed": (t.BinaryType,),
    "string": (t.StringType,),
    "enum": (t.StringType,),
    "date": (t.DateType,),
    "timestamp-millis": (t.TimestampType,),
    "timestamp-micros": (t.TimestampType,),
    "local-timestamp-millis": (t.TimestampNTZType,),
    "local-timestamp-micros": (t.TimestampNTZType,),
}


def find_mismatches(data_type: t.DataType, schema: Schema, what: str) -> Iterator[str]:
    """Yield the reasons why a column cannot be written with a schema. Invalid values are detected only when written."""
    return _find_mismatches(data_type, schema, NamedTypes(), what)


def _find_mismatches(data_type: t.DataType, schema: Schema, named: NamedTypes, what: str) -> Iterator[str]:
    schema = named.resolve(schema)
    kind, logical = get_kind(schema), get_logical_type(schema)
    if isinstance(schema, list):
        common = find_common_type(split_union(schema)[1])
        if common is None:
            yield f"{what}: a union of {', '.join(map(get_kind, schema))} cannot be written"
        else:
            yield from _find_mismatches(data_type, common, named, what)
    elif kind in ("record", "error") and isinstance(data_type, t.StructType) and isinstance(schema, dict):
        columns = {one.name: one for one in data_type.fields}
        for field in schema["fields"]:
            one = columns.pop(field["name"], None)
            if one is not None:
                yield from _find_mismatches(one.dataType, field["type"], named, f"{what}.{field['name']}")
            elif "default" not in field:
                yield f"{what}: there is no column {field['name']}, for which the schema has no default"
        for name in columns:
            yield f"{what}: the schema has no field {name}"
    elif kind == "array" and isinstance(data_type, t.ArrayType) and isinstance(schema, dict):
        yield from _find_mismatches(data_type.elementType, schema["items"], named, f"{what}[]")
    elif (
        kind == "map"
        and isinstance(data_type, t.MapType)
        and isinstance(data_type.keyType, t.StringType)
        and isinstance(schema, dict)
    ):
        yield from _find_mismatches(data_type.valueType, schema["values"], named, f"{what}{{}}")
    elif logical == "decimal" and isinstance(data_type, t.DecimalType) and isinstance(schema, dict):
        scale = schema.get("scale", 0)
        if data_type.scale > scale:
            yield f"{what}: {data_type.simpleString()} has more decimals than the {scale} of the schema"
    elif not isinstance(data_type, _WRITABLE_TYPES.get(logical or kind, ())):
        yield f"{what}: {data_type.simpleString()} cannot be written as {logical or kind}"
