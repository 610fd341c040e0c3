"""Regular expressions that find JSON texts with a value that Spark's parser changes. The texts are not parsed.

Every text with such a value matches. A text without one may match too, which costs a second parse.

Source: Spark 4.0, JacksonParser and SparkDateTimeUtils; for performance java.util.regex.Pattern, whose search for a
literal of four characters or more skips most of the text.
"""

import functools
import operator
import re
from collections.abc import Iterator

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql import types as t

from odradek.spark_it.formats.columns import iter_leaf_types

LOSSY_TYPES = (
    t.DecimalType, t.TimestampType, t.TimestampNTZType, t.DateType, t.ByteType, t.FloatType, t.DoubleType,
)  # fmt: skip
"""The types for which `_iter_patterns` has patterns."""
TRUNCATED_FRACTION = r"[.][0-9]{6}[0-9]*[1-9]"
"""A fraction of a second with more than six significant digits."""
BLANKS = r"(?:[\s\x7f]|\\[tnrfb]|\\u00[0-7][0-9a-fA-F])*+"
"""Characters that Spark trims from a text, as written in JSON."""
TIME_WITHOUT_DATE = r"[-+]?(?:T[0-9G]|[0-9]{1,2}:|[0-9]{0,2}GMT)"
"""The beginning of a time without a date, to which Spark adds the current date. Spark removes GMT from a time."""
_OTHER_DIGIT = r"[\p{Nd}&&[^0-9]]"
"""A digit outside ASCII, which Java accepts as a digit."""
_ESCAPE = r"u(?:00(?:[01]|2[0b-eB-E]|3[0-9aA]|[46]5|54|5[aA]|7[fF])|0[6-9a-fA-F]|1|[aA][6-9aAbB]|[fF]{2}1)"
"""An escape, without its backslash, of a character that may occur in numbers or times or in the blanks around them."""
_PLAIN_NAME = re.compile(r"[ !#-&(-.0-\[\]-~]+")
"""A name that JSON writes in one way only, apart from Unicode escapes. It has no slash, which may follow a backslash,
and no apostrophe, with which every text would be searched with the slow general pattern."""
_MAX_NAMES = 16
"""Maximum number of names that are searched one by one. Each search decodes the text; with more names, one search for
any value is faster."""


def may_change(text: Column, schema: t.StructType) -> Column:
    """Return whether a text may contain a value that a type of the schema changes."""
    general = _make_general_pattern(schema)
    if general is None:
        return f.lit(False)
    named = _make_named_patterns(schema)
    if named is None:
        return text.rlike(general)
    # Spark also accepts names in apostrophes.
    may_hide_names = f.contains(text, f.lit("\\u")) | f.contains(text, f.lit("'"))
    found = functools.reduce(operator.or_, (text.rlike(one) for one in named))
    return f.when(may_hide_names, text.rlike(general)).otherwise(found)


def _make_general_pattern(schema: t.StructType) -> str | None:
    """Return a regular expression that matches every text with a changed value; None if no type changes values."""
    parts = sorted({pattern for one in iter_leaf_types(schema) for pattern in _iter_patterns(one)})
    if not parts:
        return None
    # A value follows one of these characters. The search is fast because other characters fail at once, and a colon
    # within a time fails early.
    values = rf"""(?<![0-9]:)\s*+(?:{"|".join(parts)})|[0-9]{{1,2}}{TRUNCATED_FRACTION}"""
    return rf"[:,\[\\](?:{values}|(?<=\\){_ESCAPE})"


def _make_named_patterns(schema: t.StructType) -> list[str] | None:
    """Return a regular expression for each name whose values may change; each begins with the name.

    None if a value has no name or one that _PLAIN_NAME does not match, or if there are too many names.
    """
    found: dict[str, set[str]] = {}
    for name, kind in _iter_lossy_fields(schema):
        if isinstance(kind, t.ArrayType | t.MapType) or not _PLAIN_NAME.fullmatch(name):
            return None
        found.setdefault(name, set()).update(_iter_patterns(kind), _iter_fraction_patterns(kind))
    if len(found) > _MAX_NAMES:
        return None
    return [rf'"{re.escape(name)}"\s*+:\s*+(?:{"|".join(sorted(parts))})' for name, parts in found.items()]


def _iter_lossy_fields(of: t.StructType) -> Iterator[tuple[str, t.DataType]]:
    """Yield name and type of the fields whose values may change, at any depth of structs."""
    for field in of.fields:
        if isinstance(field.dataType, t.StructType):
            yield from _iter_lossy_fields(field.dataType)
        elif any(isinstance(one, LOSSY_TYPES) for one in iter_leaf_types(field.dataType)):
            yield field.name, field.dataType


def _iter_fraction_patterns(of: t.DataType) -> Iterator[str]:
    """Yield regular expressions for values of the type that are truncated; each matches from the start of the value."""
    if isinstance(of, t.TimestampType | t.TimestampNTZType):
        yield rf'"[^".]*+{TRUNCATED_FRACTION}'


def _iter_patterns(of: t.DataType) -> Iterator[str]:
    """Yield regular expressions, one of which matches any value that the type changes, except truncated times."""
    match of:
        case t.DecimalType():
            yield rf"""["']?[-+]?(?:[0-9]*+[.][0-9]{{{of.scale}}}[0-9]*[1-9]|[0-9.]++[eE])"""
            yield rf"""["'][-+]?[0-9.]*+(?:,|{_OTHER_DIGIT})"""
        case t.TimestampType() | t.TimestampNTZType():
            yield rf"""["']{BLANKS}{TIME_WITHOUT_DATE}"""
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
