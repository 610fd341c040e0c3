"""Regular expressions that find JSON texts with a value that Spark's parser changes, without parsing them.

A text that has such a value is always found; a text without one may be found too, and costs a second parse.

Source: Spark 4.0, JacksonParser, SparkDateTimeUtils; for the speed java.util.regex.Pattern, whose search for a literal
of four characters or more skips most of the text.
"""

import functools
import operator
import re
from collections.abc import Iterator

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql import types as t

from odradek.spark_it.formats.columns import leaves

CHANGING = (
    t.DecimalType, t.TimestampType, t.TimestampNTZType, t.DateType, t.ByteType, t.FloatType, t.DoubleType,
)  # fmt: skip
"""The types of which `_patterns` has some."""
CUT = r"[.][0-9]{6}[0-9]*[1-9]"
"""A fraction of a second with more than microseconds."""
BLANKS = r"(?:[\s\x7f]|\\[tnrfb]|\\u00[0-7][0-9a-fA-F])*+"
"""What Spark trims from a text, as JSON."""
TODAY = r"[-+]?(?:T[0-9G]|[0-9]{1,2}:|[0-9]{0,2}GMT)"
"""Begins a time without a date, to which Spark adds the current date. Spark removes GMT from a time."""
_OTHER_DIGIT = r"[\p{Nd}&&[^0-9]]"
"""A digit outside ASCII, which Java takes as a digit."""
_ESCAPE = r"u(?:00(?:[01]|2[0b-eB-E]|3[0-9aA]|[46]5|54|5[aA]|7[fF])|0[6-9a-fA-F]|1|[aA][6-9aAbB]|[fF]{2}1)"
"""Follows a backslash: an escape of a character that numbers, times or the blanks around them may have."""
_PLAIN_NAME = re.compile(r"[ !#-&(-.0-\[\]-~]+")
"""A name that JSON writes in one way only, unless it has an escape that begins with a backslash and a u. A slash may be
written with a backslash, and an apostrophe makes every text slow."""
_MOST_NAMES = 16
"""Names to search one by one. Each search decodes the text; beyond this number one search for any value is faster."""


def may_change(text: Column, schema: t.StructType) -> Column:
    """Return whether a text may have a value that a type of the schema changes."""
    anywhere = _anywhere(schema)
    if anywhere is None:
        return f.lit(False)
    by_name = _by_name(schema)
    if by_name is None:
        return text.rlike(anywhere)
    # Spark takes names in apostrophes, too.
    may_hide_names = f.contains(text, f.lit("\\u")) | f.contains(text, f.lit("'"))
    found = functools.reduce(operator.or_, (text.rlike(one) for one in by_name))
    return f.when(may_hide_names, text.rlike(anywhere)).otherwise(found)


def _anywhere(schema: t.StructType) -> str | None:
    """Return a regular expression that matches every text with a changed value; None if no type changes values."""
    parts = sorted({pattern for one in leaves(schema) for pattern in _patterns(one)})
    if not parts:
        return None
    # A value follows one of these characters. This is fast because nothing is tried at other characters, and little at
    # a colon within a time.
    values = rf"""(?<![0-9]:)\s*+(?:{"|".join(parts)})|[0-9]{{1,2}}{CUT}"""
    return rf"[:,\[\\](?:{values}|(?<=\\){_ESCAPE})"


def _by_name(schema: t.StructType) -> list[str] | None:
    """Return a regular expression for each name whose values may change; each begins with the name.

    None if the values have no names, or other names than plain ones, or too many of them.
    """
    found: dict[str, set[str]] = {}
    for name, kind in _named(schema):
        if isinstance(kind, t.ArrayType | t.MapType) or not _PLAIN_NAME.fullmatch(name):
            return None
        found.setdefault(name, set()).update(_patterns(kind), _cuts(kind))
    if len(found) > _MOST_NAMES:
        return None
    return [rf'"{re.escape(name)}"\s*+:\s*+(?:{"|".join(sorted(parts))})' for name, parts in found.items()]


def _named(of: t.StructType) -> Iterator[tuple[str, t.DataType]]:
    """Return names and types, except structs, of what may change within structs."""
    for field in of.fields:
        if isinstance(field.dataType, t.StructType):
            yield from _named(field.dataType)
        elif any(isinstance(one, CHANGING) for one in leaves(field.dataType)):
            yield field.name, field.dataType


def _cuts(of: t.DataType) -> Iterator[str]:
    """Return regular expressions for values of the type that are cut; each matches from the start of the value."""
    if isinstance(of, t.TimestampType | t.TimestampNTZType):
        yield rf'"[^".]*+{CUT}'


def _patterns(of: t.DataType) -> Iterator[str]:
    """Regular expressions of which one matches a value that the type changes. Cut times are found without."""
    match of:
        case t.DecimalType():
            yield rf"""["']?[-+]?(?:[0-9]*+[.][0-9]{{{of.scale}}}[0-9]*[1-9]|[0-9.]++[eE])"""
            yield rf"""["'][-+]?[0-9.]*+(?:,|{_OTHER_DIGIT})"""
        case t.TimestampType() | t.TimestampNTZType():
            yield rf"""["']{BLANKS}{TODAY}"""
            # Seconds since 1970; as microseconds larger ones overflow.
            yield r"-?(?:9[2-9][0-9]{11}|[1-9][0-9]{13})"
        case t.DateType():
            yield rf"""["']{BLANKS}[-+]?[0-9]{{4,}}-[0-9]{{1,2}}-[0-9]{{1,2}}[T ]"""
            # Spark reads a number as days since 1970, unless it has the digits of a year.
            yield rf"""["'][-+]?(?:[0-9]+{BLANKS}["']|[0-9]*{_OTHER_DIGIT})"""
        case t.ByteType():
            yield r"-?[0-9]{3}"
        case t.FloatType() | t.DoubleType():
            yield r"-?(?:[0-9.]++[eE][+]?[0-9]{2}|[0-9]{30})"
