"""Output of commands: tables for people, JSON for programs.

A table is drawn by rich on a terminal, and is plain aligned text otherwise. Rich is imported only to draw one; large
tables are aligned text with the same styles, because rich takes 600 ms for 1,000 rows.
"""

import base64
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TextIO

JsonValue = str | int | float | bool | None | Sequence["JsonValue"] | Mapping[str, "JsonValue"]
Row = Sequence[JsonValue]

_GAP: Final = 2
MOST_RICH_ROWS: Final = 50
_BOLD: Final = "\x1b[1m"
_RED: Final = "\x1b[31m"
_NORMAL: Final = "\x1b[0m"
_JSON_CONTROLS: Final = re.compile("[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class Table(NamedTuple):
    """Rows with a column for each key, which are JSON's keys; headings are derived from them.

    title: a line above the table
    is_marked: true for rows to which a reader should pay attention, which a terminal shows in red
    """

    keys: Sequence[str]
    rows: Sequence[Row]
    title: str = ""
    is_marked: Callable[[Row], bool] | None = None

    def as_json(self) -> list[JsonValue]:
        """Return an object for each row."""
        return [dict(zip(self.keys, row, strict=True)) for row in self.rows]


class Output:
    """Standard output, as text or JSON."""

    def __init__(self, *, is_json: bool, stream: TextIO | None = None) -> None:
        self.is_json = is_json
        self._stream = sys.stdout if stream is None else stream

    def show(self, table: Table) -> None:
        """Write a table, in JSON a list."""
        if self.is_json:
            self.write_json(table.as_json())
        else:
            self.write_table(table)

    def show_all(self, document: JsonValue, *parts: Table | Mapping[str, JsonValue]) -> None:
        """Write a document as JSON, or its parts as text: tables, and fields with their values."""
        if self.is_json:
            self.write_json(document)
            return
        for number, part in enumerate(parts):
            if number:
                self.write_line("")
            if isinstance(part, Table):
                self.write_table(part)
            else:
                self.write_fields(part)

    def write_json(self, document: JsonValue) -> None:
        """Write a document as indented JSON."""
        self._write(format_json(document, indent=2) + "\n")

    def write_json_line(self, document: JsonValue) -> None:
        """Write a document as one line of JSON."""
        self._write(format_json(document) + "\n")

    def write_line(self, line: str) -> None:
        """Write a line of text."""
        self._write(make_printable(line) + "\n")

    def write_fields(self, fields: Mapping[str, JsonValue]) -> None:
        """Write a line for each field."""
        width = max(map(len, fields), default=0) + _GAP
        lines = (f"{make_heading(key).lower():<{width}}{format_value(value)}\n" for key, value in fields.items())
        self._write("".join(lines))

    def write_table(self, table: Table) -> None:
        """Write a table as text."""
        if table.title:
            self.write_line(table.title)
        if not self._stream.isatty() or "NO_COLOR" in os.environ:
            self._write("".join(f"{line}\n" for line in align(table)))
        elif len(table.rows) <= MOST_RICH_ROWS:
            self._draw(table)
        else:
            self._write("".join(f"{line}\n" for line in _style(table)))

    def _draw(self, table: Table) -> None:
        from rich.console import Console
        from rich.table import Table as RichTable
        from rich.text import Text

        drawn = RichTable(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
        right = find_numeric_columns(table)
        for index, key in enumerate(table.keys):
            drawn.add_column(make_heading(key), justify="right" if index in right else "left", overflow="fold")
        for row in table.rows:
            style = "red" if table.is_marked is not None and table.is_marked(row) else ""
            drawn.add_row(*(Text(format_value(value)) for value in row), style=style)
        Console(file=self._stream, highlight=False).print(drawn)

    def _write(self, text: str) -> None:
        self._stream.write(text)


def format_json(document: JsonValue, indent: int | None = None) -> str:
    """Format a document, with control characters escaped also above 127, where json.dumps leaves them."""
    text = json.dumps(document, indent=indent, ensure_ascii=False)
    return _JSON_CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _style(table: Table) -> Iterator[str]:
    """Iterate over the lines of a table, with the heading in bold and marked rows in red."""
    heading, *lines = align(table)
    yield f"{_BOLD}{heading}{_NORMAL}"
    for row, line in zip(table.rows, lines, strict=True):
        yield f"{_RED}{line}{_NORMAL}" if table.is_marked is not None and table.is_marked(row) else line


def align(table: Table) -> Iterator[str]:
    """Iterate over the lines of a table as plain text."""
    cells = [[make_heading(key) for key in table.keys], *([format_value(value) for value in row] for row in table.rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    right = find_numeric_columns(table)
    pads = [str.rjust if index in right else str.ljust for index in range(len(widths))]
    for row in cells:
        yield (" " * _GAP).join([pad(cell, width) for pad, cell, width in zip(pads, row, widths, strict=True)]).rstrip()


def find_numeric_columns(table: Table) -> set[int]:
    """Return the indexes of columns that contain numbers, which are aligned to the right."""
    first = table.rows[0] if table.rows else ()
    return {
        index
        for index, value in enumerate(first)
        if isinstance(value, int | float)
        and not isinstance(value, bool)
        and all(row[index] is None or isinstance(row[index], int | float) for row in table.rows)
    }


def make_heading(key: str) -> str:
    """Return the heading of a key of JSON."""
    return key.replace("_", " ").upper()


def format_value(value: JsonValue) -> str:
    """Return the text of a cell."""
    if value is None or value == "":
        return "-"
    if isinstance(value, str):
        return make_printable(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    # Before the abstract classes, whose checks take longer than the rest of a large table.
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{make_printable(key)}={format_value(each)}" for key, each in value.items()) or "-"
    return ",".join(map(format_value, value)) or "-"


def count(number: int, noun: str) -> str:
    """Return a number and a noun, in the plural unless the number is 1."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def format_uuid(uuid: bytes) -> str:
    """Return a UUID in the form of Kafka's tools."""
    return base64.urlsafe_b64encode(uuid).rstrip(b"=").decode()


def make_printable(text: str) -> str:
    """Return a text whose control characters are escaped, because names and values may contain any."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text)
