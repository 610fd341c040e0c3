"""Tables as text, on a terminal, and as JSON."""

import json
from io import StringIO

import pytest

from odradek.tools.cli.terminal.output import MOST_RICH_ROWS, Output, Table, count, format_value, make_printable

TABLE = Table(("name", "size_bytes", "brokers", "is_ok"), [("a", 5, [1, 2], True), ("bcd", 1234, [], False)])


class Terminal(StringIO):
    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")


def show(table, *, stream=None, is_json=False):
    stream = stream or StringIO()
    Output(is_json=is_json, stream=stream).show(table)
    return stream.getvalue()


def test_a_table_is_aligned_text():
    assert show(TABLE) == (
        "NAME  SIZE BYTES  BROKERS  IS OK\n"
        "a              5  1,2      yes\n"
        "bcd         1234  -        no\n"
    )  # fmt: skip


def test_a_table_is_a_list_in_json():
    assert json.loads(show(TABLE, is_json=True)) == [
        {"name": "a", "size_bytes": 5, "brokers": [1, 2], "is_ok": True},
        {"name": "bcd", "size_bytes": 1234, "brokers": [], "is_ok": False},
    ]
    assert json.loads(show(Table(("name",), []), is_json=True)) == []


@pytest.mark.parametrize("count", [2, MOST_RICH_ROWS + 1])
def test_a_terminal_shows_marked_rows_in_red(count):
    rows = [(f"[red]name-{index}", index) for index in range(count)]
    shown = show(Table(("name", "number"), rows, is_marked=lambda row: row[1] == 1), stream=Terminal())
    heading, first, second, *_ = shown.splitlines()
    assert "\x1b[1m" in heading and "NUMBER" in heading
    assert "\x1b[31m" not in first and "[red]name-0" in first
    assert "\x1b[31m" in second and "[red]name-1" in second


def test_a_terminal_without_colours(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    assert show(TABLE, stream=Terminal()) == show(TABLE)


def test_control_characters_are_escaped():
    assert make_printable("a\x1b[2J\nä") == "a\\x1b[2J\\nä"
    assert format_value("a\tb") == "a\\tb"
    for stream in (StringIO(), Terminal()):
        assert "\x1b[2J" not in show(Table(("name",), [("\x1b[2J",)]), stream=stream)


def test_documents_as_text_and_json():
    stream = StringIO()
    Output(is_json=False, stream=stream).show_all({}, {"a_name": "x", "configs": {"k": "v"}, "none": None}, TABLE)
    assert stream.getvalue() == f"a name   x\nconfigs  k=v\nnone     -\n\n{show(TABLE)}"
    stream = StringIO()
    Output(is_json=True, stream=stream).show_all({"k": [1]}, TABLE)
    assert json.loads(stream.getvalue()) == {"k": [1]}


def test_all_control_characters_are_escaped_in_json():
    stream = StringIO()
    Output(is_json=True, stream=stream).write_json_line("\x9b31m\x7f\u202e 群")
    assert stream.getvalue() == '"\\u009b31m\\u007f\\u202e 群"\n'
    assert json.loads(stream.getvalue()) == "\x9b31m\x7f\u202e 群"


def test_a_number_with_a_noun():
    assert [count(1, "topic"), count(1200, "topic")] == ["1 topic", "1,200 topics"]
