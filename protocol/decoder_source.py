"""Source text of decoders: of one message class and version, whole or in steps."""

import struct
from typing import Final

from odradek.protocol.codec_source import MAX_TAGGED_FIELDS, Source, split_fields
from odradek.protocol.schema import ArrayType, Field, Struct, StructType
from odradek.protocol.types import MAX_STRING_BYTES, RECORDS, STRING, UUID, FixedType, WireType

STEP_BYTES: Final = 2048
"""Bytes that a step of a decoder reads: at most as many elements, which take 0.5 ms."""

STEP_FIXED_ELEMENTS: Final = 2048
"""Elements of a fixed size, such as int32, that a step of a decoder reads."""


def min_size_bytes(wire: WireType, version: int, flexible: bool, nullable: bool = False) -> int:
    """Return the encoded size of the shortest value of a type."""
    if isinstance(wire, FixedType):
        return wire.size_bytes
    if wire is UUID:
        return 16
    if isinstance(wire, StructType):
        if nullable:
            return 1
        plain, _ = split_fields(wire.cls, version)
        return flexible + sum(
            min_size_bytes(item.wire, version, flexible, item.is_nullable(version)) for item in plain
        )
    if flexible:
        return 1
    return 2 if wire is STRING else 4


class DecoderSource(Source):
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
        plain, tagged = split_fields(cls, self.version)
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
        """Return an expression for the default value of a field that is absent."""
        if isinstance(item.wire, ArrayType) and item.default is not None:
            return "[]"
        if item.default is None or isinstance(item.default, bool | int | str | bytes):
            return repr(item.default)
        return self.constant("default", item.default)

    def fixed_run(self, indent: int, target: str, run: list[Field]) -> None:
        """Read successive fields of fixed size."""
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
        """Handle a null value, and open the branch for any other value."""
        self.add(indent, f"if {name} < 0:")
        if nullable:
            self.add(indent + 1, f"if {name} != -1: raise DecodeError('negative length')", f"{target} = None")
        else:
            self.add(indent + 1, f"raise null_not_allowed({what!r})")
        self.add(indent, "else:")

    def sized(self, indent: int, target: str, wire: WireType, nullable: bool, what: str) -> None:
        """Read a string, bytes or records."""
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
        """Read an array."""
        count, items, item = self.name("n"), self.name("items"), self.name("item")
        self.length(indent, count, wire)
        self.null_branch(indent, target, count, nullable, what)
        # An element without fields has no bytes on the wire, but takes memory.
        least = max(1, min_size_bytes(wire.element, self.version, self.flexible))
        self.add(indent + 1, f"if {count} * {least} > end - pos: raise past_end({what!r})")
        if self.in_steps:
            self.add(indent + 1, f"elements += {count}")
            self.add(indent + 1, f"if elements > max_elements: raise too_many_elements({what!r}, max_elements)")
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
            self.add(indent + 1, f"{chunk} = min({count}, {STEP_FIXED_ELEMENTS})")
            self.add(indent + 1, f"{target} += {unpack}(f'>{{{chunk}}}{format_char}', buf, pos)")
            self.add(indent + 1, f"pos += {chunk} * {size}", f"{count} -= {chunk}", f"if {count}: yield")
        else:
            self.add(indent, f"{target} = list({unpack}(f'>{{{count}}}{format_char}', buf, pos))")
            self.add(indent, f"pos += {count} * {size}")

    def nested(self, indent: int, target: str, wire: StructType, nullable: bool) -> None:
        """Read a nested struct."""
        variable = self.name("o")
        if nullable:
            unpack = self.constant("unpack", struct.Struct(">b").unpack_from)
            self.add(indent, f"(n,) = {unpack}(buf, pos)", "pos += 1", "if n < 0:", f"    {target} = None", "else:")
            indent += 1
        self.struct(indent, variable, wire.cls)
        self.add(indent, f"{target} = {variable}")

    def tagged(self, indent: int, target: str, tagged: list[Field]) -> None:
        """Read the tagged fields of a struct; unknown tags are skipped."""
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
