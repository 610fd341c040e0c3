"""Wire types of Kafka's protocol, as annotations for message classes.

A message declares `generation_id: Int32`: an `int` for the type checker, four big-endian bytes for the codec. Plain
`str`, `bytes` and `bool` are wire types themselves, `list[X]` is an array and `X | None` may be null. Source: Kafka
protocol guide, "Protocol Primitive Types".
"""

from typing import Annotated, Final, Protocol


class WireType:
    """A type that the codec reads and writes."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


class FixedType(WireType):
    """A type of fixed size, read and written by `struct` with one format character."""

    __slots__ = ("format_char", "size_bytes")

    def __init__(self, name: str, format_char: str, size_bytes: int) -> None:
        super().__init__(name)
        self.format_char = format_char
        self.size_bytes = size_bytes


class FileRegionLike(Protocol):
    """Record bytes in a file, which are sent from there without being copied into this process."""

    @property
    def size_bytes(self) -> int: ...

    def read(self) -> bytes:
        """Read the bytes, for transports that cannot send from the file."""
        ...

    def read_cached(self) -> bytes | bytearray | None:
        """Read bytes without a wait for the disk. Return None if not all are in memory, or the file ends before."""
        ...


BOOL: Final = FixedType("bool", "?", 1)
INT8: Final = FixedType("int8", "b", 1)
INT16: Final = FixedType("int16", "h", 2)
UINT16: Final = FixedType("uint16", "H", 2)
INT32: Final = FixedType("int32", "i", 4)
INT64: Final = FixedType("int64", "q", 8)
FLOAT64: Final = FixedType("float64", "d", 8)
STRING: Final = WireType("string")
BYTES: Final = WireType("bytes")
RECORDS: Final = WireType("records")
UUID: Final = WireType("uuid")

Int8 = Annotated[int, INT8]
Int16 = Annotated[int, INT16]
UInt16 = Annotated[int, UINT16]
Int32 = Annotated[int, INT32]
Int64 = Annotated[int, INT64]
Float64 = Annotated[float, FLOAT64]
Uuid = Annotated[bytes, UUID]
"""Sixteen bytes. Kafka prints them as base64url without padding."""
Records = Annotated[bytes | memoryview | FileRegionLike, RECORDS]
"""Record batches, closed: a view into the frame when decoded; bytes or a file region when encoded."""

ZERO_UUID: Final = bytes(16)
MAX_STRING_BYTES: Final = 32767
"""Maximum length of a string, in compact form too: strings in stored records have 16-bit lengths."""


class DecodeError(ValueError):
    """Malformed bytes of a message; the connection is closed."""
