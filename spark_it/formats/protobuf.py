"""Format protobuf: messages of a type in a descriptor set, a file that `protoc --descriptor_set_out` writes.

| Protobuf | Spark |
|---|---|
| int32, sint32, sfixed32; int64, sint64, sfixed64 | INT; BIGINT |
| uint32, fixed32; uint64, fixed64 | BIGINT; DECIMAL(20,0) |
| bool, float, double, string, bytes | BOOLEAN, FLOAT, DOUBLE, STRING, BINARY |
| enum | STRING, the value's name; its number where it has none |
| repeated, map, message | ARRAY, MAP, STRUCT |
| google.protobuf.Timestamp | TIMESTAMP, truncated to microseconds |
| google.protobuf.Int64Value and the other wrappers | the wrapped type, or null |

A field that is not set is null if it has presence (`optional`, messages, members of a `oneof`), else its default.
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
from odradek.spark_it.formats.columns import decode_column, encode_column, fail_on_error
from odradek.spark_it.formats.format import FormatError, Side

Converter = Callable[[Any], Any]

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
_MICROS_PER_SECOND = 1_000_000
_INT64 = 1 << 63


class MessageError(ValueError):
    """A message is invalid, or a value is invalid in a message; `str()` has the reason."""


class ProtobufFormat:
    """Keys or values of a topic as messages; `descriptors` is the descriptor set."""

    name = "protobuf"

    def __init__(self, descriptors: bytes, message: str) -> None:
        self._descriptors = descriptors
        self._message = message

    def schema(self) -> t.DataType:
        """Return the type of decoded values. Raises FormatError."""
        return to_spark_type(find_descriptor(self._descriptors, self._message))

    def decode(self, column: Column) -> Column:
        """Decode a BINARY column to STRUCT<value: schema(), error: STRING>."""
        return decode_column(column, self.schema(), partial(make_decoder, self._descriptors, self._message))

    def encode(self, column: Column, data_type: t.DataType) -> Column:
        """Encode a column as BINARY; a value that is invalid in the message fails the batch."""
        return fail_on_error(self.encode_or_error(column, data_type), "cannot be written as Protobuf")

    def encode_or_error(self, column: Column, data_type: t.DataType) -> Column:
        """Encode a column as STRUCT<value: BINARY, error: STRING>. Raises FormatError for columns that do not match."""
        mismatches = [*find_mismatches(data_type, self.schema(), "the row")]
        if mismatches:
            raise FormatError(f"the columns do not fit message {self._message}: {'; '.join(mismatches)}")
        return encode_column(column, data_type, partial(make_encoder, self._descriptors, self._message))


def make_format(part: PartFormat, pipeline: Pipeline, topic: str | None, side: Side) -> ProtobufFormat:
    """Return the format of keys or values of a topic. Raises FormatError for an invalid file or message type."""
    if part.schema is None or part.message is None:
        raise FormatError(f"{side}.format protobuf needs {side}.schema and {side}.message")
    try:
        descriptors = Path(pipeline.locate_path(part.schema)).read_bytes()
    except OSError as error:
        raise FormatError(f"{side}.schema: {part.schema} cannot be read: {error.strerror}") from None
    try:
        to_spark_type(find_descriptor(descriptors, part.message))
    except FormatError as error:
        raise FormatError(f"{side}.schema: {part.schema}: {error}") from None
    return ProtobufFormat(descriptors, part.message)


@lru_cache(maxsize=64)
def find_descriptor(descriptors: bytes, message: str) -> Descriptor:
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
        names = [*_iter_message_names(files)]
        listed = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
        raise FormatError(f"there is no message {message}; there are {listed or 'none'}") from None


def _iter_message_names(files: Any) -> Iterator[str]:
    # protoc writes imported files first, and the compiled file last.
    for file in reversed(files.file):
        for one in file.message_type:
            yield f"{file.package}.{one.name}" if file.package else one.name


def to_spark_type(message: Descriptor) -> t.DataType:
    """Return the Spark type of a message. Raises FormatError, which names the field."""
    return _convert_message_type(message, (), message.name)


def _convert_message_type(of: Descriptor, enclosing: tuple[str, ...], what: str) -> t.DataType:
    if of.full_name == _TIMESTAMP:
        return t.TimestampType()
    if of.full_name in _WRAPPERS:
        return _convert_element_type(of.fields_by_name["value"], enclosing, what)
    if of.full_name in enclosing:
        raise FormatError(f"{what} is a {of.full_name}, which contains itself: Spark has no such type")
    if not of.fields:
        raise FormatError(f"{what} is a {of.full_name}, which has no fields: Spark has no such type")
    within = (*enclosing, of.full_name)
    fields = [(one.name, _convert_field_type(one, within, f"{what}.{one.name}")) for one in of.fields]
    return t.StructType([t.StructField(*field) for field in fields])


def _convert_field_type(field: FieldDescriptor, enclosing: tuple[str, ...], what: str) -> t.DataType:
    if _is_map(field):
        entry = field.message_type.fields_by_name
        return t.MapType(
            _convert_element_type(entry["key"], enclosing, what),
            _convert_element_type(entry["value"], enclosing, f"{what}{{}}"),
        )
    one = _convert_element_type(field, enclosing, what)
    return t.ArrayType(one) if _is_repeated(field) else one


def _convert_element_type(field: FieldDescriptor, enclosing: tuple[str, ...], what: str) -> t.DataType:
    if field.message_type is not None:
        return _convert_message_type(field.message_type, enclosing, what)
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return t.BinaryType() if field.type == FieldDescriptor.TYPE_BYTES else t.StringType()
    return _TYPES[field.cpp_type]


def _is_repeated(field: FieldDescriptor) -> bool:
    is_repeated = getattr(field, "is_repeated", None)  # since protobuf 6.31; protobuf 7 has no label
    return field.label == FieldDescriptor.LABEL_REPEATED if is_repeated is None else bool(is_repeated)


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


# Reading


@lru_cache(maxsize=64)
def make_decoder(descriptors: bytes, message: str) -> Callable[[bytes], Any]:
    """Return a decoder of messages to values for Spark's Arrow reader. It raises MessageError for invalid messages.

    A proto2 string that is not UTF-8 is returned as bytes, which `columns.decode_batch` rejects.
    """
    of = find_descriptor(descriptors, message)
    parse = message_factory.GetMessageClass(of).FromString
    change = _make_message_reader(of)

    def decode(data: bytes) -> Any:
        try:
            read = parse(data)
        except DecodeError as error:
            raise MessageError(f"this is not a message {message}: {error}") from None
        if not read.IsInitialized():
            raise MessageError(f"required fields are missing: {', '.join(read.FindInitializationErrors())}")
        return change(read)

    return decode


def _make_message_reader(of: Descriptor) -> Converter:
    if of.full_name == _TIMESTAMP:
        return _read_timestamp
    if of.full_name in _WRAPPERS:
        inner = _make_element_reader(of.fields_by_name["value"])
        return (lambda value: value.value) if inner is None else (lambda value: inner(value.value))
    fields = [(one.name, one.has_presence and not _is_repeated(one), _make_field_reader(one)) for one in of.fields]

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


def _read_timestamp(value: Any) -> int:
    micros: int = value.seconds * _MICROS_PER_SECOND + value.nanos // 1000
    if not -_INT64 <= micros < _INT64:
        raise MessageError(f"{value.seconds} s is outside Spark's range of timestamps")
    return micros


def _make_field_reader(field: FieldDescriptor) -> Converter | None:
    if _is_map(field):
        entry = field.message_type.fields_by_name
        key, of = _make_element_reader(entry["key"]) or _keep_value, _make_element_reader(entry["value"]) or _keep_value
        # Values are read by key, because items() does not return messages in every version of protobuf.
        return lambda values: {key(one): of(values[one]) for one in values}
    of_one = _make_element_reader(field)
    if not _is_repeated(field):
        return of_one
    return list if of_one is None else lambda values: [of_one(value) for value in values]


def _make_element_reader(field: FieldDescriptor) -> Converter | None:
    if field.message_type is not None:
        return _make_message_reader(field.message_type)
    if field.enum_type is not None:
        names = {value.number: value.name for value in reversed(field.enum_type.values)}
        return lambda number: names.get(number) or str(number)
    return Decimal if field.cpp_type == FieldDescriptor.CPPTYPE_UINT64 else None


def _keep_value(value: Any) -> Any:
    return value


# Writing


def find_mismatches(data_type: t.DataType, wanted: t.DataType, what: str) -> Iterator[str]:
    """Yield the reasons why columns cannot be written as a message with Spark type `wanted`."""
    if isinstance(data_type, t.StructType) and isinstance(wanted, t.StructType):
        fields = {one.name: one.dataType for one in wanted.fields}
        for one in data_type.fields:
            if one.name in fields:
                yield from find_mismatches(one.dataType, fields[one.name], f"{what}.{one.name}")
            else:
                yield f"{what}: the message has no field {one.name}"
    elif isinstance(data_type, t.ArrayType) and isinstance(wanted, t.ArrayType):
        yield from find_mismatches(data_type.elementType, wanted.elementType, f"{what}[]")
    elif isinstance(data_type, t.MapType) and isinstance(wanted, t.MapType):
        yield from find_mismatches(data_type.keyType, wanted.keyType, f"{what}{{}}")
        yield from find_mismatches(data_type.valueType, wanted.valueType, f"{what}{{}}")
    elif not _is_writable(data_type, wanted):
        yield f"{what}: {data_type.simpleString()} cannot be written where the message has {wanted.simpleString()}"


_WIDER: tuple[tuple[type[t.DataType], tuple[type[t.DataType], ...]], ...] = (
    (t.IntegerType, (t.ByteType, t.ShortType, t.IntegerType)),
    (t.LongType, (t.ByteType, t.ShortType, t.IntegerType, t.LongType)),
    (t.DoubleType, (t.ByteType, t.ShortType, t.IntegerType, t.FloatType, t.DoubleType)),
)


def _is_writable(data_type: t.DataType, wanted: t.DataType) -> bool:
    if isinstance(wanted, t.DecimalType):
        is_unscaled = isinstance(data_type, t.DecimalType) and data_type.scale == 0
        return is_unscaled or isinstance(data_type, t.IntegralType)
    narrower = next((kinds for kind, kinds in _WIDER if isinstance(wanted, kind)), (type(wanted),))
    return isinstance(data_type, narrower)


@lru_cache(maxsize=64)
def make_encoder(descriptors: bytes, message: str) -> Callable[[Any], bytes]:
    """Return an encoder of a Row as a message, without null columns. It raises MessageError for invalid values."""
    of = find_descriptor(descriptors, message)
    made = message_factory.GetMessageClass(of)
    write = _make_message_writer(of, of.name)

    def encode(value: Any) -> bytes:
        target = made()
        write(target, value)
        return target.SerializeToString(deterministic=True)  # type: ignore[no-any-return]

    return encode


def _make_message_writer(of: Descriptor, what: str) -> Callable[[Any, Any], None]:
    """Return a function that sets a value in a message."""
    if of.full_name == _TIMESTAMP:
        return _write_timestamp
    if of.full_name in _WRAPPERS:
        one = _make_element_writer(of.fields_by_name["value"], what)
        return lambda target, value: setattr(target, "value", one(value))
    fields = {one.name: _make_field_writer(one, f"{what}.{one.name}") for one in of.fields}
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
    target.seconds, rest = divmod(micros, _MICROS_PER_SECOND)
    target.nanos = rest * 1000
    target.SetInParent()


def _make_field_writer(field: FieldDescriptor, what: str) -> Callable[[Any, Any], None]:
    name = field.name
    if _is_map(field):
        return _make_map_writer(field, what)
    if field.message_type is not None:
        message = _make_message_writer(field.message_type, what)
        if _is_repeated(field):

            def add(target: Any, values: Any) -> None:
                for value in values:
                    message(getattr(target, name).add(), _require_value(value, what))

            return add

        def set_value(target: Any, value: Any) -> None:
            inner = getattr(target, name)
            inner.SetInParent()
            message(inner, value)

        return set_value
    one = _make_element_writer(field, what)
    if _is_repeated(field):
        return lambda target, values: getattr(target, name).extend(one(_require_value(value, what)) for value in values)
    return lambda target, value: setattr(target, name, one(value))


def _make_map_writer(field: FieldDescriptor, what: str) -> Callable[[Any, Any], None]:
    name, entry = field.name, field.message_type.fields_by_name
    key = _make_element_writer(entry["key"], what)
    if entry["value"].message_type is None:
        one = _make_element_writer(entry["value"], what)

        def set_value(target: Any, values: Any) -> None:
            getattr(target, name).update({key(k): one(_require_value(v, what)) for k, v in values.items()})

        return set_value
    message = _make_message_writer(entry["value"].message_type, what)

    def set_messages(target: Any, values: Any) -> None:
        for k, v in values.items():
            message(getattr(target, name)[key(k)], _require_value(v, what))

    return set_messages


def _require_value(value: Any, what: str) -> Any:
    if value is None:
        raise MessageError(f"{what} contains null, which a message cannot store")
    return value


def _make_element_writer(field: FieldDescriptor, what: str) -> Converter:
    if field.enum_type is not None:
        numbers = {value.name: value.number for value in field.enum_type.values}

        def number(value: str) -> int:
            if value not in numbers and not value.lstrip("-").isdigit():
                raise MessageError(f"{what} is {value}, which is not in enum {field.enum_type.name}")
            return numbers[value] if value in numbers else int(value)

        return number
    if field.cpp_type == FieldDescriptor.CPPTYPE_UINT64:
        return int
    return bytes if field.type == FieldDescriptor.TYPE_BYTES else _keep_value
