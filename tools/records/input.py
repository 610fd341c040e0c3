"""Records from lines, JSON or files."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, Final, NamedTuple

from odradek.tools.kafka.similar_names import suggest
from odradek.tools.records.encoding import PartEncoder, decode_base64
from odradek.tools.records.errors import UndecodableError, UnencodableError
from odradek.tools.records.json_values import load_json
from odradek.tools.records.record import Headers

CHUNK_BYTES: Final = 1 << 17
_JSON_FIELDS: Final = (
    "key", "key_base64", "value", "value_base64", "headers", "partition", "timestamp_ms",
    "topic", "offset", "timestamp_type", "errors",
)  # fmt: skip


class NewRecord(NamedTuple):
    """A record to produce.

    source: what errors name, such as `line 7`
    partition: -1 for the partitioner's choice
    timestamp_ms: 0 for now
    """

    source: str
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    partition: int = -1
    timestamp_ms: int = 0


class BadLine(NamedTuple):
    """A line that is no record."""

    source: str
    reason: str


class Template(NamedTuple):
    """Fields of all records, from options; a record's own key, partition and timestamp take precedence over it."""

    key: bytes | None
    headers: Headers
    partition: int
    takes_partitions: bool = True


class Encoders(NamedTuple):
    """The encoders of keys and values."""

    key: PartEncoder
    value: PartEncoder


Input = NewRecord | BadLine
ParseLine = Callable[[str, bytes], NewRecord]


def read_lines(
    streams: Sequence[tuple[str, BinaryIO]], parse: ParseLine, progress: Callable[[int], None]
) -> Iterator[Input]:
    """Iterate over the records in lines of files."""
    for name, stream in streams:
        number = 0
        for lines in read_chunks(stream):
            for line in lines:
                number += 1
                source = f"{name}line {number}"
                try:
                    yield parse(source, line)
                except UnencodableError as error:
                    yield BadLine(source, str(error))
            progress(sum(map(len, lines)) + len(lines))


def read_chunks(stream: BinaryIO) -> Iterator[list[bytes]]:
    """Iterate over lists of lines without their ends, as soon as there are some."""
    rest = b""
    # `read1` returns what a terminal or a pipe has; `read` would wait for more.
    read = getattr(stream, "read1", stream.read)
    while data := read(CHUNK_BYTES):
        lines = data.split(b"\n")
        if len(lines) == 1:
            rest += data
            continue
        lines[0] = rest + lines[0]
        rest = lines.pop()
        yield lines
    if rest:
        yield [rest]


def make_line_parser(
    encoders: Encoders, template: Template, key_separator: bytes | None, null: bytes | None
) -> ParseLine:
    """Return the parser of lines: a value, after a key and a separator if one is given."""

    def encode(name: str, encoder: PartEncoder, text: bytes) -> bytes | None:
        if text == null:
            return None
        try:
            return encoder.encode_text(text)
        except UnencodableError as error:
            raise UnencodableError(f"{name}: {error}") from None

    def parse(source: str, line: bytes) -> NewRecord:
        key = template.key
        if key_separator is not None:
            start, separator, line = line.partition(key_separator)
            if not separator:
                raise UnencodableError(f"the key separator {key_separator.decode('utf-8', 'replace')} is missing")
            key = encode("key", encoders.key, start)
        return NewRecord(source, key, encode("value", encoders.value, line), template.headers, template.partition)

    return parse


def make_json_parser(encoders: Encoders, template: Template) -> ParseLine:
    """Return the parser of lines of JSON, such as `record consume --json` writes."""

    def parse(source: str, line: bytes) -> NewRecord:
        try:
            document = load_json(line)
        except UndecodableError as error:
            raise UnencodableError(str(error)) from None
        if not isinstance(document, dict):
            raise UnencodableError("this is no JSON object")
        if unknown := [name for name in document if name not in _JSON_FIELDS]:
            raise UnencodableError(f"there is no field {unknown[0]}{suggest(unknown[0], _JSON_FIELDS)}")
        has_key = "key" in document or "key_base64" in document
        return NewRecord(
            source,
            _read_part(document, "key", encoders.key) if has_key else template.key,
            _read_part(document, "value", encoders.value),
            (*_read_headers(document.get("headers")), *template.headers),
            _read_partition(document, template),
            _read_number(document, "timestamp_ms", 0),
        )

    return parse


def read_files(
    streams: Sequence[tuple[str, BinaryIO]], encoders: Encoders, template: Template, progress: Callable[[int], None]
) -> Iterator[Input]:
    """Iterate over files, each of which is the value of a record."""
    for name, stream in streams:
        data = stream.read()
        source = name.rstrip(": ") or "standard input"
        try:
            value = encoders.value.encode_text(data)
        except UnencodableError as error:
            yield BadLine(source, f"value: {error}")
        else:
            yield NewRecord(source, template.key, value, template.headers, template.partition)
        progress(len(data))


def _read_part(document: dict[str, Any], name: str, encoder: PartEncoder) -> bytes | None:
    if f"{name}_base64" in document:
        # These are the bytes as stored.
        return decode_base64(document[f"{name}_base64"])
    value = document.get(name)
    if value is None:
        return None
    try:
        return encoder.encode(value)
    except UnencodableError as error:
        raise UnencodableError(f"{name}: {error}") from None


def _read_headers(given: Any) -> Iterator[tuple[str, bytes | None]]:
    """Iterate over headers, which are a list of objects, or one object with the names and values."""
    if given is None:
        return
    if isinstance(given, dict):
        given = [{"name": name, "value": value} for name, value in given.items()]
    if not isinstance(given, list):
        raise UnencodableError("headers must be a list or an object")
    for one in given:
        if not isinstance(one, dict) or not isinstance(one.get("name"), str):
            raise UnencodableError('a header must be an object such as {"name": "a", "value": "b"}')
        if "value_base64" in one:
            yield one["name"], decode_base64(one["value_base64"])
            continue
        value = one.get("value")
        if value is not None and not isinstance(value, str):
            raise UnencodableError(f"the value of header {one['name']} must be a string")
        yield one["name"], None if value is None else value.encode("utf-8", "surrogatepass")


def _read_partition(document: dict[str, Any], template: Template) -> int:
    if template.partition >= 0 or not template.takes_partitions:
        return template.partition
    return _read_number(document, "partition", -1)


def _read_number(document: dict[str, Any], name: str, default: int) -> int:
    value = document.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 63:
        raise UnencodableError(f"{name} must be a number that is not negative")
    return value
