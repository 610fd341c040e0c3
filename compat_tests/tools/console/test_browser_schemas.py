"""Records with a schema in headless Chromium: JSON, Avro and Protobuf, from a schema registry and from files."""

import io
import json

import fastavro
import pytest
from confluent_kafka import Producer

from compat_tests.tools.console.page_checks import check_page, tab_to
from compat_tests.tools.fake_registry import serving_registry
from odradek.tools.console.settings import SchemaFile
from odradek.tools.records.registry import add_schema_id
from odradek.tools.records.tests.messages import make_descriptor_set, make_proto_file

pytestmark = [pytest.mark.side_by_side]

AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "unit", "type": "string"}],
}
ORDER = {"id": 42, "unit": "<b>kg</b>"}
PROTO = 'syntax = "proto3"; package shop;'
LINE = b"\x08\x05\x12\x02kg"


def write_avro():
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(AVRO), ORDER)
    return stream.getvalue()


def read_records(browser):
    """Return the whole values by their keys, with the schema of each."""
    parts = "[...document.querySelectorAll('details')].map(one => [one.querySelector('.part:last-child')])"
    texts = (
        f"{parts}.map(([one]) => [one.querySelector('pre').textContent, one.querySelector('.partname').textContent])"
    )
    return [(json.loads(text), " ".join(note.split())) for text, note in browser.run(texts)]


def test_contents_with_a_schema(browser, start_console, broker, admin, unique, tmp_path):
    (tmp_path / "order.avsc").write_text(json.dumps(AVRO))
    (tmp_path / "shop.desc").write_bytes(make_descriptor_set(make_proto_file()))
    topics = [f"{unique}-{kind}" for kind in ("registry", "avro", "protobuf")]
    for topic in topics:
        admin.create_topic(topic, 1)
    with serving_registry() as registry:
        registry.serialized[PROTO] = make_proto_file().SerializeToString()
        avro = registry.add("a", {"schema": json.dumps(AVRO)})
        protobuf = registry.add("p", {"schema": PROTO, "schemaType": "PROTOBUF"})
        document = registry.add("j", {"schema": '{"type": "object"}', "schemaType": "JSON"})
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        # [1]: the second message type.
        for value in (
            add_schema_id(avro, write_avro()),
            add_schema_id(protobuf, b"\x02\x02" + LINE),
            add_schema_id(document, b'{"id": 7}'),
        ):
            producer.produce(topics[0], value)
        producer.produce(topics[1], write_avro())
        producer.produce(topics[2], LINE)
        producer.flush()
        files = (
            SchemaFile(topics[1], False, tmp_path / "order.avsc"),
            SchemaFile(topics[2], False, tmp_path / "shop.desc", "shop.Order"),
        )
        properties = {"schema.registry.url": registry.url}
        console = start_console(broker.bootstrap_servers, properties, schema_files=files)
        check_page(browser, f"{console.url}/topics/{topics[0]}/records", "records-registry")
        tab_to(browser, "summary")
        browser.press("Enter")
        found = read_records(browser)
        assert [value for value, _ in found] == [{"id": 7}, {"id": "5", "unit_note": "kg"}, ORDER]
        for (_, note), schema_id in zip(found, (document, protobuf, avro), strict=True):
            assert f"schema {schema_id}" in note
        for topic, content, name in (
            (topics[1], ORDER, "order.avsc"),
            (topics[2], {"id": "5", "unit_note": "kg"}, "shop.Order"),
        ):
            check_page(browser, f"{console.url}/topics/{topic}/records", f"records-{name}")
            [(shown, note)] = read_records(browser)
            assert shown == content and f"schema {name}" in note
        assert browser.run("document.querySelectorAll('main b').length") == 0
    assert browser.messages == []
