"""CSV lines as rows: a value is exactly the line's, or the line is bad.

Spark's CSV reader stops at a line with too many fields, and replaces bytes that are not UTF-8. So it only splits lines
and skips the header; `from_csv` parses each line. A line that may have a value that Spark changes, or an empty text in
quotes, which Spark reads as null, is parsed a second time with texts for columns.

Source: Spark 4.0, UnivocityParser, CSVOptions, SparkDateTimeUtils.
"""

import re

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql import types as t

from odradek.spark_it.formats.json_changes import in_ddl, inexact, is_changed
from odradek.spark_it.formats.json_patterns import CUT, TODAY

CORRUPT = "__odradek_corrupt"
_MOST_FIELDS = 20_480
_NULL = "\uffff odradek null \uffff"
_AT_RISK = (t.DecimalType, t.FloatType, t.DoubleType, t.TimestampType, t.TimestampNTZType, t.DateType)
_BYTES = "ISO-8859-1"
LINE_OPTIONS = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": CORRUPT,
    # A character for each byte, and none of them separates, quotes or begins a comment.
    "encoding": _BYTES,
    "sep": "\ufffe",
    "quote": "\uffff",
    "escape": "\uffff",
    "comment": "\ufffd",
}
"""Options of Spark's CSV reader for whole lines as the only column."""


def line_text(line: Column) -> Column:
    """Return the text of a line that is read with LINE_OPTIONS; it may be invalid UTF-8."""
    return f.encode(line, _BYTES).cast("string")


class CsvLines:
    """Parser of lines for the columns that files have themselves."""

    def __init__(self, schema: t.StructType, delimiter: str) -> None:
        self._schema = schema
        self._delimiter = delimiter
        # A quote within quotes is doubled, as by RFC 4180 and by the files sink.
        self._options = {
            "mode": "PERMISSIVE",
            "columnNameOfCorruptRecord": CORRUPT,
            "sep": delimiter,
            "escape": '"',
            "maxColumns": str(_MOST_FIELDS),
        }

    def parsed(self, line: Column) -> Column:
        """Return a struct of the columns and CORRUPT, null for a line of too many fields."""
        return f.from_csv(f.when(~self._has_too_many(line), line), _ddl(self._schema), self._options)

    def texts(self, line: Column, parsed: Column) -> Column:
        """Return a struct of the columns at risk as texts; null for a line that is exact for sure."""
        fields = self._schema.fields
        is_text = [isinstance(one.dataType, (*_AT_RISK, t.StringType)) for one in fields]
        if not any(is_text):
            return f.lit(None).cast("struct<none: string>")
        wanted = line.rlike(self._of_interest())
        for one in fields:
            if isinstance(one.dataType, t.FloatType | t.DoubleType):
                wanted |= f.coalesce(f.abs(parsed[one.name]) == float("inf"), f.lit(False))
        kinds = [t.StructField(one.name, t.StringType()) for one in fields]
        asked = f.when(parsed.isNotNull() & parsed[CORRUPT].isNull() & wanted, line)
        return f.from_csv(asked, _ddl(t.StructType(kinds)), {**self._options, "nullValue": _NULL})

    def value(self, name: str, parsed: Column, texts: Column) -> Column:
        """Return a column's value."""
        if isinstance(self._schema[name].dataType, t.StringType):
            return f.coalesce(parsed[name], texts[name])
        return parsed[name]

    def error(self, line: Column, parsed: Column, texts: Column) -> Column:
        """Return what is wrong with a line, None if nothing is."""
        is_row = parsed.isNotNull() & parsed[CORRUPT].isNull()
        said = []
        for one in self._schema.fields:
            if isinstance(one.dataType, _AT_RISK):
                # Spark ignores spaces around times.
                text = f.regexp_replace(texts[one.name], r"^[\x00-\x20]+|[\x00-\x20]+$", "")
                changed = parsed[one.name].isNotNull() & _is_changed(parsed[one.name], text, one.dataType)
                said.append(f.when(changed, f.lit(in_ddl(one))))
        names = f.concat_ws(", ", *said) if said else f.lit("")
        shape = ", ".join(map(in_ddl, self._schema.fields))
        message = f.when(~f.is_valid_utf8(line), f.lit("is not UTF-8"))
        message = message.when(~is_row, f.lit(f"is no row with {shape}"))
        return message.when(texts.isNotNull() & (names != ""), inexact(names))

    def _has_too_many(self, line: Column) -> Column:
        between = re.escape(self._delimiter)
        bare = f.regexp_replace(line, rf'(^|{between})"[^"]*+(?:""[^"]*+)*+"(?={between}|$)', "$1")
        without = f.replace(bare, f.lit(self._delimiter), f.lit(""))
        count = (f.length(bare) - f.length(without)) / len(self._delimiter)
        return (f.octet_length(line) >= _MOST_FIELDS) & (count >= _MOST_FIELDS)

    def _of_interest(self) -> str:
        """Return a regular expression that matches every line with an empty text in quotes or a changed value."""
        between = re.escape(self._delimiter)
        types = [one.dataType for one in self._schema.fields]
        parts = {rf'(?:(?<={between})|(?<=^))""(?={between}|$)'}
        for one in types:
            match one:
                case t.DecimalType():
                    parts.add(rf"[.][0-9]{{{one.scale}}}[0-9]*[1-9]")
                    parts.add(r"(?<=[0-9.])[eE][-+0-9]")
                    parts.add(r'"[-+0-9.]*,' if "," in self._delimiter else ",")
                case t.TimestampType() | t.TimestampNTZType():
                    parts.add(CUT)
                    parts.add(rf'(?:(?<={between})|(?<=^)|(?<=")|(?<=[\x00-\x20])){TODAY}')
                case t.DateType():
                    parts.add(r"-[0-9]{1,2}[T ]")
        return "|".join(sorted(parts))


def _is_changed(value: Column, text: Column, of: t.DataType) -> Column:
    """Return whether a value differs from its text, without the spaces around it."""
    if isinstance(of, t.FloatType | t.DoubleType):
        return (f.abs(value) == float("inf")) & ~text.rlike("(?i)^[-+]?inf")
    return is_changed(value, f.concat(f.lit('"'), text, f.lit('"')), of, text)


def _ddl(schema: t.StructType) -> str:
    columns = [f"`{one.name.replace('`', '``')}` {one.dataType.simpleString()}" for one in schema.fields]
    return ", ".join([*columns, f"{CORRUPT} STRING"])
