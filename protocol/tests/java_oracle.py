"""Kafka's own message classes as a test oracle, in one small JVM.

Kafka's `*JsonConverter` classes verify field names and values: Odradek's bytes, decoded by Java and printed as JSON,
must equal the message as JSON; the message as JSON, read and encoded by Java, must decode to the message. The JVM runs
Py4J's gateway from pyspark's jars; no Java source is compiled.
"""

import base64
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
from py4j import java_gateway as py4j
from py4j.protocol import get_return_value

from compat_tests.apache_kafka import jars
from odradek.protocol import codec
from odradek.protocol.schema import ArrayType, Message, Struct, StructType
from odradek.protocol.types import BYTES, RECORDS, UUID, WireType

IN_PYSPARK = ("py4j-*.jar", "jackson-core-2*.jar", "jackson-databind-*.jar", "jackson-annotations-*.jar", "slf4j-api-*")
KAFKA_JARS = ("kafka-clients-", "kafka-group-coordinator-", "kafka-transaction-coordinator-")


@contextmanager
def java_gateway(
    kafka_jars: tuple[str, ...] = KAFKA_JARS, find_jars: Callable[[], list[Path]] = jars.kafka_jars
) -> Iterator[Any]:
    """Run a JVM with Jackson and those Kafka jars of `find_jars` whose names begin with `kafka_jars`."""
    in_pyspark = Path(pyspark.__file__).parent / "jars"
    classpath = [str(next(in_pyspark.glob(pattern))) for pattern in IN_PYSPARK]
    classpath += [str(jar) for jar in find_jars() if jar.name.startswith(kafka_jars)]
    number, process = py4j.launch_gateway(
        jarpath=classpath[0],
        classpath=os.pathsep.join(classpath[1:]),
        javaopts=["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"],
        java_path=jars.java(),
        die_on_exit=True,
        return_proc=True,
    )
    gateway = py4j.JavaGateway(gateway_parameters=py4j.GatewayParameters(port=number))
    # A Spark session of the same process has installed a function that calls Spark's Java code for each error.
    with_pyspark, py4j.get_return_value = py4j.get_return_value, get_return_value
    try:
        yield gateway
    finally:
        py4j.get_return_value = with_pyspark
        gateway.shutdown()
        process.stdin.close()
        process.wait(timeout=60)


class Oracle:
    """Kafka's generated classes of one Java package, whose names end in `suffix`, reached through Py4J."""

    def __init__(self, gateway: Any, package: Any, suffix: str) -> None:
        jvm = gateway.jvm
        self._messages = package
        self._suffix = suffix
        self._accessor = jvm.org.apache.kafka.common.protocol.ByteBufferAccessor
        self._to_bytes = jvm.org.apache.kafka.common.protocol.MessageUtil.toVersionPrefixedBytes
        self._wrap = jvm.java.nio.ByteBuffer.wrap
        self._mapper = jvm.com.fasterxml.jackson.databind.ObjectMapper()

    def converter(self, cls: type[Message]) -> Any:
        return getattr(self._messages, f"{cls.__name__}{self._suffix}JsonConverter")

    def read(self, cls: type[Message], version: int, encoded: bytes) -> tuple[Any, int]:
        """Return the Java object that `encoded` decodes to, and the number of remaining bytes."""
        accessor = self._accessor(self._wrap(encoded))
        return getattr(self._messages, f"{cls.__name__}{self._suffix}")(accessor, version), accessor.remaining()

    def write(self, java_message: Any, version: int) -> bytes:
        return bytes(self._to_bytes(version, java_message))[2:]

    def to_json(self, cls: type[Message], version: int, java_message: Any) -> Any:
        return json.loads(self._mapper.writeValueAsString(self.converter(cls).write(java_message, version, False)))

    def from_json(self, cls: type[Message], version: int, value: Any) -> Any:
        return self.converter(cls).read(self._mapper.readTree(json.dumps(value)), version)


def camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join("KRaft" if word == "kraft" else word.capitalize() for word in rest)


def to_json(value: Struct, version: int, records_as_size: bool) -> dict[str, Any]:
    """Return a message as Kafka's converters print it: tagged fields only when set, records by their size."""
    out: dict[str, Any] = {}
    for item in value.fields:
        if not item.is_in(version):
            continue
        content = getattr(value, item.name)
        if item.is_tagged(version) and content == item.make_default():
            continue
        name = camel_case(item.name)
        if item.wire is RECORDS and content is not None and records_as_size:
            out[name + "SizeInBytes"] = len(content)
        else:
            out[name] = _value_to_json(item.wire, content, version, records_as_size)
    return out


def _value_to_json(wire: WireType, value: Any, version: int, records_as_size: bool) -> Any:
    if value is None:
        return None
    if isinstance(wire, StructType):
        return to_json(value, version, records_as_size)
    if isinstance(wire, ArrayType):
        return [_value_to_json(wire.element, element, version, records_as_size) for element in value]
    if wire is UUID:
        return base64.urlsafe_b64encode(value).decode().rstrip("=")
    if wire is BYTES or wire is RECORDS:
        return base64.b64encode(value).decode()
    return value


def records_of(value: Any) -> list[bytes | None]:
    """Return all record batches in a message, in order."""
    found: list[bytes | None] = []
    for item in value.fields:
        content = getattr(value, item.name)
        if item.wire is RECORDS:
            found.append(None if content is None else bytes(content))
        for inner in content if isinstance(content, list) else [content]:
            if isinstance(inner, Struct):
                found += records_of(inner)
    return found


def check(oracle: Oracle, cls: type[Message], version: int, message: Any) -> None:
    """Compare one message in both directions, by bytes and by values."""
    encoded = codec.encode(message, version)
    java_message, left_over = oracle.read(cls, version, encoded)
    assert left_over == 0
    assert oracle.to_json(cls, version, java_message) == to_json(message, version, records_as_size=True)
    assert oracle.write(java_message, version) == encoded

    java_made = oracle.from_json(cls, version, to_json(message, version, records_as_size=False))
    java_encoded = oracle.write(java_made, version)
    assert java_encoded == encoded
    decoded = codec.decode(cls, version, java_encoded)
    assert records_of(decoded) == records_of(message)
    assert decoded == message
