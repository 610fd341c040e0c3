"""Contents whose schema is in a schema registry or a file, as JSON."""

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from odradek.tools.console.settings import SchemaFile
from odradek.tools.records.decoding import PartFormat, read_avro_schema, read_message_type
from odradek.tools.records.errors import InvalidOptionError, RegistryError, UndecodableError, UnencodableError
from odradek.tools.records.json_values import dump_json
from odradek.tools.records.registered import RegisteredDecoder
from odradek.tools.records.registry import HEADER_BYTES, Registry, split_schema_id

PAUSE_S: Final = 30.0
"""Time without requests to a registry that has not answered, because each would delay a page by its timeout."""


AVRO_SUFFIX: Final = ".avsc"


class DecodedContent(NamedTuple):
    """JSON in UTF-8, or None with the reason in `note`."""

    json: bytes | None
    note: str


class ContentDecoder(Protocol):
    """Decodes keys or values."""

    def decode(self, data: bytes) -> DecodedContent | None:
        """Return what is known of a content; None if it has no schema."""


class TopicSchemas(NamedTuple):
    """Decoders of the keys and the values of a topic; None for contents that are shown as stored."""

    key: ContentDecoder | None = None
    value: ContentDecoder | None = None


class Schemas:
    """Decoders of all topics.

    registry: decodes contents of topics without a file
    files: decoders by topic and by `SchemaFile.is_of_keys`
    """

    def __init__(
        self,
        registry: ContentDecoder | None = None,
        files: Mapping[tuple[str, bool], ContentDecoder] | None = None,
    ) -> None:
        self._registry = registry
        self._files = files or {}

    def find(self, topic: str) -> TopicSchemas:
        """Return the decoders of a topic."""
        key, value = (self._files.get((topic, is_of_keys), self._registry) for is_of_keys in (True, False))
        return TopicSchemas(key, value)


class FileDecoder:
    """Decodes contents by the schema of a file.

    name: of the schema, for pages
    decode: returns a value. Raises UndecodableError
    """

    def __init__(self, name: str, decode: Callable[[bytes], Any]) -> None:
        self._name = name
        self._decode = decode

    def decode(self, data: bytes) -> DecodedContent:
        """Return a content, or why it does not fit the schema."""
        try:
            return DecodedContent(dump_json(self._decode(data)), f"schema {self._name}")
        except (UndecodableError, UnencodableError) as error:
            return DecodedContent(None, f"cannot be decoded: {error}")


class SchemaDecoder:
    """Decodes contents with the header of a schema registry.

    decode: returns a value. Raises UndecodableError, RegistryError and InvalidOptionError
    """

    def __init__(self, decode: Callable[[bytes], Any], monotonic: Callable[[], float]) -> None:
        self._decode = decode
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._failure = ""
        self._paused_until = float("-inf")

    def decode(self, data: bytes) -> DecodedContent | None:
        """Return what is known of a content; None if it has no header of a schema registry."""
        if len(data) < HEADER_BYTES or data[0]:
            return None
        schema_id, _ = split_schema_id(data)
        # One request for a new schema is enough, and the codecs are not made for several threads.
        with self._lock:
            if self._monotonic() < self._paused_until:
                return DecodedContent(None, self._failure)
            try:
                return DecodedContent(dump_json(self._decode(data)), f"schema {schema_id}")
            except (UndecodableError, UnencodableError) as error:
                return DecodedContent(None, f"cannot be decoded: {error}")
            except (RegistryError, InvalidOptionError) as error:
                self._failure = str(error)
                self._paused_until = self._monotonic() + PAUSE_S
                return DecodedContent(None, self._failure)


def make_schema_decoder(properties: Mapping[str, str], monotonic: Callable[[], float]) -> SchemaDecoder:
    """Return a decoder for the registry of a profile. Raises InvalidOptionError."""
    return SchemaDecoder(RegisteredDecoder(Registry(properties)).decode, monotonic)


def read_schema_files(files: Iterable[SchemaFile]) -> dict[tuple[str, bool], ContentDecoder]:
    """Return the decoders of schema files: Avro's if the name ends with .avsc, or descriptor sets of protoc.

    Raises InvalidOptionError.
    """
    return {(one.topic, one.is_of_keys): _read_schema_file(one) for one in files}


def _read_schema_file(one: SchemaFile) -> FileDecoder:
    if one.file.suffix == AVRO_SUFFIX:
        return FileDecoder(one.file.name, read_avro_schema(PartFormat("avro", one.file)).decode)
    found = read_message_type(PartFormat("protobuf", one.file, one.message))
    return FileDecoder(found.name, found.decode)
