"""Codec between Avro records and plain values; each schema is compiled once. Of Spark it uses only `Row`.

Values have the form of Spark's Arrow reader: instants as microseconds since 1970, dates as days, decimals as Decimal.
fastavro reads and writes without logical types; this module converts them, over their complete range, and checks their
limits.
"""

import io
import json
import re
from collections.abc import Callable, Mapping
from decimal import Decimal, localcontext
from functools import lru_cache
from typing import Any

import fastavro

from odradek.spark_it.formats.avro_plain import WHOLE, for_reading, for_writing
from odradek.spark_it.formats.avro_types import Named, Schema, as_parsed, branches, kind_of, logical_of, widest

Change = Callable[[Any], Any]

_INT64 = 1 << 63
_LOCAL_MICROS = 10**18
"""Times without a zone are passed as DECIMAL(18,6) seconds (`columns`)."""
_MICROS_OF = {"millis": 1000, "micros": 1}
_EPOCH_ORDINAL = 719_163
_TIMES = re.compile(r"(time|timestamp|local-timestamp)-(millis|micros|nanos)")


class RecordError(ValueError):
    """A record or value that does not match its schema; `str()` has the reason."""


@lru_cache(maxsize=256)
def decoder(writer: str, reader: str | None = None) -> Callable[[bytes], Any]:
    """Return a decoder of records with schema `writer` to schema `reader`; both are JSON texts.

    It raises RecordError for a record that does not match the schema; remaining bytes are an error, too. An int beyond
    32 bits is returned unchanged: `columns.decode_batch` rejects it, without a check of each number here.
    """
    written = as_parsed(json.loads(writer))
    wanted = written if reader is None or json.loads(reader) == json.loads(writer) else as_parsed(json.loads(reader))
    plain_written, plain_wanted = for_reading(written, None if wanted is written else wanted)
    clash = None if wanted is written else _clash(written, wanted, Named(written), Named(wanted), "value")
    change = _reading(wanted, Named(), has_defaults=wanted is not written)
    read: Any = fastavro.schemaless_reader

    def decode(data: bytes) -> Any:
        if clash is not None:
            raise RecordError(clash)
        source = io.BytesIO(data)
        try:
            value = read(source, plain_written, plain_wanted)
        except EOFError:
            raise RecordError("the record is truncated") from None
        except UnicodeDecodeError as error:
            raise RecordError(f"a string is not UTF-8: {error.reason}") from None
        except IndexError as error:
            # IndexError of bytes for a truncated number, of a list for an invalid index of a union or enum.
            is_cut = "list" not in str(error)
            what = "the record is truncated" if is_cut else "a union or enum has a branch that the schema has not"
            raise RecordError(what) from None
        if source.tell() != len(data):
            raise RecordError(f"{len(data) - source.tell()} bytes remain after the record")
        return value[WHOLE] if change is None else change(value[WHOLE])

    return decode


@lru_cache(maxsize=64)
def encoder(schema: str) -> Callable[[Any], bytes]:
    """Return an encoder of a Row or another value with a schema. It raises RecordError for an invalid value."""
    parsed = as_parsed(json.loads(schema))
    plain = for_writing(parsed)
    change = _writing(parsed, Named(), "value")
    write = fastavro.schemaless_writer

    def encode(value: Any) -> bytes:
        target = io.BytesIO()
        write(target, plain, change(value))
        return target.getvalue()

    return encode


def _clash(written: Schema, wanted: Schema, of_written: Named, of_wanted: Named, what: str) -> str | None:
    """Return the conflict if bytes of one logical type have another meaning in the other one; None if there is none."""
    written, wanted = of_written.resolved(written), of_wanted.resolved(wanted)
    if isinstance(wanted, list):
        other = widest(branches(wanted)[1])
        return None if other is None else _clash(written, other, of_written, of_wanted, what)
    if isinstance(written, list):
        ones = [of_written.resolved(one) for one in branches(written)[1]]
        found = (_clash(one, wanted, of_written, of_wanted, what) for one in ones if _may_become(one, wanted))
        return next((conflict for conflict in found if conflict is not None), None)
    before, now = _shown(written), _shown(wanted)
    if before is not None and now is not None and before != now:
        return f"{what} was written as {before}, and the schema has {now}"
    if not isinstance(written, dict) or not isinstance(wanted, dict):
        return None
    pairs = [(written[key], wanted[key], what) for key in ("items", "values") if key in written and key in wanted]
    if "fields" in written and "fields" in wanted:
        there = {field["name"]: field["type"] for field in written["fields"]}
        for field in wanted["fields"]:
            name = next((one for one in (field["name"], *field.get("aliases", ())) if one in there), None)
            if name is not None:
                pairs.append((there[name], field["type"], f"{what}.{field['name']}"))
    found = (_clash(one, other, of_written, of_wanted, where) for one, other, where in pairs)
    return next((conflict for conflict in found if conflict is not None), None)


def _may_become(written: Schema, wanted: Schema) -> bool:
    """Return whether a branch of a writer's union has the reader's kind, or is an int that is read as a long."""
    before, now = kind_of(written), kind_of(wanted)
    if isinstance(written, dict) and isinstance(wanted, dict) and "fields" in written and "fields" in wanted:
        names = {name.rpartition(".")[2] for name in (wanted["name"], *wanted.get("aliases", ()))}
        return written["name"].rpartition(".")[2] in names
    return before == now or (before, now) == ("int", "long")


def _shown(schema: Schema) -> str | None:
    logical = logical_of(schema)
    if logical == "decimal" and isinstance(schema, dict):
        return f"decimal with scale {schema.get('scale', 0)}"
    if logical is None and isinstance(schema, dict) and kind_of(schema) in ("int", "long"):
        # Spark gets time, timestamp-nanos and similar types as plain numbers, whose unit depends on the logical type.
        named = str(schema.get("logicalType", ""))
        return named if _TIMES.fullmatch(named) else None
    return logical


# Reading


def _reading(schema: Schema, named: Named, *, has_defaults: bool) -> Change | None:
    """Return the conversion of fastavro's value to that of `decoder`; None if none is needed."""
    schema = named.resolved(schema)
    kind, logical = kind_of(schema), logical_of(schema)
    if isinstance(schema, list):
        wide = widest(branches(schema)[1])
        if wide == "double":
            return _or_none(float)
        return None if wide is None else _or_none(_reading(wide, named, has_defaults=has_defaults))
    if logical == "decimal" and isinstance(schema, dict):
        return _decimal_of(schema["precision"], schema.get("scale", 0))
    if logical is not None and "timestamp" in logical:
        limit = _LOCAL_MICROS if logical.startswith("local") else _INT64
        return _micros_of(_MICROS_OF[logical.rpartition("-")[2]], limit)
    if kind in ("bytes", "fixed") and has_defaults:
        return _as_bytes
    if isinstance(schema, dict) and kind in ("record", "error"):
        fields = {
            one["name"]: change
            for one in schema["fields"]
            if (change := _reading(one["type"], named, has_defaults=has_defaults)) is not None
        }
        return _of_fields(fields) if fields else None
    if isinstance(schema, dict) and kind == "array":
        of = _reading(schema["items"], named, has_defaults=has_defaults)
        return None if of is None else _of_items(of)
    if isinstance(schema, dict) and kind == "map":
        of = _reading(schema["values"], named, has_defaults=has_defaults)
        return None if of is None else _of_entries(of)
    return None


def _or_none(change: Change | None) -> Change | None:
    return None if change is None else lambda value: None if value is None else change(value)


def _of_fields(fields: Mapping[str, Change]) -> Change:
    changes = tuple(fields.items())

    def change(value: dict[str, Any]) -> dict[str, Any]:
        for name, of in changes:
            value[name] = of(value[name])
        return value

    # fastavro returns the same object for each use of a record's default.
    return lambda value: change(dict(value))


def _of_items(of: Change) -> Change:
    return lambda values: [of(value) for value in values]


def _of_entries(of: Change) -> Change:
    return lambda values: {key: of(value) for key, value in values.items()}


def _as_bytes(value: bytes | str) -> bytes:
    """Convert the default of a bytes field, a string in the schema with one character per byte."""
    return value.encode("latin-1") if isinstance(value, str) else value


def _decimal_of(precision: int, scale: int) -> Change:
    limit = 10**precision

    def change(value: bytes | str) -> Decimal:
        number = int.from_bytes(_as_bytes(value), "big", signed=True)
        if not -limit < number < limit:
            raise RecordError(f"a decimal has more than the {precision} digits of the schema")
        return Decimal(number).scaleb(-scale) if precision <= 28 else _scaled(number, scale)

    return change


def _scaled(number: int, scale: int) -> Decimal:
    with localcontext(prec=40):
        return Decimal(number).scaleb(-scale)


def _micros_of(factor: int, limit: int) -> Change:
    def change(value: int) -> int:
        micros = value * factor
        if not -limit < micros < limit:
            raise RecordError(f"{value} {'µs' if factor == 1 else 'ms'} is outside Spark's range of timestamps")
        return micros

    return change


# Writing

_RANGES = {"int": 1 << 31, "long": 1 << 63}


def _writing(schema: Schema, named: Named, what: str) -> Change:
    """Return the conversion of a Spark value to one that fastavro writes without logical types."""
    schema = named.resolved(schema)
    kind, logical = kind_of(schema), logical_of(schema)
    if isinstance(schema, list):
        can_be_null, others = branches(schema)
        wide = widest(others)
        if wide is None:
            raise RecordError(f"{what}: a union of {', '.join(map(kind_of, schema))} cannot be written")
        of = _writing(wide, named, what)
        return (lambda value: None if value is None else of(value)) if can_be_null else of
    change = _writing_plain(schema, kind, logical, named, what)

    def not_null(value: Any) -> Any:
        if value is None:
            raise RecordError(f"{what} is null, and the schema does not allow it")
        return change(value)

    return not_null


def _writing_plain(schema: Schema, kind: str, logical: str | None, named: Named, what: str) -> Change:
    if isinstance(schema, dict):
        if logical == "decimal":
            return _unscaled(schema, what)
        match kind:
            case "record" | "error":
                fields = [
                    (one["name"], _writing(one["type"], named, f"{what}.{one['name']}")) for one in schema["fields"]
                ]
                defaults = {
                    one["name"]: _default(one["type"], one["default"], named)
                    for one in schema["fields"]
                    if "default" in one
                }
                return _record_of(fields, defaults)
            case "array":
                item = _writing(schema["items"], named, f"{what}[]")
                return lambda values: [item(value) for value in values]
            case "map":
                entry = _writing(schema["values"], named, f"{what}{{}}")
                return lambda values: {key: entry(value) for key, value in values.items()}
            case "enum":
                return _one_of(frozenset(schema["symbols"]), what)
            case "fixed":
                return _of_size(schema["size"], what)
    if logical == "date":
        return lambda value: value if isinstance(value, int) else value.toordinal() - _EPOCH_ORDINAL
    if logical is not None:
        factor = _MICROS_OF[logical.rpartition("-")[2]]
        return lambda value: value // factor
    if kind in _RANGES:
        return _within(_RANGES[kind], kind, what)
    if kind in ("float", "double"):
        return float
    if kind == "bytes":
        return bytes
    return lambda value: value


def _record_of(fields: list[tuple[str, Change]], defaults: Mapping[str, Any]) -> Change:
    def change(value: Any) -> dict[str, Any]:
        given = value if isinstance(value, Mapping) else dict(zip(value.__fields__, value, strict=True))
        return {
            name: of(given.get(name)) if name in given or name not in defaults else defaults[name]
            for name, of in fields
        }

    return change


def _default(schema: Schema, value: Any, named: Named) -> Any:
    """Return a default in the form that fastavro writes; in a schema, bytes are strings, also in nested types."""
    schema = named.resolved(schema)
    if isinstance(schema, list):
        return _default(schema[0], value, named)  # the type of a default is the first branch
    kind = kind_of(schema)
    if kind in ("bytes", "fixed"):
        return _as_bytes(value)
    if isinstance(schema, dict):
        match kind:
            case "record" | "error":
                return {
                    one["name"]: _default(one["type"], value.get(one["name"], one.get("default")), named)
                    for one in schema["fields"]
                }
            case "array":
                return [_default(schema["items"], one, named) for one in value]
            case "map":
                return {key: _default(schema["values"], one, named) for key, one in value.items()}
    return value


def _unscaled(schema: Mapping[str, Any], what: str) -> Change:
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


def _one_of(symbols: frozenset[str], what: str) -> Change:
    def change(value: str) -> str:
        if value not in symbols:
            raise RecordError(f"{what} is {value}, which is not in the enum")
        return value

    return change


def _of_size(size: int, what: str) -> Change:
    def change(value: bytes) -> bytes:
        if len(value) != size:
            raise RecordError(f"{what} has {len(value)} bytes, but the schema has {size}")
        return bytes(value)

    return change


def _within(limit: int, kind: str, what: str) -> Change:
    def change(value: int) -> int:
        if not -limit <= value < limit:
            raise RecordError(f"{what} is {value}, which is not of type {kind}")
        return value

    return change
