from decimal import Decimal

import pytest
from google.protobuf import descriptor_pb2  # type: ignore[import-untyped]
from pyspark.sql import Row
from pyspark.sql import types as t

from odradek.spark_it.formats.format import FormatError, make_format
from odradek.spark_it.formats.protobuf import (
    find_descriptor,
    find_mismatches,
    make_decoder,
    make_encoder,
    to_spark_type,
)
from spark_it.tests import messages
from spark_it.tests.unit.support import CONSOLE, pipeline

SET = messages.descriptors()
ORDER = "shop.Order"
FULL = {
    "i32": -5, "i64": -(2**63), "u32": 2**32 - 1, "u64": Decimal(2**64 - 1), "ok": True, "f": 0.5, "d": 1e300,
    "s": "Grüße", "b": b"\x00\xff", "kind": "RETAIL", "tags": ["x", "y"], "kinds": ["UNKNOWN", "RETAIL"],
    "lines": [{"sku": "a", "n": 1}], "counts": {7: 8}, "by_name": {"k": {"sku": "b", "n": 2}},
    "line": {"sku": "", "n": 0}, "placed": -1, "wrapped": 0, "note": "", "card": None, "cash": 3,
}  # fmt: skip
NOTHING = {
    "i32": 0, "i64": 0, "u32": 0, "u64": Decimal(0), "ok": False, "f": 0.0, "d": 0.0, "s": "", "b": b"",
    "kind": "UNKNOWN", "tags": [], "kinds": [], "lines": [], "counts": {}, "by_name": {}, "line": None, "placed": None,
    "wrapped": None, "note": None, "card": None, "cash": None,
}  # fmt: skip


def full_message():
    order = messages.classes()[ORDER](
        i32=-5, i64=-(2**63), u32=2**32 - 1, u64=2**64 - 1, ok=True, f=0.5, d=1e300, s="Grüße", b=b"\x00\xff",
        kind=1, tags=["x", "y"], kinds=[0, 1], counts={7: 8}, note="", cash=3,
    )  # fmt: skip
    order.lines.add(sku="a", n=1)
    order.by_name["k"].sku = "b"
    order.by_name["k"].n = 2
    order.line.SetInParent()
    order.placed.FromMicroseconds(-1)
    order.wrapped.SetInParent()
    return order


def row(value):
    """Plain values as the Row that Spark passes to Python."""
    return Row(**{key: row(one) if key in ("line",) and one is not None else one for key, one in value.items()})


def test_types():
    assert to_spark_type(find_descriptor(SET, ORDER)).simpleString() == messages.ORDER_TYPE


def test_a_message_of_each_kind_of_field_is_read_and_written():
    data = full_message().SerializeToString(deterministic=True)
    assert make_decoder(SET, ORDER)(data) == FULL
    assert make_encoder(SET, ORDER)(row(FULL)) == data


def test_absent_fields_are_null_only_if_they_have_presence():
    assert make_decoder(SET, ORDER)(b"") == NOTHING
    assert make_encoder(SET, ORDER)(row(NOTHING)) == b""
    assert make_encoder(SET, ORDER)(row(dict.fromkeys(NOTHING))) == b""


def test_a_value_that_an_enum_does_not_name_is_its_number():
    data = messages.classes()[ORDER](kind=9).SerializeToString()
    assert make_decoder(SET, ORDER)(data)["kind"] == "9"
    assert make_encoder(SET, ORDER)(Row(kind="9")) == data


@pytest.mark.parametrize("data", [b"\xff" * 12, b"\x42\x05ab", b"\x42\x02\xff\xfe"])
def test_bytes_that_are_not_a_message(data):
    with pytest.raises(ValueError, match=r"this is not a message shop\.Order"):
        make_decoder(SET, ORDER)(data)


def test_a_timestamp_outside_sparks_range_is_a_bad_record():
    # Spark fails at such a number, whatever errors.tolerance is.
    for seconds in (2**62, -(2**62)):
        order = messages.classes()[ORDER]()
        order.placed.seconds = seconds
        with pytest.raises(ValueError, match=f"{seconds} s is outside Spark's range of timestamps"):
            make_decoder(SET, ORDER)(order.SerializeToString())


def test_required_fields_of_proto2():
    file = descriptor_pb2.FileDescriptorProto(name="old.proto", syntax="proto2")
    file.message_type.add(name="Old").field.add(name="a", number=1, type=5, label=2)
    old = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    assert make_decoder(old, "Old")(b"\x08\x05") == {"a": 5}
    with pytest.raises(ValueError, match="required"):
        make_decoder(old, "Old")(b"")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"kind": "HUGE"}, "Order.kind is HUGE, which is not in enum Kind"),
        ({"card": "x", "cash": 1}, "has card and cash, of which a message has one"),
        ({"tags": ["a", None]}, "Order.tags contains null"),
        ({"u32": -1}, "range|negative|-1"),
        ({"u64": Decimal(2**64)}, "range|large|int"),
    ],
)
def test_values_that_do_not_fit_a_message(given, said):
    with pytest.raises(Exception, match=said):
        make_encoder(SET, ORDER)(Row(**given))


def test_columns_that_do_not_fit_a_message():
    wanted = to_spark_type(find_descriptor(SET, ORDER))
    columns = t.StructType(
        [
            t.StructField("i32", t.LongType()),
            t.StructField("d", t.FloatType()),
            t.StructField("u64", t.LongType()),
            t.StructField("lines", t.ArrayType(t.StructType([t.StructField("sku", t.BinaryType())]))),
            t.StructField("more", t.StringType()),
        ]
    )
    assert [*find_mismatches(columns, wanted, "the row")] == [
        "the row.i32: bigint cannot be written where the message has int",
        "the row.lines[].sku: binary cannot be written where the message has string",
        "the row: the message has no field more",
    ]
    assert [*find_mismatches(wanted, wanted, "the row")] == []


@pytest.mark.parametrize(
    ("descriptors", "message", "said"),
    [
        (b"garbage", ORDER, "this is not a descriptor set"),
        (SET, "Order", r"there is no message Order; there are .*shop\.Order"),
        (SET, "shop.Tree", r"Tree\.left is a shop\.Tree, which contains itself"),
        (SET, "shop.Empty", "has no fields"),
        (messages.descriptors(with_imports=False), ORDER, "was --include_imports given"),
    ],
)
def test_invalid_files_and_unknown_messages(descriptors, message, said):
    with pytest.raises(FormatError, match=said):
        to_spark_type(find_descriptor(descriptors, message))


def test_a_file(tmp_path):
    keys = 'value.format = "protobuf"\nvalue.schema = "shop.desc"\nvalue.message = "shop.Line"\n'
    text = f'name = "p"\n[source.s]\nconnector = "topic"\ntopics = "in"\n{keys}{CONSOLE}'
    (tmp_path / "shop.desc").write_bytes(SET)
    one = pipeline(text, folder=tmp_path)
    made = make_format(one.sources["s"].get_part_format("value"), one, "in", "value")
    assert made.schema().simpleString() == "struct<sku:string,n:int>"
    (tmp_path / "shop.desc").write_bytes(b"\xff")
    with pytest.raises(FormatError, match=r"shop\.desc: this is not a descriptor set"):
        make_format(one.sources["s"].get_part_format("value"), one, "in", "value")
