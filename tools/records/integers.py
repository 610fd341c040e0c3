"""Integers and floats of Kafka's serializers: big-endian, of fixed length."""

import math
import struct
from collections.abc import Callable
from typing import Any, Final

from odradek.tools.records.errors import UndecodableError, UnencodableError

NUMBER_FORMATS: Final = {
    "int8": ">b", "int16": ">h", "int32": ">i", "int64": ">q",
    "uint8": ">B", "uint16": ">H", "uint32": ">I", "uint64": ">Q",
    "float": ">f", "double": ">d",
}  # fmt: skip


def make_number_decoder(name: str) -> Callable[[bytes], Any]:
    """Return a decoder of numbers. It raises UndecodableError."""
    layout = struct.Struct(NUMBER_FORMATS[name])

    def decode(data: bytes) -> Any:
        if len(data) != layout.size:
            raise UndecodableError(f"{len(data)} bytes are no {name}, which has {layout.size}")
        (number,) = layout.unpack(data)
        # JSON has no NaN and no infinity.
        return number if math.isfinite(number) else str(number)

    return decode


def make_number_encoder(name: str) -> Callable[[Any], bytes]:
    """Return an encoder of numbers, also from their text. It raises UnencodableError."""
    layout = struct.Struct(NUMBER_FORMATS[name])
    parse: Callable[[Any], Any] = float if name in ("float", "double") else int

    def encode(value: Any) -> bytes:
        try:
            return layout.pack(parse(value) if isinstance(value, str) else value)
        except (struct.error, ValueError, OverflowError):
            raise UnencodableError(f"{str(value)[:100]} is no {name}") from None

    return encode
