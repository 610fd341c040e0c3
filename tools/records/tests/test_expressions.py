"""Conditions on records: what they accept, and errors with their column."""

import pytest

from odradek.tools.records.errors import InvalidOptionError
from odradek.tools.records.expressions import parse_condition, require_header, require_key, require_match
from odradek.tools.records.record import Decoded
from odradek.tools.records.tests.messages import make_record

RECORD = make_record(
    b"k1",
    b'{"amount": 12, "text": "3", "ok": true, "none": null, "lines": [{"sku": "a b"}], "x y": 1}',
    [("trace", b"one"), ("trace", b"two"), ("empty", None)],
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("value.amount > 10", True),
        ("value.amount > 12", False),
        ("value.amount >= 12 and value.amount <= 12", True),
        ("value.amount < 1e2", True),
        ("value.amount == 12", True),
        ("value.amount != 12", False),
        ("value.text == 3", True),
        ("value.text > 2", True),
        ('value.text < "4"', True),
        ("value.ok == true", True),
        ("value.ok == 1", False),
        ("value.ok > 0", False),
        ("value.ok", True),
        ("value.none", False),
        ("value.none == null", True),
        ("value.missing == null", True),
        ("value.missing != 1", True),
        ("value.missing < 1", False),
        ("value.missing.more", False),
        ("value.amount.more", False),
        ("value.lines[0].sku contains 'a b'", True),
        ("value.lines[-1].sku == 'a b'", True),
        ("value.lines[1].sku == 'a b'", False),
        ('value["x y"] == 1', True),
        ("value.amount < 'a'", False),
        ("value contains 'amount'", True),
        ("value =~ '\"amount\":\\s*\\d+'", True),
        ("value.lines =~ 'sku'", True),
        ("value.missing =~ '.'", False),
        ("key == 'k1'", True),
        ("key == k1", None),
        ("key =~ '^k\\d$' and not key == 'k2'", True),
        ("not not key", True),
        ("headers.trace == 'two'", True),
        ("headers.trace == 'one'", False),
        ("headers.none", False),
        ("headers.empty == null", True),
        ("headers['trace'] contains 'w'", True),
        ("topic == 'orders' and partition == 2 and offset >= 7", True),
        ("timestamp_ms < 1600000000000", False),
        ("key == 'a' or key == 'k1'", True),
        ("(key == 'a' or key == 'k1') and partition == 3", False),
        ("key == 'a' or key == 'k1' and partition == 2", True),
    ],
)
def test_conditions(text, expected):
    if expected is None:
        with pytest.raises(InvalidOptionError):
            parse_condition(text)
    else:
        assert parse_condition(text)(RECORD) is expected


def test_decoded_and_null_values():
    assert parse_condition("value.a[1] == 2")(make_record(value=Decoded({"a": [1, 2]})))
    assert parse_condition("value.a contains 2")(make_record(value=Decoded({"a": [1, 2]})))
    assert parse_condition("value > 4")(make_record(value=Decoded(5)))
    assert parse_condition("value == null")(make_record(value=None))
    assert not parse_condition("value.a == 1")(make_record(value=None))
    assert not parse_condition("value.a == 1")(make_record(value=b"no json"))
    assert parse_condition("value contains 'a'")(make_record(value=b"\xffa"))


def test_the_conditions_of_other_options():
    assert require_key('a"b')(make_record(b'a"b')) and not require_key("a")(make_record(None))
    assert require_header("trace", None)(RECORD) and not require_header("other", None)(RECORD)
    assert require_header("trace", "two")(RECORD) and not require_header("trace", "one")(RECORD)
    assert require_match(r"\d{2}")(RECORD) and not require_match("^x")(RECORD)
    with pytest.raises(InvalidOptionError, match=r"--grep \( is no regular expression"):
        require_match("(")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("vale > 1", "--filter vale > 1: column 1: unexpected vale; did you mean value?"),
        ("", "--filter : column 1: unexpected end; a condition begins with key, value"),
        ("value >", "column 8: end is no number"),
        ("value > abc", "column 9: abc is no number, no text in quotes"),
        ("value == 'a", "column 10: unexpected '"),
        ("value.1", "unexpected 1 instead of a name"),
        ("value[x]", "column 7: unexpected x instead of an index or a name in quotes"),
        ("value[1", "a ] is missing"),
        ("(value", "a ) is missing"),
        ("value == 1 2", "column 12: unexpected 2"),
        ("value =~ 1", "=~ needs a regular expression"),
        ("value =~ '('", "( is no regular expression"),
        ("value < null", "< needs a number or a text"),
        ("headers == 'a'", "headers needs the name of a header"),
        ("topic.a == 1", "topic has no parts"),
        ("__import__('os')", "unexpected __import__"),
        ("(" * 60, "too many parentheses"),
    ],
)
def test_errors_have_their_column(text, message):
    with pytest.raises(InvalidOptionError) as caught:
        parse_condition(text)
    assert message in str(caught.value)
