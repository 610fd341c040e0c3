"""Source text of encoders: of one message class and version, whole, in steps, or for small messages only."""

import struct
from typing import Final

from odradek.protocol.codec_source import Source, split_fields
from odradek.protocol.schema import ArrayType, Field, Struct, StructType
from odradek.protocol.types import RECORDS, STRING, UUID, FixedType, WireType

SMALL_MESSAGE_BYTES: Final = 8192
"""Maximum size of a small message, which is decoded or encoded within about 2 ms even if its elements are small."""

SMALL_ARRAY_LENGTH: Final = 100
"""Maximum number of elements of each array of a small message."""
STEP_ELEMENTS: Final = 64
"""Array elements that a step of an encoder writes."""


class EncoderSource(Source):
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
        plain, tagged = split_fields(cls, self.version)
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
        """Write successive fields of fixed size."""
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
        """Write a length; -1 is null."""
        if self.flexible:
            self.add(indent, f"n = {expression} + 1", "if n < 128: out.append(n)", "else: write_varint(out, n)")
        else:
            pack = self.constant("pack", struct.Struct(">h" if wire is STRING else ">i").pack)
            self.add(indent, f"out += {pack}({expression})")

    def null_branch(self, indent: int, value: str, wire: WireType, nullable: bool, what: str) -> None:
        """Handle a null value, and open the branch for any other value."""
        self.add(indent, f"if {value} is None:")
        if nullable:
            self.length(indent + 1, "-1", wire)
        else:
            self.add(indent + 1, f"raise ValueError({what + ' may not be null'!r})")
        self.add(indent, "else:")

    def sized(self, indent: int, source: str, wire: WireType, nullable: bool, what: str) -> None:
        """Write a string, bytes or records."""
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
        """Write an array."""
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
        """Write a nested struct."""
        variable = self.name("o")
        self.add(indent, f"{variable} = {source}")
        if nullable:
            self.add(indent, f"if {variable} is None:", "    out.append(255)", "else:", "    out.append(1)")
            indent += 1
        self.struct(indent, variable, wire.cls)

    def tagged(self, indent: int, source: str, tagged: list[Field]) -> None:
        """Write the tagged fields that differ from their defaults."""
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
