"""Spark columns that Python decodes from bytes or encodes to bytes, for formats that Spark does not support.

Timestamps pass between Spark and Python as microseconds since 1970, without loss and without a time zone.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql import types as t
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.sql.pandas.types import to_arrow_type

Decoder = Callable[[bytes], Any]
"""Decodes a record to values for Spark's Arrow reader: dict, list, int and so on. Any exception except
UnavailableError makes the record bad.

A value that its column cannot store also makes the record bad; `decode_batch` detects it.
"""

Encoder = Callable[[Any], bytes]
"""Encodes a Row or a single value. Any exception except UnavailableError means that the value cannot be encoded."""

_pandas_udf: Any = pandas_udf  # its type hints require an argument that Spark infers
_MESSAGE_LENGTH = 1000
_ARROW_ERRORS = (pa.ArrowException, OverflowError, TypeError, ValueError)
"""Arrow's errors for a value that does not match its type."""


class UnavailableError(Exception):
    """A resource for decoding or encoding, such as a registry, is unavailable; no record is bad. `str()` names it."""


def decode_column(column: Column, data_type: t.DataType, make_decoder: Callable[[], Decoder]) -> Column:
    """Decode bytes to STRUCT<value: data_type, error: STRING>. Workers call `make_decoder` once per Arrow batch."""
    transfer_type = _to_transfer_type(data_type)

    def decode(values: pd.Series) -> pd.DataFrame:
        array, errors = decode_batch(values, make_decoder(), to_arrow_type(transfer_type))
        return pd.DataFrame({"value": pd.Series(_ArrowColumn(array)), "error": pd.Series(errors, dtype=object)})

    result = t.StructType([t.StructField("value", transfer_type), t.StructField("error", t.StringType())])
    # Spark may evaluate a deterministic function a second time, in a filter on its result.
    decoded: Column = _pandas_udf(decode, result).asNondeterministic()(column)
    if not _contains_timestamp(data_type):
        return decoded
    return f.transform(f.array(decoded), lambda one: _restore_result(one, data_type)).getItem(0)


def decode_batch(
    values: Iterable[bytes | None], decoder: Decoder, arrow_type: pa.DataType
) -> tuple[pa.Array, list[str | None]]:
    """Decode records into an Arrow array, and a list with an error for each bad record. Raises UnavailableError.

    A record is bad if it cannot be decoded, or if Arrow rejects one of its values.
    """
    rows: list[Any] = []
    errors: list[str | None] = []
    for data in values:
        row = error = None
        if data is not None:
            try:
                row = decoder(data)
            except UnavailableError:
                raise
            except Exception as failure:
                error = describe_error(failure)
        rows.append(row)
        errors.append(error)
    try:
        return pa.array(rows, arrow_type), errors
    except _ARROW_ERRORS:
        # Arrow's error does not name the row.
        for index, row in enumerate(rows):
            try:
                pa.array([row], arrow_type)
            except _ARROW_ERRORS as failure:
                rows[index], errors[index] = (
                    None,
                    f"a column cannot hold a value of the record: {describe_error(failure)}",
                )
        return pa.array(rows, arrow_type), errors


class _ArrowColumn(pd.arrays.ArrowExtensionArray):  # type: ignore[misc]
    """An Arrow array that PySpark sends to Spark unchanged. PySpark would convert NaN of other arrays to null."""

    def map(self, mapper: Any, na_action: Any = None) -> "_ArrowColumn":
        """Return the array itself. PySpark's conversion of values to objects is not needed here."""
        return self

    def __getitem__(self, item: Any) -> Any:
        """Return None for a single value. pandas only checks its class, and Python does not support every date."""
        return None if isinstance(item, int) else super().__getitem__(item)


def _restore_result(one: Column, data_type: t.DataType) -> Column:
    return f.struct(
        _micros_to_timestamps(one.getField("value"), data_type).alias("value"), one.getField("error").alias("error")
    )


def encode_column(column: Column, data_type: t.DataType, make_encoder: Callable[[], Encoder]) -> Column:
    """Encode a column of this type as STRUCT<value: BINARY, error: STRING>."""

    def encode(value: Any) -> tuple[bytes | None, str | None]:
        if value is None:
            return None, None
        try:
            return make_encoder()(value), None
        except UnavailableError:
            raise
        except Exception as error:
            return None, describe_error(error)

    result = t.StructType([t.StructField("value", t.BinaryType()), t.StructField("error", t.StringType())])
    return f.udf(encode, result, useArrow=False).asNondeterministic()(_timestamps_to_micros(column, data_type))


def fail_on_error(result: Column, title: str) -> Column:
    """Return the value of a result of `encode_column`. An error fails the batch; its message begins with `title`."""

    def value(one: Column) -> Column:
        failure = f.raise_error(f.concat(f.lit(f"{title}: "), one.getField("error"))).cast("binary")
        return f.when(one.getField("error").isNotNull(), failure).otherwise(one.getField("value"))

    return f.transform(f.array(result), value).getItem(0)


def describe_error(error: Exception) -> str:
    """Return the message of an exception in one line; its class name if it has none."""
    text = " ".join(str(error).split())
    if not text or isinstance(error, KeyError | IndexError | AttributeError):
        text = f"{type(error).__name__} {text}".rstrip()
    return text[:_MESSAGE_LENGTH]


def _contains_timestamp(data_type: t.DataType) -> bool:
    return any(isinstance(one, t.TimestampType | t.TimestampNTZType) for one in iter_leaf_types(data_type))


def iter_leaf_types(data_type: t.DataType) -> Iterator[t.DataType]:
    """Yield the leaf types of a nested type."""
    match data_type:
        case t.StructType():
            for field in data_type.fields:
                yield from iter_leaf_types(field.dataType)
        case t.ArrayType():
            yield from iter_leaf_types(data_type.elementType)
        case t.MapType():
            yield from iter_leaf_types(data_type.keyType)
            yield from iter_leaf_types(data_type.valueType)
        case _:
            yield data_type


def _to_transfer_type(data_type: t.DataType) -> t.DataType:
    match data_type:
        case t.TimestampType() | t.TimestampNTZType():
            return t.LongType()
        case t.StructType():
            return t.StructType([t.StructField(one.name, _to_transfer_type(one.dataType)) for one in data_type.fields])
        case t.ArrayType():
            return t.ArrayType(_to_transfer_type(data_type.elementType))
        case t.MapType():
            return t.MapType(_to_transfer_type(data_type.keyType), _to_transfer_type(data_type.valueType))
        case _:
            return data_type


def _micros_to_timestamps(column: Column, data_type: t.DataType) -> Column:
    def to_timestamp(one: Column, kind: t.DataType) -> Column:
        if isinstance(kind, t.TimestampType):
            return f.timestamp_micros(one)
        seconds = (one / f.lit(1_000_000).cast("decimal(7,0)")).cast("decimal(18,6)")
        return f.expr("TIMESTAMP_NTZ'1970-01-01'") + f.make_dt_interval(secs=seconds)

    return _map_timestamps(column, data_type, to_timestamp)


def _timestamps_to_micros(column: Column, data_type: t.DataType) -> Column:
    def to_micros(one: Column, kind: t.DataType) -> Column:
        if isinstance(kind, t.TimestampType):
            return f.unix_micros(one)
        seconds = f.date_diff(one.cast("date"), f.lit("1970-01-01").cast("date")).cast("bigint") * 86_400
        seconds += f.hour(one) * 3600 + f.minute(one) * 60
        # SECOND includes the fraction, with microseconds.
        micros = f.extract(f.lit("SECOND"), one).cast("decimal(8,6)") * 1_000_000
        return seconds * 1_000_000 + micros.cast("bigint")

    return _map_timestamps(column, data_type, to_micros)


def _map_timestamps(column: Column, data_type: t.DataType, change: Callable[[Column, t.DataType], Column]) -> Column:
    """Return the column with its timestamps converted by `change`, at any depth."""
    if not _contains_timestamp(data_type):
        return column
    match data_type:
        case t.StructType():
            fields = [
                _map_timestamps(column.getField(one.name), one.dataType, change).alias(one.name)
                for one in data_type.fields
            ]
            return f.when(column.isNotNull(), f.struct(*fields))
        case t.ArrayType():
            return f.transform(column, lambda one: _map_timestamps(one, data_type.elementType, change))
        case t.MapType():
            changed = f.transform_values(column, lambda _, one: _map_timestamps(one, data_type.valueType, change))
            if not _contains_timestamp(data_type.keyType):
                return changed
            return f.transform_keys(changed, lambda one, _: _map_timestamps(one, data_type.keyType, change))
        case _:
            return change(column, data_type)
