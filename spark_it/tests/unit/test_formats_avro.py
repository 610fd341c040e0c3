import io
import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import fastavro
import pytest
from pyspark.sql import Row
from pyspark.sql import types as t

from odradek.spark_it.formats.avro_codec import make_decoder, make_encoder
from odradek.spark_it.formats.avro_types import find_mismatches, parse_schema_text, to_avro_schema, to_spark_type
from odradek.spark_it.formats.format import FormatError, make_format
from spark_it.tests.unit.support import CONSOLE, pipeline

NOON = datetime(2026, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)
NOON_MICROS = 1_767_268_800_123_456

# (schema, Spark's type, value for fastavro and its logical types, value of our codec)
VALUES = [
    ("boolean", "boolean", True, True),
    ("int", "int", -(2**31), -(2**31)),
    ("long", "bigint", 2**63 - 1, 2**63 - 1),
    ("float", "float", 0.5, 0.5),
    ("double", "double", 1e300, 1e300),
    ("bytes", "binary", b"\x00\xff", b"\x00\xff"),
    ("string", "string", "Grüße", "Grüße"),
    ({"type": "fixed", "name": "F", "size": 2}, "binary", b"ab", b"ab"),
    ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "string", "B", "B"),
    ({"type": "array", "items": ["null", "int"]}, "array<int>", [1, None], [1, None]),
    ({"type": "map", "values": "long"}, "map<string,bigint>", {"k": 7}, {"k": 7}),
    (["null", "string"], "string", None, None),
    (["string", "null"], "string", "x", "x"),
    (["int", "null", "long"], "bigint", 5, 5),
    (["float", "double"], "double", 0.5, 0.5),
    ({"type": "int", "logicalType": "date"}, "date", date(1969, 12, 31), -1),
    ({"type": "long", "logicalType": "timestamp-micros"}, "timestamp", NOON, NOON_MICROS),
    ({"type": "long", "logicalType": "timestamp-millis"}, "timestamp", NOON, NOON_MICROS - 456),
    (
        {"type": "long", "logicalType": "local-timestamp-micros"},
        "timestamp_ntz",
        NOON.replace(tzinfo=None),
        NOON_MICROS,
    ),
    (
        {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2},
        "decimal(12,2)",
        Decimal("-128.00"),
        Decimal("-128.00"),
    ),
    (
        {"type": "fixed", "name": "D", "size": 16, "logicalType": "decimal", "precision": 38, "scale": 10},
        "decimal(38,10)",
        Decimal("1234567890123456789012345678.0123456789"),
        Decimal("1234567890123456789012345678.0123456789"),
    ),
    ({"type": "string", "logicalType": "no-such-type"}, "string", "x", "x"),
    ({"type": "string", "logicalType": "uuid"}, "string", None, "c0ffee00-0000-4000-8000-000000000000"),
    ({"type": "int", "logicalType": "time-millis"}, "int", None, 86_399_999),
    ({"type": "long", "logicalType": "time-micros"}, "bigint", None, 86_399_999_999),
]


def record(of, **more):
    return {"type": "record", "name": "R", "fields": [{"name": "a", "type": of, **more}]}


def by_fastavro(schema, value):
    target = io.BytesIO()
    parsed_schema = fastavro.parse_schema(schema)
    fastavro.schemaless_writer(target, parsed_schema, value)
    return target.getvalue()


@pytest.mark.parametrize(("schema", "of_spark", "given", "value"), VALUES)
def test_a_value_of_each_type_is_read_and_written(schema, of_spark, given, value):
    schema = record(schema)
    text = json.dumps(schema)
    of_row = to_spark_type(parse_schema_text(text, "S"), "S")
    assert of_row.simpleString() == f"struct<a:{of_spark}>"
    ours = make_encoder(text)(Row(a=value))
    assert make_decoder(text)(ours) == {"a": value}
    if given is not None or value is None:
        assert make_decoder(text)(by_fastavro(schema, {"a": given})) == {"a": value}
        assert ours == by_fastavro(schema, {"a": given})
    assert not [*find_mismatches(of_row, parse_schema_text(text, "S"), "row")]


def test_nested_records_and_references_to_named_types():
    point = {"type": "record", "name": "P", "namespace": "geo", "fields": [{"name": "x", "type": "int"}]}
    schema = record({"type": "array", "items": point})
    schema["fields"].append({"name": "b", "type": ["null", "geo.P"]})
    text = json.dumps(schema)
    assert (
        to_spark_type(parse_schema_text(text, "S"), "S").simpleString()
        == "struct<a:array<struct<x:int>>,b:struct<x:int>>"
    )
    data = make_encoder(text)(Row(a=[Row(x=1), Row(x=2)], b=Row(x=3)))
    assert make_decoder(text)(data) == {"a": [{"x": 1}, {"x": 2}], "b": {"x": 3}}


GOOD = json.dumps(record("string"))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "truncated"),
        (b"\x06ab", "truncated"),
        (b"\x84", "truncated"),
        (b"\x04ab!", "1 bytes remain"),
        (b"\x04\xff\xfe", "not UTF-8"),
        (b"\x03", "truncated|negative"),
        (b"\xff" * 20, "."),
    ],
)
def test_bytes_that_are_not_a_record(data, said):
    with pytest.raises(Exception, match=said):
        make_decoder(GOOD)(data)


def test_values_that_no_type_of_spark_can_hold_are_errors():
    decimal = json.dumps(record({"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 0}))
    with pytest.raises(ValueError, match="more than the 2 digits"):
        make_decoder(decimal)(by_fastavro(record("bytes"), {"a": b"\x64"}))
    millis = json.dumps(record({"type": "long", "logicalType": "timestamp-millis"}))
    with pytest.raises(ValueError, match="outside Spark's range of timestamps"):
        make_decoder(millis)(by_fastavro(record("long"), {"a": 2**62}))
    # Spark fails when it converts such a number to a TIMESTAMP_NTZ.
    local = json.dumps(record({"type": "long", "logicalType": "local-timestamp-micros"}))
    with pytest.raises(ValueError, match="1000000000000000000 µs is outside Spark's range"):
        make_decoder(local)(by_fastavro(record("long"), {"a": 10**18}))
    assert make_decoder(local)(by_fastavro(record("long"), {"a": 1 - 10**18})) == {"a": 1 - 10**18}
    enum = json.dumps(record({"type": "enum", "name": "E", "symbols": ["A"]}))
    with pytest.raises(ValueError, match="outside of its schema"):
        make_decoder(enum)(by_fastavro(record("int"), {"a": 1}))


@pytest.mark.parametrize(
    ("of", "data"),
    [
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, b"\x01"),
        (["null", "int"], b"\x01\x02"),
        (["null", "int"], b"\x03"),
        ({"type": "array", "items": ["null", "int"]}, b"\x02\x01\x02\x00"),
    ],
)
def test_a_negative_number_of_a_branch_is_an_error(of, data):
    with pytest.raises(ValueError, match="has an index outside of its schema"):
        make_decoder(json.dumps(record(of)))(data)
    more = record(of)
    more["fields"].append({"name": "z", "type": "int", "default": 0})
    with pytest.raises(ValueError, match="has an index outside of its schema"):
        make_decoder(json.dumps(record(of)), json.dumps(more))(data)


def test_a_date_outside_pythons_range_is_its_number_of_days():
    days = json.dumps(record({"type": "int", "logicalType": "date"}))
    assert make_decoder(days)(by_fastavro(record("int"), {"a": 2**31 - 1})) == {"a": 2**31 - 1}


def test_a_record_of_an_older_schema_is_read_with_the_newer_one():
    old = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}, {"name": "gone", "type": "string"}]}
    new = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "amount", "type": "long", "aliases": ["n"]},
            {"name": "note", "type": "string", "default": "none"},
            {"name": "mark", "type": "bytes", "default": "\u00ff"},
            {
                "name": "price",
                "type": {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
                "default": "\u0001\u0000",
            },
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}, "default": 5},
            {"name": "in", "type": record({"type": "long", "logicalType": "timestamp-millis"}) | {"name": "I"},
             "default": {"a": 7}},
        ],
    }  # fmt: skip
    read = make_decoder(json.dumps(old), json.dumps(new))
    wanted = {
        "amount": 5, "note": "none", "mark": b"\xff", "price": Decimal("2.56"), "at": 5000, "in": {"a": 7000},
    }  # fmt: skip
    for _ in range(2):  # a read must not change a default
        assert read(by_fastavro(old, {"n": 5, "gone": "x"})) == wanted


def test_the_name_of_the_whole_record_is_not_compared():
    written = {**record("int"), "name": "Order", "namespace": "com.shop"}
    wanted = {**record("long"), "aliases": ["Other"]}
    assert make_decoder(json.dumps(written), json.dumps(wanted))(by_fastavro(written, {"a": 5})) == {"a": 5}
    with pytest.raises(Exception, match="mismatch"):
        make_decoder(json.dumps({"type": "enum", "name": "E", "symbols": ["A"]}), json.dumps(wanted))(b"\x00")


@pytest.mark.parametrize(
    ("of", "data", "value"),
    [
        (lambda enum: enum, b"\x02", "B"),
        (lambda enum: ["null", enum], b"\x02\x02", "B"),
        (lambda enum: {"type": "array", "items": enum}, b"\x02\x02\x00", ["B"]),
        (lambda enum: {"type": "map", "values": ["null", enum]}, b"\x02\x02k\x02\x02\x00", {"k": "B"}),
    ],
)
def test_values_that_are_not_records_are_read_too(of, data, value):
    written, wanted = (of({"type": "enum", "name": "E", "symbols": symbols}) for symbols in (["A", "B"], ["B", "C"]))
    assert make_decoder(json.dumps(written))(data) == value
    assert make_decoder(json.dumps(written), json.dumps(wanted))(data) == value


def test_a_record_that_does_not_fit_the_readers_schema_is_bad():
    read = make_decoder(json.dumps(record("string")), json.dumps(record("int")))
    with pytest.raises(Exception, match="mismatch"):
        read(by_fastavro(record("string"), {"a": "x"}))


def of_time(logical, kind="long"):
    return {"type": kind, "logicalType": logical}


def of_scale(scale):
    return {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": scale}


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        (of_time("timestamp-millis"), of_time("timestamp-micros")),
        (of_time("timestamp-nanos"), of_time("timestamp-micros")),
        (of_time("local-timestamp-nanos"), ["null", of_time("local-timestamp-micros")]),
        (of_time("time-millis", "int"), of_time("time-micros")),
        (["null", of_time("timestamp-millis"), "string"], ["null", of_time("timestamp-micros")]),
        (["null", of_time("time-millis", "int"), "string"], of_time("time-micros")),
        (of_scale(2), ["null", of_scale(3)]),
        (["null", of_scale(3), "string"], of_scale(2)),
    ],
)
def test_values_whose_meaning_would_change_are_not_read(written, wanted):
    number = next(one for one in written if isinstance(one, dict)) if isinstance(written, list) else written
    branch = b"\x02" if isinstance(written, list) else b""
    read = make_decoder(json.dumps(record(written)), json.dumps(record(wanted)))
    with pytest.raises(ValueError, match="was written as"):
        read(branch + by_fastavro(record(number["type"]), {"a": b"\x01" if number["type"] == "bytes" else 1}))


@pytest.mark.parametrize(
    ("written", "wanted", "data", "value"),
    [
        (["null", of_scale(3), of_time("timestamp-micros")], of_time("timestamp-micros"), b"\x04\x0a", 5),
        (of_time("timestamp-nanos"), "long", b"\x0a", 5),
        ("long", of_time("time-micros"), b"\x0a", 5),
        ({"type": "string", "logicalType": "timestamp-millis"}, "string", b"\x02x", "x"),
    ],
)
def test_logical_types_that_do_not_clash(written, wanted, data, value):
    assert make_decoder(json.dumps(record(written)), json.dumps(record(wanted)))(data) == {"a": value}


def stamped(name, unit):
    return {"type": "record", "name": name, "fields": [{"name": "at", "type": of_time(f"timestamp-{unit}")}]}


@pytest.mark.parametrize("before", [stamped("T", "millis"), {"type": "array", "items": stamped("T", "millis")}])
def test_a_type_that_a_skipped_field_defines_is_compared_too(before):
    written = {**record(before), "fields": [{"name": "a", "type": before}, {"name": "b", "type": "T"}]}
    wanted = {**record("T"), "fields": [{"name": "b", "type": stamped("T", "micros")}]}
    with pytest.raises(ValueError, match=r"value\.b\.at was written as timestamp-millis"):
        make_decoder(json.dumps(written), json.dumps(wanted))(b"\x02\x04")


def test_a_record_of_another_name_in_a_union_does_not_clash():
    written = record([stamped("A", "micros"), stamped("B", "millis")])
    read = make_decoder(json.dumps(written), json.dumps(record(stamped("A", "micros"))))
    assert read(b"\x00\x0a") == {"a": {"at": 5}}
    with pytest.raises(Exception, match="mismatch"):
        read(b"\x02\x0a")
    renamed = {**stamped("C", "micros"), "aliases": ["B"]}
    with pytest.raises(ValueError, match="was written as timestamp-millis"):
        make_decoder(json.dumps(written), json.dumps(record(renamed)))(b"\x02\x0a")


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("{", "is not an Avro schema"),
        ('{"type": "record"}', "is not an Avro schema"),
        ('{"type": "record", "name": "R", "fields": [{"name": "a", "type": "Unknown"}]}', "type Unknown is unknown"),
        (json.dumps(record("null")), "S.a is null: Spark has no such type"),
        (json.dumps(record(["int", "string"])), "S.a is a union of int, string"),
        (json.dumps(record(["null", "R"])), "S.a is a R, which contains itself"),
        (
            json.dumps(record({"type": "bytes", "logicalType": "decimal", "precision": 39})),
            "S.a is a decimal of 39 digits: Spark has 38",
        ),
        ("7", "is not an Avro schema"),
    ],
)
def test_invalid_schemas_and_schemas_without_a_counterpart(schema, said):
    with pytest.raises(FormatError, match=said):
        to_spark_type(parse_schema_text(schema, "S"), "S")


@pytest.mark.parametrize(
    ("schema", "value", "said"),
    [
        ("string", None, "value.a is null"),
        ("int", 2**31, "is not of type int"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "C", "value.a is C, which is not in the enum"),
        ({"type": "fixed", "name": "F", "size": 2}, b"abc", "has 3 bytes, but the schema has 2"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 1}, Decimal("100.0"), "cannot store"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 1}, Decimal("1.25"), "cannot store"),
        (
            {"type": "fixed", "name": "D", "size": 1, "logicalType": "decimal", "precision": 2, "scale": 0},
            Decimal("-129"),
            "cannot store",
        ),
        ({"type": "array", "items": "int"}, [None], r"value.a\[\] is null"),
    ],
)
def test_values_that_do_not_fit_a_schema(schema, value, said):
    with pytest.raises(ValueError, match=said):
        make_encoder(json.dumps(record(schema)))(Row(a=value))


@pytest.mark.parametrize(
    ("of", "default", "value"),
    [
        ("int", 3, 3),
        (["null", "int"], None, None),
        ("bytes", "\u00ff", b"\xff"),
        (["bytes", "null"], "a", b"a"),
        ({"type": "fixed", "name": "F", "size": 2}, "\u0000\u00ff", b"\x00\xff"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, "\u0001", Decimal("0.01")),
        ({"type": "array", "items": "bytes"}, ["a"], [b"a"]),
        ({"type": "map", "values": "bytes"}, {"k": "a"}, {"k": b"a"}),
        ({**record("bytes", default="x"), "name": "I"}, {}, {"a": b"x"}),
        ({**record("bytes", default="x"), "name": "I"}, {"a": "y"}, {"a": b"y"}),
    ],
)
def test_a_missing_column_gets_its_default(of, default, value):
    schema = json.dumps(record(of, default=default))
    assert make_decoder(schema)(make_encoder(schema)(Row(other=1))) == {"a": value}


def test_a_schema_is_made_of_columns():
    columns = t.StructType(
        [
            t.StructField("n", t.LongType()),
            t.StructField("price", t.DecimalType(12, 2)),
            t.StructField("at", t.TimestampType()),
            t.StructField("day", t.DateType()),
            t.StructField("tags", t.ArrayType(t.StringType())),
            t.StructField("counts", t.MapType(t.StringType(), t.IntegerType())),
            t.StructField("in", t.StructType([t.StructField("x", t.DoubleType())])),
        ]
    )
    text = json.dumps(to_avro_schema(columns, "orders_value"))
    assert to_spark_type(parse_schema_text(text, "S"), "S") == columns
    nothing = Row(**{field.name: None for field in columns.fields})
    assert make_decoder(text)(make_encoder(text)(nothing)) == nothing.asDict()
    with pytest.raises(FormatError, match="R_iv: interval day to second has no counterpart"):
        to_avro_schema(t.StructType([t.StructField("iv", t.DayTimeIntervalType())]), "R")
    with pytest.raises(FormatError, match=r"column count\(1\) has a name"):
        to_avro_schema(t.StructType([t.StructField("count(1)", t.LongType())]), "R")


def test_columns_that_do_not_fit_a_schema():
    schema = record("int")
    schema["fields"].append({"name": "b", "type": "string", "default": ""})
    of_row = t.StructType([t.StructField("c", t.StringType()), t.StructField("b", t.LongType())])
    assert [*find_mismatches(of_row, parse_schema_text(json.dumps(schema), "S"), "the row")] == [
        "the row: there is no column a, for which the schema has no default",
        "the row.b: bigint cannot be written as string",
        "the row: the schema has no field c",
    ]


def source(*keys):
    return 'name = "p"\n[source.s]\nconnector = "topic"\ntopics = "in"\n' + "\n".join(keys) + "\n" + CONSOLE


def of_value(one):
    settings = one.sources["s"]
    return make_format(settings.get_part_format("value"), one, "in", "value")


def test_a_schema_in_a_file(tmp_path):
    (tmp_path / "r.avsc").write_text(json.dumps(record("long")))
    one = pipeline(source('value.format = "avro"', 'value.schema = "r.avsc"'), folder=tmp_path)
    assert of_value(one).schema().simpleString() == "struct<a:bigint>"
    (tmp_path / "r.avsc").write_text(json.dumps(record("null")))
    with pytest.raises(FormatError, match=r"value\.schema: r\.avsc\.a is null"):
        of_value(one)
    (tmp_path / "r.avsc").unlink()
    with pytest.raises(FormatError, match=r"value\.schema: r\.avsc cannot be read: No such file"):
        of_value(one)


def test_an_invalid_address_of_a_registry():
    one = pipeline(source('value.format = "avro"', 'schema.registry.url = "me:secret@localhost:8081"'))
    with pytest.raises(FormatError, match="= localhost:8081: write http://host:port"):
        of_value(one)


def test_a_timestamp_is_written_in_whole_milliseconds_before_1970_too():
    schema = record({"type": "long", "logicalType": "timestamp-millis"})
    before = datetime(1970, 1, 1, tzinfo=UTC) - timedelta(microseconds=1)
    data = make_encoder(json.dumps(schema))(Row(a=-1))
    found = fastavro.schemaless_reader(io.BytesIO(data), schema, None)
    assert isinstance(found, dict) and found["a"] <= before
