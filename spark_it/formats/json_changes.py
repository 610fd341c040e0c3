"""Values that Spark's JSON parser changes silently: it rounds a number to the scale of its DECIMAL, cuts a time to
microseconds and drops the time of day of a date.

A regular expression selects the texts that may have such a value; most of them have none. Those texts are parsed a
second time with the columns in question as VARIANT, which keeps each value as it was written.
Source: Spark 4.0, JacksonParser, SparkDateTimeUtils, VariantBuilder.
"""

import functools
import operator
from collections.abc import Iterator

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql import types as t

from odradek.spark_it.formats.columns import leaves

_CHANGING = (
    t.DecimalType, t.TimestampType, t.TimestampNTZType, t.DateType, t.ByteType, t.FloatType, t.DoubleType,
)  # fmt: skip
"""The types of which `_patterns` has some."""
CUT = r"[.][0-9]{6}[0-9]*[1-9]"
_BLANKS = r"(?:[\s\x7f]|\\[tnrfb]|\\u00[0-7][0-9a-fA-F])*+"
"""What Spark trims from a text, as JSON."""
TODAY = r"[-+]?(?:T[0-9G]|[0-9]{1,2}:|[0-9]{0,2}GMT)"
"""Begins a time without a date, to which Spark adds the current date. Spark removes GMT from a time."""
_DATE = (
    rf'^"{_BLANKS}[-+]?[0-9]{{4,7}}(?:-[0-9]{{1,2}}(?:-[0-9]{{1,2}}'
    rf'(?:[T ]0?0:00(?::00(?:[.]0*)?)?(?:Z|[-+][0-9:]+)?)?)?)?{_BLANKS}"$'
)
_OTHER_DIGIT = r"[\p{Nd}&&[^0-9]]"
"""A digit outside ASCII, which Java takes as a digit."""
_ESCAPE = r"u(?:00(?:[01]|2[0b-eB-E]|3[0-9aA]|[46]5|54|5[aA]|7[fF])|0[6-9a-fA-F]|1|[aA][6-9aAbB]|[fF]{2}1)"
"""Follows a backslash: an escape of a character that numbers, times or the blanks around them may have."""
_MOST_SECONDS = (1 << 63) // 10**6 - 1
_TIMES = (t.DateType, t.TimestampType, t.TimestampNTZType)
_INFINITY = r"[:,\[]\s*[-+]?(?:INF|Infinity)\s*[,}\]]"


class Changes:
    """Detection of changed values for one schema.

    `of_interest` is a regular expression that matches every text with a changed value; None if no type of the schema
    changes values. `unchanged` is the schema for the second parse.
    """

    def __init__(self, schema: t.StructType) -> None:
        self._schema = schema
        self._fields = [one for one in schema.fields if _unchanged(one.dataType) is not None]
        found = _unchanged(schema)
        self.unchanged = found if isinstance(found, t.StructType) else t.StructType()
        parts = sorted({pattern for one in leaves(schema) for pattern in _patterns(one)})
        # A value follows one of these characters. This is fast because nothing is tried at other characters, and little
        # at a colon within a time.
        values = rf"""(?<![0-9]:)\s*(?:{"|".join(parts)})|[0-9]{{1,2}}{CUT}"""
        self.of_interest = rf"[:,\[\\](?:{values}|(?<=\\){_ESCAPE})" if parts else None

    def is_far(self, record: Column) -> Column | None:
        """Return whether a date or time of a record is outside of the years 1 to 9999; None if the schema has none."""
        return _any_far(record, self._schema)

    def names(self, record: Column, unchanged: Column, text: Column) -> Column:
        """Return the names and types of the columns whose values differ from the text's, separated by commas.

        `unchanged` is the record of the second parse.
        """
        said = []
        for field in self._fields:
            changes = _changes(record[field.name], unchanged[field.name], field.dataType, text)
            said.append(f.when(changes, f.lit(in_ddl(field))))
        return f.concat_ws(", ", *said)


def in_ddl(field: t.StructField) -> str:
    """Return a column's name and type for messages."""
    return f"{field.name} {field.dataType.simpleString().upper()}"


def inexact(names: Column) -> Column:
    """Return the message for a record whose columns of these names, separated by commas, have changed values."""
    return f.concat(f.lit("has fields that do not fit their columns exactly: "), names)


def _patterns(of: t.DataType) -> Iterator[str]:
    """Regular expressions of which one matches a value that the type changes. Cut times are found without."""
    match of:
        case t.DecimalType():
            yield rf"""["']?[-+]?(?:[0-9]*[.][0-9]{{{of.scale}}}[0-9]*[1-9]|[0-9.]+[eE])"""
            yield rf"""["'][-+]?[0-9.]*(?:,|{_OTHER_DIGIT})"""
        case t.TimestampType() | t.TimestampNTZType():
            yield rf"""["']{_BLANKS}{TODAY}"""
            # Seconds since 1970; as microseconds larger ones overflow.
            yield r"-?(?:9[2-9][0-9]{11}|[1-9][0-9]{13})"
        case t.DateType():
            yield rf"""["']{_BLANKS}[-+]?[0-9]{{4,}}-[0-9]{{1,2}}-[0-9]{{1,2}}[T ]"""
            # Spark reads a number as days since 1970, unless it has the digits of a year.
            yield rf"""["'][-+]?(?:[0-9]+{_BLANKS}["']|[0-9]*{_OTHER_DIGIT})"""
        case t.ByteType():
            yield r"-?[0-9]{3}"
        case t.FloatType() | t.DoubleType():
            yield r"-?(?:[0-9.]+[eE][+]?[0-9]{2}|[0-9]{30})"


def _unchanged(of: t.DataType) -> t.DataType | None:
    return with_variants(of, _CHANGING)


def with_variants(of: t.DataType, kinds: tuple[type[t.DataType], ...]) -> t.DataType | None:
    """Return the type with VARIANT in place of types of these kinds, without all others; None if there are none."""
    match of:
        case t.StructType():
            fields = [(one.name, with_variants(one.dataType, kinds)) for one in of.fields]
            kept = [t.StructField(name, kind) for name, kind in fields if kind is not None]
            return t.StructType(kept) if kept else None
        case t.ArrayType():
            kind = with_variants(of.elementType, kinds)
            return None if kind is None else t.ArrayType(kind)
        case t.MapType():
            kind = with_variants(of.valueType, kinds)
            return None if kind is None else t.MapType(of.keyType, kind)
        case _:
            return t.VariantType() if isinstance(of, kinds) else None


def _changes(value: Column, unchanged: Column, of: t.DataType, text: Column) -> Column:
    """Return whether a value differs from the text's, for a type of which `_unchanged` is not None."""

    def in_both(values: Column, others: Column, kind: t.DataType) -> Column:
        both = f.zip_with(values, others, lambda one, other: _changes(one, other, kind, text))
        return f.exists(both, lambda one: one)

    match of:
        case t.StructType():
            found = f.lit(False)
            for one in of.fields:
                if _unchanged(one.dataType) is not None:
                    found |= _changes(value.getField(one.name), unchanged.getField(one.name), one.dataType, text)
        case t.ArrayType():
            found = in_both(value, unchanged, of.elementType)
        case t.MapType():
            found = in_both(f.map_values(value), f.map_values(unchanged), of.valueType)
        case _:
            found = is_changed(value, f.to_json(unchanged), of, text)
    return f.coalesce(value.isNotNull() & found, f.lit(False))


def is_changed(value: Column, written: Column, of: t.DataType, text: Column) -> Column:
    """Return whether a single value is changed.

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
            overflows = f.coalesce(seconds > _MOST_SECONDS, f.lit(False))
            return written.rlike(f'{CUT}|^"{_BLANKS}{TODAY}') | overflows | _is_far(value, of)
        case t.DateType():
            return ~written.rlike(_DATE) | _is_far(value, of)
        case t.ByteType():
            return ~f.coalesce(written.try_cast("int").between(-128, 127), f.lit(False))
        case _:
            # Too large for the type, unless the writer has written an infinity, which JSON does not have. A bare one
            # is the same VARIANT as a number that is too large.
            return (f.abs(value) == float("inf")) & ~written.startswith('"') & ~text.rlike(_INFINITY)


def _any_far(value: Column, of: t.DataType) -> Column | None:
    """Return whether a value has a date or time outside of the years 1 to 9999; None if its type has neither."""

    def in_any(values: Column, kind: t.DataType) -> Column | None:
        if with_variants(kind, _TIMES) is None:
            return None

        def is_far(one: Column) -> Column:
            found = _any_far(one, kind)
            return f.lit(False) if found is None else f.coalesce(found, f.lit(False))

        return f.exists(values, is_far)

    match of:
        case t.StructType():
            found = [_any_far(value.getField(one.name), one.dataType) for one in of.fields]
            times = [one for one in found if one is not None]
            return functools.reduce(operator.or_, times) if times else None
        case t.ArrayType():
            return in_any(value, of.elementType)
        case t.MapType():
            return in_any(f.map_values(value), of.valueType)
        case t.DateType() | t.TimestampType() | t.TimestampNTZType():
            return f.coalesce(_is_far(value, of), f.lit(False))
        case _:
            return None


def _is_far(value: Column, of: t.DataType) -> Column:
    """Return whether a date or time is outside of the years 1 to 9999."""
    kind, time = {"date": ("DATE", ""), "timestamp_ntz": ("TIMESTAMP_NTZ", " 00:00:00")}.get(
        of.typeName(), ("TIMESTAMP", " 00:00:00Z")
    )
    return (value < f.expr(f"{kind}'0001-01-01{time}'")) | (value >= f.expr(f"{kind}'+10000-01-01{time}'"))
