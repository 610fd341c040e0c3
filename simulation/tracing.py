"""One-line descriptions of messages for the trace."""

from typing import Any

from odradek.protocol.schema import Message, Struct

_LONGEST = 600


def describe(message: Message, version: int) -> str:
    """Describe a request or response: name, version, and the fields that differ from their defaults."""
    text = f"{type(message).__name__} v{version} {_fields(message, version)}"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _fields(struct: Struct, version: int) -> str:
    parts = []
    for item in struct.fields:
        value = getattr(struct, item.name)
        if item.is_in(version) and not (value == item.default or value in ([], None, "", 0)):
            parts.append(f"{item.name}={_value(value, version)}")
    return " ".join(parts)


def _value(value: Any, version: int) -> str:
    if isinstance(value, Struct):
        return f"({_fields(value, version)})"
    if isinstance(value, list):
        return "[" + ", ".join(_value(one, version) for one in value) + "]"
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value).hex() if len(value) <= 16 else f"<{len(value)} bytes>"
    return str(value)
