"""Texts of keys, values and headers: JSON, text or bytes in hexadecimal, shortened."""

import json
import re
import struct
from collections.abc import Callable
from typing import Final, NamedTuple

from odradek.protocol.batches.record_reader import Record
from odradek.tools.console.formats import escape
from odradek.tools.console.records.schemas import ContentDecoder, TopicSchemas
from odradek.tools.logs.decoding import Row

JSON: Final = "JSON"
TEXT: Final = "text"
HEX: Final = "hex"
NULL: Final = "null"

LIST_CHARACTERS: Final = 4_000
"""Shown characters of a key or value in a list of records."""

WHOLE_CHARACTERS: Final = 200_000
"""Shown characters on the page of one record; the rest can be downloaded."""

_SUMMARY_CHARACTERS: Final = 160
_MOST_JSON_BYTES: Final = 256 << 10
_MOST_HEADERS: Final = 50
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*+"?|[{}\[\],:]|[^\s{}\[\],:"]+')
"""The last token of shortened JSON may be a string without its end."""

_MOST_SCHEMA_ID: Final = 1_000_000
"""Registries count from 1; larger numbers at the begin of a content are those of other formats."""

_NO_SCHEMAS: Final = TopicSchemas()

_SCHEMA_HEADER: Final = struct.Struct(">bI")


class Content(NamedTuple):
    """A key, a value or the value of a header.

    kind: JSON, TEXT, HEX or NULL
    text: the content, shortened
    summary: one line
    note: the schema, or a probable meaning of binary content; otherwise empty
    """

    kind: str
    text: str
    summary: str
    size_bytes: int
    is_shortened: bool
    note: str


class ShownRecord(NamedTuple):
    """A record as pages show it. `size_bytes` is that of key and value."""

    partition: int
    offset: int
    timestamp_ms: int
    key: Content
    value: Content
    headers: list[tuple[str, Content]]
    omitted_headers: int
    is_transactional: bool


def show_record(
    partition: int,
    record: Record,
    most_characters: int,
    is_transactional: bool,
    schemas: TopicSchemas = _NO_SCHEMAS,
    decode: Callable[[Record], Row] | None = None,
) -> ShownRecord:
    """Return the texts of a record. `decode` decodes those of an internal topic."""
    if decode is None:
        key, value = show(record.key, most_characters, schemas.key), show(record.value, most_characters, schemas.value)
    else:
        key, value = _show_internal(record, decode(record), most_characters)
    headers = [(escape(name), show(value, most_characters)) for name, value in record.headers[:_MOST_HEADERS]]
    return ShownRecord(
        partition,
        record.offset,
        record.timestamp,
        key,
        value,
        headers,
        len(record.headers) - len(headers),
        is_transactional,
    )


def show(data: bytes | None, most_characters: int = LIST_CHARACTERS, schema: ContentDecoder | None = None) -> Content:
    """Return the text of bytes, by their schema if there is one."""
    if data is None:
        return Content(NULL, "", "", 0, False, "")
    decoded = None if schema is None else schema.decode(data)
    if decoded is None:
        return _show_stored(data, most_characters)
    if decoded.json is None:
        return _show_stored(data, most_characters)._replace(note=decoded.note)
    # The size is that of the stored content.
    return _show_stored(decoded.json, most_characters)._replace(size_bytes=len(data), note=decoded.note)


def _show_internal(record: Record, row: Row, most_characters: int) -> tuple[Content, Content]:
    """Return key and value of a record of an internal topic, as JSON if they are decoded in a row."""
    record_type = str(row.get("error") or row.get("record_type", ""))
    value_note = f"{record_type}, version {row['record_version']}" if "record_version" in row else record_type
    key, value = (
        _show_part(data, row, name, most_characters)._replace(note=note)
        for data, name, note in ((record.key, "record_key", record_type), (record.value, "record_value", value_note))
    )
    return key, value


def _show_part(data: bytes | None, row: Row, name: str, most_characters: int) -> Content:
    if data is None or name not in row:
        return show(data, most_characters)
    # The size is that of the stored content.
    text = json.dumps(row[name], ensure_ascii=False)
    return _show_stored(text.encode("utf-8", "backslashreplace"), most_characters)._replace(size_bytes=len(data))


def _show_stored(data: bytes, most_characters: int) -> Content:
    # A character has at most four bytes; the last one may be cut.
    head = data if len(data) <= most_characters * 4 else data[: most_characters * 4]
    try:
        text = head.decode()
    except UnicodeDecodeError as error:
        is_cut = len(head) < len(data) and error.start >= len(head) - 3
        if not is_cut:
            return _show_bytes(data, most_characters)
        text = head[: error.start].decode()
    if _CONTROL.search(text):
        return _show_bytes(data, most_characters)
    is_json = _is_json(data)
    shown = indent_json(text, most_characters) if is_json else text
    is_shortened = len(head) < len(data) or len(shown) > most_characters
    summary = _summarize(text)
    return Content(JSON if is_json else TEXT, escape(shown[:most_characters]), summary, len(data), is_shortened, "")


def contains(record: Record, needle: bytes) -> bool:
    """Return whether key, value or a header contains bytes."""
    return any(
        needle in part
        for part in (
            record.key or b"",
            record.value or b"",
            *(name.encode("utf-8", "surrogateescape") for name, _ in record.headers),
            *(value or b"" for _, value in record.headers),
        )
    )


def indent_json(text: str, most_characters: int) -> str:
    """Return valid JSON with one member a line; names, numbers and their order are unchanged."""
    pieces: list[str] = []
    size, depth, previous = 0, 0, ""
    for match in _TOKEN.finditer(text):
        token = match[0]
        line = "\n" + "  " * (depth - (token in "}]"))
        if token in "}]":
            depth -= 1
            piece = token if previous in ("{", "[") else line + token
        elif previous in ("{", "[") or previous == ",":
            piece = line + token
        else:
            piece = f" {token}" if previous == ":" else token
        if token in "{[":
            depth += 1
        pieces.append(piece)
        size += len(piece)
        if size > most_characters:
            break
        previous = token
    return "".join(pieces)


def _is_json(data: bytes) -> bool:
    """Return whether bytes are a JSON object or array; single numbers and words are shown as text."""
    if len(data) > _MOST_JSON_BYTES or data.lstrip()[:1] not in (b"{", b"["):
        return False
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True


def _show_bytes(data: bytes, most_characters: int) -> Content:
    most_bytes = most_characters // 4
    lines = [_dump_line(data, start) for start in range(0, min(len(data), most_bytes), 16)]
    summary = data[: _SUMMARY_CHARACTERS // 3].hex(" ") + ("…" if len(data) > _SUMMARY_CHARACTERS // 3 else "")
    return Content(HEX, "\n".join(lines), summary, len(data), len(data) > most_bytes, _guess(data))


def _dump_line(data: bytes, start: int) -> str:
    part = data[start : start + 16]
    printed = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
    return f"{start:06x}  {part[:8].hex(' '):23}  {part[8:].hex(' '):23}  {printed}"


def _guess(data: bytes) -> str:
    """Return what binary content probably is: a big-endian number, or a value with the header of a schema registry."""
    if len(data) in (4, 8):
        number = int.from_bytes(data, "big", signed=True)
        return f"as a number: {number}"
    if len(data) > _SCHEMA_HEADER.size and data[0] == 0:
        schema_id = _SCHEMA_HEADER.unpack_from(data)[1]
        if 0 < schema_id < _MOST_SCHEMA_ID:
            return f"may have schema {schema_id} of a schema registry"
    return ""


def _summarize(text: str) -> str:
    line = " ".join(text[: 4 * _SUMMARY_CHARACTERS].split())
    return escape(line[:_SUMMARY_CHARACTERS]) + ("…" if len(line) > _SUMMARY_CHARACTERS else "")
