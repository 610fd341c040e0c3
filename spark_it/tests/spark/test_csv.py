"""CSV files read by Spark: each value equals that of the line, or the line is bad."""

import json

import pytest
from pyspark.sql import functions as f

from odradek.spark_it.definition.reader import parse
from odradek.spark_it.sources.connectors import make_stream

SCHEMA = "i INT, d DECIMAL(10,2), x FLOAT, at TIMESTAMP, day DATE, s STRING, q STRING"
NO_ROW = "is not a row with"
NOT_UTF8 = "is not UTF-8"
MANY = b"," * 20_480

LINES = {
    b'1,1.55,1.5,2026-01-01T10:00:00Z,2026-01-01,a,"x ""y"""': {
        "i": 1, "d": 1.55, "x": 1.5, "at": "2026-01-01T10:00:00.000000Z", "day": "2026-01-01", "s": "a", "q": 'x "y"',
    },
    b'2,,,,,"",': {"i": 2, "s": ""},
    b'"","","","","",,""': {"q": ""},
    b"3,1.555,,,,,": "d DECIMAL(10,2)",
    b"3,1.5500,,,,,": {"i": 3, "d": 1.55},
    b'3,"1,50",,,,,': "d DECIMAL(10,2)",
    b"3,1e-3,,,,,": "d DECIMAL(10,2)",
    b"3,1e1,,,,,": {"i": 3, "d": 10.0},
    b"4,,1e39,,,,": "x FLOAT",
    b"4,,-Infinity,,,,": {"i": 4, "x": "-Infinity"},
    b"5,,,12:00:00,,,": "at TIMESTAMP",
    b"5,,, T12:00,,,": "at TIMESTAMP",
    b"5,,,2026-01-01 00:00:00.1234567,,,": "at TIMESTAMP",
    b"5,,,2026-01-01 00:00:00.123456000,,,": {"i": 5, "at": "2026-01-01T00:00:00.123456Z"},
    b"6,,,,2026-01-01T12:00:00,,": "day DATE",
    b"6,,,,2026-01-01T00:00:00Z,,": {"i": 6, "day": "2026-01-01"},
    b"7,,,,,1.555,12:00:00": {"i": 7, "s": "1.555", "q": "12:00:00"},
    b"8,,,,,caf\xc3\xa9,": {"i": 8, "s": "café"},
    b"8,,,,,caf\xe9,": NOT_UTF8,
    b"\xfe8,,,,,,\xfe": NOT_UTF8,
    b"9,,,,,": NO_ROW,
    b"nine,,,,,,": NO_ROW,
    b"\x009,,,,,,": NO_ROW,
    b"10,,,,," + MANY + b",": NO_ROW,
    b'10,,,,,"' + MANY + b'",': {"i": 10, "s": MANY.decode()},
    b'10,,,,,"' + MANY: NO_ROW,
}  # fmt: skip


@pytest.fixture
def read(spark, tmp_path):
    """read(lines, schema, keys): the row or the error of each, and the value that a dead letter has."""

    def read(lines, schema=SCHEMA, keys=""):
        (tmp_path / "in").mkdir()
        (tmp_path / "in" / "a.csv").write_bytes(b"\n".join(lines) + b"\n")
        text = f'name = "p"\n[source.t]\nconnector = "files"\npath = "in"\nformat = "csv"\nschema = "{schema}"\n{keys}'
        pipeline = parse(text + '\n[sink]\nconnector = "console"\n', {}, file="p.toml", folder=tmp_path)
        found = []
        times = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}

        def take(frame, _):
            found.extend(frame.select(f.to_json("row", times).alias("row"), "error.message", "value").collect())

        stream = make_stream("t", pipeline)
        writer = stream.decode(stream.read_stream(spark, None)).writeStream.foreachBatch(take)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        assert query.awaitTermination(60)
        return found

    return read


def test_a_line_is_one_row(read):
    found = read([b"i,d,x,at,day,s,q", b"", *LINES])
    assert len(found) == len(LINES)
    for (line, wanted), row in zip(LINES.items(), found, strict=True):
        if isinstance(wanted, str):
            assert wanted in (row.message or ""), line[:80]
            assert row.value == line
        else:
            assert (row.message, json.loads(row.row)) == (None, wanted), line[:80]


def test_another_delimiter_without_a_header(read):
    found = read(
        [b"1;1,5;", b'2;1.5;""', b"3;2.5;a,b", b'4;"1;";'],
        "i INT, d DECIMAL(10,2), s STRING",
        'csv.header = false\ncsv.delimiter = ";"',
    )
    assert [row.message is None for row in found] == [False, True, True, False]
    assert [row.row for row in found[1:3]] == ['{"i":2,"d":1.50,"s":""}', '{"i":3,"d":2.50,"s":"a,b"}']
