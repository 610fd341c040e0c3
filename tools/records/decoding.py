"""Keys and values as JSON, by format."""

import base64
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from odradek.tools.kafka.similar_names import suggest
from odradek.tools.records.errors import InvalidOptionError, UndecodableError, require_package
from odradek.tools.records.integers import NUMBER_FORMATS, make_number_decoder
from odradek.tools.records.json_values import load_json

if TYPE_CHECKING:
    from odradek.tools.records.avro import AvroSchema
    from odradek.tools.records.protobuf import MessageType
    from odradek.tools.records.record import Part, Record
    from odradek.tools.records.registry import Registry

TEXT: Final = "text"
FORMATS: Final = (TEXT, "json", "hex", "base64", *NUMBER_FORMATS, "avro", "protobuf", "registry")

Decode = Callable[[bytes], Any]


class PartFormat(NamedTuple):
    """The format of keys or values.

    schema_file: a schema of Avro or a descriptor set of Protobuf; for `registry` what is registered
    message: a message type of Protobuf
    """

    name: str = TEXT
    schema_file: Path | None = None
    message: str | None = None


def check_format(name: str) -> None:
    """Raise InvalidOptionError unless there is a format of this name."""
    if name not in FORMATS:
        hint = suggest(name, FORMATS) or f"; use {', '.join(FORMATS)}"
        raise InvalidOptionError(f"there is no format {name}{hint}")


class Decoding:
    """Decodes the keys and values of records, and counts those that cannot be."""

    def __init__(self, key: Decode | None, value: Decode | None) -> None:
        self._key, self._value = key, value
        self.failures = 0
        self.first_failure = ""

    @property
    def changes_nothing(self) -> bool:
        """True if keys and values remain as stored."""
        return self._key is None and self._value is None

    def decode(self, record: "Record") -> "Record":
        """Return a record with its key and value decoded, or as stored with the reason."""
        errors: list[str] = []
        key = _decode_part("key", record.key, self._key, errors)
        value = _decode_part("value", record.value, self._value, errors)
        if errors:
            self.failures += 1
            if not self.first_failure:
                self.first_failure = f"{record.topic}-{record.partition} offset {record.offset}: {errors[0]}"
        return record._replace(key=key, value=value, errors=tuple(errors))


def _decode_part(name: str, part: "Part", decode: Decode | None, errors: list[str]) -> "Part":
    if decode is None or not isinstance(part, bytes):
        return part
    from odradek.tools.records.record import Decoded

    try:
        return Decoded(decode(part))
    except UndecodableError as error:
        errors.append(f"{name}: {' '.join(str(error).split())}")
        return part


def make_decoder(part: PartFormat, get_registry: Callable[[], "Registry"]) -> Decode | None:
    """Return the decoder of a format, None for text. Raises InvalidOptionError."""
    check_format(part.name)
    if part.name == TEXT:
        return None
    if part.name == "json":
        return load_json
    if part.name == "hex":
        return bytes.hex
    if part.name == "base64":
        return lambda data: base64.b64encode(data).decode()
    if part.name == "avro":
        return read_avro_schema(part).decode
    if part.name == "protobuf":
        return read_message_type(part).decode
    if part.name == "registry":
        from odradek.tools.records.registered import RegisteredDecoder

        return RegisteredDecoder(get_registry()).decode
    return make_number_decoder(part.name)


def read_avro_schema(part: PartFormat) -> "AvroSchema":
    """Return the schema of a file. Raises InvalidOptionError."""
    require_package("fastavro")
    from odradek.tools.records.avro import AvroSchema

    data = _read_schema_file(part)
    try:
        return AvroSchema(data.decode("utf-8"))
    except ValueError as error:
        raise InvalidOptionError(f"{part.schema_file}: {error}") from None


def read_message_type(part: PartFormat) -> "MessageType":
    """Return the message type in the descriptor set of a file. Raises InvalidOptionError."""
    require_package("google.protobuf")
    from odradek.tools.records.protobuf import DescriptorFiles

    data = _read_schema_file(part)
    try:
        return DescriptorFiles.parse(data).find(part.message)
    except ValueError as error:
        raise InvalidOptionError(f"{part.schema_file}: {error}") from None


def _read_schema_file(part: PartFormat) -> bytes:
    if part.schema_file is None:
        raise InvalidOptionError(f"the format {part.name} needs a schema file; with a schema registry use registry")
    try:
        return part.schema_file.read_bytes()
    except OSError as error:
        raise InvalidOptionError(f"{part.schema_file}: {error.strerror}") from None
