"""Encoding and decoding of messages by walking their declarations field by field: slow and simple.

The tests compare the compiled `codec` with it. It has no other use.
"""

import struct
from typing import Any

from odradek.protocol.schema import ArrayType, Field, Message, Struct, StructType
from odradek.protocol.types import MAX_STRING_BYTES, STRING, UUID, DecodeError, FixedType, WireType


class _Reader:
    def __init__(self, data: bytes, version: int, flexible: bool) -> None:
        self.data = data
        self.position = 0
        self.version = version
        self.flexible = flexible

    def take(self, size: int) -> bytes:
        if size < 0 or self.position + size > len(self.data):
            raise DecodeError("past the end")
        piece = self.data[self.position : self.position + size]
        self.position += size
        return piece

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 28:
                raise DecodeError("varint too long")

    def length(self, wire: WireType) -> int:
        if self.flexible:
            return self.varint() - 1
        format_char = ">h" if wire is STRING else ">i"
        return int(struct.unpack(format_char, self.take(struct.calcsize(format_char)))[0])

    def struct(self, cls: type[Struct]) -> Struct:
        values: dict[str, Any] = {}
        present = [item for item in cls.fields if item.is_in(self.version)]
        for item in present:
            if not item.is_tagged(self.version):
                values[item.name] = self.value(item.wire, item.is_nullable(self.version))
        if self.flexible:
            by_tag = {item.tag: item for item in present if item.is_tagged(self.version)}
            for _ in range(self.varint()):
                tag, size = self.varint(), self.varint()
                if tag in by_tag:
                    item = by_tag[tag]
                    values[item.name] = self.value(item.wire, item.is_nullable(self.version))
                else:
                    self.take(size)
        return cls(**values)

    def value(self, wire: WireType, nullable: bool) -> Any:
        if isinstance(wire, FixedType):
            return struct.unpack(">" + wire.format_char, self.take(wire.size_bytes))[0]
        if wire is UUID:
            return self.take(16)
        if isinstance(wire, StructType):
            if nullable and struct.unpack(">b", self.take(1))[0] < 0:
                return None
            return self.struct(wire.cls)
        size = self.length(wire)
        if size < 0:
            if not nullable or size < -1:
                raise DecodeError("null not allowed")
            return None
        if isinstance(wire, ArrayType):
            return [self.value(wire.element, False) for _ in range(size)]
        if wire is STRING and size > MAX_STRING_BYTES:
            raise DecodeError("string too long")
        piece = self.take(size)
        return piece.decode() if wire is STRING else piece


class _Writer:
    def __init__(self, version: int, flexible: bool) -> None:
        self.version = version
        self.flexible = flexible

    def varint(self, value: int) -> bytes:
        head = b""
        while value >= 0x80:
            head += bytes([value & 0x7F | 0x80])
            value >>= 7
        return head + bytes([value])

    def length(self, wire: WireType, size: int) -> bytes:
        if self.flexible:
            return self.varint(size + 1)
        return struct.pack(">h" if wire is STRING else ">i", size)

    def struct(self, value: Struct) -> bytes:
        present = [item for item in value.fields if item.is_in(self.version)]
        plain = [item for item in present if not item.is_tagged(self.version)]
        out = b"".join(self.field(value, item) for item in plain)
        if not self.flexible:
            return out
        tagged = [item for item in present if item.is_tagged(self.version)]
        written = [item for item in tagged if getattr(value, item.name) != item.make_default()]
        out += self.varint(len(written))
        for item in sorted(written, key=lambda item: item.tag):
            body = self.field(value, item)
            out += self.varint(item.tag) + self.varint(len(body)) + body
        return out

    def field(self, owner: Struct, item: Field) -> bytes:
        return self.value(item.wire, getattr(owner, item.name), item.is_nullable(self.version))

    def value(self, wire: WireType, value: Any, nullable: bool) -> bytes:
        if isinstance(wire, FixedType):
            return struct.pack(">" + wire.format_char, value)
        if wire is UUID:
            return bytes(value)
        if isinstance(wire, StructType):
            if not nullable:
                return self.struct(value)
            return b"\xff" if value is None else b"\x01" + self.struct(value)
        if value is None:
            if not nullable:
                raise ValueError("null not allowed")
            return self.length(wire, -1)
        if isinstance(wire, ArrayType):
            return self.length(wire, len(value)) + b"".join(self.value(wire.element, item, False) for item in value)
        piece = value.encode() if wire is STRING else bytes(value)
        return self.length(wire, len(piece)) + piece


def decode(cls: type[Message], version: int, data: bytes) -> Message:
    """Decode a message as `codec.decode` does, one value at a time."""
    reader = _Reader(data, version, cls.is_flexible(version))
    message = reader.struct(cls)
    if reader.position != len(data):
        raise DecodeError("bytes left over")
    assert isinstance(message, cls)
    return message


def encode(message: Message, version: int) -> bytes:
    """Encode a message as `codec.encode` does, one value at a time."""
    return _Writer(version, message.is_flexible(version)).struct(message)
