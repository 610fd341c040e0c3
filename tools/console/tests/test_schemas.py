import json

import pytest

from odradek.protocol.batches.record_reader import Record
from odradek.tools.console.app import make_app
from odradek.tools.console.console import Console
from odradek.tools.console.records.decoding import HEX, JSON, show
from odradek.tools.console.records.schemas import PAUSE_S, SchemaDecoder, Schemas, read_schema_files
from odradek.tools.console.settings import ConsoleSettings, SchemaFile
from odradek.tools.records.errors import RegistryError
from odradek.tools.records.registered import RegisteredDecoder
from odradek.tools.records.registry import RegisteredSchema, add_schema_id
from odradek.tools.records.tests.messages import make_descriptor_set, make_proto_file

SCHEMA = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}


class FakeRegistry:
    def __init__(self):
        self.requests = 0
        self.is_down = False

    def fetch(self, schema_id):
        self.requests += 1
        if self.is_down:
            raise RegistryError("schema registry http://registry does not answer: refused")
        return RegisteredSchema(7, "AVRO", json.dumps(SCHEMA)) if schema_id == 7 else None


@pytest.fixture
def registry():
    return FakeRegistry()


@pytest.fixture
def now():
    return [0.0]


@pytest.fixture
def schemas(registry, now):
    return SchemaDecoder(RegisteredDecoder(registry).decode, lambda: now[0])


def test_a_value_with_a_schema(schemas, registry):
    data = add_schema_id(7, b"\x54")
    content = show(data, schema=schemas)
    assert (content.kind, content.text, content.note) == (JSON, '{\n  "id": 42\n}', "schema 7")
    assert content.size_bytes == len(data)
    show(data, schema=schemas)
    assert registry.requests == 1


def test_other_contents_are_shown_as_stored(schemas, registry):
    assert show(b"text", schema=schemas).text == "text"
    assert show(b"\x00\x01", schema=schemas).kind == HEX
    assert registry.requests == 0
    unknown = show(add_schema_id(8, b"\x54"), schema=schemas)
    assert (unknown.kind, unknown.note) == (HEX, "cannot be decoded: the registry has no schema 8")
    damaged = show(add_schema_id(7, b"\xff"), schema=schemas)
    assert damaged.kind == HEX and damaged.note.startswith("cannot be decoded: ")


def test_a_registry_that_does_not_answer_is_asked_again_after_a_pause(schemas, registry, now):
    registry.is_down = True
    for _ in range(3):
        content = show(add_schema_id(7, b"\x54"), schema=schemas)
        assert content.kind == HEX and "does not answer" in content.note
    assert registry.requests == 1
    registry.is_down = False
    now[0] += PAUSE_S
    assert show(add_schema_id(7, b"\x54"), schema=schemas).kind == JSON


def test_the_page_of_a_record_decodes_it(schemas, monkeypatch):
    def fail():
        raise AssertionError

    console = Console(fail, "", ConsoleSettings(), schemas=Schemas(schemas))
    record = Record(5, 0, None, add_schema_id(7, b"\x54"), ())
    monkeypatch.setattr(console, "read_now", lambda work: (record, False))
    text = make_app(console).test_client().get("/topics/t/records/0/5").get_data(as_text=True)
    assert "schema 7" in text and "&#34;id&#34;: 42" in text


def test_schemas_of_files_are_preferred_to_the_registry(schemas, registry, tmp_path):
    avro, protobuf = tmp_path / "order.avsc", tmp_path / "shop.desc"
    avro.write_text(json.dumps(SCHEMA))
    protobuf.write_bytes(make_descriptor_set(make_proto_file()))
    files = [
        SchemaFile("orders", False, avro),
        SchemaFile("orders", True, protobuf),
        SchemaFile("lines", False, protobuf, "shop.Order"),
    ]
    found = Schemas(schemas, read_schema_files(files))
    orders, lines = found.find("orders"), found.find("lines")
    value = show(b"\x54", schema=orders.value)
    assert (value.kind, value.text, value.note, value.size_bytes) == (JSON, '{\n  "id": 42\n}', "schema order.avsc", 1)
    key = show(b"\x08\x07", schema=orders.key)
    assert (key.text, key.note) == ('{\n  "id": 7\n}', "schema shop.Other")
    assert show(b"\x12\x01x", schema=lines.value).text == '{\n  "unit_note": "x"\n}'
    assert lines.key is schemas and found.find("other") == (schemas, schemas)
    damaged = show(b"\xff", schema=orders.value)
    assert damaged.kind == HEX and damaged.note.startswith("cannot be decoded: ")
    assert show(None, schema=orders.value).kind == "null" and registry.requests == 0
