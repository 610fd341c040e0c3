"""Source text of compiled decoders and encoders, and the functions that it calls."""

from typing import Any, Final, NamedTuple

from odradek.protocol.schema import Field, Struct
from odradek.protocol.types import MAX_STRING_BYTES, DecodeError, FileRegionLike

Buffer = bytes | bytearray | memoryview

MAX_TAGGED_FIELDS: Final = 1000
"""Maximum number of tagged fields of one struct. No struct of the protocol has more than ten."""


class Splice(NamedTuple):
    """A file region that belongs at `position` of the encoded bytes and is not copied into them."""

    position: int
    region: FileRegionLike


class LargeMessageError(Exception):
    """A message is too large for `small_encoder`."""


def read_varint_tail(buf: Buffer, pos: int, first: int) -> tuple[int, int]:
    """Read the rest of an unsigned varint whose first byte is `first` and has its high bit set."""
    value = first & 0x7F
    shift = 7
    while True:
        byte = buf[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 28:
            raise DecodeError("varint longer than five bytes")
    if value > 0xFFFFFFFF:
        raise DecodeError("varint out of range")
    return value, pos


def write_varint(out: bytearray, value: int) -> None:
    """Append an unsigned varint."""
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def skip_tagged_fields(buf: Buffer, pos: int, end: int, count: int) -> int:
    """Skip `count` tagged fields with unknown tags, which are ignored (KIP-482)."""
    if count > MAX_TAGGED_FIELDS:
        raise _too_many_tags(count)
    for _ in range(count):
        _, pos = _read_varint(buf, pos)
        size, pos = _read_varint(buf, pos)
        pos += size
        if pos > end:
            raise DecodeError("tagged field past the end")
    return pos


def _read_varint(buf: Buffer, pos: int) -> tuple[int, int]:
    first = buf[pos]
    if first < 0x80:
        return first, pos + 1
    return read_varint_tail(buf, pos + 1, first)


def _past_end(what: str) -> DecodeError:
    return DecodeError(f"{what} runs past the end of the message")


def _too_long(what: str) -> DecodeError:
    return DecodeError(f"{what} is longer than {MAX_STRING_BYTES} bytes")


def _null_not_allowed(what: str) -> DecodeError:
    return DecodeError(f"{what} may not be null")


def _too_many_elements(what: str, most: int) -> DecodeError:
    return DecodeError(f"more than {most} array elements in one request, up to and including those of {what}")


def _too_many_tags(count: int) -> DecodeError:
    return DecodeError(f"{count} tagged fields in one struct, at most {MAX_TAGGED_FIELDS} are allowed")


class Source:
    """Source text of a function under construction, with the objects that it refers to."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.scope: dict[str, Any] = {
            "read_varint_tail": read_varint_tail,
            "write_varint": write_varint,
            "skip_tagged_fields": skip_tagged_fields,
            "past_end": _past_end,
            "too_long": _too_long,
            "null_not_allowed": _null_not_allowed,
            "too_many_elements": _too_many_elements,
            "too_many_tags": _too_many_tags,
            "LargeMessageError": LargeMessageError,
            "DecodeError": DecodeError,
            "Splice": Splice,
            "bytes_like": (bytes, memoryview, bytearray),
        }
        self.counter = 0

    def name(self, prefix: str) -> str:
        """Return a new name."""
        self.counter += 1
        return f"{prefix}{self.counter}"

    def constant(self, prefix: str, value: Any) -> str:
        """Return a new name that refers to `value`."""
        name = self.name(prefix)
        self.scope[name] = value
        return name

    def add(self, indent: int, *lines: str) -> None:
        self.lines.extend("    " * indent + line for line in lines)

    def compile(self, parameters: str, function_name: str) -> Any:
        """Return the function with the lines as its body."""
        text = "\n".join([f"def {function_name}({parameters}):", *self.lines])
        exec(compile(text, f"<{function_name}>", "exec"), self.scope)
        return self.scope[function_name]


def split_fields(cls: type[Struct], version: int) -> tuple[list[Field], list[Field]]:
    """Return the fields of a version: the untagged in wire order, the tagged by tag."""
    present = [item for item in cls.fields if item.is_in(version)]
    plain = [item for item in present if not item.is_tagged(version)]
    tagged = sorted((item for item in present if item.is_tagged(version)), key=lambda item: item.tag)
    return plain, tagged
