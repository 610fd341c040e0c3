"""Java's .properties syntax (java.util.Properties.load), the syntax of Kafka's configuration files."""

import re

_LINE_END = re.compile(r"\r\n|\r|\n")
_BLANK = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.DOTALL)


def read_properties(data: bytes) -> dict[str, str]:
    """Parse a file's bytes: UTF-8, or ISO-8859-1 as in Java if they are not valid UTF-8.

    The last of several values of a name takes effect. Raises ValueError for a malformed `\\u` escape.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    properties: dict[str, str] = {}
    for line in _read_logical_lines(text):
        name, value = _split(line)
        try:
            properties[_unescape(name)] = _unescape(value)
        except ValueError as error:
            # Without the value, which may be a secret.
            raise ValueError(f"{error} in the value or the name of {name}") from None
    return properties


def _read_logical_lines(text: str) -> list[str]:
    """Return the lines without comments and leading blanks, each joined with its continuation lines."""
    lines: list[str] = []
    pending: str | None = None
    for raw in _LINE_END.split(text):
        line = raw.lstrip(_BLANK)
        if pending is None and (not line or line[0] in "#!"):
            continue
        line = (pending or "") + line
        if _is_continued(line):
            pending = line[:-1]
        else:
            pending = None
            lines.append(line)
    if pending:
        lines.append(pending)
    return lines


def _is_continued(line: str) -> bool:
    """Return whether a line ends in an odd number of backslashes: an even number is escaped backslashes."""
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _split(line: str) -> tuple[str, str]:
    """Split a line into name and value, both escaped: the name ends at the first unescaped `=`, `:` or blank."""
    position = 0
    while position < len(line) and line[position] not in "=:" + _BLANK:
        position += 2 if line[position] == "\\" else 1
    value = line[position:].lstrip(_BLANK)
    if value[:1] in ("=", ":"):
        value = value[1:].lstrip(_BLANK)
    return line[:position], value


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text

    def replace(match: re.Match[str]) -> str:
        escape = match[1]
        if escape[0] != "u":
            return _ESCAPES.get(escape, escape)
        if len(escape) != 5:
            raise ValueError("malformed \\u escape")
        return chr(int(escape[1:], 16))

    return _ESCAPE.sub(replace, text)
