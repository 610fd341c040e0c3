"""Decoder and encoder of Avro records. Each schema is compiled once. Of Spark, only `Row` is accepted as a value.

Values have the form of Spark's Arrow reader: timestamps as microseconds since 1970, dates as days, decimals as Decimal.
fastavro reads and writes schemas without logical types. This module converts the values of logical types over their
complete range, and checks their limits.
"""

import io
import json
import re
from collections.abc import Callable, Mapping
from decimal import Decimal, localcontext
from functools import lru_cache
from typing import Any

import fastavro

from odradek.spark_it.formats.avro_plain import WHOLE, make_plain_schema, make_reading_schemas
from odradek.spark_it.formats.avro_types import (
    NamedTypes,
    Schema,
    find_common_type,
    get_kind,
    get_logical_type,
    parse_for_fastavro,
    split_union,
)

Converter = Callable[[Any], Any]

_INT64 = 1 << 63
_MAX_LOCAL_MICROS = 10**18
"""Times without a zone are passed as DECIMAL(18,6) seconds (`columns`)."""
_MICROS_OF = {"millis": 1000, "micros": 1}
_EPOCH_ORDINAL = 719_163
_TIMES = re.compile(r"(time|timestamp|local-timestamp)-(millis|micros|nanos)")


class RecordError(ValueError):
    """A record or value that does not match its schema; `str()` has the reason."""


@lru_cache(maxsize=256)
def make_decoder(writer: str, reader: str | None = None) -> Callable[[bytes], Any]:
    """Return a decoder of records with schema `writer`, which converts them to schema `reader`; both are JSON texts.

    It raises RecordError for a record that does not match the schema or has bytes after its end. An int beyond 32 bits
    is returned unchanged, because `columns.decode_batch` rejects it without a check of each number here.
    """
    written = parse_for_fastavro(json.loads(writer))
    wanted = (
        written
        if reader is None or json.loads(reader) == json.loads(writer)
        else parse_for_fastavro(json.loads(reader))
    )
    plain_written, plain_wanted = make_reading_schemas(written, None if wanted is written else wanted)
    conflict = (
        None if wanted is written else _find_conflict(written, wanted, NamedTypes(written), NamedTypes(wanted), "value")
    )
    change = _make_reader(wanted, NamedTypes(), has_defaults=wanted is not written)
    read: Any = fastavro.schemaless_reader

    def decode(data: bytes) -> Any:
        if conflict is not None:
            raise RecordError(conflict)
        source = io.BytesIO(data)
        try:
            value = read(source, plain_written, plain_wanted)
        except EOFError:
            raise RecordError("the record is truncated") from None
        except UnicodeDecodeError as error:
            raise RecordError(f"a string is not UTF-8: {error.reason}") from None
        except IndexError as error:
            # fastavro indexes bytes for a number, which may be truncated, and a list for a branch of a union or enum.
            is_truncated = "list" not in str(error)
            what = "the record is truncated" if is_truncated else "a union or enum has an index outside of its schema"
            raise RecordError(what) from None
        if source.tell() != len(data):
            raise RecordError(f"{len(data) - source.tell()} bytes remain after the record")
        return value[WHOLE] if change is None else change(value[WHOLE])

    return decode


@lru_cache(maxsize=64)
def make_encoder(schema: str) -> Callable[[Any], bytes]:
    """Return an encoder of a Row or another value with a schema. It raises RecordError for an invalid value."""
    parsed = parse_for_fastavro(json.loads(schema))
    plain = make_plain_schema(parsed)
    change = _make_writer(parsed, NamedTypes(), "value")
    write = fastavro.schemaless_writer

    def encode(value: Any) -> bytes:
        target = io.BytesIO()
        write(target, plain, change(value))
        return target.getvalue()

    return encode


def _find_conflict(
    written: Schema, wanted: Schema, of_written: NamedTypes, of_wanted: NamedTypes, what: str
) -> str | None:
    """Return the first conflict of two schemas whose bytes have different meanings, such as ms and µs; None if none."""
    written, wanted = of_written.resolve(written), of_wanted.resolve(wanted)
    if isinstance(wanted, list):
        other = find_common_type(split_union(wanted)[1])
        return None if other is None else _find_conflict(written, other, of_written, of_wanted, what)
    if isinstance(written, list):
        others = [of_written.resolve(one) for one in split_union(written)[1]]
        found = (
            _find_conflict(one, wanted, of_written, of_wanted, what) for one in others if _can_convert(one, wanted)
        )
        return next((conflict for conflict in found if conflict is not None), None)
    before, now = _describe_meaning(written), _describe_meaning(wanted)
    if before is not None and now is not None and before != now:
        return f"{what} was written as {before}, and the schema has {now}"
    if not isinstance(written, dict) or not isinstance(wanted, dict):
        return None
    pairs = [(written[key], wanted[key], what) for key in ("items", "values") if key in written and key in wanted]
    if "fields" in written and "fields" in wanted:
        written_fields = {field["name"]: field["type"] for field in written["fields"]}
        for field in wanted["fields"]:
            name = next((one for one in (field["name"], *field.get("aliases", ())) if one in written_fields), None)
            if name is not None:
                pairs.append((written_fields[name], field["type"], f"{what}.{field['name']}"))
    found = (_find_conflict(one, other, of_written, of_wanted, where) for one, other, where in pairs)
    return next((conflict for conflict in found if conflict is not None), None)


def _can_convert(written: Schema, wanted: Schema) -> bool:
    """Return whether a branch of a writer's union has the reader's kind, or is an int that is read as a long."""
    before, now = get_kind(written), get_kind(wanted)
    if isinstance(written, dict) and isinstance(wanted, dict) and "fields" in written and "fields" in wanted:
        names = {name.rpartition(".")[2] for name in (wanted["name"], *wanted.get("aliases", ()))}
        return written["name"].rpartition(".")[2] in names
    return before == now or (before, now) == ("int", "long")


def _describe_meaning(schema: Schema) -> str | None:
    """Return the logical type, with the scale of a decimal; None if bytes have no other meaning than their kind's."""
    logical = get_logical_type(schema)
    if logical == "decimal" and isinstance(schema, dict):
        return f"decimal with scale {schema.get('scale', 0)}"
    if logical is None and isinstance(schema, dict) and get_kind(schema) in ("int", "long"):
        # In Spark, time-millis, timestamp-nanos and similar types are plain numbers in the unit of the logical type.
        named = str(schema.get("logicalType", ""))
        return named if _TIMES.fullmatch(named) else None
    return logical


# Reading


def _make_reader(schema: Schema, named: NamedTypes, *, has_defaults: bool) -> Converter | None:
    """Return the conversion of fastavro's value to that of `make_decoder`; None if none is needed."""
    schema = named.resolve(schema)
    kind, logical = get_kind(schema), get_logical_type(schema)
    if isinstance(schema, list):
        common = find_common_type(split_union(schema)[1])
        if common == "double":
            return _make_nullable_reader(float)
        return None if common is None else _make_nullable_reader(_make_reader(common, named, has_defaults=has_defaults))
    if logical == "decimal" and isinstance(schema, dict):
        return _make_decimal_reader(schema["precision"], schema.get("scale", 0))
    if logical is not None and "timestamp" in logical:
        limit = _MAX_LOCAL_MICROS if logical.startswith("local") else _INT64
        return _make_timestamp_reader(_MICROS_OF[logical.rpartition("-")[2]], limit)
    if kind in ("bytes", "fixed") and has_defaults:
        return _default_to_bytes
    if isinstance(schema, dict) and kind in ("record", "error"):
        fields = {
            one["name"]: change
            for one in schema["fields"]
            if (change := _make_reader(one["type"], named, has_defaults=has_defaults)) is not None
        }
        return _make_field_reader(fields) if fields else None
    if isinstance(schema, dict) and kind == "array":
        item = _make_reader(schema["items"], named, has_defaults=has_defaults)
        return None if item is None else _make_item_reader(item)
    if isinstance(schema, dict) and kind == "map":
        entry = _make_reader(schema["values"], named, has_defaults=has_defaults)
        return None if entry is None else _make_entry_reader(entry)
    return None


def _make_nullable_reader(change: Converter | None) -> Converter | None:
    return None if change is None else lambda value: None if value is None else change(value)


def _make_field_reader(fields: Mapping[str, Converter]) -> Converter:
    changes = tuple(fields.items())

    def change(value: dict[str, Any]) -> dict[str, Any]:
        for name, convert in changes:
            value[name] = convert(value[name])
        return value

    # fastavro returns the same object for each use of a record's default.
    return lambda value: change(dict(value))


def _make_item_reader(convert: Converter) -> Converter:
    return lambda values: [convert(value) for value in values]


def _make_entry_reader(convert: Converter) -> Converter:
    return lambda values: {key: convert(value) for key, value in values.items()}


def _default_to_bytes(value: bytes | str) -> bytes:
    """Convert the default of a bytes field, a string in the schema with one character per byte."""
    return value.encode("latin-1") if isinstance(value, str) else value


def _make_decimal_reader(precision: int, scale: int) -> Converter:
    limit = 10**precision

    def change(value: bytes | str) -> Decimal:
        number = int.from_bytes(_default_to_bytes(value), "big", signed=True)
        if not -limit < number < limit:
            raise RecordError(f"a decimal has more than the {precision} digits of the schema")
        return Decimal(number).scaleb(-scale) if precision <= 28 else _scale_exactly(number, scale)

    return change


def _scale_exactly(number: int, scale: int) -> Decimal:
    with localcontext(prec=40):
        return Decimal(number).scaleb(-scale)


def _make_timestamp_reader(factor: int, limit: int) -> Converter:
    def change(value: int) -> int:
        micros = value * factor
        if not -limit < micros < limit:
            raise RecordError(f"{value} {'µs' if factor == 1 else 'ms'} is outside Spark's range of timestamps")
        return micros

    return change


# Writing

_RANGES = {"int": 1 << 31, "long": 1 << 63}


def _make_writer(schema: Schema, named: NamedTypes, what: str) -> Converter:
    """Return the conversion of a Spark value to one that fastavro writes without logical types."""
    schema = named.resolve(schema)
    kind, logical = get_kind(schema), get_logical_type(schema)
    if isinstance(schema, list):
        can_be_null, others = split_union(schema)
        common = find_common_type(others)
        if common is None:
            raise RecordError(f"{what}: a union of {', '.join(map(get_kind, schema))} cannot be written")
        convert = _make_writer(common, named, what)
        return (lambda value: None if value is None else convert(value)) if can_be_null else convert
    change = _make_plain_writer(schema, kind, logical, named, what)

    def change_or_refuse_null(value: Any) -> Any:
        if value is None:
            raise RecordError(f"{what} is null, and the schema does not allow it")
        return change(value)

    return change_or_refuse_null


def _make_plain_writer(schema: Schema, kind: str, logical: str | None, named: NamedTypes, what: str) -> Converter:
    if isinstance(schema, dict):
        if logical == "decimal":
            return _make_decimal_writer(schema, what)
        match kind:
            case "record" | "error":
                fields = [
                    (one["name"], _make_writer(one["type"], named, f"{what}.{one['name']}")) for one in schema["fields"]
                ]
                defaults = {
                    one["name"]: _convert_default(one["type"], one["default"], named)
                    for one in schema["fields"]
                    if "default" in one
                }
                return _make_record_writer(fields, defaults)
            case "array":
                item = _make_writer(schema["items"], named, f"{what}[]")
                return lambda values: [item(value) for value in values]
            case "map":
                entry = _make_writer(schema["values"], named, f"{what}{{}}")
                return lambda values: {key: entry(value) for key, value in values.items()}
            case "enum":
                return _make_enum_writer(frozenset(schema["symbols"]), what)
            case "fixed":
                return _make_fixed_writer(schema["size"], what)
    if logical == "date":
        return lambda value: value if isinstance(value, int) else value.toordinal() - _EPOCH_ORDINAL
    if logical is not None:
        factor = _MICROS_OF[logical.rpartition("-")[2]]
        return lambda value: value // factor
    if kind in _RANGES:
        return _make_integer_writer(_RANGES[kind], kind, what)
    if kind in ("float", "double"):
        return float
    if kind == "bytes":
        return bytes
    return lambda value: value


def _make_record_writer(fields: list[tuple[str, Converter]], defaults: Mapping[str, Any]) -> Converter:
    def change(value: Any) -> dict[str, Any]:
        given = value if isinstance(value, Mapping) else dict(zip(value.__fields__, value, strict=True))
        return {
            name: convert(given.get(name)) if name in given or name not in defaults else defaults[name]
            for name, convert in fields
        }

    return change


def _convert_default(schema: Schema, value: Any, named: NamedTypes) -> Any:
    """Return a default of a schema in the form that fastavro writes. In a schema, bytes are strings, at any depth."""
    schema = named.resolve(schema)
    if isinstance(schema, list):
        return _convert_default(schema[0], value, named)  # the type of a default is the first branch
    kind = get_kind(schema)
    if kind in ("bytes", "fixed"):
        return _default_to_bytes(value)
    if isinstance(schema, dict):
        match kind:
            case "record" | "error":
                return {
                    one["name"]: _convert_default(one["type"], value.get(one["name"], one.get("default")), named)
                    for one in schema["fields"]
                }
            case "array":
                return [_convert_default(schema["items"], one, named) for one in value]
            case "map":
                return {key: _convert_default(schema["values"], one, named) for key, one in value.items()}
    return value


def _make_decimal_writer(schema: Mapping[str, Any], what: str) -> Converter:
    scale, limit = schema.get("scale", 0), 10 ** schema["precision"]

    def change(value: Decimal) -> bytes:
        with localcontext(prec=80):
            moved = value.scaleb(scale)
            number = int(moved)
        if number != moved or not -limit < number < limit:
            raise RecordError(f"{what} is {value}, which decimal({schema['precision']},{scale}) cannot store")
        size = schema["size"] if "size" in schema else (number + (number < 0)).bit_length() // 8 + 1
        if (number + (number < 0)).bit_length() // 8 + 1 > size:
            raise RecordError(f"{what} is {value}, which {size} bytes cannot store")
        return number.to_bytes(size, "big", signed=True)

    return change


def _make_enum_writer(symbols: frozenset[str], what: str) -> Converter:
    def change(value: str) -> str:
        if value not in symbols:
            raise RecordError(f"{what} is {value}, which is not in the enum")
        return value

    return change


def _make_fixed_writer(size: int, what: str) -> Converter:
    def change(value: bytes) -> bytes:
        if len(value) != size:
            raise RecordError(f"{what} has {len(value)} bytes, but the schema has {size}")
        return bytes(value)

    return change


def _make_integer_writer(limit: int, kind: str, what: str) -> Converter:
    def change(value: int) -> int:
        if not -limit <= value < limit:
            raise RecordError(f"{what} is {value}, which is not of type {kind}")
        return value

    return change
