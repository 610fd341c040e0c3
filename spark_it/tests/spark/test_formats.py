"""Avro and Protobuf in Spark: columns decoded from bytes and encoded to bytes."""

import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import functions as f
from pyspark.sql import types as t

from odradek.spark_it.formats.avro import AvroFormat, make_registry_decoder
from odradek.spark_it.formats.format import FormatError
from odradek.spark_it.formats.protobuf import ProtobufFormat
from odradek.spark_it.formats.registry import RegistryAddress
from spark_it.tests import messages
from spark_it.tests.fake_registry import serving
from spark_it.tests.unit.test_formats_avro import by_fastavro, record

AT = datetime(2026, 1, 1, 12, 30, 15, 123456, tzinfo=UTC)
EARLY = datetime(1001, 1, 1, 0, 0, 0, 1, tzinfo=UTC)

AT_MICROS = {"type": "long", "logicalType": "timestamp-micros"}
INNER = {
    "type": "record",
    "name": "I",
    "fields": [{"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]}],
}
WIDE = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "id", "type": ["null", "long"]},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 10}},
        {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
        {"name": "tags", "type": {"type": "array", "items": ["null", "string"]}},
        {"name": "counts", "type": {"type": "map", "values": ["null", "long"]}},
        {"name": "in", "type": ["null", INNER]},
        {"name": "ins", "type": {"type": "array", "items": "I"}},
        {"name": "by", "type": {"type": "map", "values": "I"}},
        {"name": "f", "type": "float"},
        {"name": "b", "type": ["null", "bytes"]},
    ],
}
FULL = {
    "id": 2**63 - 1,
    "price": Decimal("1234567890123456789012345678.0123456789"),
    "day": date(1500, 2, 28),
    "at": AT,
    "local": AT.replace(tzinfo=None),
    "tags": ["x", None],
    "counts": {"k": 2**60 + 1, "none": None},
    "in": {"at": EARLY},
    "ins": [{"at": AT}, {"at": None}],
    "by": {"k": {"at": AT}},
    "f": 0.5,
    "b": b"\x00\xff",
}
SPARSE = {
    **FULL, "id": None, "price": Decimal("0E-10"), "day": None, "tags": [], "counts": {}, "in": None, "ins": [],
    "by": {}, "b": None,
}  # fmt: skip


def binary(spark, values):
    return spark.createDataFrame([(value,) for value in values], "data BINARY")


def decoded(frame, made):
    return frame.select(made.decode(f.col("data")).alias("d")).select("d.value", "d.error")


def rows(frame, columns):
    """The rows of a frame, with timestamps as text in UTC, so that Python's time zone has no effect."""
    options = {"ignoreNullFields": "false", "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}
    texts = frame.select(f.to_json(f.struct(columns), options)).collect()
    return [json.loads(one) for (one,) in texts]


def test_avro_records_become_columns_and_columns_records(spark):
    text = json.dumps(WIDE)
    data = [by_fastavro(WIDE, FULL), by_fastavro(WIDE, SPARSE)]
    made = AvroFormat(text, None, None, "R")
    frame = decoded(binary(spark, data), made)
    assert frame.schema["value"].dataType == made.schema()
    first, second = frame.collect()
    assert first.error is None and second.error is None
    value = first.value
    assert (value.id, value.price, value.day, value.local) == (
        FULL["id"], FULL["price"], FULL["day"], FULL["local"],
    )  # fmt: skip
    assert (value.tags, value.counts, value.f, bytes(value.b)) == (FULL["tags"], FULL["counts"], 0.5, FULL["b"])
    assert second.value.id is None and second.value["in"] is None and second.value.tags == []
    times = frame.selectExpr("value.at", "value.in.at inner", "value.ins.at within", "value.by['k'].at by")
    assert rows(times, "*") == [
        {
            "at": "2026-01-01T12:30:15.123456Z",
            "inner": "1001-01-01T00:00:00.000001Z",
            "within": ["2026-01-01T12:30:15.123456Z", None],
            "by": "2026-01-01T12:30:15.123456Z",
        },
        {"at": "2026-01-01T12:30:15.123456Z", "inner": None, "within": [], "by": None},
    ]
    again = frame.select(made.encode(f.col("value"), made.schema()).alias("data")).collect()
    assert [bytes(one.data) for one in again] == data


def test_a_bad_record_is_an_error_of_its_row_alone(spark):
    schema = record("long")
    good = by_fastavro(schema, {"a": 5})
    given = [good, b"", None, good + b"!", b"\xff" * 12, good]
    frame = decoded(binary(spark, given).repartition(1), AvroFormat(json.dumps(schema), None, None, "R"))
    found = frame.collect()
    assert [one.value.a if one.value else None for one in found] == [5, None, None, None, None, 5]
    assert [one.error is None for one in found] == [True, False, True, False, False, True]
    assert found[3].error == "1 bytes remain after the record"
    kept = frame.where("error IS NULL AND value IS NOT NULL").select("value.a")
    assert [one.a for one in kept.collect()] == [5, 5]


def test_a_value_that_its_column_cannot_hold_is_an_error_of_its_row_alone(spark):
    fields: list[dict[str, Any]] = [{"name": "n", "type": "int"}, {"name": "at", "type": AT_MICROS}]
    schema = {"type": "record", "name": "R", "fields": fields}
    fields = [{**one, "type": "long"} for one in fields]
    too_large = by_fastavro({**schema, "fields": fields}, {"n": 2**40, "at": 0})
    given = [by_fastavro(schema, {"n": 5, "at": AT}), too_large, None]
    found = decoded(binary(spark, given).repartition(1), AvroFormat(json.dumps(schema), None, None, "R")).collect()
    assert [one.value.n if one.value else None for one in found] == [5, None, None]
    assert [one.error is None for one in found] == [True, False, True]


def test_nan_stays_nan_however_deep_it_is(spark):
    fields = [
        {"name": "d", "type": ["null", "double"]},
        {"name": "list", "type": {"type": "array", "items": ["null", "float"]}},
        {"name": "map", "type": {"type": "map", "values": "double"}},
        {"name": "in", "type": {"type": "record", "name": "I", "fields": [{"name": "f", "type": "float"}]}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
    ]
    schema = {"type": "record", "name": "R", "fields": fields}
    nan = math.nan
    far = {"d": nan, "list": [nan, None, 1.5], "map": {"k": nan}, "in": {"f": nan}, "day": 2**30}
    frame = decoded(binary(spark, [by_fastavro(schema, far)]), AvroFormat(json.dumps(schema), None, None, "R"))
    shown = frame.selectExpr("cast(value.d AS STRING)", "to_json(value.list)", "value.map['k']", "value.in.f", "error")
    assert [str(one) for one in shown.first()] == ["NaN", '["NaN",null,1.5]', "nan", "nan", "None"]
    single = decoded(binary(spark, [by_fastavro("double", nan)]), AvroFormat('"double"', None, None, "R"))
    assert math.isnan(single.first().value)
    order = messages.classes()["shop.Order"](d=nan, f=nan).SerializeToString()
    message = decoded(binary(spark, [order]), ProtobufFormat(messages.descriptors(), "shop.Order")).first().value
    assert math.isnan(message.d) and math.isnan(message.f)


def test_a_record_is_decoded_once_however_often_its_columns_are_used(spark):
    with serving() as registry:
        schema_id = registry.add(json.dumps(record("long")))
        bad = b"\x00" + (99).to_bytes(4, "big") + b"\x02"
        made = AvroFormat(json.dumps(record("long")), RegistryAddress(registry.url), None, "R")
        frame = decoded(binary(spark, [bad, b"\x00" + schema_id.to_bytes(4, "big") + b"\x02"]).repartition(1), made)
        used = frame.where("error IS NULL").selectExpr("value.a", "value.a + 1 b", "value.a * 2 c").where("b > 0")
        plan = used._jdf.queryExecution().executedPlan().toString()
        assert plan.count("ArrowEvalPython") == 1
        assert [tuple(one) for one in used.collect()] == [(1, 2, 2)]


def test_records_of_several_writers_in_one_batch(spark):
    with serving(user_info="me:secret") as registry:
        old, new = registry.add(json.dumps(record("int"))), registry.add(json.dumps(record("long")), "in-value")
        data = [
            b"\x00" + schema_id.to_bytes(4, "big") + by_fastavro(record("long"), {"a": number})
            for number, schema_id in enumerate([old, new, new, old, 77])
        ]
        made = AvroFormat(None, RegistryAddress(registry.url, "me:secret"), "in-value", "R")
        found = decoded(binary(spark, [*data, b"{}"]), made).collect()
        assert [one.value.a if one.value else one.error for one in found] == [
            0, 1, 2, 3, "the registry has no schema 77", "2 bytes are too few for a record with the id of its schema",
        ]  # fmt: skip


def test_the_schema_of_written_columns_is_registered(spark):
    with serving() as registry:
        frame = spark.sql(
            "SELECT named_struct('n', 1L, 'at', TIMESTAMP'2026-01-01T00:00:00Z', 'price', 1.50BD) value"
            " UNION ALL SELECT null"
        )
        made = AvroFormat(None, RegistryAddress(registry.url), "out-value", "out_value")
        data = [one.data for one in frame.select(
            made.encode(f.col("value"), frame.schema["value"].dataType).alias("data")
        ).collect()]  # fmt: skip
        assert data[1] is None
        assert make_registry_decoder(RegistryAddress(registry.url), registry.schemas[0]["schema"])(bytes(data[0])) == {
            "n": 1, "at": 1_767_225_600_000_000, "price": Decimal("1.50"),
        }  # fmt: skip
        made.encode(f.col("value"), frame.schema["value"].dataType)
        assert registry.asked.count(("POST", "/subjects/out-value/versions")) == 1
        assert list(registry.subjects) == ["out-value"]


def test_columns_and_values_that_do_not_fit(spark):
    frame = spark.sql("SELECT named_struct('a', cast(null AS BIGINT)) value")
    made = AvroFormat(json.dumps(record("long")), None, None, "R")
    with pytest.raises(FormatError, match="the row: the schema has no field b"):
        made.encode(f.col("value"), t.StructType([t.StructField("b", t.LongType())]))
    of_row = frame.schema["value"].dataType
    checked = frame.select(made.encode_or_error(f.col("value"), of_row).alias("d")).select("d.*").collect()
    assert [tuple(one) for one in checked] == [(None, "value.a is null, and the schema does not allow it")]
    with pytest.raises(Exception, match=r"cannot be written as Avro: value\.a is null"):
        frame.select(made.encode(f.col("value"), of_row)).collect()


def test_avro_of_a_single_value(spark):
    made = AvroFormat('"string"', None, None, "R")
    frame = decoded(binary(spark, [b"\x06abc", b"\x08abc"]), made)
    assert frame.schema["value"].dataType == t.StringType()
    assert [tuple(one) for one in frame.collect()] == [("abc", None), (None, "the record is truncated")]


def test_messages_become_columns_and_columns_messages(spark):
    order = messages.classes()["shop.Order"](
        i32=1, u64=2**64 - 1, kind=1, tags=["x"], counts={7: 2**60 + 1}, cash=3, u32=2**32 - 1
    )
    order.lines.add(sku="a", n=1)
    order.by_name["k"].sku = "b"
    order.placed.FromDatetime(AT.replace(tzinfo=None))
    data = order.SerializeToString(deterministic=True)
    made = ProtobufFormat(messages.descriptors(), "shop.Order")
    frame = decoded(binary(spark, [data, b"\xff\xff", None, b""]).repartition(1), made)
    assert frame.schema["value"].dataType == made.schema()
    found = frame.collect()
    value = found[0].value
    assert (value.i32, value.u32, value.u64, value.kind) == (1, 2**32 - 1, Decimal(2**64 - 1), "RETAIL")
    assert (value.counts, value.by_name["k"].sku, value.lines[0].sku) == ({7: 2**60 + 1}, "b", "a")
    assert (value.card, value.cash, value.line, value.wrapped) == (None, 3, None, None)
    assert found[1].value is None and "this is not a message shop.Order" in found[1].error
    assert tuple(found[2]) == (None, None) and found[3].value.i32 == 0
    again = frame.where("value IS NOT NULL").select(made.encode(f.col("value"), made.schema()).alias("data"))
    assert [bytes(one.data) for one in again.collect()] == [data, b""]


def test_a_stream_is_decoded_too(spark, tmp_path):
    schema = record("long")
    binary(spark, [by_fastavro(schema, {"a": 1}), b"\xff"]).write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema("data BINARY").parquet(str(tmp_path / "in"))
    made = AvroFormat(json.dumps(schema), None, None, "R")
    query = (
        decoded(stream, made)
        .selectExpr("value.a", "error")
        .writeStream.format("memory")
        .queryName("decoded_stream")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    found = spark.table("decoded_stream").orderBy("a").collect()
    assert [tuple(one) for one in found] == [(None, "the record is truncated"), (1, None)]
