"""Avro schemas as Spark types, and Spark types as Avro schemas; the mapping is that of Spark's own Avro source.

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
_MOST_DIGITS = 38
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def parsed(text: str, what: str) -> Schema:
    """Parse a schema in JSON and resolve its names. Raises FormatError, which begins with `what`."""
    try:
        return as_parsed(json.loads(text))
    except (SchemaParseException, UnknownType, ValueError, TypeError, KeyError, AttributeError) as error:
        why = f"type {error.name} is unknown" if isinstance(error, UnknownType) else str(error)
        raise FormatError(f"{what} is not an Avro schema: {why}") from None
    except RecursionError:
        raise FormatError(f"{what} is not an Avro schema: it is nested too deeply") from None


def as_parsed(schema: Schema) -> Schema:
    """Parse a schema for fastavro. Raises fastavro's errors."""
    return parse_schema(schema, _write_hint=False)


class Named:
    """The named types of a schema, which later parts of it may reference by name.

    Without a schema, `resolved` must be called in the order of the schema.
    """

    def __init__(self, schema: Schema | None = None) -> None:
        self._types: dict[str, Mapping[str, Any]] = {}
        self._register(schema)

    def _register(self, schema: Schema | None) -> None:
        if isinstance(schema, list):
            for one in schema:
                self._register(one)
        elif isinstance(schema, dict):
            self.resolved(schema)
            fields = (one["type"] for one in schema.get("fields", ()))
            for inner in (schema.get("items"), schema.get("values"), *fields):
                self._register(inner)

    def resolved(self, schema: Schema) -> Schema:
        """Return the definition if a schema is a name, else the schema, whose name is registered."""
        if isinstance(schema, dict) and schema["type"] in ("record", "error", "enum", "fixed"):
            self._types[schema["name"]] = schema
        if isinstance(schema, str) and schema in self._types:
            return dict(self._types[schema])
        return schema


def kind_of(schema: Schema) -> str:
    """`record`, `int`, `union` and so on."""
    if isinstance(schema, list):
        return "union"
    if isinstance(schema, dict):
        inner = schema["type"]
        return inner if isinstance(inner, str) else kind_of(inner)
    return schema


def logical_of(schema: Schema) -> str | None:
    """Return the logical type if this module supports it and it is valid for the schema."""
    if not isinstance(schema, dict) or "logicalType" not in schema:
        return None
    logical, kind = str(schema["logicalType"]), kind_of(schema)
    if (kind, logical) in _LOGICAL:
        return logical
    if logical == "decimal" and kind in ("bytes", "fixed"):
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        if isinstance(precision, int) and isinstance(scale, int) and precision > 0 and 0 <= scale <= precision:
            return logical
    return None


def branches(union: list[Any]) -> tuple[bool, list[Any]]:
    """Return whether a union has null, and its other branches."""
    others = [one for one in union if kind_of(one) != "null"]
    return len(others) < len(union), others


def widest(others: list[Any]) -> Schema | None:
    """Return the common type of a union's branches, without null; None if there is none."""
    if len(others) == 1:
        return others[0]  # type: ignore[no-any-return]
    plain = {one if isinstance(one, str) else "" for one in others}
    return "long" if plain == {"int", "long"} else "double" if plain == {"float", "double"} else None


def spark_type(schema: Schema, what: str) -> t.DataType:
    """Return the Spark type of a schema. Raises FormatError, which begins with `what` and names the field."""
    return _type_of(schema, Named(), (), what)


def _type_of(schema: Schema, named: Named, inside: tuple[str, ...], what: str) -> t.DataType:
    schema = named.resolved(schema)
    kind, logical = kind_of(schema), logical_of(schema)
    if isinstance(schema, list):
        _, others = branches(schema)
        wide = widest(others)
        if wide is None:
            shown = ", ".join(kind_of(one) for one in schema)
            raise FormatError(f"{what} is a union of {shown}: Spark has no such type")
        return _type_of(wide, named, inside, what)
    if logical == "decimal":
        assert isinstance(schema, dict)
        if schema["precision"] > _MOST_DIGITS:
            raise FormatError(f"{what} is a decimal of {schema['precision']} digits: Spark has {_MOST_DIGITS} at most")
        return t.DecimalType(schema["precision"], schema.get("scale", 0))
    if logical is not None:
        return _LOGICAL[kind, logical]
    if kind in _PLAIN:
        return _PLAIN[kind]
    if isinstance(schema, dict):
        match kind:
            case "record" | "error":
                name = schema["name"]
                if name in inside:
                    raise FormatError(f"{what} is a {name}, which contains itself: Spark has no such type")
                fields = [
                    (one["name"], _type_of(one["type"], named, (*inside, name), f"{what}.{one['name']}"))
                    for one in schema["fields"]
                ]
                return t.StructType([t.StructField(*field) for field in fields])
            case "array":
                return t.ArrayType(_type_of(schema["items"], named, inside, f"{what}[]"))
            case "map":
                return t.MapType(t.StringType(), _type_of(schema["values"], named, inside, f"{what}{{}}"))
            case "fixed":
                return t.BinaryType()
            case "enum":
                return t.StringType()
            case _:
                return _type_of(schema["type"], named, inside, what)
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


def schema_of(data_type: t.DataType, name: str) -> Schema:
    """Return an Avro schema for a Spark type, with all values nullable. Raises FormatError.

    `name` is the record's. A name that Avro does not allow is an error, because readers would see another name.
    """
    if isinstance(data_type, t.StructType):
        for one in data_type.fields:
            if not _NAME.fullmatch(one.name):
                raise FormatError(f"column {one.name} has a name that Avro does not allow; write SELECT ... AS name")
        fields = [
            {"name": one.name, "type": ["null", schema_of(one.dataType, f"{name}_{one.name}")], "default": None}
            for one in data_type.fields
        ]
        return {"type": "record", "name": name, "fields": fields}
    if isinstance(data_type, t.ArrayType):
        return {"type": "array", "items": ["null", schema_of(data_type.elementType, name)]}
    if isinstance(data_type, t.MapType) and isinstance(data_type.keyType, t.StringType):
        return {"type": "map", "values": ["null", schema_of(data_type.valueType, name)]}
    if isinstance(data_type, t.DecimalType):
        digits = {"precision": data_type.precision, "scale": data_type.scale}
        return {"type": "bytes", "logicalType": "decimal", **digits}
    for kind, schema in _PRIMITIVES:
        if isinstance(data_type, kind):
            return schema
    raise FormatError(f"{name}: {data_type.simpleString()} has no counterpart in Avro")


_FITS: dict[str, tuple[type[t.DataType], ...]] = {
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


def misfits(data_type: t.DataType, schema: Schema, what: str) -> Iterator[str]:
    """Yield the reasons why a column cannot be written with a schema. Invalid values are detected only on write."""
    return _misfits(data_type, schema, Named(), what)


def _misfits(data_type: t.DataType, schema: Schema, named: Named, what: str) -> Iterator[str]:
    schema = named.resolved(schema)
    kind, logical = kind_of(schema), logical_of(schema)
    if isinstance(schema, list):
        wide = widest(branches(schema)[1])
        if wide is None:
            yield f"{what}: a union of {', '.join(map(kind_of, schema))} cannot be written"
        else:
            yield from _misfits(data_type, wide, named, what)
    elif kind in ("record", "error") and isinstance(data_type, t.StructType) and isinstance(schema, dict):
        there = {one.name: one for one in data_type.fields}
        for field in schema["fields"]:
            one = there.pop(field["name"], None)
            if one is not None:
                yield from _misfits(one.dataType, field["type"], named, f"{what}.{field['name']}")
            elif "default" not in field:
                yield f"{what}: there is no column {field['name']}, for which the schema has no default"
        for name in there:
            yield f"{what}: the schema has no field {name}"
    elif kind == "array" and isinstance(data_type, t.ArrayType) and isinstance(schema, dict):
        yield from _misfits(data_type.elementType, schema["items"], named, f"{what}[]")
    elif (
        kind == "map"
        and isinstance(data_type, t.MapType)
        and isinstance(data_type.keyType, t.StringType)
        and isinstance(schema, dict)
    ):
        yield from _misfits(data_type.valueType, schema["values"], named, f"{what}{{}}")
    elif logical == "decimal" and isinstance(data_type, t.DecimalType) and isinstance(schema, dict):
        scale = schema.get("scale", 0)
        if data_type.scale > scale:
            yield f"{what}: {data_type.simpleString()} has more decimals than the {scale} of the schema"
    elif not isinstance(data_type, _FITS.get(logical or kind, ())):
        yield f"{what}: {data_type.simpleString()} cannot be written as {logical or kind}"
