"""`[[test]]` cases, run as streams."""

import sys

import pytest

from odradek.spark_it.cases.runner import CaseResult, make_report, run
from odradek.spark_it.definition.guarantees import find_stateful_reason
from spark_it.tests.unit.support import CONSOLE, SOURCE, pipeline, transform

WATERMARKED = SOURCE + 'watermark = "placed 10 minutes"\n'
PER_MINUTE = transform(
    "SELECT window.start AS minute, count(*) n, sum(amount) total FROM orders GROUP BY window(placed, '1 minute')",
    "per_minute",
)
DEAD = '[errors]\ntolerance = "all"\ndeadletterqueue.topic.name = "dlq"\n'
POSITIVE = '[expect.orders]\npositive = { sql = "amount > 0", action = "dead-letter" }\n'


def case(name, given="", expect="", dead=None):
    given = f"given.orders = [{given}]\n" if given is not None else ""
    expect = f"expect = [{expect}]\n" if expect is not None else ""
    return f'[[test]]\nname = "{name}"\n{given}{expect}' + (f"dead.letters = {dead}\n" if dead is not None else "")


def order(number, amount, placed):
    return f'{{ order_id = {number}, amount = "{amount}", placed = "2026-01-01T{placed}Z" }}'


def minute(at, n, total):
    return f'{{ minute = "2026-01-01T{at}Z", n = {n}, total = "{total}" }}'


@pytest.fixture
def problems(spark, tmp_path):
    def of(text):
        one = pipeline(text, folder=tmp_path)
        return {result.name: result.problems for result in run(one, spark, find_stateful_reason(one))}

    return of


def test_rows_of_a_stateless_pipeline(problems):
    cents = transform("SELECT order_id, CAST(amount * 100 AS BIGINT) cents, placed, upper('x') x FROM orders", "cents")
    given = order(1, "5.00", "00:00:01") + ", { order_id = 2 }"
    right = '{ order_id = 2, x = "X" }, { x = "X", cents = 500, order_id = 1, placed = 2026-01-01T01:00:01+01:00 }'
    wrong = '{ order_id = 2, x = "X" }, { x = "X", cents = 501, order_id = 1, placed = 2026-01-01T00:00:01Z }'
    found = problems(
        SOURCE + cents + CONSOLE + POSITIVE.replace("dead-letter", "warn")
        + case("right", given, right)
        + case("wrong", given, wrong)
        + case("nothing", "", "")
        + case("no such column", given, "{ oder_id = 1 }")
        + case("not of its type", given, '{ cents = "five" }')
    )  # fmt: skip
    assert found["right"] == found["nothing"] == ()
    row = '{{ order_id = 1, cents = {}, placed = "2026-01-01T00:00:01Z", x = "X" }}'
    assert found["wrong"] == (
        "input of the sink: 2 rows are expected, got 2", f"  - {row.format(501)}", f"  + {row.format(500)}",
    )  # fmt: skip
    assert found["no such column"] == ("input of the sink: unknown column oder_id, did you mean order_id?",)
    assert found["not of its type"] == ('input of the sink: expected row 1: cents = "five" is not a bigint',)


def test_bad_records_are_counted_or_stop_the_case(problems):
    good, negative = order(1, "5.00", "00:00:01"), order(3, "-1", "00:00:01")
    given = f'{good}, {{ _value = "{{broken" }}, {negative}, {{ amount = "x" }}'
    expect = '{ order_id = 1, amount = 5, placed = "2026-01-01T00:00:01Z" }'
    found = problems(
        SOURCE + CONSOLE + POSITIVE + DEAD + case("all", given, expect, dead=3) + case("too few", given, expect, dead=1)
    )
    assert found == {"all": (), "too few": ("dead letters: 1 expected, got 3",)}
    found = problems(SOURCE + CONSOLE + case("stops", given, expect))
    [problem] = found["stops"]
    assert problem.startswith("the pipeline stops: record orders-0 at offset 1: value is not a JSON object")


def test_windows_close_and_late_rows_are_dropped(problems):
    given = ", ".join(
        [
            order(1, "5.00", "00:00:01"),
            order(2, "1.25", "00:00:59"),
            order(3, "7.00", "01:00:00"),
            order(4, "99.00", "00:00:30"),  # an hour late
            order(5, "1.00", "00:55:00"),  # late, and not too late
        ]
    )
    expect = ", ".join([minute("01:00:00", 1, 7), minute("00:00:00", 2, "6.25"), minute("00:55:00", 1, 1)])
    total = '[expect.per_minute]\nsmall = { sql = "total < 7", action = "dead-letter" }\n'
    both = ", ".join([minute("00:00:00", 2, "6.25"), minute("00:55:00", 1, 1)])
    assert problems(WATERMARKED + PER_MINUTE + CONSOLE + case("late", given, expect)) == {"late": ()}
    found = problems(WATERMARKED + PER_MINUTE + CONSOLE + total + DEAD + case("dead", given, both, dead=1))
    assert found == {"dead": ()}


def test_an_upsert_keeps_the_last_row_of_each_key(problems):
    sink = (
        '[sink]\nconnector = "jdbc"\nconnection.url = "jdbc:postgresql://nowhere/db"\ntable.name.format = "t"\n'
        'insert.mode = "upsert"\npk.fields = "minute"\n'
    )
    given = ", ".join([order(1, "5", "00:00:01"), order(2, "7", "01:00:00"), order(3, "1", "00:55:00")])
    expect = ", ".join([minute("00:00:00", 1, 5), minute("01:00:00", 1, 7), minute("00:55:00", 1, 1)])
    assert problems(WATERMARKED + PER_MINUTE + sink + case("upsert", given, expect)) == {"upsert": ()}


def test_two_sources_and_an_intermediate_table(problems):
    text = (
        WATERMARKED
        + '[source.customers]\nconnector = "files"\npath = "in"\nformat = "json"\n'
        + 'schema = "order_id BIGINT, name STRING, since DATE"\n'
        + transform("SELECT * FROM orders WHERE amount > 1", "large")
        + transform("SELECT o.order_id, name, since FROM large o JOIN customers c ON o.order_id = c.order_id", "named")
        + CONSOLE
        + f'[[test]]\nname = "join"\ngiven.orders = [{order(1, "5", "00:00:01")}, {order(2, "1", "00:00:01")}]\n'
        + 'given.customers = [{ order_id = 1, name = "Ann", since = 2020-02-29 }, { order_id = 2, name = "Bo" }]\n'
        + 'expect.named = [{ order_id = 1, name = "Ann", since = "2020-02-29" }]\n'
        + f"expect.large = [{order(1, '5.0', '00:00:01')}]\n"
    )
    assert problems(text) == {"join": ()}
    [problem] = problems(text.replace('name = "Bo" }', 'nam = "Bo" }'))["join"]
    assert problem == "given.customers: row 2: unknown column nam"


def test_keys_headers_and_positions_of_records(problems):
    text = (
        SOURCE.replace("value.schema", "include.headers = true\nvalue.schema")
        + transform("SELECT _key, _topic, _partition p, _offset o, _timestamp, _headers[0].key h FROM orders", "meta")
        + CONSOLE
        + '[[test]]\nname = "meta"\n'
        + 'given.orders = [{ order_id = 1 }, { _key = "k", _partition = 3, _offset = 7,'
        + ' _timestamp = 2026-01-01T00:00:00Z, _headers = [{ key = "a", value = "b" }] }]\n'
        + 'expect = [{ _topic = "orders", p = 0, o = 0 },'
        + ' { _topic = "orders", _key = "k", p = 3, o = 7, _timestamp = "2026-01-01T00:00:00Z", h = "a" }]\n'
    )
    [*said] = problems(text)["meta"]
    # The second expected row names _timestamp, so this column is compared in the first one too.
    assert said[1:] == [
        '  - { _topic = "orders", p = 0, o = 0 }',
        '  + { _topic = "orders", p = 0, o = 0, _timestamp = "1970-01-01T00:00:00Z" }',
    ]


SESSIONS = """
from typing import Any, Iterator

import pandas as pd
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle


class Count(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timers: Any) -> Iterator[pd.DataFrame]:
        yield pd.DataFrame({"order_id": [key[0]], "n": [sum(len(frame) for frame in rows)]})

    def close(self) -> None:
        pass


def count(orders):
    return orders.groupBy("order_id").transformWithStateInPandas(
        Count(), outputStructType="order_id BIGINT, n BIGINT", outputMode="Append", timeMode="None"
    )
"""


def test_a_case_is_started_again_if_sparks_worker_does_not_connect(problems, spark, tmp_path, monkeypatch):
    (tmp_path / "counts_of_orders.py").write_text(SESSIONS, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    failed = tmp_path / "failed"
    python = tmp_path / "python"
    python.write_text(
        f"#!/bin/sh\ncase $* in *driver_worker*) [ -e {failed} ] || {{ touch {failed}; exit 1; }} ;; esac\n"
        f'PYTHONPATH="{tmp_path}:$PYTHONPATH" exec {sys.executable} "$@"\n',
        "utf-8",
    )
    python.chmod(0o700)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(python))
    counts = '[[transform]]\nname = "counts"\npython = "counts_of_orders.count"\n'
    given = order(1, "5.00", "00:00:01") + ", " + order(1, "6.00", "00:00:02")
    assert problems(SOURCE + counts + CONSOLE + case("two", given, "{ order_id = 1, n = 2 }")) == {"two": ()}
    assert failed.exists()


@pytest.mark.process  # the fixture with Java's options for this folder starts Java
def test_lines_of_the_report():
    assert list(make_report([])) == ["the file has no tests"]
    assert list(make_report([CaseResult("a", ()), CaseResult("b", ("x", "  - y"))])) == [
        "test a: passed", "test b: failed", "  x", "    - y", "1 of 2 tests passed",
    ]  # fmt: skip
