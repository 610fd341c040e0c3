import json
import tomllib

import pytest
from pyspark.sql import types as t

from odradek.spark_it.cases.rows import find_differences, parse_event_micros, to_json
from odradek.spark_it.cases.runner import merge_by_keys


def schema(**columns):
    return t.StructType([t.StructField(name, of) for name, of in columns.items()])


def rows(text):
    return tomllib.loads(f"rows = [{text}]")["rows"]


def compared(expected, actual, of):
    return [*find_differences(rows(expected), [json.dumps(one) for one in actual], of)]


@pytest.mark.parametrize(
    ("of", "expected", "actual"),
    [
        (t.DecimalType(12, 2), '"5"', 5.00),
        (t.DecimalType(12, 2), "5.10", 5.1),
        (t.DecimalType(38, 0), '"100"', 100),
        (t.LongType(), "9007199254740993", 9007199254740993),
        (t.DoubleType(), "0.3", 0.1 + 0.2),
        (t.DoubleType(), "nan", "NaN"),
        (t.DoubleType(), "1", 1.0),
        (t.FloatType(), "0.1", 0.1),
        (t.BooleanType(), "true", True),
        (t.StringType(), '"Grüße"', "Grüße"),
        (t.TimestampType(), "2026-01-01T01:00:00+01:00", "2026-01-01T00:00:00.000000Z"),
        (t.TimestampType(), '"2026-01-01T00:00:00.123456Z"', "2026-01-01T00:00:00.123456Z"),
        (t.TimestampType(), "2026-01-01T00:00:00", "2026-01-01T00:00:00.000000Z"),
        (t.TimestampNTZType(), '"2026-01-01T00:00:00"', "2026-01-01T00:00:00.000000"),
        (t.DateType(), "2026-01-01", "2026-01-01"),
        (t.BinaryType(), '"ab"', "YWI="),
        (t.ArrayType(t.DecimalType(3, 1)), '["1", 2.5]', [1.0, 2.5]),
        (t.MapType(t.StringType(), t.DateType()), "{ k = 2026-01-01 }", {"k": "2026-01-01"}),
        (schema(x=t.DecimalType(3, 1), y=t.StringType()), '{ x = "1" }', {"x": 1.0}),
    ],
)
def test_values_are_compared_by_type(of, expected, actual):
    assert compared(f"{{ a = {expected} }}", [{"a": actual}], schema(a=of)) == []
    assert compared(f"{{ a = {expected} }}", [{}], schema(a=of))[0] == "1 row is expected, got 1"


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        (t.LongType(), '"five"'),
        (t.LongType(), "5.5"),
        (t.LongType(), "true"),
        (t.DecimalType(3, 1), '"nan"'),
        (t.BooleanType(), "1"),
        (t.StringType(), "true"),
        (t.TimestampType(), '"noon"'),
        (t.DateType(), "5"),
        (t.ArrayType(t.LongType()), "5"),
        (t.MapType(t.StringType(), t.LongType()), "5"),
        (schema(x=t.LongType()), "{ y = 1 }"),
    ],
)
def test_values_of_another_type(of, expected):
    [said] = compared(f"{{ a = {expected} }}", [{"a": None}], schema(a=of))
    assert said.startswith("expected row 1: a = ") and said.endswith(of.simpleString())


def test_rows_are_compared_in_any_order_and_counted():
    of = schema(a=t.LongType())
    assert compared("{ a = 1 }, { a = 2 }, { a = 1 }", [{"a": 2}, {"a": 1}, {"a": 1}], of) == []
    assert compared("{ a = 1 }, { a = 2 }", [{"a": 1}, {"a": 1}, {}], of) == [
        "2 rows are expected, got 3", "  - { a = 2 }", "  + { a = 1 }", "  + {}",
    ]  # fmt: skip


def test_a_long_list_of_rows_is_truncated():
    said = compared("", [{"a": number} for number in range(100)], schema(a=t.LongType()))
    assert len(said) == 22 and said[-1] == "  + and 80 more"


def test_columns_that_the_source_adds_are_compared_only_if_expected():
    of = schema(a=t.LongType(), _offset=t.LongType())
    assert compared("{ a = 1 }", [{"a": 1, "_offset": 7}], of) == []
    assert compared("{ a = 1, _offset = 8 }", [{"a": 1, "_offset": 7}], of)[1:] == [
        "  - { a = 1, _offset = 8 }", "  + { a = 1, _offset = 7 }",
    ]  # fmt: skip


def test_given_rows_are_json_that_spark_reads():
    [row] = rows("{ at = 2026-01-01T00:00:00Z, day = 2026-01-01, x = inf, n = nan, l = [{ t = 10:00:00 }] }")
    assert json.loads(to_json(row)) == {
        "at": "2026-01-01T00:00:00Z", "day": "2026-01-01", "x": "Infinity", "n": "NaN", "l": [{"t": "10:00:00"}],
    }  # fmt: skip


def test_the_time_of_a_row():
    assert parse_event_micros("1970-01-01T00:00:01Z") == 1_000_000
    assert parse_event_micros(rows("{ a = 1970-01-01T01:00:00.5+01:00 }")[0]["a"]) == 500_000
    assert parse_event_micros("soon") is None and parse_event_micros(None) is None


def test_a_row_replaces_the_one_with_the_same_key():
    batches = [['{"Id":1,"n":1}', '{"Id":2,"n":1}'], ['{"Id":1,"n":2}']]
    assert merge_by_keys(batches, ("id",)) == ['{"Id":1,"n":2}', '{"Id":2,"n":1}']
    assert merge_by_keys(batches, ("ID", "n")) == [*batches[0], *batches[1]]
    assert merge_by_keys([*batches, batches[0]], ()) == [*batches[0], *batches[1]]
