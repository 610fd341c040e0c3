"""Line numbers of the keys of a TOML document, which `tomllib` does not report.

The document must be valid TOML 1.0 (parse it with tomllib first): nothing is checked here. A path identifies a value in
tomllib's result, with indexes for array elements: `("transform", 0, "sql")`.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

Path = tuple[str | int, ...]

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_STRING = re.compile(
    r"""\"{3}(?:\\.|[^\\])*?\"{3,5}|'{3}.*?'{3,5}|"(?:\\.|[^"\\])*"|'[^']*'""",
    re.DOTALL,
)
_ESCAPE = re.compile(r'\\(u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|[btnfr"\\])')
_ESCAPED = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", '"': '"', "\\": "\\"}
_SPACE = re.compile(r"[ \t]+")
_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)+")
_SCALAR = re.compile(r"[^,\]}#\n]+")


class Lines(NamedTuple):
    """Lines of a document, counted from 1, at which each key, table and array element is first written.

    `texts` has the line of a string's first character other than whitespace, if it is not the line of its key.
    """

    keys: Mapping[Path, int]
    texts: Mapping[Path, int]

    def find_line(self, path: Path) -> int:
        """Return the line of a path, or of its nearest ancestor; 1 if there is none."""
        while path and path not in self.keys:
            path = path[:-1]
        return self.keys.get(path, 1)

    def find_line_within(self, path: Path, line: int) -> int:
        """Return the line, in the document, of line `line` (from 0) of the stripped string at `path`."""
        return self.texts.get(path, self.find_line(path)) + line


def scan_lines(text: str) -> Lines:
    """Return the lines of a valid document."""
    scanner = _Scanner(text)
    scanner.scan_document()
    return Lines(scanner.lines, scanner.texts)


class _Scanner:
    """Scanner of a document, in a single pass."""

    def __init__(self, text: str) -> None:
        self.text = text.replace("\r\n", "\n")
        self.at = 0
        self.lines: dict[Path, int] = {}
        self.texts: dict[Path, int] = {}
        self._counted_to = 0
        self._line = 1
        # Number of elements of each array of tables so far.
        self._sizes: dict[Path, int] = {}

    def scan_document(self) -> None:
        table: Path = ()
        while True:
            self._skip(_BLANK)
            if self.at >= len(self.text):
                return
            table = self._scan_header() if self.text[self.at] == "[" else self._scan_pair(table)

    def _scan_header(self) -> Path:
        line = self._current_line()
        brackets = 2 if self.text.startswith("[[", self.at) else 1
        self.at += brackets
        parts = self._scan_key()
        self.at += brackets
        path: Path = ()
        for part in parts[:-1]:
            path = self._resolve_prefix((*path, part), line)
        path = (*path, parts[-1])
        self.lines.setdefault(path, line)
        if brackets == 2:
            index = self._sizes.get(path, 0)
            self._sizes[path] = index + 1
            path = (*path, index)
            self.lines[path] = line
        return path

    def _resolve_prefix(self, path: Path, line: int) -> Path:
        """Resolve a prefix of a table header: for an array of tables, return the path of its last element."""
        self.lines.setdefault(path, line)
        return (*path, self._sizes[path] - 1) if path in self._sizes else path

    def _scan_pair(self, table: Path) -> Path:
        line = self._current_line()
        path = table
        for part in self._scan_key():
            path = (*path, part)
            self.lines.setdefault(path, line)
        self.at += 1  # the equals sign
        self._skip(_SPACE)
        self._scan_value(path)
        return table

    def _scan_key(self) -> list[str]:
        """Parse a dotted key and the space after it; return its parts."""
        parts: list[str] = []
        while True:
            self._skip(_SPACE)
            quoted = self._skip(_STRING) if self.text[self.at] in "\"'" else None
            parts.append(_unquote(quoted) if quoted is not None else self._skip(_BARE) or "")
            self._skip(_SPACE)
            if self.text[self.at] != ".":
                return parts
            self.at += 1

    def _scan_value(self, path: Path) -> None:
        first = self.text[self.at]
        if first in "\"'":
            line = self._current_line()
            string = self._skip(_STRING) or ""
            if string.startswith(first * 3):
                inner = string[3:-3]
                leading = inner[: len(inner) - len(inner.lstrip())].count("\n")
                if leading:
                    self.texts[path] = line + leading
        elif first == "[":
            self._scan_array(path)
        elif first == "{":
            self._scan_inline_table(path)
        else:
            self._skip(_SCALAR)

    def _scan_array(self, path: Path) -> None:
        self.at += 1
        index = 0
        while True:
            self._skip(_BLANK)
            match self.text[self.at]:
                case "]":
                    self.at += 1
                    return
                case ",":
                    self.at += 1
                case _:
                    self.lines[(*path, index)] = self._current_line()
                    self._scan_value((*path, index))
                    index += 1

    def _scan_inline_table(self, path: Path) -> None:
        self.at += 1
        while True:
            self._skip(_BLANK)
            match self.text[self.at]:
                case "}":
                    self.at += 1
                    return
                case ",":
                    self.at += 1
                case _:
                    self._scan_pair(path)

    def _skip(self, pattern: re.Pattern[str]) -> str | None:
        match = pattern.match(self.text, self.at)
        if match is None:
            return None
        self.at = match.end()
        return match.group()

    def _current_line(self) -> int:
        self._line += self.text.count("\n", self._counted_to, self.at)
        self._counted_to = self.at
        return self._line


def _unquote(text: str) -> str:
    if text[0] == "'":
        return text[1:-1]

    def replaced(match: re.Match[str]) -> str:
        escape = match.group(1)
        return _ESCAPED.get(escape) or chr(int(escape[1:], 16))

    return _ESCAPE.sub(replaced, text[1:-1])
