"""The codec compared with kio, an independent implementation of Kafka's protocol, and with the slow interpreter.

Field names are compared as well as bytes, so that two swapped fields of the same type are found.
"""

import datetime
import io
from dataclasses import fields as fields_of
from functools import cache
from typing import Any, get_args, get_origin
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.index import UnknownAPIKey, UnknownEntity, load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.serial import entity_reader, entity_writer

from odradek.protocol import codec, interpreter
from odradek.protocol.messages import ZOOKEEPER_MODE_KEYS
from odradek.protocol.schema import ArrayType, Field, Message, Struct, StructType
from odradek.protocol.tests.values import (
    ALL,
    AS_USUAL,
    MESSAGES,
    Source,
    messages,
    version_in_failure,
    versions_of,
)
from odradek.protocol.types import RECORDS

pytestmark = pytest.mark.slow

NOT_IN_KIO = {(cls.__name__, version) for cls, version in ALL if cls.api_key in ZOOKEEPER_MODE_KEYS}
"""(message, version) that kio lacks, because Kafka 4 has no ZooKeeper mode; the Java oracle covers these alone."""
IN_KIO = [cls for cls in MESSAGES if cls.api_key not in ZOOKEEPER_MODE_KEYS]

EXAMPLES = 8
PACE = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
MS = datetime.timedelta(milliseconds=1)
KIO_ERROR_CODES = sorted(int(code) for code in KioErrorCode)
NO_TIME = -1
LAST_YEAR_9999_S = 253_402_300_799


def kio_class(cls: type[Message], version: int) -> Any:
    load = load_request_schema if cls.__name__.endswith("Request") else load_response_schema
    return load(cls.api_key, version)


@cache
def pairs(cls: type[Struct], kio_cls: Any) -> dict[str, Any]:
    """Return kio's field for each field. The names are equal, except that kio omits the units of typed times."""
    theirs = {item.name: item for item in fields_of(kio_cls)}
    found = {}
    for item in cls.fields:
        short = item.name.removesuffix("_ms")
        name = item.name if item.name in theirs else short
        if name in theirs:
            found[item.name] = theirs.pop(name)
    assert not theirs, f"{cls.__name__} lacks {sorted(theirs)}"
    return found


def nested(kio_field: Any) -> Any:
    """Return the dataclass inside a field's type: of `X | None`, of `tuple[X, ...]`, or the type itself."""
    annotation = kio_field.type
    while True:
        inner = [arm for arm in get_args(annotation) if arm not in (type(None), Ellipsis)]
        if not inner or (get_origin(annotation) is None):
            return annotation
        annotation = inner[0]


def kafka_type(kio_field: Any) -> str:
    return kio_field.metadata.get("kafka_type", "struct")


def to_kio(value: Struct, kio_cls: Any, version: int) -> Any:
    """Convert a message to kio's."""
    known = pairs(type(value), kio_cls)
    assert {item.name for item in value.fields if item.is_in(version)} == set(known)
    values = {
        known[item.name].name: _value_to_kio(getattr(value, item.name), item, known[item.name], version)
        for item in value.fields
        if item.name in known
    }
    return kio_cls(**values)


def _value_to_kio(value: Any, item: Field, kio_field: Any, version: int) -> Any:
    if value is None:
        return None
    if isinstance(item.wire, ArrayType):
        if isinstance(item.wire.element, StructType):
            return tuple(to_kio(element, nested(kio_field), version) for element in value)
        return tuple(_scalar_to_kio(element, kafka_type(kio_field)) for element in value)
    if isinstance(item.wire, StructType):
        return to_kio(value, nested(kio_field), version)
    return _scalar_to_kio(value, kafka_type(kio_field))


def _scalar_to_kio(value: Any, kind: str) -> Any:
    if kind == "error_code":
        return KioErrorCode(value)
    if kind.startswith("timedelta"):
        return value * MS
    if kind == "datetime_i64":
        return None if value == NO_TIME else EPOCH + value * MS
    if kind == "uuid":
        return UUID(bytes=value) if any(value) else None
    return value


def from_kio(entity: Any, cls: type[Struct], version: int) -> Any:
    """Convert kio's message to `cls`."""
    kio_cls: Any = type(entity)
    known = pairs(cls, kio_cls)
    values = {
        item.name: _value_from_kio(getattr(entity, known[item.name].name), item, known[item.name], version)
        for item in cls.fields
        if item.name in known
    }
    return cls(**values)


def _value_from_kio(value: Any, item: Field, kio_field: Any, version: int) -> Any:
    if isinstance(item.wire, ArrayType) and value is not None:
        if isinstance(item.wire.element, StructType):
            return [from_kio(element, item.wire.element.cls, version) for element in value]
        return [_scalar_from_kio(element, kafka_type(kio_field)) for element in value]
    if isinstance(item.wire, StructType):
        return None if value is None else from_kio(value, item.wire.cls, version)
    return _scalar_from_kio(value, kafka_type(kio_field))


def _scalar_from_kio(value: Any, kind: str) -> Any:
    if kind == "error_code":
        return int(value)
    if kind == "uuid":
        return bytes(16) if value is None else value.bytes
    if kind == "datetime_i64":
        return NO_TIME if value is None else (value - EPOCH) // MS
    if value is None:
        return None
    if kind.startswith("timedelta"):
        return value // MS
    return bytes(value) if kind == "records" else value


class KioLimits:
    """Limits values to those of kio's narrower types: known error codes, times as whole seconds."""

    def __init__(self, root: type[Struct], kio_root: Any) -> None:
        self._kinds: dict[tuple[type[Struct], str], str] = {}
        self._always_timed: set[tuple[type[Struct], str]] = set()
        self._collect(root, kio_root)

    def _collect(self, cls: type[Struct], kio_cls: Any) -> None:
        for name, kio_field in pairs(cls, kio_cls).items():
            self._kinds[cls, name] = kafka_type(kio_field)
            if type(None) not in get_args(kio_field.type):
                self._always_timed.add((cls, name))
            wire = next(item.wire for item in cls.fields if item.name == name)
            element = wire.element if isinstance(wire, ArrayType) else wire
            if isinstance(element, StructType):
                self._collect(element.cls, nested(kio_field))

    def __call__(self, cls: type[Struct], item: Field, source: Source) -> Any:
        kind = self._kinds.get((cls, item.name))
        if isinstance(item.wire, ArrayType):
            assert kind not in ("error_code", "datetime_i64")
        if kind == "error_code":
            return KIO_ERROR_CODES[source.integer(0, len(KIO_ERROR_CODES) - 1)]
        if kind == "datetime_i64":
            may_be_none = (cls, item.name) not in self._always_timed
            return NO_TIME if may_be_none and source.truth() else 1000 * source.integer(0, LAST_YEAR_9999_S)
        if kind == "timedelta_i64":
            # kio computes with seconds as a float.
            return source.integer(-(2**45), 2**45)
        return AS_USUAL


def kio_encode(entity: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def with_plain_records(message: Any) -> Any:
    """Convert decoded records, which are views into the frame, to bytes, for comparison."""
    for item in message.fields:
        value = getattr(message, item.name)
        if item.wire is RECORDS and value is not None:
            setattr(message, item.name, bytes(value))
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, Struct):
                with_plain_records(inner)
    return message


def versions_in_kio(cls: type[Message]) -> list[int]:
    return [version for version in versions_of(cls) if (cls.__name__, version) not in NOT_IN_KIO]


@pytest.mark.parametrize("cls", IN_KIO, ids=[cls.__name__ for cls in IN_KIO])
def test_parity_with_kio(cls):
    for version in versions_in_kio(cls):
        with version_in_failure(cls, version):
            compare_with_kio(cls, version)


def compare_with_kio(cls: type[Message], version: int) -> None:
    kio_cls = kio_class(cls, version)
    reader = entity_reader(kio_cls)

    @PACE
    @given(message=messages(cls, version, KioLimits(cls, kio_cls)))
    def check(message):
        encoded = codec.encode(message, version)
        assert kio_encode(to_kio(message, kio_cls, version)) == encoded
        entity, size = reader(encoded, 0)
        assert size == len(encoded)
        assert from_kio(entity, cls, version) == message
        assert with_plain_records(codec.decode(cls, version, kio_encode(entity))) == message

    check()


@pytest.mark.parametrize("cls", IN_KIO, ids=[cls.__name__ for cls in IN_KIO])
def test_parity_with_the_interpreter(cls):
    for version in versions_of(cls):
        with version_in_failure(cls, version):
            compare_with_interpreter(cls, version)


def compare_with_interpreter(cls: type[Message], version: int) -> None:
    @PACE
    @given(message=messages(cls, version), padding=st.binary(max_size=3))
    def check(message, padding):
        encoded = codec.encode(message, version)
        assert interpreter.encode(message, version) == encoded
        decoded = with_plain_records(codec.decode(cls, version, encoded))
        assert decoded == message
        assert interpreter.decode(cls, version, encoded) == message
        # A message need not begin where its buffer does, and may be a view.
        assert with_plain_records(codec.decode(cls, version, memoryview(padding + encoded), len(padding))) == message

    check()


@pytest.mark.parametrize("cls", IN_KIO, ids=[cls.__name__ for cls in IN_KIO])
def test_the_same_fields_may_be_null(cls):
    for version in versions_in_kio(cls):
        with version_in_failure(cls, version):
            compare_nullability(cls, kio_class(cls, version), version)


def compare_nullability(cls: type[Struct], kio_cls: Any, version: int) -> None:
    for name, kio_field in pairs(cls, kio_cls).items():
        item = next(item for item in cls.fields if item.name == name)
        # In kio a zero UUID and a time of -1 are None as well.
        if kafka_type(kio_field) not in ("uuid", "datetime_i64"):
            assert (type(None) in get_args(kio_field.type)) == item.is_nullable(version), name
        element = item.wire.element if isinstance(item.wire, ArrayType) else item.wire
        if isinstance(element, StructType):
            compare_nullability(element.cls, nested(kio_field), version)


def test_messages_that_kio_lacks_are_listed():
    lacking = set()
    for cls, version in ALL:
        try:
            kio_class(cls, version)
        except (UnknownAPIKey, UnknownEntity):
            lacking.add((cls.__name__, version))
    assert lacking == NOT_IN_KIO
