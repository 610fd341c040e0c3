import json

import pytest

from odradek.spark_it.cases.inputs import CaseInput
from spark_it.tests.unit.support import CONSOLE, SOURCE, UNUSED, pipeline


def files(folder, given, *, separates_late_rows=True, time="placed"):
    """The lines of each file, in the order in which Spark reads them."""
    case = f'[[test]]\nname = "t"\ngiven.orders = [{given}]\nexpect = []\n'
    text = f'{SOURCE}watermark = "{time} 10 minutes"\n{CONSOLE}{case}'
    one = pipeline(text, folder=folder)
    CaseInput(one, "orders", UNUSED, folder).write(
        one.cases[0].given["orders"], separates_late_rows=separates_late_rows
    )
    found = sorted((folder / "given" / "orders").iterdir(), key=lambda path: path.stat().st_mtime)
    return [[json.loads(line) for line in path.read_text("utf-8").splitlines()] for path in found]


def at(*minutes):
    return ", ".join(f'{{ placed = "2026-01-01T{minute // 60:02d}:{minute % 60:02d}:00Z" }}' for minute in minutes)


@pytest.mark.parametrize(
    ("minutes", "sizes"),
    [
        ((0, 60, 50, 55), [4]),  # none is older than the watermark
        ((0, 60, 49), [2, 0, 1]),
        ((60, 0, 1, 2, 61), [1, 0, 4]),  # late for the same watermark
        ((60, 0, 120, 70), [1, 0, 2, 0, 1]),
        ((), [0]),
    ],
)
def test_late_rows_are_in_a_file_of_their_own_after_an_empty_one(tmp_path, minutes, sizes):
    assert [len(lines) for lines in files(tmp_path, at(*minutes))] == sizes


def test_the_column_with_the_time_may_be_in_capitals(tmp_path):
    assert [len(lines) for lines in files(tmp_path, at(0, 60, 49), time="PLACED")] == [2, 0, 1]


def test_rows_of_a_stateless_pipeline_are_in_one_file(tmp_path):
    assert [len(lines) for lines in files(tmp_path, at(60, 0), separates_late_rows=False)] == [2]


def test_a_row_of_a_topic_is_a_record(tmp_path):
    given = '{ order_id = 1, _key = "k", _offset = 7 }, { _value = "{broken" }, { placed = "soon" }'
    [lines] = files(tmp_path, given)
    assert [json.loads(line["value"]) if line["value"] != "{broken" else None for line in lines] == [
        {"order_id": 1}, None, {"placed": "soon"},
    ]  # fmt: skip
    assert [(line["key"], line["topic"], line["offset"]) for line in lines] == [
        ("k", "orders", 7), (None, "orders", 1), (None, "orders", 2),
    ]  # fmt: skip
