"""JSON and text as keys and values, by format."""

import base64
import binascii
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from odradek.tools.records.decoding import TEXT, PartFormat, check_format, read_avro_schema, read_message_type
from odradek.tools.records.errors import UndecodableError, UnencodableError
from odradek.tools.records.integers import make_number_encoder
from odradek.tools.records.json_values import dump_json, load_json

if TYPE_CHECKING:
    from odradek.tools.records.registry import Registry

Encode = Callable[[Any], bytes]

_OF_JSON: Final = frozenset({"json", "avro", "protobuf", "registry"})


class PartEncoder:
    """Encodes keys or values in a format."""

    def __init__(self, name: str, encode: Encode) -> None:
        self._takes_json = name in _OF_JSON
        self.is_text = name == TEXT
        self.encode = encode

    def encode_text(self, text: bytes) -> bytes:
        """Encode a part of a line. Raises UnencodableError."""
        if self.is_text:
            return text
        try:
            return self.encode(load_json(text) if self._takes_json else text.decode("utf-8"))
        except (UndecodableError, UnicodeDecodeError) as error:
            raise UnencodableError(str(error)) from None


def make_encoder(
    part: PartFormat, get_registry: Callable[[], "Registry"], subject: str, *, registers: bool = True
) -> PartEncoder:
    """Return the encoder of a format. Raises InvalidOptionError, and RegistryError if the registry is needed.

    registers: a schema that the registry does not have is registered
    """
    check_format(part.name)
    return PartEncoder(part.name, _find_encode(part, get_registry, subject, registers=registers))


def _find_encode(part: PartFormat, get_registry: Callable[[], "Registry"], subject: str, *, registers: bool) -> Encode:
    if part.name == TEXT:
        return _encode_text
    if part.name == "json":
        return dump_json
    if part.name == "hex":
        return _encode_hex
    if part.name == "base64":
        return decode_base64
    if part.name == "avro":
        return read_avro_schema(part).encode
    if part.name == "protobuf":
        return read_message_type(part).encode
    if part.name == "registry":
        from odradek.tools.records.registered import make_registered_encoder

        return make_registered_encoder(get_registry(), subject, part.schema_file, part.message, registers=registers)
    return make_number_encoder(part.name)


def decode_base64(value: Any) -> bytes:
    """Return the bytes of base64. Raises UnencodableError."""
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError, TypeError):
        raise UnencodableError(f"{str(value)[:100]} is no base64") from None


def _encode_text(value: Any) -> bytes:
    if not isinstance(value, str):
        return dump_json(value)
    try:
        return value.encode("utf-8")
    except UnicodeEncodeError:
        raise UnencodableError("the text has half of a surrogate pair") from None


def _encode_hex(value: Any) -> bytes:
    try:
        return bytes.fromhex(value)
    except (ValueError, TypeError):
        raise UnencodableError(f"{str(value)[:100]} is no hexadecimal number") from None
