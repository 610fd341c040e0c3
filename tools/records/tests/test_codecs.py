"""Keys and values in each format, and bytes that are invalid in them."""

import io
import json
import sys
from typing import Any

import fastavro
import pytest

from odradek.tools.records.avro import AvroSchema
from odradek.tools.records.decoding import Decoding, PartFormat, make_decoder
from odradek.tools.records.encoding import make_encoder
from odradek.tools.records.errors import InvalidOptionError, UndecodableError, UnencodableError
from odradek.tools.records.json_values import dump_json
from odradek.tools.records.protobuf import DescriptorFiles
from odradek.tools.records.record import Decoded
from odradek.tools.records.tests.messages import make_descriptor_set, make_proto_file, make_record

ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "data", "type": ["null", "bytes", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}, "default": 0},
        {"name": "prices", "type": {"type": "array", "items": "double"}, "default": []},
        {"name": "side", "type": {"type": "enum", "name": "Side", "symbols": ["BUY", "SELL"]}, "default": "BUY"},
        {"name": "next", "type": ["null", "Order"], "default": None},
        {"name": "tags", "type": {"type": "map", "values": ["null", "int"]}, "default": {}},
    ],
}  # fmt: skip


def no_registry():
    raise AssertionError("no registry is needed")


def decoder(name, file=None, message=None):
    return make_decoder(PartFormat(name, file, message), no_registry)


def encoder(name, file=None, message=None):
    return make_encoder(PartFormat(name, file, message), no_registry, "subject")


@pytest.mark.parametrize(
    ("name", "data", "value"),
    [
        ("json", b'{"a":[1,2.5,null,"\xc3\xa9"]}', {"a": [1, 2.5, None, "é"]}),
        ("json", b'"\\ud800"', "\ud800"),
        ("hex", b"\x00\xff", "00ff"),
        ("base64", b"\x00\xff", "AP8="),
        ("int8", b"\xff", -1),
        ("int16", b"\xff\xfe", -2),
        ("int32", b"\x00\x00\x01\x00", 256),
        ("int64", b"\xff" * 8, -1),
        ("uint64", b"\xff" * 8, (1 << 64) - 1),
        ("double", b"\x3f\xf8\0\0\0\0\0\0", 1.5),
        ("float", b"\x7f\x80\0\0", "inf"),
    ],
)
def test_values_are_decoded_and_encoded_again(name, data, value):
    assert decoder(name)(data) == value
    assert encoder(name).encode(value) == data


def test_text_remains_as_stored():
    assert decoder("text") is None
    assert encoder("text").encode_text(b"\xff") == b"\xff"
    assert encoder("text").encode("é") == "é".encode()
    assert encoder("text").encode({"a": 1}) == b'{"a":1}'


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("json", b"{"), ("json", b"NaN"), ("json", b"1e999"), ("json", b"\xff"), ("json", b"[" * 100_000),
        ("int32", b"abc"), ("uint8", b""),
    ],
)  # fmt: skip
def test_invalid_bytes(name, data):
    with pytest.raises(UndecodableError):
        decoder(name)(data)


@pytest.mark.parametrize(
    ("name", "text"),
    [("json", b"{"), ("hex", b"0"), ("base64", b"%"), ("int8", b"200"), ("int8", b"a"), ("hex", b"\xff")],
)
def test_invalid_text(name, text):
    with pytest.raises(UnencodableError):
        encoder(name).encode_text(text)


def test_values_that_are_no_json():
    with pytest.raises(UnencodableError):
        dump_json(float("nan"))


def test_a_format_that_does_not_exist():
    with pytest.raises(InvalidOptionError, match=r"there is no format avr; did you mean avro"):
        decoder("avr")
    with pytest.raises(InvalidOptionError, match=r"there is no format xyz; use text, json"):
        encoder("xyz")
    with pytest.raises(InvalidOptionError, match=r"the format avro needs a schema file"):
        decoder("avro")


def test_avro_is_what_fastavro_reads_and_writes(tmp_path):
    file = tmp_path / "order.avsc"
    file.write_text(json.dumps(ORDER))
    value = {
        "id": 5, "data": "\xff\x00", "at": 1_700_000_000_000, "prices": [1.5, 2], "side": "SELL",
        "next": {"id": 6, "data": None, "at": 0, "prices": [], "side": "BUY", "next": None, "tags": {}},
        "tags": {"a": None, "b": 2},
    }  # fmt: skip
    data = encoder("avro", file).encode(value)
    read: Any = fastavro.schemaless_reader(io.BytesIO(data), fastavro.parse_schema(ORDER), None)
    assert (read["id"], read["data"], read["tags"], read["next"]["id"]) == (5, b"\xff\x00", {"a": None, "b": 2}, 6)
    assert decoder("avro", file)(data) == {**value, "prices": [1.5, 2.0]}
    assert encoder("avro", file).encode(decoder("avro", file)(data)) == data
    tagged = encoder("avro", file).encode({"id": 5, "data": {"string": "a"}})
    read = fastavro.schemaless_reader(io.BytesIO(tagged), fastavro.parse_schema(ORDER), None)
    assert read["data"] == "a"
    for text, reason in (
        (b'{"id": "x"}', "does not fit"),
        (b'{"ids": 1}', "no field ids; did you mean id"),
        (b'{"id": 1, "data": 5}', "fits no type of the union"),
        (b'{"id": 1, "data": "\xe2\x82\xac", "side": "UP"}', "does not fit"),
    ):
        with pytest.raises(UnencodableError, match=reason):
            encoder("avro", file).encode_text(text)
    for damaged in (data[:-1], data + b"\0", b"", b"\xff" * 20):
        with pytest.raises(UndecodableError):
            decoder("avro", file)(damaged)


def test_avro_references_and_numbers_without_json():
    main = {
        "type": "record",
        "name": "shop.Prices",
        "fields": [{"name": name, "type": {"type": "array", "items": "Price"}} for name in ("old", "new")],
    }
    price = {"type": "record", "name": "Price", "namespace": "shop", "fields": [{"name": "value", "type": "double"}]}
    schema = AvroSchema(json.dumps(main), [json.dumps(price)])
    value = {"old": [{"value": "NaN"}, {"value": "-Infinity"}], "new": [{"value": 2.0}]}
    assert schema.decode(schema.encode(value)) == value


@pytest.mark.parametrize("text", ["{", '{"type": "record"}', '"unknown.Name"', "5"])
def test_invalid_avro_schemas(tmp_path, text):
    file = tmp_path / "a.avsc"
    file.write_text(text)
    with pytest.raises(InvalidOptionError, match=r"a\.avsc: invalid Avro schema"):
        decoder("avro", file)


def test_protobuf_with_a_descriptor_set(tmp_path):
    file = tmp_path / "orders.binpb"
    file.write_bytes(make_descriptor_set(make_proto_file(dependency=["google/protobuf/timestamp.proto"])))
    value = {"id": "5", "unit_note": "é", "time": "2026-01-31T12:00:00Z"}
    data = encoder("protobuf", file, "shop.Order").encode(value)
    assert decoder("protobuf", file, "shop.Order")(data) == value
    assert decoder("protobuf", file)(encoder("protobuf", file).encode({"id": 4})) == {"id": 4}
    with pytest.raises(UndecodableError, match=r"this is no message shop\.Order"):
        decoder("protobuf", file, "shop.Order")(b"\xff")
    for text in (b'{"ids": 4}', b"[]", b'{"id": "x"}'):
        with pytest.raises(UnencodableError):
            encoder("protobuf", file).encode_text(text)
    with pytest.raises(InvalidOptionError, match=r"there is no message shop\.Ordr; did you mean shop\.Order"):
        decoder("protobuf", file, "shop.Ordr")
    file.write_bytes(b"message Order {}")
    with pytest.raises(InvalidOptionError, match="this is no descriptor set"):
        decoder("protobuf", file)
    file.write_bytes(make_descriptor_set(make_proto_file(dependency=["other.proto"])))
    with pytest.raises(InvalidOptionError, match="was --include_imports given"):
        decoder("protobuf", file)


def test_indexes_of_message_types():
    files = DescriptorFiles([make_proto_file()])
    assert files.find_by_index([1, 0]).name == "shop.Order.Line"
    assert (files.find_index("shop.Other"), files.find_index("shop.Order.Line")) == ([0], [1, 0])
    for indexes in ([5], [0, 1]):
        with pytest.raises(UndecodableError):
            files.find_by_index(indexes)


def test_a_package_that_is_not_installed(monkeypatch, tmp_path):
    for name, module in (("avro", "fastavro"), ("protobuf", "google.protobuf")):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(InvalidOptionError, match=rf"needs the package {module}: pip install 'odradek\[schemas\]'"):
            decoder(name, tmp_path / "schema")


def test_undecodable_records_remain_as_stored_and_are_counted():
    decoding = Decoding(decoder("int8"), decoder("json"))
    good = decoding.decode(make_record(b"\x05", b"null"))
    assert (good.key, good.value, good.errors) == (Decoded(5), Decoded(None), ())
    assert decoding.decode(make_record(None, None)).errors == ()
    bad = decoding.decode(make_record(b"ab", b"{"))
    assert (bad.key, bad.value, len(bad.errors)) == (b"ab", b"{", 2)
    decoding.decode(make_record(b"\x05", b"}"))
    assert decoding.failures == 2
    assert decoding.first_failure == "orders-2 offset 7: key: 2 bytes are no int8, which has 1"
