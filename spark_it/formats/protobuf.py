"""Format protobuf: messages of a type in a descriptor set, a file that `protoc --descriptor_set_out` writes.

| Protobuf | Spark |
|---|---|
| int32, sint32, sfixed32; int64, sint64, sfixed64 | INT; BIGINT |
| uint32, fixed32; uint64, fixed64 | BIGINT; DECIMAL(20,0) |
| bool, float, double, string, bytes | BOOLEAN, FLOAT, DOUBLE, STRING, BINARY |
| enum | STRING, the value's name; its number where it has none |
| repeated, map, message | ARRAY, MAP, STRUCT |
| google.protobuf.Timestamp | TIMESTAMP, below a microsecond cut off |
| google.protobuf.Int64Value and the other wrappers | the type that is wrapped, or null |

A field that does not exist is null if that can be known (`optional`, messages, members of a `oneof`), else its default.
"""

from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]
from google.protobuf.descriptor import Descriptor, FieldDescriptor  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError, Message  # type: ignore[import-untyped]
from pyspark.sql import Column
from pyspark.sql import types as t

from odradek.spark_it.definition.settings import PartFormat
from odradek.spark_it.definition.spec import Pipeline
from odradek.spark_it.formats.columns import decoded, encoded, or_fail
from odradek.spark_it.formats.format import FormatError, Side

Change = Callable[[Any], Any]

_TIMESTAMP = "google.protobuf.Timestamp"
_WRAPPERS = {
    f"google.protobuf.{kind}Value"
    for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
}
_TYPES: dict[int, t.DataType] = {
    FieldDescriptor.CPPTYPE_INT32: t.IntegerType(),
    FieldDescriptor.CPPTYPE_INT64: t.LongType(),
    FieldDescriptor.CPPTYPE_UINT32: t.LongType(),
    FieldDescriptor.CPPTYPE_UINT64: t.DecimalType(20, 0),
    FieldDescriptor.CPPTYPE_DOUBLE: t.DoubleType(),
    FieldDescriptor.CPPTYPE_FLOAT: t.FloatType(),
    FieldDescriptor.CPPTYPE_BOOL: t.BooleanType(),
    FieldDescriptor.CPPTYPE_ENUM: t.StringType(),
}
_MICROS_A_SECOND = 1_000_000
_INT64 = 1 << 63


class MessageError(ValueError):
    """A value that is invalid in a message; `str()` has the reason."""


class ProtobufFormat:
    """Keys or values of a topic as messages; `descriptors` is the descriptor set."""

    name = "protobuf"

    def __init__(self, descriptors: bytes, message: str) -> None:
        self._descriptors = descriptors
        self._message = message

    def schema(self) -> t.DataType:
        """Return the type of decoded values. Raises FormatError."""
        return spark_type(descriptor(self._descriptors, self._message))

    def decode(self, column: Column) -> Column:
        """Decode a BINARY column to STRUCT<value: schema(), error: STRING>."""
        return decoded(column, self.schema(), partial(decoder, self._descriptors, self._message))

    def encode(self, column: Column, data_type: t.DataType) -> Column:
        """Encode a column as BINARY; a value that is invalid in the message fails the batch."""
        return or_fail(self.encode_or_error(column, data_type), "cannot be written as Protobuf")

    def encode_or_error(self, column: Column, data_type: t.DataType) -> Column:
        """Encode a column as STRUCT<value: BINARY, error: STRING>. Raises FormatError for columns that do not match."""
        wrong = [*misfits(data_type, self.schema(), "the row")]
        if wrong:
            raise FormatError(f"the columns do not fit message {self._message}: {'; '.join(wrong)}")
        return encoded(column, data_type, partial(encoder, self._descriptors, self._message))


def make(part: PartFormat, pipeline: Pipeline, topic: str | None, side: Side) -> ProtobufFormat:
    """Return the format of one side of a topic. Raises FormatError for an invalid file or message type."""
    if part.schema is None or part.message is None:
        raise FormatError(f"{side}.format protobuf needs {side}.schema and {side}.message")
    try:
        descriptors = Path(pipeline.located(part.schema)).read_bytes()
    except OSError as error:
        raise FormatError(f"{side}.schema: {part.schema} cannot be read: {error.strerror}") from None
    try:
        spark_type(descriptor(descriptors, part.message))
    except FormatError as error:
        raise FormatError(f"{side}.schema: {part.schema}: {error}") from None
    return ProtobufFormat(descriptors, part.message)


@lru_cache(maxsize=64)
def descriptor(descriptors: bytes, message: str) -> Descriptor:
    """Return a message type of a descriptor set. Raises FormatError."""
    files = descriptor_pb2.FileDescriptorSet()
    try:
        files.ParseFromString(descriptors)
    except DecodeError:
        raise FormatError("this is not a descriptor set of protoc --descriptor_set_out") from None
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        try:
            pool.AddSerializedFile(file.SerializeToString())
        except Exception as error:
            raise FormatError(f"{file.name} cannot be used: {error}; was --include_imports given?") from None
    try:
        return pool.FindMessageTypeByName(message)
    except KeyError:
        there = [*_messages(files)]
        shown = ", ".join(there[:10]) + (", ..." if len(there) > 10 else "")
        raise FormatError(f"there is no message {message}; there are {shown or 'none'}") from None


def _messages(files: Any) -> Iterator[str]:
    # protoc writes imported files first, and the compiled file last.
    for file in reversed(files.file):
        for one in file.message_type:
            yield f"{file.package}.{one.name}" if file.package else one.name


def spark_type(of: Descriptor) -> t.DataType:
    """Return the Spark type of a message. Raises FormatError, which names the field."""
    return _type_of(of, (), of.name)


def _type_of(of: Descriptor, inside: tuple[str, ...], what: str) -> t.DataType:
    if of.full_name == _TIMESTAMP:
        return t.TimestampType()
    if of.full_name in _WRAPPERS:
        return _type_of_one(of.fields_by_name["value"], inside, what)
    if of.full_name in inside:
        raise FormatError(f"{what} is a {of.full_name}, which contains itself: Spark has no such type")
    if not of.fields:
        raise FormatError(f"{what} is a {of.full_name}, which has no fields: Spark has no such type")
    within = (*inside, of.full_name)
    fields = [(one.name, _type_of_field(one, within, f"{what}.{one.name}")) for one in of.fields]
    return t.StructType([t.StructField(*field) for field in fields])


def _type_of_field(field: FieldDescriptor, inside: tuple[str, ...], what: str) -> t.DataType:
    if _is_map(field):
        entry = field.message_type.fields_by_name
        return t.MapType(_type_of_one(entry["key"], inside, what), _type_of_one(entry["value"], inside, f"{what}{{}}"))
    one = _type_of_one(field, inside, what)
    return t.ArrayType(one) if _is_repeated(field) else one


def _type_of_one(field: FieldDescriptor, inside: tuple[str, ...], what: str) -> t.DataType:
    if field.message_type is not None:
        return _type_of(field.message_type, inside, what)
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return t.BinaryType() if field.type == FieldDescriptor.TYPE_BYTES else t.StringType()
    return _TYPES[field.cpp_type]


def _is_repeated(field: FieldDescriptor) -> bool:
    known = getattr(field, "is_repeated", None)  # since protobuf 6.31; label is gone in 7
    return field.label == FieldDescriptor.LABEL_REPEATED if known is None else bool(known)


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


# Reading


@lru_cache(maxsize=64)
def decoder(descriptors: bytes, message: str) -> Callable[[bytes], Any]:
    """Return a decoder of messages to values for Spark's Arrow reader. It raises MessageError for invalid bytes.

    A proto2 string that is not UTF-8 is returned as bytes, which `columns.decode_batch` rejects.
    """
    of = descriptor(descriptors, message)
    parse = message_factory.GetMessageClass(of).FromString
    change = _reading_message(of)

    def decode(data: bytes) -> Any:
        try:
            read = parse(data)
        except DecodeError as error:
            raise MessageError(f"this is not a message {message}: {error}") from None
        if not read.IsInitialized():
            raise MessageError(f"required fields are missing: {', '.join(read.FindInitializationErrors())}")
        return change(read)

    return decode


def _reading_message(of: Descriptor) -> Change:
    if of.full_name == _TIMESTAMP:
        return _micros
    if of.full_name in _WRAPPERS:
        inner = _reading_one(of.fields_by_name["value"])
        return (lambda value: value.value) if inner is None else (lambda value: inner(value.value))
    fields = [(one.name, one.has_presence and not _is_repeated(one), _reading_field(one)) for one in of.fields]

    def change(value: Message) -> dict[str, Any]:
        read: dict[str, Any] = {}
        for name, has_presence, of_field in fields:
            if has_presence and not value.HasField(name):
                read[name] = None
            elif of_field is None:
                read[name] = getattr(value, name)
            else:
                read[name] = of_field(getattr(value, name))
        return read

    return change


def _micros(value: Any) -> int:
    micros: int = value.seconds * _MICROS_A_SECOND + value.nanos // 1000
    if not -_INT64 <= micros < _INT64:
        raise MessageError(f"{value.seconds} s is outside Spark's range of timestamps")
    return micros


def _reading_field(field: FieldDescriptor) -> Change | None:
    if _is_map(field):
        entry = field.message_type.fields_by_name
        key, of = _reading_one(entry["key"]) or _same, _reading_one(entry["value"]) or _same
        # Values are read by key, because items() does not return messages in every version of protobuf.
        return lambda values: {key(one): of(values[one]) for one in values}
    of_one = _reading_one(field)
    if not _is_repeated(field):
        return of_one
    return list if of_one is None else lambda values: [of_one(value) for value in values]


def _reading_one(field: FieldDescriptor) -> Change | None:
    if field.message_type is not None:
        return _reading_message(field.message_type)
    if field.enum_type is not None:
        names = {value.number: value.name for value in reversed(field.enum_type.values)}
        return lambda number: names.get(number) or str(number)
    return Decimal if field.cpp_type == FieldDescriptor.CPPTYPE_UINT64 else None


def _same(value: Any) -> Any:
    return value


# Writing


def misfits(data_type: t.DataType, wanted: t.DataType, what: str) -> Iterator[str]:
    """Yield the reasons why columns cannot be written as a message with Spark type `wanted`."""
    if isinstance(data_type, t.StructType) and isinstance(wanted, t.StructType):
        fields = {one.name: one.dataType for one in wanted.fields}
        for one in data_type.fields:
            if one.name in fields:
                yield from misfits(one.dataType, fields[one.name], f"{what}.{one.name}")
            else:
                yield f"{what}: the message has no field {one.name}"
    elif isinstance(data_type, t.ArrayType) and isinstance(wanted, t.ArrayType):
        yield from misfits(data_type.elementType, wanted.elementType, f"{what}[]")
    elif isinstance(data_type, t.MapType) and isinstance(wanted, t.MapType):
        yield from misfits(data_type.keyType, wanted.keyType, f"{what}{{}}")
        yield from misfits(data_type.valueType, wanted.valueType, f"{what}{{}}")
    elif not _goes_into(data_type, wanted):
        yield f"{what}: {data_type.simpleString()} cannot be written where the message has {wanted.simpleString()}"


_WIDER: tuple[tuple[type[t.DataType], tuple[type[t.DataType], ...]], ...] = (
    (t.IntegerType, (t.ByteType, t.ShortType, t.IntegerType)),
    (t.LongType, (t.ByteType, t.ShortType, t.IntegerType, t.LongType)),
    (t.DoubleType, (t.ByteType, t.ShortType, t.IntegerType, t.FloatType, t.DoubleType)),
)


def _goes_into(data_type: t.DataType, wanted: t.DataType) -> bool:
    if isinstance(wanted, t.DecimalType):
        is_unscaled = isinstance(data_type, t.DecimalType) and data_type.scale == 0
        return is_unscaled or isinstance(data_type, t.IntegralType)
    narrower = next((kinds for kind, kinds in _WIDER if isinstance(wanted, kind)), (type(wanted),))
    return isinstance(data_type, narrower)


@lru_cache(maxsize=64)
def encoder(descriptors: bytes, message: str) -> Callable[[Any], bytes]:
    """Return an encoder of a Row as a message, without null columns. It raises MessageError for invalid values."""
    of = descriptor(descriptors, message)
    made = message_factory.GetMessageClass(of)
    write = _writing_message(of, of.name)

    def encode(value: Any) -> bytes:
        target = made()
        write(target, value)
        return target.SerializeToString(deterministic=True)  # type: ignore[no-any-return]

    return encode


def _writing_message(of: Descriptor, what: str) -> Callable[[Any, Any], None]:
    """Return a function that sets a value in a message."""
    if of.full_name == _TIMESTAMP:
        return _write_timestamp
    if of.full_name in _WRAPPERS:
        one = _writing_one(of.fields_by_name["value"], what)
        return lambda target, value: setattr(target, "value", one(value))
    fields = {one.name: _writing_field(one, f"{what}.{one.name}") for one in of.fields}
    alternatives = {one.name: one.containing_oneof.name for one in of.fields if one.containing_oneof is not None}

    def write(target: Any, value: Any) -> None:
        given = value if isinstance(value, dict) else dict(zip(value.__fields__, value, strict=True))
        taken: dict[str, str] = {}
        for name, one in given.items():
            if one is not None:
                if name in alternatives and taken.setdefault(alternatives[name], name) != name:
                    other = taken[alternatives[name]]
                    raise MessageError(f"{what} has {other} and {name}, of which a message has one")
                fields[name](target, one)

    return write


def _write_timestamp(target: Any, micros: int) -> None:
    target.seconds, rest = divmod(micros, _MICROS_A_SECOND)
    target.nanos = rest * 1000
    target.SetInParent()


def _writing_field(field: FieldDescriptor, what: str) -> Callable[[Any, Any], None]:
    name = field.name
    if _is_map(field):
        return _writing_map(field, what)
    if field.message_type is not None:
        message = _writing_message(field.message_type, what)
        if _is_repeated(field):

            def add(target: Any, values: Any) -> None:
                for value in values:
                    message(getattr(target, name).add(), _not_null(value, what))

            return add

        def put(target: Any, value: Any) -> None:
            inner = getattr(target, name)
            inner.SetInParent()
            message(inner, value)

        return put
    one = _writing_one(field, what)
    if _is_repeated(field):
        return lambda target, values: getattr(target, name).extend(one(_not_null(value, what)) for value in values)
    return lambda target, value: setattr(target, name, one(value))


def _writing_map(field: FieldDescriptor, what: str) -> Callable[[Any, Any], None]:
    name, entry = field.name, field.message_type.fields_by_name
    key = _writing_one(entry["key"], what)
    if entry["value"].message_type is None:
        one = _writing_one(entry["value"], what)

        def put(target: Any, values: Any) -> None:
            getattr(target, name).update({key(k): one(_not_null(v, what)) for k, v in values.items()})

        return put
    message = _writing_message(entry["value"].message_type, what)

    def put_messages(target: Any, values: Any) -> None:
        for k, v in values.items():
            message(getattr(target, name)[key(k)], _not_null(v, what))

    return put_messages


def _not_null(value: Any, what: str) -> Any:
    if value is None:
        raise MessageError(f"{what} contains null, which a message cannot store")
    return value


def _writing_one(field: FieldDescriptor, what: str) -> Change:
    if field.enum_type is not None:
        numbers = {value.name: value.number for value in field.enum_type.values}

        def number(value: str) -> int:
            if value not in numbers and not value.lstrip("-").isdigit():
                raise MessageError(f"{what} is {value}, which is not in enum {field.enum_type.name}")
            return numbers[value] if value in numbers else int(value)

        return number
    if field.cpp_type == FieldDescriptor.CPPTYPE_UINT64:
        return int
    return bytes if field.type == FieldDescriptor.TYPE_BYTES else _same
