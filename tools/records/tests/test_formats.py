"""Output formats, and that JSON is read again as the same record."""

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.tools.records.decoding import PartFormat
from odradek.tools.records.encoding import PartEncoder, make_encoder
from odradek.tools.records.errors import InvalidOptionError, UnencodableError
from odradek.tools.records.formats import format_json, make_line_format, make_shortener, parse_template
from odradek.tools.records.input import (
    BadLine,
    Encoders,
    NewRecord,
    Template,
    make_json_parser,
    make_line_parser,
    read_chunks,
    read_lines,
)
from odradek.tools.records.record import Decoded
from odradek.tools.records.tests.messages import make_record

NOTHING = Template(None, (), -1)
PARTS = st.none() | st.binary(max_size=12) | st.text(max_size=8).map(str.encode)


def text_encoder() -> PartEncoder:
    return make_encoder(PartFormat(), lambda: None, "")  # type: ignore[arg-type,return-value]


ENCODERS = Encoders(text_encoder(), text_encoder())


@given(PARTS, PARTS, st.lists(st.tuples(st.text(st.characters(codec="utf-8"), max_size=5), PARTS), max_size=3))
def test_json_is_read_again_as_the_same_record(key, value, headers):
    line = format_json(make_record(key, value, headers))
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    found = make_json_parser(ENCODERS, NOTHING)("line 1", line)
    assert found == NewRecord("line 1", key, value, tuple(headers), 2, 1_700_000_000_000)


def test_json_of_decoded_values():
    document = json.loads(format_json(make_record(Decoded({"a": "\ud800"}), Decoded(None), errors=("value: x",))))
    assert (document["key"], document["value_base64"], document["errors"]) == (
        {"a": "\ud800"},
        "bnVsbA==",
        ["value: x"],
    )
    assert "value" not in document


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ("[]", "no JSON object"),
        ("{", "no JSON"),
        ('{"valu": 1}', "there is no field valu; did you mean value"),
        ('{"value_base64": "%"}', "no base64"),
        ('{"partition": -1}', "partition must be a number"),
        ('{"partition": true}', "partition must be a number"),
        ('{"timestamp_ms": "x"}', "timestamp_ms must be"),
        ('{"headers": 1}', "headers must be a list"),
        ('{"headers": [1]}', "a header must be an object"),
        ('{"headers": {"a": 1}}', "the value of header a must be a string"),
        ('{"value": "\\ud800"}', "half of a surrogate pair"),
    ],
)
def test_invalid_json_lines(document, reason):
    with pytest.raises(UnencodableError, match=reason):
        make_json_parser(ENCODERS, NOTHING)("line 1", document.encode())


def test_options_complete_json():
    template = Template(b"k", [("h", b"1")], 3)
    parse = make_json_parser(ENCODERS, template)
    assert parse("l", b'{"headers": {"a": null}}') == NewRecord("l", b"k", None, (("a", None), ("h", b"1")), 3, 0)
    assert parse("l", b'{"key": null, "value": {"a": 1}, "partition": 5}')[1:3] == (None, b'{"a":1}')
    free = make_json_parser(ENCODERS, NOTHING._replace(takes_partitions=False))
    assert free("l", b'{"partition": 5}').partition == -1


def test_lines_have_keys_and_nulls():
    parse = make_line_parser(ENCODERS, NOTHING, b"::", b"NULL")
    streams = [("", io.BytesIO(b"a::1::2\nNULL::x\nb::NULL\n\n::\nc::last"))]
    sizes: list[int] = []
    found = [*read_lines(streams, parse, sizes.append)]
    assert [(one.key, one.value) if isinstance(one, NewRecord) else one for one in found] == [
        (b"a", b"1::2"),
        (None, b"x"),
        (b"b", None),
        BadLine("line 4", "the key separator :: is missing"),
        (b"", b""),
        (b"c", b"last"),
    ]
    assert sum(sizes) >= 33


class Pieces(io.BytesIO):
    """A pipe that has a piece at a time."""

    def __init__(self, *pieces):
        super().__init__()
        self._pieces = [*pieces]

    def read1(self, size=-1, /):
        return self._pieces.pop(0) if self._pieces else b""


def test_lines_of_a_pipe_are_read_as_they_come():
    assert [*read_chunks(Pieces(b"a\nb", b"c", b"\n", b"d\n\ne"))] == [[b"a"], [b"bc"], [b"d", b""], [b"e"]]
    assert [*read_chunks(Pieces())] == []


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("%t-%p@%o %k=%s\\n", b"orders-2@7 k=v\n"),
        ("%T %K %S%%", b"1700000000000 1 1%"),
        ("%h", b"a=1,b=NIL"),
        ("\\x41\\t\\\\\\q", b"A\t\\q"),
        ("%R", b"\0\0\0\1"),
    ],
)
def test_templates(template, expected):
    record = make_record(headers=[("a", b"1"), ("b", None)])
    assert parse_template(template, b"NIL")(record) == expected


def test_invalid_templates():
    for template, reason in (("%x", "there is no field %x; there are %s"), ("a%", "a % is at the end")):
        with pytest.raises(InvalidOptionError, match=reason):
            parse_template(template, b"")


def test_lines():
    assert make_line_format(None, b"", None)(make_record(value=Decoded({"a": 1}))) == b'{"a":1}\n'
    assert make_line_format(b"=", b"NULL", None)(make_record(Decoded("é"), None)) == "é=NULL\n".encode()


def test_a_terminal_shows_the_beginning_of_large_values_without_control_characters():
    shorten = make_shortener(5, lambda text: text.replace("\x1b", "\\x1b"))
    assert shorten(b"\x1bab\xff") == b"\\x1bab\\x... (4 bytes; --full shows all)"
    assert shorten("ééééé".encode()) == "ééééé".encode()
    assert shorten(b"x" * 1000) == b"xxxxx... (1000 bytes; --full shows all)"
