"""Detection of values that Spark's JSON parser changes silently: it rounds a number to the scale of its DECIMAL,
truncates a time to microseconds and drops the time of day of a date.

`json_patterns` selects the few texts that may have such a value. They are parsed a second time with the columns in
question as VARIANT, which preserves each value.
Source: Spark 4.0, JacksonParser, SparkDateTimeUtils, VariantBuilder.
"""

import functools
import operator

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql import types as t

from odradek.spark_it.formats.json_patterns import (
    BLANKS,
    LOSSY_TYPES,
    TIME_WITHOUT_DATE,
    TRUNCATED_FRACTION,
    may_change,
)

_DATE = (
    rf'^"{BLANKS}[-+]?[0-9]{{4,7}}(?:-[0-9]{{1,2}}(?:-[0-9]{{1,2}}'
    rf'(?:[T ]0?0:00(?::00(?:[.]0*)?)?(?:Z|[-+][0-9:]+)?)?)?)?{BLANKS}"$'
)
_MAX_SECONDS = (1 << 63) // 10**6 - 1
_TIMES = (t.DateType, t.TimestampType, t.TimestampNTZType)
_INFINITY = r"[:,\[]\s*[-+]?(?:INF|Infinity)\s*[,}\]]"


class ChangeDetector:
    """Detector of changed values for one schema.

    `second_schema` is the schema of the second parse; it has no fields if no type of the schema changes values.
    """

    def __init__(self, schema: t.StructType) -> None:
        self._schema = schema
        self._fields = [one for one in schema.fields if _to_variant_type(one.dataType) is not None]
        found = _to_variant_type(schema)
        self.second_schema = found if isinstance(found, t.StructType) else t.StructType()

    def needs_second_parse(self, record: Column, text: Column) -> Column:
        """Return whether values of the record may differ from the text's, which only a second parse can determine."""
        is_out_of_range = _contains_out_of_range(record, self._schema)
        found = may_change(text, self._schema)
        return found if is_out_of_range is None else found | is_out_of_range

    def list_changed(self, record: Column, unchanged: Column, text: Column) -> Column:
        """Return the names and types of the columns whose values differ from the text's, separated by commas.

        `unchanged` is the record of the second parse.
        """
        changed_columns = []
        for field in self._fields:
            changes = _contains_change(record[field.name], unchanged[field.name], field.dataType, text)
            changed_columns.append(f.when(changes, f.lit(describe_column(field))))
        return f.concat_ws(", ", *changed_columns)


def describe_column(field: t.StructField) -> str:
    """Return a column's name and type for messages."""
    return f"{field.name} {field.dataType.simpleString().upper()}"


def make_inexact_message(names: Column) -> Column:
    """Return the error message for a record; `names` has the columns with changed values, separated by commas."""
    return f.concat(f.lit("has fields that do not fit their columns exactly: "), names)


def _to_variant_type(of: t.DataType) -> t.DataType | None:
    return replace_by_variants(of, LOSSY_TYPES)


def replace_by_variants(of: t.DataType, kinds: tuple[type[t.DataType], ...]) -> t.DataType | None:
    """Return the type with these leaf types replaced by VARIANT and all others removed; None if nothing remains."""
    match of:
        case t.StructType():
            fields = [(one.name, replace_by_variants(one.dataType, kinds)) for one in of.fields]
            kept = [t.StructField(name, kind) for name, kind in fields if kind is not None]
            return t.StructType(kept) if kept else None
        case t.ArrayType():
            kind = replace_by_variants(of.elementType, kinds)
            return None if kind is None else t.ArrayType(kind)
        case t.MapType():
            kind = replace_by_variants(of.valueType, kinds)
            return None if kind is None else t.MapType(of.keyType, kind)
        case _:
            return t.VariantType() if isinstance(of, kinds) else None


def _contains_change(value: Column, unchanged: Column, of: t.DataType, text: Column) -> Column:
    """Return whether a value differs from the text's. `_to_variant_type` of its type must not be None."""

    def contains_changed_pair(values: Column, others: Column, kind: t.DataType) -> Column:
        both = f.zip_with(values, others, lambda one, other: _contains_change(one, other, kind, text))
        return f.exists(both, lambda one: one)

    match of:
        case t.StructType():
            found = f.lit(False)
            for one in of.fields:
                if _to_variant_type(one.dataType) is not None:
                    found |= _contains_change(
                        value.getField(one.name), unchanged.getField(one.name), one.dataType, text
                    )
        case t.ArrayType():
            found = contains_changed_pair(value, unchanged, of.elementType)
        case t.MapType():
            found = contains_changed_pair(f.map_values(value), f.map_values(unchanged), of.valueType)
        case _:
            found = is_changed(value, f.to_json(unchanged), of, text)
    return f.coalesce(value.isNotNull() & found, f.lit(False))


def is_changed(value: Column, written: Column, of: t.DataType, text: Column) -> Column:
    """Return whether a single value differs from the text's.

    `written` is JSON with the value as in the text; numbers with an exponent or more than 38 digits are DOUBLE in it.
    """
    match of:
        case t.DecimalType():
            digits = f.regexp_replace(written, '"', "")
            is_plain = digits.rlike(rf"^[-+]?[0-9]*(?:[.][0-9]{{0,{of.scale}}}0*)?$")
            is_same = digits.try_cast("double") == value.cast("double")
            return ~is_plain & ~(digits.rlike("[eE]") & f.coalesce(is_same, f.lit(False)))
        case t.TimestampType() | t.TimestampNTZType():
            seconds = f.abs(written.try_cast("decimal(38,0)"))
            overflows = f.coalesce(seconds > _MAX_SECONDS, f.lit(False))
            return (
                written.rlike(f'{TRUNCATED_FRACTION}|^"{BLANKS}{TIME_WITHOUT_DATE}')
                | overflows
                | _is_out_of_range(value, of)
            )
        case t.DateType():
            return ~written.rlike(_DATE) | _is_out_of_range(value, of)
        case t.ByteType():
            return ~f.coalesce(written.try_cast("int").between(-128, 127), f.lit(False))
        case _:
            # Too large for the type, unless the text has an infinity, which is not standard JSON. An infinity without
            # quotes becomes the same VARIANT as a number that is too large.
            return (f.abs(value) == float("inf")) & ~written.startswith('"') & ~text.rlike(_INFINITY)


def _contains_out_of_range(value: Column, of: t.DataType) -> Column | None:
    """Return whether a value has a date or time outside of the years 1 to 9999; None if its type has neither."""

    def check_elements(values: Column, kind: t.DataType) -> Column | None:
        if replace_by_variants(kind, _TIMES) is None:
            return None

        def check(one: Column) -> Column:
            found = _contains_out_of_range(one, kind)
            return f.lit(False) if found is None else f.coalesce(found, f.lit(False))

        return f.exists(values, check)

    match of:
        case t.StructType():
            found = [_contains_out_of_range(value.getField(one.name), one.dataType) for one in of.fields]
            times = [one for one in found if one is not None]
            return functools.reduce(operator.or_, times) if times else None
        case t.ArrayType():
            return check_elements(value, of.elementType)
        case t.MapType():
            return check_elements(f.map_values(value), of.valueType)
        case t.DateType() | t.TimestampType() | t.TimestampNTZType():
            return f.coalesce(_is_out_of_range(value, of), f.lit(False))
        case _:
            return None


def _is_out_of_range(value: Column, of: t.DataType) -> Column:
    """Return whether a date or time is outside of the years 1 to 9999."""
    kind, time = {"date": ("DATE", ""), "timestamp_ntz": ("TIMESTAMP_NTZ", " 00:00:00")}.get(
        of.typeName(), ("TIMESTAMP", " 00:00:00Z")
    )
    return (value < f.expr(f"{kind}'0001-01-01{time}'")) | (value >= f.expr(f"{kind}'+10000-01-01{time}'"))
