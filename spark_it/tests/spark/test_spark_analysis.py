"""Spark's analysis of a pipeline before it runs, without a broker and without data."""

import pytest

from odradek.spark_it.validation.spark_analysis import SparkAnalysis
from spark_it.tests import messages
from spark_it.tests.unit.support import CONSOLE, TOPIC, pipeline, transform

GENERATOR = 'name = "g"\n[source.g]\nconnector = "generator"\n'


@pytest.mark.parametrize(
    ("sql", "why", "said"),
    [
        ("SELECT value FROM g WHERE value > (SELECT 1)", None, None),
        ("SELECT value FROM g SORT BY value", None, None),
        ("SELECT value FROM g DISTRIBUTE BY value", "Exchange in step", None),
        ("SELECT value FROM g ORDER BY value", "Exchange in step", "Sorting is not supported on streaming"),
        ("SELECT value FROM g OFFSET 1", "CollectLimit in step", "Offset is not supported on streaming"),
    ],
)
def test_operations_on_several_rows_are_analyzed_in_the_plan_of_the_stream(spark, sql, why, said):
    stateful, problems = SparkAnalysis(spark)(pipeline(GENERATOR + transform(sql) + CONSOLE))
    assert stateful == why
    assert [problem.message.startswith(f"transform step: {said}") for problem in problems] == [True] * (
        said is not None
    )


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ('key.fields = "value"', None),
        ('value.format = "avro"', None),
        ('key.fields = "valu"', "unknown column valu; the columns are value, timestamp"),
        ('value.format = "string"', "value.format string needs a single column; found: value, timestamp"),
        ('value.format = "protobuf"\nvalue.schema = "shop.desc"\nvalue.message = "shop.Line"',
         "the columns do not fit message shop.Line: the row: the message has no field value; the row: the message has"
         " no field timestamp"),
        ('value.format = "protobuf"\nvalue.schema = "shop.desc"\nvalue.message = "shop.Lin"',
         "value.schema: shop.desc: there is no message shop.Lin; there are shop.Order, shop.Line, shop.Tree"),
        ('value.format = "avro"\nvalue.schema = "r.avsc"',
         "the columns do not fit the Avro schema: the row.value: bigint cannot be written as int; the row: the schema"
         " has no field timestamp"),
    ],
)  # fmt: skip
def test_columns_that_cannot_be_written_are_found_before_a_run(spark, tmp_path, keys, said):
    (tmp_path / "shop.desc").write_bytes(messages.descriptors())
    (tmp_path / "r.avsc").write_text('{"type": "record", "name": "R", "fields": [{"name": "value", "type": "int"}]}')
    _, problems = SparkAnalysis(spark)(pipeline(f"{GENERATOR}{TOPIC}{keys}\n", folder=tmp_path))
    assert [problem.line for problem in problems] == [4] * (said is not None)
    assert all(problem.message.startswith(f"sink: {said}") for problem in problems)


def test_keys_of_a_table_are_columns(spark):
    sink = '[sink]\nconnector = "jdbc"\nconnection.url = "jdbc:x:"\ntable.name.format = "t"\npk.fields = "Value, tim"\n'
    sink += 'cast = "tmestamp"\n'
    _, problems = SparkAnalysis(spark)(pipeline(GENERATOR + sink))
    assert [tuple(one) for one in problems] == [
        (8, "sink: unknown column tim; the columns are value, timestamp"),
        (9, "sink: unknown column tmestamp, did you mean timestamp?"),
    ]
