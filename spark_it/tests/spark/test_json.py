"""JSON decoded by Spark: each value equals that of the text, or the text is bad."""

import json
import re

import pytest
from pyspark.sql import functions as f
from pyspark.sql import types as t

from odradek.spark_it.formats.json import JsonFormat, collect_unknown_fields
from odradek.spark_it.spark.session import make_settings
from spark_it.tests.unit.support import CONSOLE, SOURCE, pipeline

NAMED = (
    "i INT, d DECIMAL(12,2), wide DECIMAL(38,10), at TIMESTAMP, local TIMESTAMP_NTZ, day DATE, small TINYINT,"
    " x DOUBLE, f FLOAT, s STRING, o STRUCT<d: DECIMAL(4,0), s: STRING>"
)
"""Columns without arrays and maps: each value has a field name, by which texts are searched."""
SCHEMA = f"{NAMED}, prices ARRAY<DECIMAL(4,1)>, times MAP<STRING, TIMESTAMP>"
ONLY_I = t.StructType().add("i", t.IntegerType())
NO_OBJECT = "is not a JSON object with"
INEXACT = "has fields that do not fit their columns exactly: "

ONE_OBJECT = {
    '{"i":1}': {"i": 1},
    ' \n{"i": 1}\t': {"i": 1},
    "{}": {},
    '{"other": [1.23456], "i": null}': {},
    '{"i":1}{"i":2}': NO_OBJECT,
    '{"i":1} {"i":2}': NO_OBJECT,
    '{"i":1},{"i":2}': NO_OBJECT,
    '{"i":1} x': NO_OBJECT,
    '{"i":1}]': NO_OBJECT,
    '{"i":1}]}': NO_OBJECT,
    '{"i":1}],"__odradek_length":1}': NO_OBJECT,
    '[{"i":1}]': NO_OBJECT,
    '{"i":1': NO_OBJECT,
    "": NO_OBJECT,
    " ": NO_OBJECT,
    "null": NO_OBJECT,
    "1": NO_OBJECT,
    '{"i":1.5}': NO_OBJECT,
    '{"i":"1"}': NO_OBJECT,
    '{"i":2147483648}': NO_OBJECT,
    '{"o":{"d":"x"}}': NO_OBJECT,
    '{"prices":[1,"x"]}': NO_OBJECT,
    b'{"s":"caf\xe9"}': "is not UTF-8",
    '{"s":"café \\u00e9"}': {"s": "café é"},
}
SAME_VALUES = {
    '{"d":1.239}': "d DECIMAL(12,2)",
    '{"d" : -1.239}': "d DECIMAL(12,2)",
    '{"d":"1.239"}': "d DECIMAL(12,2)",
    '{"d":"1,5"}': "d DECIMAL(12,2)",
    '{"d":1e-30}': "d DECIMAL(12,2)",
    '{"d":1.23456E2}': "d DECIMAL(12,2)",
    '{"d":1.23}': {"d": "1.23"},
    '{"d":"1.23"}': {"d": "1.23"},
    '{"d":1.2300}': {"d": "1.23"},
    '{"d":1.2345e4}': {"d": "12345.00"},
    '{"d":1.23456789E7}': {"d": "12345678.90"},
    '{"d":15e-1,"s":"1.239"}': {"d": "1.50", "s": "1.239"},
    '{"d":12345678901}': NO_OBJECT,
    '{"wide":1234567890123456789012345678.0123456789}': {"wide": "1234567890123456789012345678.0123456789"},
    '{"wide":0.01234567891}': "wide DECIMAL(38,10)",
    '{"prices":[1.5,null,2.55]}': "prices ARRAY<DECIMAL(4,1)>",
    '{"prices":[1.5,null,2.50]}': {"prices": ["1.5", None, "2.5"]},
    '{"o":{"d":1.5,"s":"a"}}': "o STRUCT<D:DECIMAL(4,0),S:STRING>",
    '{"o":{"d":1.0,"s":"1.5"}}': {"o": {"d": "1", "s": "1.5"}},
    '{"at":"2026-01-01T00:00:00.123456789Z"}': "at TIMESTAMP",
    '{"at":"2026-01-01T00:00:00.123456000Z"}': {"at": "2026-01-01T00:00:00.123456Z"},
    '{"at":"2026-01-01T00:00:00.123Z","s":"at 12:00:00.123456789"}': {
        "at": "2026-01-01T00:00:00.123000Z", "s": "at 12:00:00.123456789",
    },
    '{"at":1767225600}': {"at": "2026-01-01T00:00:00.000000Z"},
    '{"at":1767225600000000000}': "at TIMESTAMP",
    '{"at":"12:30:00"}': "at TIMESTAMP",
    '{"at":"T12:30:00"}': "at TIMESTAMP",
    '{"times":{"a":"2026-01-01T00:00:00Z","b":"2026-01-01T00:00:00.0000001Z"}}': "times MAP<STRING,TIMESTAMP>",
    '{"local":"2026-01-01T00:00:00.1234567"}': "local TIMESTAMP_NTZ",
    '{"local":"2026-01-01T00:00:00.123456"}': {"local": "2026-01-01T00:00:00.123456"},
    '{"day":"2026-01-01"}': {"day": "2026-01-01"},
    '{"day":"2026-01-01T00:00:00.000Z"}': {"day": "2026-01-01"},
    '{"day":"2026-01-01T23:00:00"}': "day DATE",
    '{"day":"2026-01-01 or so"}': "day DATE",
    '{"small":-128}': {"small": -128},
    '{"small":200}': "small TINYINT",
    '{"x":1e300}': {"x": 1e300},
    '{"x":1e400}': "x DOUBLE",
    '{"x":-1e400}': "x DOUBLE",
    '{"info":"x","x":1e400}': "x DOUBLE",
    '{"s":"information","x":1e400}': "x DOUBLE",
    '{"s":",INF","x":1e400}': "x DOUBLE",
    '{"f":12345678901234567890123456789012345e5}': "f FLOAT",
    '{"f":12345678901234567890123456789012e5}': {"f": 1.23456785e36},
    '{"d":"1\\u002e555"}': "d DECIMAL(12,2)",
    '{"d":"1\\u002c50"}': "d DECIMAL(12,2)",
    '{"d":"\\u00311.50"}': {"d": "11.50"},
    '{"d":"\u0661.239"}': "d DECIMAL(12,2)",
    '{"at":"2026-01-01T00:00:00\\u002e1234567Z"}': "at TIMESTAMP",
    '{"at":" 12:00:00"}': "at TIMESTAMP",
    '{"at":"\\t12:00"}': "at TIMESTAMP",
    '{"at":"\\u0031\\u0032:00:00"}': "at TIMESTAMP",
    '{"at":"\x7f12:00"}': "at TIMESTAMP",
    '{"at":"1GMT2:00"}': "at TIMESTAMP",
    '{"at":"202601"}': "at TIMESTAMP",
    '{"at":1767225600000}': "at TIMESTAMP",
    '{"times":{"a":"202601"}}': "times MAP<STRING,TIMESTAMP>",
    '{"local":"202601"}': "local TIMESTAMP_NTZ",
    '{"at":253402300799}': {"at": "9999-12-31T23:59:59.000000Z"},
    '{"day":"20260101"}': "day DATE",
    '{"day":"42"}': "day DATE",
    '{"day":"\\u0034\\u0032"}': "day DATE",
    '{"day":"\u0664\u0662"}': "day DATE",
    '{"day":"-42"}': "day DATE",
    '{"day":"202601"}': "day DATE",
    '{"day":"2026","s":"42"}': {"day": "2026-01-01", "s": "42"},
    "{'d':1.239}": "d DECIMAL(12,2)",
    '{"\\u0064":1.239}': "d DECIMAL(12,2)",
    '{"d"\n\t:\r 1.239}': "d DECIMAL(12,2)",
    '{"d":1.23,"d":1.239}': "d DECIMAL(12,2)",
    '{"D":1.239,"s":"\\"d\\":1.239"}': {"s": '"d":1.239'},
    '{"day":" 2026-01-01 "}': {"day": "2026-01-01"},
    '{"day":" 2026-01-01T12:00:00"}': "day DATE",
    '{"day":"+2026-01-01T12:00:00"}': "day DATE",
}  # fmt: skip


@pytest.fixture(scope="module")
def decoded(spark):
    """decoded(texts, schema): the value of each text, with times as text, or the error."""
    times = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"}

    def decode(texts, schema=SCHEMA):
        made = JsonFormat(schema, "value.schema")
        rows = [(n, one if isinstance(one, bytes) else one.encode()) for n, one in enumerate(texts)]
        frame = spark.createDataFrame(rows, "n INT, data BINARY").withColumn("parsed", made.parse(f.col("data")))
        frame = frame.select("n", made.decode_parsed(f.col("parsed"), f.col("data")).alias("d"))
        shown = frame.select("n", "d.error", f.to_json("d.value", times).alias("value")).orderBy("n").collect()
        return [row.error or _plain(json.loads(row.value, parse_float=_digits)) for row in shown]

    return decode


def _digits(text):
    return float(text) if "E" in text else text


def _plain(value):
    """Convert decimals to text, also those without a decimal point."""
    if isinstance(value, dict):
        return {name: str(one) if name == "d" else _plain(one) for name, one in value.items()}
    return value


def test_a_text_is_one_object(decoded):
    found = [one.removesuffix(f" {SCHEMA}") if isinstance(one, str) else one for one in decoded(ONE_OBJECT)]
    assert dict(zip(ONE_OBJECT, found, strict=True)) == ONE_OBJECT


@pytest.mark.parametrize("schema", [SCHEMA, NAMED])
def test_a_value_equals_that_of_the_text(decoded, schema):
    texts = {text: one for text, one in SAME_VALUES.items() if schema == SCHEMA or not re.search("prices|times", text)}
    found = decoded(texts, schema)
    wanted = [
        one if isinstance(one, dict) else f"{NO_OBJECT} {schema}" if one == NO_OBJECT else f"{INEXACT}{one}"
        for one in texts.values()
    ]
    assert dict(zip(texts, found, strict=True)) == dict(zip(texts, wanted, strict=True))


def test_names_that_occur_twice_in_an_unknown_field(spark, request):
    name = "spark.sql.variant.allowDuplicateKeys"
    spark.conf.set(name, make_settings(pipeline(SOURCE + CONSOLE), "local[1]")[name])
    request.addfinalizer(lambda: spark.conf.unset(name))
    frame = spark.createDataFrame([('{"i":1,"u":5,"w":{"a":1,"a":2}}',)], "data STRING")
    row = frame.select(collect_unknown_fields(f.col("data"), ONLY_I)).first()
    assert row[0] == '{"u":5,"w":{"a":2}}'


def test_several_values_that_change(decoded):
    assert decoded(['{"d":1.239,"i":1,"at":"12:30:00"}']) == [f"{INEXACT}d DECIMAL(12,2), at TIMESTAMP"]


def test_records_without_text(spark):
    made = JsonFormat("i INT", "value.schema")
    rows = [(0, b""), (1, None), (2, b'{"i":1,"new":[1.50]}'), (3, b'{"i":1}')]
    frame = spark.createDataFrame(rows, "n INT, data BINARY")
    decoded = frame.select("n", collect_unknown_fields(f.col("data"), ONLY_I), made.decode(f.col("data")))
    found = [(others, one.value.i, one.error) for _, others, one in decoded.orderBy("n").collect()]
    assert found == [
        (None, None, "is not a JSON object with i INT"), (None, None, None), ('{"new":[1.5]}', 1, None),
        (None, 1, None),
    ]  # fmt: skip
