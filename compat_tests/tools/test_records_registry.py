"""`odradek record` with a schema registry: Avro, Protobuf and JSON Schema, as Confluent's serializers write them."""

import io
import json
import sys

import pytest

from compat_tests.clients import load
from compat_tests.clients.common import Message, ProducerOptions
from compat_tests.tools.fake_registry import FakeRegistry, serving_registry
from odradek.tools.records.tests.messages import make_proto_file

CLIENT = load("confluent")
AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "unit", "type": "shop.Unit"}],
}
UNIT = {"type": "enum", "name": "Unit", "namespace": "shop", "symbols": ["KG", "M"]}
PROTO = 'syntax = "proto3"; package shop; message Other { int32 id = 1; } message Order { /* ... */ }'


@pytest.fixture
def registry():
    with serving_registry() as made:
        yield made


@pytest.fixture
def stdin(monkeypatch):
    def set_stdin(text: str) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))

    return set_stdin


def add_avro(registry: FakeRegistry, subject: str) -> int:
    registry.add("unit", {"schema": json.dumps(UNIT)})
    references = [{"name": "shop.Unit", "subject": "unit", "version": 1}]
    return registry.add(subject, {"schema": json.dumps(AVRO), "references": references})


def add_protobuf(registry: FakeRegistry, subject: str) -> int:
    file = make_proto_file("default", ["google/protobuf/timestamp.proto"])
    registry.serialized[PROTO] = file.SerializeToString()
    return registry.add(subject, {"schema": PROTO, "schemaType": "PROTOBUF"})


def values(odradek, registry, topic, *options, **code):
    done = odradek(
        "record", "consume", topic, "--value-format", "registry", "--registry", registry.url, "--json", *options, **code
    )
    return [json.loads(line) for line in done.out.splitlines()], done.err


def test_avro_with_a_reference(odradek, broker, topic, registry, stdin):
    schema_id = add_avro(registry, f"{topic}-value")
    stdin('{"id": 7, "unit": "M"}\n{"id": "x", "unit": "M"}\n')
    produce = ["record", "produce", topic, "--value-format", "registry", "--registry", registry.url]
    failed = odradek(*produce, code=1)
    assert failed.err.startswith("odradek: line 2: value: the value does not fit the Avro schema")
    stored = odradek("record", "consume", topic, "--value-format", "hex").out
    assert stored == f"00{schema_id:08x}0e02\n"
    [document], error = values(odradek, registry, topic, "--strict", "--filter", "value.id == 7")
    assert (document["value"], error) == ({"id": 7, "unit": "M"}, "")


def test_a_dry_run_registers_nothing(odradek, broker, topic, registry, stdin, tmp_path):
    file = tmp_path / "order.avsc"
    file.write_text('{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}')
    produce = ["record", "produce", topic, "--value-format", "registry", "--registry", registry.url]
    with_file = [*produce, "--value-schema", str(file)]
    stdin('{"id": 7}\n{"id": "x"}\n')
    planned = odradek(*with_file, "--dry-run", code=1)
    assert planned.out == f"1 record would be produced to {topic}, 1 would fail\n"
    assert planned.err.startswith("odradek: line 2: value: the value does not fit the Avro schema")
    assert registry.subjects == {} and registry.requests == [f"POST /subjects/{topic}-value"]
    stdin('{"id": 7}\n')
    odradek(*with_file)
    registry.requests.clear()
    for arguments in (with_file, produce):
        stdin('{"id": 7}\n')
        assert odradek(*arguments, "--dry-run").out == f"1 record would be produced to {topic}\n"
    assert registry.requests == [f"POST /subjects/{topic}-value", f"GET /subjects/{topic}-value/versions/latest"]
    file = file.with_suffix(".proto")
    file.write_text(PROTO)
    refused = odradek(*produce, "--value-schema", str(file), "--dry-run", code=2).err
    assert f"the schema is not registered in {topic}-value" in refused
    assert odradek("record", "consume", topic, "--value-format", "hex").out == f"00{1:08x}0e\n"


def test_protobuf_and_its_nested_types(odradek, broker, topic, registry, stdin):
    schema_id = add_protobuf(registry, f"{topic}-value")
    stdin('{"id": "5", "time": "2026-01-31T12:00:00Z"}\n')
    produce = ["record", "produce", topic, "--value-format", "registry", "--registry", registry.url]
    odradek(*produce, "--value-message", "shop.Order")
    stdin('{"id": 3}\n')
    odradek(*produce)
    header = b"\0" + schema_id.to_bytes(4, "big")
    with CLIENT.Producer(broker.bootstrap_servers, ProducerOptions()) as producer:
        # [1, 0]: the type Line in the type Order.
        producer.produce(topic, [Message(header + b"\x04\x02\x00" + b"\x0a\x01s"), Message(header + b"\x02\x0e")])
    found, error = values(odradek, registry, topic)
    order, other, line = [document["value"] for document in found[:3]]
    assert order == {"id": "5", "time": "2026-01-31T12:00:00Z"}
    assert (other, line) == ({"id": 3}, {"sku": "s"})
    assert found[3]["errors"] == ["value: default has no message type 7"]
    assert json.loads(error)["error"]["message"].endswith("default has no message type 7")
    stored = odradek("record", "consume", topic, "--value-format", "hex", "-n", "2").out.split()
    assert [row[10:16] for row in stored] == ["020208", "000803"]


def test_a_schema_file_is_registered(odradek, topic, registry, stdin, tmp_path):
    file = tmp_path / "order.avsc"
    file.write_text(json.dumps({"type": "map", "values": "int"}))
    schema = tmp_path / "key.json"
    schema.write_text('{"type": "object"}')
    stdin('{"k": 1}|{"a": 2}\n')
    options = ["--value-format", "registry", "--value-schema", str(file), "--key-format", "registry"]
    odradek("record", "produce", topic, *options, "--key-schema", str(schema), "--registry", registry.url, "-K", "|")
    assert registry.subjects == {f"{topic}-key": [1], f"{topic}-value": [2]}
    assert registry.schemas[0]["schemaType"] == "JSON" and "schemaType" not in registry.schemas[1]
    [document], _ = values(odradek, registry, topic, "--key-format", "registry")
    assert (document["key"], document["value"]) == ({"k": 1}, {"a": 2})
    file = file.rename(tmp_path / "order.txt")
    options = ["--value-format", "registry", "--value-schema", str(file), "--registry", registry.url]
    refused = odradek("record", "produce", topic, *options, code=2)
    assert refused.err.endswith("order.txt: the name of a schema file ends with .avsc, .proto or .json\n")


def test_each_schema_is_requested_once(odradek, broker, topic, registry):
    header = b"\0" + registry.add("any", {"schema": '"long"'}).to_bytes(4, "big")
    with CLIENT.Producer(broker.bootstrap_servers, ProducerOptions()) as producer:
        records = [header + b"\x02", header + b"\x04", b"\0\0\0\0\x63\0", b"\0\0\0\0\x63\0", b"plain"]
        producer.produce(topic, [Message(value) for value in records])
    found, error = values(odradek, registry, topic, "--strict", code=1)
    assert [document.get("value") for document in found[:2]] == [1, 2]
    assert [document.get("errors") for document in found[2:]] == [
        ["value: the registry has no schema 99"],
        ["value: the registry has no schema 99"],
        ["value: it does not begin with a zero byte and the id of a schema"],
    ]
    assert json.loads(error)["error"]["message"].startswith("3 records could not be decoded")
    assert registry.requests == ["GET /schemas/ids/1", "GET /schemas/ids/99"]


def test_registries_that_refuse_or_do_not_answer(odradek, topic, registry, stdin):
    produce = ["record", "produce", topic, "--value-format", "registry", "--registry"]
    missing = odradek(*produce, registry.url, code=2)
    assert missing.err == f"odradek: the registry has no subject {topic}-value; give a schema file to register it\n"
    refused = odradek(*produce, registry.url.replace("secret", "other"), code=1)
    assert refused.err.endswith(f"/subjects/{topic}-value/versions/latest: 401 Unauthorized\n")
    assert "secret" not in refused.err and "other" not in refused.err
    down = odradek(*produce, "http://127.0.0.1:1", code=1)
    assert down.err == "odradek: schema registry http://127.0.0.1:1 does not answer: Connection refused\n"
    assert "this is no http or https URL" in odradek(*produce, "registry", code=2).err
