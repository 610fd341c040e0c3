"""Contents whose schema is in a schema registry, as JSON."""

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from odradek.tools.records.errors import InvalidOptionError, RegistryError, UndecodableError, UnencodableError
from odradek.tools.records.json_values import dump_json
from odradek.tools.records.registered import RegisteredDecoder
from odradek.tools.records.registry import HEADER_BYTES, Registry, split_schema_id

PAUSE_S: Final = 30.0
"""Time without requests to a registry that has not answered, because each would delay a page by its timeout."""


class DecodedContent(NamedTuple):
    """JSON in UTF-8, or None with the reason in `note`."""

    json: bytes | None
    note: str


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
