"""Our codec against Kafka's own message classes, in one small JVM, for every message and version we declare.

Kafka's `*DataJsonConverter` classes are the witness for field names and values: our bytes, read by Java and printed as
JSON, have to say what our value says; our value as JSON, read and written by Java, has to decode to our value.
The JVM runs Py4J's gateway from pyspark's jars; no Java source is compiled.
"""

import base64
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from compat_tests.apache_kafka import jars
from odradek.protocol import codec
from odradek.protocol.messages import API_NAMES, request_class, response_class
from odradek.protocol.schema import ArrayType, Message, Struct, StructType
from odradek.protocol.tests.values import MESSAGES, RandomSource, make, versions_of
from odradek.protocol.types import BYTES, RECORDS, UUID, WireType

py4j = pytest.importorskip("py4j.java_gateway")
pyspark = pytest.importorskip("pyspark")

SEED = int(os.environ.get("ODRADEK_JAVA_PARITY_SEED", "3"))
EXAMPLES = int(os.environ.get("ODRADEK_JAVA_PARITY_EXAMPLES", "6"))
IN_PYSPARK = ("py4j-*.jar", "jackson-core-2*.jar", "jackson-databind-*.jar", "jackson-annotations-*.jar", "slf4j-api-*")


class Oracle:
    """Kafka's message classes, reached through Py4J."""

    def __init__(self, gateway: Any) -> None:
        jvm = gateway.jvm
        self._messages = jvm.org.apache.kafka.common.message
        self._accessor = jvm.org.apache.kafka.common.protocol.ByteBufferAccessor
        self._to_bytes = jvm.org.apache.kafka.common.protocol.MessageUtil.toVersionPrefixedBytes
        self._wrap = jvm.java.nio.ByteBuffer.wrap
        self._mapper = jvm.com.fasterxml.jackson.databind.ObjectMapper()

    def converter(self, cls: type[Message]) -> Any:
        return getattr(self._messages, f"{cls.__name__}DataJsonConverter")

    def read(self, cls: type[Message], version: int, encoded: bytes) -> tuple[Any, int]:
        """The Java object that `encoded` is, and how many bytes were left over."""
        accessor = self._accessor(self._wrap(encoded))
        return getattr(self._messages, f"{cls.__name__}Data")(accessor, version), accessor.remaining()

    def write(self, java_message: Any, version: int) -> bytes:
        return bytes(self._to_bytes(version, java_message))[2:]

    def to_json(self, cls: type[Message], version: int, java_message: Any) -> Any:
        return json.loads(self._mapper.writeValueAsString(self.converter(cls).write(java_message, version, False)))

    def from_json(self, cls: type[Message], version: int, value: Any) -> Any:
        return self.converter(cls).read(self._mapper.readTree(json.dumps(value)), version)


@pytest.fixture(scope="module")
def gateway():
    in_pyspark = Path(pyspark.__file__).parent / "jars"
    classpath = [str(next(in_pyspark.glob(pattern))) for pattern in IN_PYSPARK]
    classpath += [str(jar) for jar in jars.kafka_jars() if jar.name.startswith("kafka-clients-")]
    number, process = py4j.launch_gateway(
        jarpath=classpath[0],
        classpath=os.pathsep.join(classpath[1:]),
        javaopts=["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"],
        java_path=jars.java(),
        die_on_exit=True,
        return_proc=True,
    )
    gateway = py4j.JavaGateway(gateway_parameters=py4j.GatewayParameters(port=number))
    try:
        yield gateway
    finally:
        gateway.shutdown()
        process.stdin.close()
        process.wait(timeout=20)


@pytest.fixture(scope="module")
def oracle(gateway):
    return Oracle(gateway)


def camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def to_json(value: Struct, version: int, records_as_size: bool) -> dict[str, Any]:
    """A message as Kafka's converters print it: tagged fields only when set, records by their size."""
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
    """All record batches inside a message, in order."""
    found: list[bytes | None] = []
    for item in value.fields:
        content = getattr(value, item.name)
        if item.wire is RECORDS:
            found.append(None if content is None else bytes(content))
        for inner in content if isinstance(content, list) else [content]:
            if isinstance(inner, Struct):
                found += records_of(inner)
    return found


@pytest.mark.parametrize("cls", MESSAGES, ids=[cls.__name__ for cls in MESSAGES])
def test_parity_with_kafkas_own_classes(cls, oracle):
    for version in versions_of(cls):
        rng = random.Random(f"{SEED} {cls.__name__} {version}")
        for number in range(EXAMPLES):
            # One begins with an array so long that its compact length takes two bytes.
            long_array = number == 0 and version == cls.last_version
            message = make(cls, version, RandomSource(rng, long_array_first=long_array))
            check(oracle, cls, version, message)


def check(oracle: Oracle, cls: type[Message], version: int, message: Any) -> None:
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


@pytest.mark.parametrize("key", API_NAMES)
def test_the_same_versions_are_known_to_kafka(key, gateway):
    kafka = gateway.jvm.org.apache.kafka.common.message.ApiMessageType.fromApiKey(key)
    for cls, make_java in ((request_class(key), kafka.newRequest), (response_class(key), kafka.newResponse)):
        assert make_java().getClass().getSimpleName() == f"{cls.__name__}Data"
        assert cls.first_version == kafka.lowestSupportedVersion()
        assert cls.last_version == kafka.highestSupportedVersion(True)
    for version in versions_of(request_class(key)):
        flexible = request_class(key).is_flexible(version)
        assert kafka.requestHeaderVersion(version) == (2 if flexible else 1)
        assert response_class(key).is_flexible(version) == flexible
