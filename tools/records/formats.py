"""Records as lines, JSON or by a template. Each function returns bytes that end with what separates the records."""

import base64
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from odradek.tools.kafka.similar_names import suggest
from odradek.tools.records.errors import InvalidOptionError
from odradek.tools.records.json_values import dump_line
from odradek.tools.records.record import Decoded, Part, Record

FormatRecord = Callable[[Record], bytes]

_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_TEMPLATE: Final = re.compile(r"\\x(?P<hex>[0-9A-Fa-f]{2})|\\(?P<escape>.)|%(?P<field>.)|(?P<text>[^\\%]+)", re.DOTALL)


def render(part: Part, null: bytes = b"") -> bytes:
    """Return a key or value as text."""
    if isinstance(part, bytes):
        return part
    if part is None:
        return null
    if isinstance(part.value, str):
        return part.value.encode("utf-8", "backslashreplace")
    return dump_line(part.value)


def format_json(record: Record) -> bytes:
    """Return a line of JSON, which `record produce --input json` reads.

    A part that is no UTF-8 text is in a field whose name ends with `_base64`, and so is JSON's null, which is not
    Kafka's.
    """
    document: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_type": record.timestamp_type,
        "timestamp_ms": record.timestamp_ms,
    }
    _add_part(document, "key", record.key)
    _add_part(document, "value", record.value)
    document["headers"] = [_make_header(name, value) for name, value in record.headers]
    if record.errors:
        document["errors"] = list(record.errors)
    return dump_line(document) + b"\n"


def _add_part(document: dict[str, Any], name: str, part: Part) -> None:
    if isinstance(part, Decoded):
        if part.value is None:
            document[f"{name}_base64"] = base64.b64encode(b"null").decode()
        else:
            document[name] = part.value
    elif part is None:
        document[name] = None
    else:
        try:
            document[name] = part.decode("utf-8")
        except UnicodeDecodeError:
            document[f"{name}_base64"] = base64.b64encode(part).decode()


def _make_header(name: str, value: bytes | None) -> dict[str, Any]:
    header: dict[str, Any] = {"name": name}
    _add_part(header, "value", value)
    return header


def make_line_format(
    key_separator: bytes | None, null: bytes, shorten: Callable[[bytes], bytes] | None
) -> FormatRecord:
    """Return the format of lines: the value, after the key and a separator if there is one."""

    def change(part: Part) -> bytes:
        text = render(part, null)
        return text if shorten is None else shorten(text)

    if key_separator is None:
        return lambda record: change(record.value) + b"\n"
    return lambda record: b"%b%b%b\n" % (change(record.key), key_separator, change(record.value))


def make_shortener(most_characters: int, clean: Callable[[str], str]) -> Callable[[bytes], bytes]:
    """Return a function that makes a text fit for a terminal; `clean` escapes control characters."""

    def shorten(data: bytes) -> bytes:
        # A character has at most four bytes.
        text = data[: most_characters * 4].decode("utf-8", "backslashreplace")
        shown = clean(text[:most_characters])
        if len(text) > most_characters or len(data) > most_characters * 4:
            shown += f"... ({len(data)} bytes; --full shows all)"
        return shown.encode("utf-8", "backslashreplace")

    return shorten


def parse_template(template: str, null: bytes) -> FormatRecord:
    """Return the format of a template with kcat's fields: %s, %k, %h, %t, %p, %o, %T, %S, %K, %R and %%.

    Raises InvalidOptionError.
    """
    fields = _make_fields(null)
    parts: list[bytes | Callable[[Record], bytes]] = []
    position = 0
    for match in _TEMPLATE.finditer(template):
        position = match.end()
        if match["hex"]:
            parts.append(bytes.fromhex(match["hex"]))
        elif match["escape"]:
            parts.append(_ESCAPES.get(match["escape"], match["escape"].encode()))
        elif match["text"]:
            parts.append(match["text"].encode())
        elif match["field"] == "%":
            parts.append(b"%")
        elif match["field"] in fields:
            parts.append(fields[match["field"]])
        else:
            hint = suggest(match["field"], fields) or f"; there are {', '.join(f'%{each}' for each in fields)}"
            raise InvalidOptionError(f"--format {template}: there is no field %{match['field']}{hint}")
    if position != len(template):
        raise InvalidOptionError(f"--format {template}: a {template[-1]} is at the end")
    return lambda record: b"".join([part if isinstance(part, bytes) else part(record) for part in parts])


def _make_fields(null: bytes) -> Mapping[str, Callable[[Record], bytes]]:
    return {
        "s": lambda record: render(record.value, null),
        "k": lambda record: render(record.key, null),
        "h": lambda record: _render_headers(record, null),
        "t": lambda record: record.topic.encode(),
        "p": lambda record: b"%d" % record.partition,
        "o": lambda record: b"%d" % record.offset,
        "T": lambda record: b"%d" % (-1 if record.timestamp_ms is None else record.timestamp_ms),
        "S": lambda record: b"%d" % record.value_bytes,
        "K": lambda record: b"%d" % record.key_bytes,
        "R": lambda record: record.value_bytes.to_bytes(4, "big", signed=True),
    }


def _render_headers(record: Record, null: bytes) -> bytes:
    return b",".join([name.encode() + b"=" + render(value, null) for name, value in record.headers])
