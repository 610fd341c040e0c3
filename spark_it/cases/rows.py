"""Rows of `[[test]]` cases: given rows as JSON, and the comparison of expected and actual rows by type.

TOML has no null, so a column that a row does not have is null. Columns whose name begins with `_`, which the source
adds, are compared only if the expected row has them.
"""

import base64
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

from pyspark.sql import types as t

from odradek.properties import nearest
from odradek.spark_it.definition.spec import Row

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_SHOWN = 20
_DIGITS = {t.FloatType: 6, t.DoubleType: 12}


def to_json(value: Any) -> str:
    """Return a TOML value as JSON that Spark reads by a schema; decimals may be strings."""
    return json.dumps(_to_plain(value), ensure_ascii=False)


def _to_plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _to_plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_to_plain(one) for one in value]
    if isinstance(value, datetime | date | time):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return {"inf": "Infinity", "-inf": "-Infinity"}.get(str(value), "NaN")
    return value


def find_differences(expected: Sequence[Row], actual: Sequence[str], schema: t.StructType) -> Iterator[str]:
    """Yield lines about missing (-) and unexpected (+) rows; none if the rows are equal in any order.

    `actual` are rows as JSON, written by Spark with `durations.TIMESTAMP_OPTIONS`.
    """
    problems = [*_find_unknown_columns(expected, schema)]
    if problems:
        yield from problems
        return
    compared = _select_compared(expected, schema)
    expected_structs: list[Any] = []
    for index, row in enumerate(expected):
        try:
            expected_structs.append(_convert_struct(row, compared))
        except ValueError as error:
            yield f"expected row {index + 1}: {error}"
    if len(expected_structs) < len(expected):
        return
    actual_structs = [_convert_struct(json.loads(row, parse_float=Decimal), compared, is_actual=True) for row in actual]
    missing = Counter(map(_format_row, expected_structs)) - Counter(map(_format_row, actual_structs))
    surplus = Counter(map(_format_row, actual_structs)) - Counter(map(_format_row, expected_structs))
    if not missing and not surplus:
        return
    yield f"{len(expected)} {_inflect_rows(len(expected))} expected, got {len(actual)}"
    yield from _format_rows("-", missing)
    yield from _format_rows("+", surplus)


def _inflect_rows(count: int) -> str:
    return "row is" if count == 1 else "rows are"


def _format_rows(sign: str, rows: "Counter[str]") -> Iterator[str]:
    lines = sorted(rows.elements())
    yield from (f"  {sign} {line}" for line in lines[:_MAX_SHOWN])
    if len(lines) > _MAX_SHOWN:
        yield f"  {sign} and {len(lines) - _MAX_SHOWN} more"


def _find_unknown_columns(expected: Sequence[Row], schema: t.StructType) -> Iterator[str]:
    """Yield a line for each column of the expected rows that does not exist."""
    known = {field.name.casefold(): field.name for field in schema.fields}
    for name in dict.fromkeys(name for row in expected for name in row):
        if name not in schema.names:
            near = known.get(name.casefold()) or known.get(nearest(name.casefold(), known) or "")
            hint = f", did you mean {near}?" if near else f"; the columns are {', '.join(schema.names)}"
            yield f"unknown column {name}{hint}"


def _select_compared(expected: Sequence[Row], schema: t.StructType) -> t.StructType:
    given_names = {name for row in expected for name in row}
    return t.StructType(
        [field for field in schema.fields if field.name in given_names or not field.name.startswith("_")]
    )


def _convert_struct(row: Mapping[str, Any], schema: t.StructType, *, is_actual: bool = False) -> dict[str, Any]:
    known = {}
    for field in schema.fields:
        try:
            known[field.name] = _convert_value(row.get(field.name), field.dataType, is_actual=is_actual)
        except (ValueError, TypeError, InvalidOperation, AttributeError):
            shown = to_json(row[field.name])
            raise ValueError(f"{field.name} = {shown} is not a {field.dataType.simpleString()}") from None
    return known


def _convert_value(value: Any, of: t.DataType, *, is_actual: bool) -> Any:
    """Return the canonical form of a value, equal for equal values of the type, and readable in a message."""
    if value is None:
        return None
    match of:
        case t.BooleanType() | t.StringType():
            if isinstance(value, bool) != isinstance(of, t.BooleanType) or isinstance(value, dict | list):
                raise ValueError
            return value if isinstance(of, t.BooleanType) else str(_to_plain(value))
        case t.DecimalType():
            return _convert_decimal(value)
        case t.IntegralType():
            return _convert_integer(value)
        case t.FloatType() | t.DoubleType():
            return float(f"{float(value):.{_DIGITS[type(of)]}g}")
        case t.TimestampType():
            return _convert_instant(value)
        case t.TimestampNTZType():
            moment = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
            return moment.replace(tzinfo=None).isoformat()
        case t.DateType():
            day = value if isinstance(value, date) else date.fromisoformat(str(value))
            return day.isoformat()[:10]
        case t.BinaryType():
            data = base64.b64decode(value) if is_actual else str(value).encode()
            return data.decode("utf-8", "backslashreplace")
        case t.StructType():
            unknown = [] if is_actual else [name for name in value if name not in of.names]
            if unknown:
                raise ValueError
            return _convert_struct(value, of, is_actual=is_actual)
        case t.ArrayType():
            if not isinstance(value, list | tuple):
                raise ValueError
            return [_convert_value(one, of.elementType, is_actual=is_actual) for one in value]
        case t.MapType():
            return {
                str(key): _convert_value(one, of.valueType, is_actual=is_actual)
                for key, one in sorted(dict(value).items())
            }
        case _:
            return str(_to_plain(value))


def _convert_decimal(value: Any) -> str:
    if isinstance(value, bool):
        raise ValueError
    number = Decimal(str(value))
    if not number.is_finite():
        raise ValueError
    shown = f"{number:f}"
    return shown.rstrip("0").rstrip(".") if "." in shown else shown


def _convert_integer(value: Any) -> int:
    if isinstance(value, bool | float) or (isinstance(value, Decimal) and value != int(value)):
        raise ValueError
    return int(value)


def _convert_instant(value: Any) -> str:
    moment = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (_EPOCH + (moment - _EPOCH)).isoformat().replace("+00:00", "Z")


def _format_row(row: Mapping[str, Any]) -> str:
    """Return a row in one line, equal for equal rows, without null columns."""
    shown = (f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in row.items() if value is not None)
    return "{ " + ", ".join(shown) + " }" if any(value is not None for value in row.values()) else "{}"


def parse_event_micros(value: Any) -> int | None:
    """Return the event time in a column of a given row; None if it is missing or cannot be parsed."""
    try:
        moment = datetime.fromisoformat(_convert_instant(value).replace("Z", "+00:00"))
    except (ValueError, TypeError):
        return None
    return (moment - _EPOCH) // timedelta(microseconds=1)
