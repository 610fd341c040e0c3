"""Java's .properties syntax (java.util.Properties.load), in which Kafka's configuration files are written."""

import re

_LINE_END = re.compile(r"\r\n|\r|\n")
_BLANK = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.DOTALL)


def read_properties(data: bytes) -> dict[str, str]:
    """The properties in a file's bytes: UTF-8, or ISO-8859-1 as Java has it when it is not valid UTF-8.

    The last of several values of a name holds. Raises ValueError for a malformed `\\u` escape.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    properties: dict[str, str] = {}
    for line in _logical_lines(text):
        name, value = _split(line)
        properties[_unescape(name)] = _unescape(value)
    return properties


def _logical_lines(text: str) -> list[str]:
    """Lines without comments and leading blanks, each joined with the lines that continue it."""
    lines: list[str] = []
    pending: str | None = None
    for raw in _LINE_END.split(text):
        line = raw.lstrip(_BLANK)
        if pending is None and (not line or line[0] in "#!"):
            continue
        line = (pending or "") + line
        if _continues(line):
            pending = line[:-1]
        else:
            pending = None
            lines.append(line)
    if pending:
        lines.append(pending)
    return lines


def _continues(line: str) -> bool:
    """Whether a line ends in an odd number of backslashes: an even number is escaped backslashes."""
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _split(line: str) -> tuple[str, str]:
    """Name and value, still escaped: the name ends at the first `=`, `:` or blank that is not escaped."""
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
            raise ValueError(f"malformed \\u escape in {text}")
        return chr(int(escape[1:], 16))

    return _ESCAPE.sub(replace, text)
