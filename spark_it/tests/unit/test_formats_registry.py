import json
import socket
import threading
from decimal import Decimal

import pytest
from pyspark.sql import Row

from odradek.spark_it.formats.avro import AvroFormat, make_registry_decoder, make_registry_encoder
from odradek.spark_it.formats.columns import UnavailableError
from odradek.spark_it.formats.format import FormatError
from odradek.spark_it.formats.registry import (
    RegisteredSchema,
    Registry,
    RegistryAddress,
    RegistryError,
    add_schema_id,
    split_schema_id,
)
from spark_it.tests.fake_registry import serving
from spark_it.tests.unit.test_formats_avro import by_fastavro, record

LONG = json.dumps(record("long"))
INT = json.dumps(record("int"))
STRING = json.dumps(record("string"))


@pytest.fixture
def served():
    with serving() as registry:
        yield registry


def client(served, **options):
    return Registry(RegistryAddress(served.url, **options), wait=lambda _: None)


def test_framing():
    # Confluent's documentation: byte 0 is 0, bytes 1 to 4 the id, the most significant first.
    assert add_schema_id(258, b"x") == b"\x00\x00\x00\x01\x02x"
    assert split_schema_id(b"\x00\x00\x00\x01\x02x") == (258, b"x")
    with pytest.raises(ValueError, match="4 bytes are too few"):
        split_schema_id(b"\x00\x00\x00\x01")
    with pytest.raises(ValueError, match="the first byte is 123 and not 0"):
        split_schema_id(b'{"a": 1}')


def test_a_schema_is_fetched_once(served):
    schema_id = served.add(LONG)
    registry = client(served)
    assert [registry.schema(schema_id) for _ in range(3)] == [LONG] * 3
    assert served.asked == [("GET", f"/schemas/ids/{schema_id}")]


def test_an_unknown_id_is_requested_again_only_after_a_while(served):
    now = [0.0]
    registry = Registry(RegistryAddress(served.url), wait=lambda _: None, now=lambda: now[0])
    assert registry.schema(1) is None and registry.schema(1) is None
    assert len(served.asked) == 1
    served.add(LONG)
    now[0] = 31.0
    assert registry.schema(1) == LONG


def test_subjects(served):
    registry = client(served)
    assert registry.fetch_latest("a/b-value") is None
    assert registry.register("a/b-value", LONG) == registry.register("a/b-value", LONG) == 1
    assert registry.register("a/b-value", STRING) == 2
    assert registry.fetch_latest("a/b-value") == RegisteredSchema(2, STRING)
    assert served.asked[0] == ("GET", "/subjects/a%2Fb-value/versions/latest")


def test_a_request_that_the_registry_fails_is_retried(served):
    schema_id = served.add(LONG)
    served.fails = [500, 503, 429]
    assert client(served).schema(schema_id) == LONG
    served.fails = [500] * 50
    with pytest.raises(UnavailableError, match="500 not now"):
        client(served).schema(schema_id)
    assert len(served.asked) == 4 + 5


def test_a_registry_that_cannot_be_reached():
    with serving() as gone:
        address = gone.url
    with pytest.raises(UnavailableError, match="Connection refused"):
        Registry(RegistryAddress(address), wait=lambda _: None).schema(1)


def test_the_next_of_several_addresses_is_tried(served):
    schema_id = served.add(LONG)
    with serving() as gone:
        address = gone.url
    assert Registry(RegistryAddress(f"{address}, {served.url}/")).schema(schema_id) == LONG


def test_user_and_password():
    with serving(user_info="me:secret:x") as served:
        served.add(LONG)
        assert client(served, user_info="me:secret:x").schema(1) == LONG
        with pytest.raises(RegistryError, match="401 Unauthorized") as refused:
            client(served).schema(1)
        assert refused.value.status == 401
        wrong = RegistryAddress(served.url, "me:wrong")
        assert "wrong" not in repr(wrong)
        # Not a fault of the record: it must not become a dead letter.
        with pytest.raises(UnavailableError, match="401"):
            make_registry_decoder(wrong, LONG)(add_schema_id(1, b"\x02"))


def test_user_and_password_in_the_address():
    with serving(user_info="me:s@cret/x") as served:
        served.add(LONG)
        host = served.url.removeprefix("http://")
        address = RegistryAddress.parse(f"http://me:s%40cret%2Fx@{host}/, http://127.0.0.1:1", None)
        assert Registry(address).schema(1) == LONG
        assert RegistryAddress.parse(served.url, "me:s@cret/x") == RegistryAddress(served.url, "me:s@cret/x")
    with pytest.raises(UnavailableError, match=f"http://{host}: .*Connection refused") as gone:
        Registry(RegistryAddress.parse(f"http://me:s%40cret%2Fx@{host}", None), wait=lambda _: None).schema(1)
    assert "cret" not in f"{address} {gone.value}"


def test_an_address_where_no_registry_answers():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            with server.accept()[0] as connection:
                connection.recv(10_000)
                connection.sendall(b"no HTTP\r\n")

        answering = threading.Thread(target=answer)
        answering.start()
        wrong = f"http://127.0.0.1:{server.getsockname()[1]}, http://localhost:port"
        with pytest.raises(UnavailableError, match="nonnumeric port: 'port'"):
            Registry(RegistryAddress(wrong), wait=lambda _: server.close()).schema(1)
        answering.join()


def test_schemas_that_are_not_avro_or_have_references(served):
    served.add("syntax", schemaType="PROTOBUF")
    served.add(STRING, references=[{"name": "x", "subject": "x", "version": 1}])
    with pytest.raises(RegistryError, match="schema 1 is PROTOBUF"):
        client(served).schema(1)
    with pytest.raises(RegistryError, match="refers to other subjects"):
        client(served).schema(2)


def test_records_of_several_writers_are_read_as_one(served):
    old, new = served.add(INT), served.add(LONG)
    read = make_registry_decoder(RegistryAddress(served.url), LONG)
    assert read(add_schema_id(old, by_fastavro(record("int"), {"a": 1}))) == {"a": 1}
    assert read(add_schema_id(new, by_fastavro(record("long"), {"a": 2**40}))) == {"a": 2**40}
    assert read(add_schema_id(old, by_fastavro(record("int"), {"a": 3}))) == {"a": 3}
    with pytest.raises(ValueError, match="the registry has no schema 99"):
        read(add_schema_id(99, b"\x02"))
    unreadable = served.add(json.dumps({"type": "record"}))
    with pytest.raises(ValueError, match="is not an Avro schema"):
        read(add_schema_id(unreadable, b"\x02"))
    assert len(served.asked) == 4


def test_a_written_record_is_read_back(served):
    write = make_registry_encoder(LONG, served.add(LONG))
    assert make_registry_decoder(RegistryAddress(served.url), LONG)(write(Row(a=5))) == {"a": 5}


def test_a_record_as_confluents_serializer_writes_it(served):
    # confluent-kafka 2.16, AvroSerializer: {"id": 7, "d": Decimal("-1.25"), "ts": 2026-01-01 in UTC}, schema 1.
    theirs = b"\x00\x00\x00\x00\x01\x0e\x02\x83\x02\x80\x80\x82\xe2\x88\xd2\xa3\x06"
    schema = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "d", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}},
            {"name": "ts", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
        ],
    }
    text = json.dumps(schema)
    schema_id = served.add(text)
    value = {"id": 7, "d": Decimal("-1.25"), "ts": 1_767_225_600_000_000}
    assert make_registry_decoder(RegistryAddress(served.url), text)(theirs) == value
    assert make_registry_encoder(text, schema_id)(Row(**value)) == theirs


def made(served, schema=None, subject="orders-value"):
    return AvroFormat(schema, RegistryAddress(served.url), subject, "orders_value")


def test_the_default_schema_is_the_newest_of_the_subject(served):
    with pytest.raises(FormatError, match="has no subject orders-value; register"):
        made(served).schema()
    served.add(INT, "orders-value")
    served.add(STRING, "orders-value")
    assert made(served).schema().simpleString() == "struct<a:string>"
    with pytest.raises(FormatError, match="needs a subject or a schema"):
        made(served, subject=None).schema()
    assert made(served, LONG, None).schema().simpleString() == "struct<a:bigint>"
