"""Records whose schema is in a registry: Avro, Protobuf or JSON after the header with the schema's id."""

import base64
import binascii
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

from odradek.tools.records.errors import InvalidOptionError, UndecodableError, require_package
from odradek.tools.records.json_values import dump_json, load_json
from odradek.tools.records.registry import (
    RegisteredSchema,
    Registry,
    add_schema_id,
    split_schema_id,
)

_KINDS: Final = {".avsc": "AVRO", ".proto": "PROTOBUF", ".json": "JSON"}
_MAX_NESTING: Final = 32
_NEW_ID: Final = 0


class _Codec(Protocol):
    def decode(self, data: bytes) -> Any: ...

    def encode(self, value: Any) -> bytes: ...


class _JsonCodec:
    """JSON; the registry's schema is not checked."""

    def decode(self, data: bytes) -> Any:
        return load_json(data)

    def encode(self, value: Any) -> bytes:
        return dump_json(value)


class _ProtobufCodec:
    """A message type of a file, whose indexes precede the message."""

    def __init__(self, schema: RegisteredSchema, message: str | None) -> None:
        from google.protobuf import descriptor_pb2  # type: ignore[import-untyped]

        from odradek.tools.records.protobuf import DescriptorFiles

        files = []
        for name, text in (*schema.references, ("", schema.text)):
            file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
            # The registry names the main file `default`; references have the names of the imports.
            file.name = name or file.name or "default"
            files.append(file)
        self._files = DescriptorFiles(files)
        self._type = self._files.find(message)
        self._indexes = self._files.find_index(self._type.name)

    def decode(self, data: bytes) -> Any:
        indexes, start = _read_indexes(data)
        return self._files.find_by_index(indexes).decode(data[start:])

    def encode(self, value: Any) -> bytes:
        return _write_indexes(self._indexes) + self._type.encode(value)


class RegisteredDecoder:
    """Decodes records by the schemas of their ids, each of which is requested once."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._codecs: dict[int, _Codec | str] = {}

    def decode(self, data: bytes) -> Any:
        """Return the JSON of a record. Raises UndecodableError, and RegistryError if the registry does not answer."""
        schema_id, rest = split_schema_id(data)
        codec = self._codecs.get(schema_id)
        if codec is None:
            codec = self._codecs[schema_id] = self._make_codec(schema_id)
        if isinstance(codec, str):
            raise UndecodableError(codec)
        return codec.decode(rest)

    def _make_codec(self, schema_id: int) -> _Codec | str:
        """Return the codec of a schema, or the reason why there is none."""
        schema = self._registry.fetch(schema_id)
        if schema is None:
            return f"the registry has no schema {schema_id}"
        try:
            return _make_codec(schema, None)
        except ValueError as error:
            return f"schema {schema_id}: {error}"


def make_registered_encoder(
    registry: Registry, subject: str, schema_file: Path | None, message: str | None, *, registers: bool = True
) -> Callable[[Any], bytes]:
    """Return an encoder with the newest schema of a subject, or with a file's, which is registered.

    registers: false if a file's schema is not registered; if it is new, its id in the encoded records is then 0
    Raises InvalidOptionError and RegistryError.
    """
    if schema_file is None:
        schema = registry.fetch_latest(subject)
        if schema is None:
            raise InvalidOptionError(f"the registry has no subject {subject}; give a schema file to register it")
    else:
        kind = _KINDS.get(schema_file.suffix)
        if kind is None:
            raise InvalidOptionError(f"{schema_file}: the name of a schema file ends with .avsc, .proto or .json")
        try:
            text = schema_file.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidOptionError(f"{schema_file}: {getattr(error, 'strerror', None) or error}") from None
        schema = registry.register(subject, kind, text) if registers else _find(registry, subject, kind, text)
    try:
        codec = _make_codec(schema, message)
    except ValueError as error:
        raise InvalidOptionError(f"schema {schema.id} of {subject}: {error}") from None
    return lambda value: add_schema_id(schema.id, codec.encode(value))


def _find(registry: Registry, subject: str, kind: str, text: str) -> RegisteredSchema:
    """Return a schema that may not be registered. Raises InvalidOptionError if only the registry can compile it."""
    schema = registry.find(subject, kind, text)
    if schema is None and kind == "PROTOBUF":
        raise InvalidOptionError(f"the schema is not registered in {subject}, without which Protobuf cannot be checked")
    return schema or RegisteredSchema(_NEW_ID, kind, text)


def _make_codec(schema: RegisteredSchema, message: str | None) -> _Codec:
    """Return the codec of a schema. Raises ValueError, and InvalidOptionError without the package that it needs."""
    if schema.kind == "JSON":
        return _JsonCodec()
    if schema.kind == "AVRO":
        require_package("fastavro")
        from odradek.tools.records.avro import AvroSchema

        return AvroSchema(schema.text, (text for _, text in schema.references))
    if schema.kind == "PROTOBUF":
        require_package("google.protobuf")
        from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

        try:
            return _ProtobufCodec(schema, message)
        except (binascii.Error, DecodeError):
            raise ValueError("the registry returned no file descriptor for format=serialized") from None
    raise ValueError(f"{schema.kind} is not supported")


def _read_indexes(data: bytes) -> tuple[list[int], int]:
    """Return the indexes before a message and the position of the message. Raises UndecodableError."""
    count, position = _read_varint(data, 0)
    if count == 0:
        return [0], position
    if not 0 < count <= _MAX_NESTING:
        raise UndecodableError(f"{count} indexes of a message type")
    indexes = []
    for _ in range(count):
        index, position = _read_varint(data, position)
        if index < 0:
            raise UndecodableError(f"{index} is no index of a message type")
        indexes.append(index)
    return indexes, position


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    number = shift = 0
    while position < len(data) and shift < 35:
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), position
    raise UndecodableError("the indexes of the message type are incomplete")


def _write_indexes(indexes: list[int]) -> bytes:
    if indexes == [0]:
        return b"\0"
    written = bytearray()
    for number in (len(indexes), *indexes):
        number <<= 1  # zigzag
        while number >= 0x80:
            written.append(number & 0x7F | 0x80)
            number >>= 7
        written.append(number)
    return bytes(written)
