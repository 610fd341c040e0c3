import json

import pytest

from odradek.protocol.batches.record_reader import Record
from odradek.tools.console.app import make_app
from odradek.tools.console.console import Console
from odradek.tools.console.records.decoding import HEX, JSON, show
from odradek.tools.console.records.schemas import PAUSE_S, SchemaDecoder
from odradek.tools.console.settings import ConsoleSettings
from odradek.tools.records.errors import RegistryError
from odradek.tools.records.registered import RegisteredDecoder
from odradek.tools.records.registry import RegisteredSchema, add_schema_id

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
    content = show(data, schemas=schemas)
    assert (content.kind, content.text, content.note) == (JSON, '{\n  "id": 42\n}', "schema 7")
    assert content.size_bytes == len(data)
    show(data, schemas=schemas)
    assert registry.requests == 1


def test_other_contents_are_shown_as_stored(schemas, registry):
    assert show(b"text", schemas=schemas).text == "text"
    assert show(b"\x00\x01", schemas=schemas).kind == HEX
    assert registry.requests == 0
    unknown = show(add_schema_id(8, b"\x54"), schemas=schemas)
    assert (unknown.kind, unknown.note) == (HEX, "cannot be decoded: the registry has no schema 8")
    damaged = show(add_schema_id(7, b"\xff"), schemas=schemas)
    assert damaged.kind == HEX and damaged.note.startswith("cannot be decoded: ")


def test_a_registry_that_does_not_answer_is_asked_again_after_a_pause(schemas, registry, now):
    registry.is_down = True
    for _ in range(3):
        content = show(add_schema_id(7, b"\x54"), schemas=schemas)
        assert content.kind == HEX and "does not answer" in content.note
    assert registry.requests == 1
    registry.is_down = False
    now[0] += PAUSE_S
    assert show(add_schema_id(7, b"\x54"), schemas=schemas).kind == JSON


def test_the_page_of_a_record_decodes_it(schemas, monkeypatch):
    def fail():
        raise AssertionError

    console = Console(fail, "", ConsoleSettings(), schemas=schemas)
    record = Record(5, 0, None, add_schema_id(7, b"\x54"), ())
    monkeypatch.setattr(console, "read_now", lambda work: (record, False))
    text = make_app(console).test_client().get("/topics/t/records/0/5").get_data(as_text=True)
    assert "schema 7" in text and "&#34;id&#34;: 42" in text
