"""Compiled decoders and encoders, one for each message class and version.

The generated source has no loop over fields and no call per field: runs of fixed-size fields become one
`struct` call, nested structs and arrays are inlined. It is compiled on first use and cached. `interpreter` is a
slow implementation of the same declarations; the tests compare the two.

Sizes read from the wire are compared with the remaining bytes before memory is allocated for them. Malformed bytes
raise `DecodeError`.

Large messages are decoded and encoded in steps, by generators compiled from the same declarations: `step_decoder` and
`step_encoder`. `decoder` is for messages of up to `SMALL_MESSAGE_BYTES`; `small_encoder` refuses a larger one early.
"""

import struct
from collections.abc import Callable, Generator
from functools import cache
from typing import Any, Final, NamedTuple, TypeVar

from odradek.protocol.schema import ArrayType, Field, Message, Struct, StructType
from odradek.protocol.types import (
    MAX_STRING_BYTES,
    RECORDS,
    STRING,
    UUID,
    DecodeError,
    FileRegionLike,
    FixedType,
    WireType,
)

Buffer = bytes | bytearray | memoryview
M = TypeVar("M", bound=Message)
Decoder = Callable[[Buffer, int, int], tuple[Any, int]]
Encoder = Callable[[Any, bytearray, "list[Splice]"], None]
StepDecoder = Callable[[Buffer, int, int, int], Generator[None, None, tuple[Any, int]]]
StepEncoder = Callable[[Any, bytearray, "list[Splice]"], Generator[None, None, None]]

SMALL_MESSAGE_BYTES: Final = 8192
"""Upper limit of a small message: it is decoded or encoded within about 2 ms, however small its elements are."""

SMALL_ARRAY_LENGTH: Final = 100
STEP_BYTES: Final = 2048
"""Bytes that a step of a decoder reads. They hold at most as many elements, which take 0.5 ms."""

STEP_ELEMENTS: Final = 64
"""Array elements that a step of an encoder writes."""

MAX_ELEMENTS: Final = 500_000
"""Maximum number of array elements of one request, all arrays together. More are rejected before memory is allocated.

A Fetch request for 200,000 partitions of as many topics has 400,000 elements. An element of 2 bytes becomes an object
of 100 to 250 bytes, so this also bounds the memory of a request.
"""

MAX_TAGGED_FIELDS: Final = 1000
"""Maximum number of tagged fields of one struct. No struct of the protocol has more than ten."""


class Splice(NamedTuple):
    """A file region that belongs at `position` of the encoded bytes and is not copied into them."""

    position: int
    region: FileRegionLike


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
    return DecodeError(f"more than {most} array elements in one request, counting those of {what}")


def _too_many_tags(count: int) -> DecodeError:
    return DecodeError(f"{count} tagged fields in one struct, at most {MAX_TAGGED_FIELDS} are allowed")


class LargeMessageError(Exception):
    """A message is too large for `small_encoder`."""


class _Source:
    """Source text under construction, with the objects it refers to."""

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
        self.counter += 1
        return f"{prefix}{self.counter}"

    def constant(self, prefix: str, value: Any) -> str:
        name = self.name(prefix)
        self.scope[name] = value
        return name

    def add(self, indent: int, *lines: str) -> None:
        self.lines.extend("    " * indent + line for line in lines)

    def compile(self, signature: str, result: str) -> Any:
        text = "\n".join([f"def {result}({signature}):", *self.lines])
        exec(compile(text, f"<{result}>", "exec"), self.scope)
        return self.scope[result]


def _split(cls: type[Struct], version: int) -> tuple[list[Field], list[Field]]:
    """Return the fields of a version: the untagged in wire order, the tagged by tag."""
    present = [item for item in cls.fields if item.is_in(version)]
    plain = [item for item in present if not item.is_tagged(version)]
    tagged = sorted((item for item in present if item.is_tagged(version)), key=lambda item: item.tag)
    return plain, tagged


# Decoding ------------------------------------------------------------------------------------------------------------


def min_size_bytes(wire: WireType, version: int, flexible: bool, nullable: bool = False) -> int:
    """Return the size of the shortest value of a type."""
    if isinstance(wire, FixedType):
        return wire.size_bytes
    if wire is UUID:
        return 16
    if isinstance(wire, StructType):
        if nullable:
            return 1
        plain, _ = _split(wire.cls, version)
        return flexible + sum(
            min_size_bytes(item.wire, version, flexible, item.is_nullable(version)) for item in plain
        )
    if flexible:
        return 1
    return 2 if wire is STRING else 4


class _DecoderSource(_Source):
    """Source of a decoder. With `in_steps` the decoder is a generator and counts the elements of all arrays."""

    def __init__(self, version: int, flexible: bool, in_steps: bool) -> None:
        super().__init__()
        self.version = version
        self.flexible = flexible
        self.in_steps = in_steps

    def struct(self, indent: int, target: str, cls: type[Struct]) -> None:
        """Read a struct into the variable `target`."""
        name = self.constant("cls", cls)
        self.add(indent, f"{target} = new({name})")
        plain, tagged = _split(cls, self.version)
        absent = [item for item in cls.fields if item not in plain]
        for item in absent:
            self.add(indent, f"{target}.{item.name} = {self.default(item)}")
        run: list[Field] = []
        for item in plain:
            if isinstance(item.wire, FixedType):
                run.append(item)
                continue
            self.fixed_run(indent, target, run)
            run = []
            self.value(indent, f"{target}.{item.name}", item.wire, item.is_nullable(self.version), item.name)
        self.fixed_run(indent, target, run)
        if self.flexible:
            self.tagged(indent, target, tagged)

    def default(self, item: Field) -> str:
        if isinstance(item.wire, ArrayType) and item.default is not None:
            return "[]"
        if item.default is None or isinstance(item.default, bool | int | str | bytes):
            return repr(item.default)
        return self.constant("default", item.default)

    def fixed_run(self, indent: int, target: str, run: list[Field]) -> None:
        if not run:
            return
        wires = [item.wire for item in run if isinstance(item.wire, FixedType)]
        packer = struct.Struct(">" + "".join(wire.format_char for wire in wires))
        unpack = self.constant("unpack", packer.unpack_from)
        targets = ", ".join(f"{target}.{item.name}" for item in run)
        comma = "," if len(run) == 1 else ""
        self.add(indent, f"{targets}{comma} = {unpack}(buf, pos)", f"pos += {packer.size}")

    def value(self, indent: int, target: str, wire: WireType, nullable: bool, what: str) -> None:
        """Read one value of any type into `target`."""
        if isinstance(wire, FixedType):
            packer = struct.Struct(">" + wire.format_char)
            unpack = self.constant("unpack", packer.unpack_from)
            self.add(indent, f"({target},) = {unpack}(buf, pos)", f"pos += {packer.size}")
        elif wire is UUID:
            self.add(indent, "e = pos + 16", f"if e > end: raise past_end({what!r})")
            self.add(indent, f"{target} = bytes(buf[pos:e])", "pos = e")
        elif isinstance(wire, ArrayType):
            self.array(indent, target, wire, nullable, what)
        elif isinstance(wire, StructType):
            self.nested(indent, target, wire, nullable)
        else:
            self.sized(indent, target, wire, nullable, what)

    def length(self, indent: int, name: str, wire: WireType) -> None:
        """Read a length into `name`; a negative length is null."""
        if self.flexible:
            self.add(indent, f"{name} = buf[pos]", "pos += 1")
            self.add(indent, f"if {name} > 127: {name}, pos = read_varint_tail(buf, pos, {name})")
            self.add(indent, f"{name} -= 1")
        else:
            format_char, size = ("h", 2) if wire is STRING else ("i", 4)
            unpack = self.constant("unpack", struct.Struct(">" + format_char).unpack_from)
            self.add(indent, f"({name},) = {unpack}(buf, pos)", f"pos += {size}")

    def null_branch(self, indent: int, target: str, name: str, nullable: bool, what: str) -> None:
        self.add(indent, f"if {name} < 0:")
        if nullable:
            self.add(indent + 1, f"if {name} != -1: raise DecodeError('negative length')", f"{target} = None")
        else:
            self.add(indent + 1, f"raise null_not_allowed({what!r})")
        self.add(indent, "else:")

    def sized(self, indent: int, target: str, wire: WireType, nullable: bool, what: str) -> None:
        self.length(indent, "n", wire)
        self.null_branch(indent, target, "n", nullable, what)
        if wire is STRING and self.flexible:
            self.add(indent + 1, f"if n > {MAX_STRING_BYTES}: raise too_long({what!r})")
        self.add(indent + 1, "e = pos + n", f"if e > end: raise past_end({what!r})")
        if wire is STRING:
            self.add(indent + 1, f"{target} = str(buf[pos:e], 'utf-8')")
        elif wire is RECORDS:
            self.add(indent + 1, f"{target} = memoryview(buf)[pos:e]")
        else:
            self.add(indent + 1, f"{target} = bytes(buf[pos:e])")
        self.add(indent + 1, "pos = e")

    def array(self, indent: int, target: str, wire: ArrayType, nullable: bool, what: str) -> None:
        count, items, item = self.name("n"), self.name("items"), self.name("item")
        self.length(indent, count, wire)
        self.null_branch(indent, target, count, nullable, what)
        # An element without fields has no bytes but occupies memory.
        least = max(1, min_size_bytes(wire.element, self.version, self.flexible))
        self.add(indent + 1, f"if {count} * {least} > end - pos: raise past_end({what!r})")
        if self.in_steps:
            self.add(indent + 1, f"elements += {count}")
            self.add(indent + 1, f"if elements > most: raise too_many_elements({what!r}, most)")
        if isinstance(wire.element, FixedType):
            self.fixed_array(indent + 1, target, wire.element, count)
            return
        self.add(indent + 1, f"{target} = {items} = []", f"for _ in range({count}):")
        self.value(indent + 2, item, wire.element, False, what)
        self.add(indent + 2, f"{items}.append({item})")
        if self.in_steps:
            self.add(indent + 2, "if pos >= pause:", f"    pause = pos + {STEP_BYTES}", "    yield")

    def fixed_array(self, indent: int, target: str, element: FixedType, count: str) -> None:
        """Read `count` values of a fixed size."""
        size, format_char = element.size_bytes, element.format_char
        unpack = self.constant("unpack", struct.unpack_from)
        if self.in_steps:
            chunk = self.name("chunk")
            self.add(indent, f"{target} = []", f"while {count}:")
            self.add(indent + 1, f"{chunk} = min({count}, {STEP_BYTES})")
            self.add(indent + 1, f"{target} += {unpack}(f'>{{{chunk}}}{format_char}', buf, pos)")
            self.add(indent + 1, f"pos += {chunk} * {size}", f"{count} -= {chunk}", f"if {count}: yield")
        else:
            self.add(indent, f"{target} = list({unpack}(f'>{{{count}}}{format_char}', buf, pos))")
            self.add(indent, f"pos += {count} * {size}")

    def nested(self, indent: int, target: str, wire: StructType, nullable: bool) -> None:
        variable = self.name("o")
        if nullable:
            unpack = self.constant("unpack", struct.Struct(">b").unpack_from)
            self.add(indent, f"(n,) = {unpack}(buf, pos)", "pos += 1", "if n < 0:", f"    {target} = None", "else:")
            indent += 1
        self.struct(indent, variable, wire.cls)
        self.add(indent, f"{target} = {variable}")

    def tagged(self, indent: int, target: str, tagged: list[Field]) -> None:
        count = self.name("tags")
        self.add(indent, f"{count} = buf[pos]", "pos += 1", f"if {count}:")
        self.add(indent + 1, f"if {count} > 127: {count}, pos = read_varint_tail(buf, pos, {count})")
        self.add(indent + 1, f"if {count} > end - pos: raise past_end('tagged fields')")
        if not tagged:
            self.add(indent + 1, f"pos = skip_tagged_fields(buf, pos, end, {count})")
            return
        tag, size, until = self.name("tag"), self.name("size"), self.name("until")
        self.add(indent + 1, f"if {count} > {MAX_TAGGED_FIELDS}: raise too_many_tags({count})")
        self.add(indent + 1, f"for _ in range({count}):")
        inner = indent + 2
        for name in (tag, size):
            self.add(inner, f"{name} = buf[pos]", "pos += 1")
            self.add(inner, f"if {name} > 127: {name}, pos = read_varint_tail(buf, pos, {name})")
        self.add(inner, f"{until} = pos + {size}", f"if {until} > end: raise past_end('tagged field')")
        for number, item in enumerate(tagged):
            self.add(inner, f"{'if' if number == 0 else 'elif'} {tag} == {item.tag}:")
            self.value(inner + 1, f"{target}.{item.name}", item.wire, item.is_nullable(self.version), item.name)
            self.add(inner + 1, f"if pos != {until}: raise DecodeError('tagged field of wrong size')")
        self.add(inner, f"else: pos = {until}")


def _compile_decoder(cls: type[Message], version: int, in_steps: bool) -> Any:
    _check_version(cls, version)
    source = _DecoderSource(version, cls.is_flexible(version), in_steps)
    source.scope["new"] = object.__new__
    name, parameters = f"decode_{cls.__name__}_v{version}", "buf, pos, end"
    if in_steps:
        name, parameters = f"{name}_in_steps", f"{parameters}, most"
        # The `yield` makes the decoder of a message without arrays a generator.
        source.add(1, "elements = 0", f"pause = pos + {STEP_BYTES}", "if 0: yield")
    source.struct(1, "o", cls)
    source.add(1, "return o, pos")
    return source.compile(parameters, name)


# Encoding ------------------------------------------------------------------------------------------------------------


class _EncoderSource(_Source):
    """Source of an encoder.

    in_steps: the encoder is a generator
    only_small: the encoder raises `LargeMessageError` at a long array, and at any array once SMALL_MESSAGE_BYTES are
    exceeded
    """

    def __init__(self, version: int, flexible: bool, in_steps: bool, only_small: bool) -> None:
        super().__init__()
        self.version = version
        self.flexible = flexible
        self.in_steps = in_steps
        self.only_small = only_small

    def struct(self, indent: int, source: str, cls: type[Struct]) -> None:
        """Write the struct in the variable `source`."""
        plain, tagged = _split(cls, self.version)
        run: list[Field] = []
        for item in plain:
            if isinstance(item.wire, FixedType):
                run.append(item)
                continue
            self.fixed_run(indent, source, run)
            run = []
            self.value(indent, f"{source}.{item.name}", item.wire, item.is_nullable(self.version), item.name)
        self.fixed_run(indent, source, run)
        if self.flexible:
            self.tagged(indent, source, tagged)
        elif not plain:
            self.add(indent, "pass")

    def fixed_run(self, indent: int, source: str, run: list[Field]) -> None:
        if not run:
            return
        wires = [item.wire for item in run if isinstance(item.wire, FixedType)]
        pack = self.constant("pack", struct.Struct(">" + "".join(wire.format_char for wire in wires)).pack)
        self.add(indent, f"out += {pack}({', '.join(f'{source}.{item.name}' for item in run)})")

    def value(self, indent: int, source: str, wire: WireType, nullable: bool, what: str) -> None:
        """Write one value of any type."""
        if isinstance(wire, FixedType):
            pack = self.constant("pack", struct.Struct(">" + wire.format_char).pack)
            self.add(indent, f"out += {pack}({source})")
        elif wire is UUID:
            self.add(indent, f"out += {source}")
        elif isinstance(wire, ArrayType):
            self.array(indent, source, wire, nullable, what)
        elif isinstance(wire, StructType):
            self.nested(indent, source, wire, nullable)
        else:
            self.sized(indent, source, wire, nullable, what)

    def length(self, indent: int, expression: str, wire: WireType) -> None:
        if self.flexible:
            self.add(indent, f"n = {expression} + 1", "if n < 128: out.append(n)", "else: write_varint(out, n)")
        else:
            pack = self.constant("pack", struct.Struct(">h" if wire is STRING else ">i").pack)
            self.add(indent, f"out += {pack}({expression})")

    def null_branch(self, indent: int, value: str, wire: WireType, nullable: bool, what: str) -> None:
        self.add(indent, f"if {value} is None:")
        if nullable:
            self.length(indent + 1, "-1", wire)
        else:
            self.add(indent + 1, f"raise ValueError({what + ' may not be null'!r})")
        self.add(indent, "else:")

    def sized(self, indent: int, source: str, wire: WireType, nullable: bool, what: str) -> None:
        self.add(indent, f"v = {source}")
        self.null_branch(indent, "v", wire, nullable, what)
        inner = indent + 1
        if wire is STRING:
            self.add(inner, "v = v.encode()")
        if wire is not RECORDS:
            self.length(inner, "len(v)", wire)
            self.add(inner, "out += v")
            return
        self.add(inner, "if isinstance(v, bytes_like):")
        self.length(inner + 1, "len(v)", wire)
        self.add(inner + 1, "out += v")
        self.add(inner, "else:")
        self.length(inner + 1, "v.size_bytes", wire)
        self.add(inner + 1, "splices.append(Splice(len(out), v))")

    def array(self, indent: int, source: str, wire: ArrayType, nullable: bool, what: str) -> None:
        items, item = self.name("items"), self.name("item")
        self.add(indent, f"{items} = {source}")
        self.null_branch(indent, items, wire, nullable, what)
        inner = indent + 1
        if self.only_small:
            limits = f"len({items}) > {SMALL_ARRAY_LENGTH} or len(out) > {SMALL_MESSAGE_BYTES}"
            self.add(inner, f"if {limits}: raise LargeMessageError")
        self.length(inner, f"len({items})", wire)
        if isinstance(wire.element, FixedType):
            pack = self.constant("pack", struct.pack)
            self.add(inner, f"out += {pack}(f'>{{len({items})}}{wire.element.format_char}', *{items})")
            return
        self.add(inner, f"for {item} in {items}:")
        if isinstance(wire.element, StructType):
            self.struct(inner + 1, item, wire.element.cls)
        else:
            self.value(inner + 1, item, wire.element, False, what)
        if self.in_steps:
            self.add(inner + 1, "elements += 1", f"if elements >= {STEP_ELEMENTS}:", "    elements = 0", "    yield")

    def nested(self, indent: int, source: str, wire: StructType, nullable: bool) -> None:
        variable = self.name("o")
        self.add(indent, f"{variable} = {source}")
        if nullable:
            self.add(indent, f"if {variable} is None:", "    out.append(255)", "else:", "    out.append(1)")
            indent += 1
        self.struct(indent, variable, wire.cls)

    def tagged(self, indent: int, source: str, tagged: list[Field]) -> None:
        if not tagged:
            self.add(indent, "out.append(0)")
            return
        present = self.name("present")
        conditions = [self.is_set(f"{source}.{item.name}", item) for item in tagged]
        self.add(indent, f"{present} = {' + '.join(f'({condition})' for condition in conditions)}")
        self.add(indent, f"out.append({present})", f"if {present}:")
        for item, condition in zip(tagged, conditions, strict=True):
            outer = self.name("outer")
            self.add(indent + 1, f"if {condition}:")
            self.add(indent + 2, f"write_varint(out, {item.tag})", f"{outer} = out", "out = bytearray()")
            self.value(indent + 2, f"{source}.{item.name}", item.wire, item.is_nullable(self.version), item.name)
            self.add(indent + 2, f"write_varint({outer}, len(out))", f"{outer} += out", f"out = {outer}")

    def is_set(self, source: str, item: Field) -> str:
        """Return an expression that is true if a tagged field differs from its default and has to be written."""
        if isinstance(item.wire, ArrayType) and item.default is not None:
            return (
                f"{source} is None or len({source}) > 0"
                if item.nullable_since <= self.version
                else f"len({source}) > 0"
            )
        if item.default is None:
            return f"{source} is not None"
        default = self.constant("default", item.default)
        if isinstance(item.wire, StructType):
            return f"{source} is not {default} and {source} != {default}"
        return f"{source} != {default}"


def _compile_encoder(
    cls: type[Message], version: int, *, in_steps: bool = False, only_small: bool = False
) -> Any:
    _check_version(cls, version)
    source = _EncoderSource(version, cls.is_flexible(version), in_steps, only_small)
    if in_steps:
        source.add(1, "elements = 0", "if 0: yield")
    source.struct(1, "o", cls)
    suffix = "_in_steps" if in_steps else "_if_small" if only_small else ""
    return source.compile("o, out, splices", f"encode_{cls.__name__}_v{version}{suffix}")


# Public functions ----------------------------------------------------------------------------------------------------


@cache
def decoder(cls: type[Message], version: int) -> Decoder:
    """Return the decoder `(buffer, position, end) -> (message, position after it)`, compiled on first use.

    The decoder may raise `struct.error`, `IndexError` or `ValueError` besides `DecodeError`; `decode` converts all of
    them to DecodeError. Hot paths that call it directly catch `MALFORMED`.
    """
    compiled: Decoder = _compile_decoder(cls, version, in_steps=False)
    return compiled


@cache
def step_decoder(cls: type[Message], version: int) -> StepDecoder:
    """Return a decoder as `decoder` does, but a generator of steps that returns the result.

    Its fourth parameter is the maximum number of array elements, usually `MAX_ELEMENTS`.
    """
    compiled: StepDecoder = _compile_decoder(cls, version, in_steps=True)
    return compiled


@cache
def encoder(cls: type[Message], version: int) -> Encoder:
    """Return the encoder `(message, out, splices)`, which appends bytes to `out` and file regions to `splices`."""
    compiled: Encoder = _compile_encoder(cls, version)
    return compiled


@cache
def small_encoder(cls: type[Message], version: int) -> Encoder:
    """Return an encoder that raises `LargeMessageError` for a large message within a ms.

    The output is then incomplete and has to be discarded.
    """
    compiled: Encoder = _compile_encoder(cls, version, only_small=True)
    return compiled


@cache
def step_encoder(cls: type[Message], version: int) -> StepEncoder:
    """Return an encoder as `encoder` does, but a generator of steps."""
    compiled: StepEncoder = _compile_encoder(cls, version, in_steps=True)
    return compiled


MALFORMED: Final = (struct.error, IndexError, ValueError)
"""Exceptions that a decoder may raise for malformed bytes."""


def decode(cls: type[M], version: int, buffer: Buffer, position: int = 0) -> M:
    """Decode a whole message. Bytes behind it are an error, as in Kafka."""
    end = len(buffer)
    try:
        message, position = decoder(cls, version)(buffer, position, end)
    except DecodeError:
        raise
    except MALFORMED as error:
        raise DecodeError(f"{cls.__name__} v{version}: {error}") from error
    if position != end:
        raise DecodeError(f"{cls.__name__} v{version}: {end - position} bytes left over")
    decoded: M = message
    return decoded


def encode(message: Message, version: int) -> bytes:
    """Encode a message as one bytes object, with the contents of its file regions."""
    out = bytearray()
    splices: list[Splice] = []
    encoder(type(message), version)(message, out, splices)
    if not splices:
        return bytes(out)
    pieces: list[bytes | bytearray] = []
    start = 0
    for splice in splices:
        pieces += (out[start : splice.position], splice.region.read())
        start = splice.position
    pieces.append(out[start:])
    return b"".join(pieces)


def _check_version(cls: type[Message], version: int) -> None:
    if not cls.first_version <= version <= cls.last_version:
        raise ValueError(f"{cls.__name__} has no version {version}")
