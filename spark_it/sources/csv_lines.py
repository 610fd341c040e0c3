"""Parser of CSV lines: each value equals its text exactly, or the line is bad.

Spark's CSV reader fails at a line with too many fields, and replaces bytes that are not UTF-8. So it is used only to
split lines and skip the header; `from_csv` parses each line. A line that may contain a value that Spark changes, or an
empty string in quotes, which Spark reads as null, is parsed a second time with all columns as strings.

Source: Spark 4.0, UnivocityParser, CSVOptions, SparkDateTimeUtils.
"""

import re

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql import types as t

from odradek.spark_it.formats.json_changes import describe_column, is_changed, make_inexact_message
from odradek.spark_it.formats.json_patterns import TIME_WITHOUT_DATE, TRUNCATED_FRACTION

CORRUPT = "__odradek_corrupt"
_MAX_FIELDS = 20_480
_NULL = "\uffff odradek null \uffff"
_LOSSY_TYPES = (t.DecimalType, t.FloatType, t.DoubleType, t.TimestampType, t.TimestampNTZType, t.DateType)
_BYTES = "ISO-8859-1"
LINE_OPTIONS = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": CORRUPT,
    # One character per byte, none of which is a delimiter, a quote or a comment character.
    "encoding": _BYTES,
    "sep": "\ufffe",
    "quote": "\uffff",
    "escape": "\uffff",
    "comment": "\ufffd",
}
"""Options of Spark's CSV reader to read lines into a single column."""


def decode_line(line: Column) -> Column:
    """Return the text of a line that was read with LINE_OPTIONS; it may be invalid UTF-8."""
    return f.encode(line, _BYTES).cast("string")


class CsvLines:
    """Parser of lines, for the columns of the files without those of partition folders."""

    def __init__(self, schema: t.StructType, delimiter: str) -> None:
        self._schema = schema
        self._delimiter = delimiter
        # A quote within quotes is doubled, as in RFC 4180 and in the files sink.
        self._options = {
            "mode": "PERMISSIVE",
            "columnNameOfCorruptRecord": CORRUPT,
            "sep": delimiter,
            "escape": '"',
            "maxColumns": str(_MAX_FIELDS),
        }

    def parse(self, line: Column) -> Column:
        """Return a struct of the columns and CORRUPT; null for a line with too many fields."""
        return f.from_csv(f.when(~self._has_too_many_fields(line), line), _to_ddl(self._schema), self._options)

    def parse_as_texts(self, line: Column, parsed: Column) -> Column:
        """Return a struct of the columns whose values Spark may change, as strings; null for a line that cannot contain
        such a value."""
        fields = self._schema.fields
        is_text = [isinstance(one.dataType, (*_LOSSY_TYPES, t.StringType)) for one in fields]
        if not any(is_text):
            return f.lit(None).cast("struct<none: string>")
        needs_check = line.rlike(self._make_check_pattern())
        for one in fields:
            if isinstance(one.dataType, t.FloatType | t.DoubleType):
                needs_check |= f.coalesce(f.abs(parsed[one.name]) == float("inf"), f.lit(False))
        text_fields = [t.StructField(one.name, t.StringType()) for one in fields]
        checked_line = f.when(parsed.isNotNull() & parsed[CORRUPT].isNull() & needs_check, line)
        return f.from_csv(checked_line, _to_ddl(t.StructType(text_fields)), {**self._options, "nullValue": _NULL})

    def get_value(self, name: str, parsed: Column, texts: Column) -> Column:
        """Return a column's value."""
        if isinstance(self._schema[name].dataType, t.StringType):
            return f.coalesce(parsed[name], texts[name])
        return parsed[name]

    def make_error(self, line: Column, parsed: Column, texts: Column) -> Column:
        """Return a column with the error of a line; null for a valid line."""
        is_row = parsed.isNotNull() & parsed[CORRUPT].isNull()
        changed_columns = []
        for one in self._schema.fields:
            if isinstance(one.dataType, _LOSSY_TYPES):
                # Spark ignores spaces around times.
                text = f.regexp_replace(texts[one.name], r"^[\x00-\x20]+|[\x00-\x20]+$", "")
                changed = parsed[one.name].isNotNull() & _is_changed(parsed[one.name], text, one.dataType)
                changed_columns.append(f.when(changed, f.lit(describe_column(one))))
        names = f.concat_ws(", ", *changed_columns) if changed_columns else f.lit("")
        shape = ", ".join(map(describe_column, self._schema.fields))
        message = f.when(~f.is_valid_utf8(line), f.lit("is not UTF-8"))
        message = message.when(~is_row, f.lit(f"is not a row with {shape}"))
        return message.when(texts.isNotNull() & (names != ""), make_inexact_message(names))

    def _has_too_many_fields(self, line: Column) -> Column:
        delimiter = re.escape(self._delimiter)
        without_quoted = f.regexp_replace(line, rf'(^|{delimiter})"[^"]*+(?:""[^"]*+)*+"(?={delimiter}|$)', "$1")
        without_delimiters = f.replace(without_quoted, f.lit(self._delimiter), f.lit(""))
        count = (f.length(without_quoted) - f.length(without_delimiters)) / len(self._delimiter)
        return (f.octet_length(line) >= _MAX_FIELDS) & (count >= _MAX_FIELDS)

    def _make_check_pattern(self) -> str:
        """Return a regular expression that matches every line with an empty string in quotes or a value that Spark
        changes."""
        delimiter = re.escape(self._delimiter)
        types = [one.dataType for one in self._schema.fields]
        parts = {rf'(?:(?<={delimiter})|(?<=^))""(?={delimiter}|$)'}
        for one in types:
            match one:
                case t.DecimalType():
                    parts.add(rf"[.][0-9]{{{one.scale}}}[0-9]*[1-9]")
                    parts.add(r"(?<=[0-9.])[eE][-+0-9]")
                    parts.add(r'"[-+0-9.]*,' if "," in self._delimiter else ",")
                case t.TimestampType() | t.TimestampNTZType():
                    parts.add(TRUNCATED_FRACTION)
                    parts.add(rf'(?:(?<={delimiter})|(?<=^)|(?<=")|(?<=[\x00-\x20])){TIME_WITHOUT_DATE}')
                case t.DateType():
                    parts.add(r"-[0-9]{1,2}[T ]")
        return "|".join(sorted(parts))


def _is_changed(value: Column, text: Column, of: t.DataType) -> Column:
    """Return whether a value differs from its stripped text."""
    if isinstance(of, t.FloatType | t.DoubleType):
        return (f.abs(value) == float("inf")) & ~text.rlike("(?i)^[-+]?inf")
    return is_changed(value, f.concat(f.lit('"'), text, f.lit('"')), of, text)


def _to_ddl(schema: t.StructType) -> str:
    columns = [f"`{one.name.replace('`', '``')}` {one.dataType.simpleString()}" for one in schema.fields]
    return ", ".join([*columns, f"{CORRUPT} STRING"])
