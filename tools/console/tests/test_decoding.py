import json
import time

import pytest
from hypothesis import given
from hypothesis.strategies import binary, integers, none

from odradek.protocol.batches.record_reader import Record
from odradek.tools.console.records.decoding import (
    HEX,
    JSON,
    LIST_CHARACTERS,
    NULL,
    TEXT,
    contains,
    indent_json,
    show,
    show_record,
)
from odradek.tools.logs.decoding import decoder_of


@pytest.mark.parametrize(
    ("data", "kind", "text"),
    [
        (None, NULL, ""),
        (b"", TEXT, ""),
        (b"plain", TEXT, "plain"),
        ("grün ✓".encode(), TEXT, "grün ✓"),
        (b"12", TEXT, "12"),
        (b'{"a":[1,{}],"b":[]}', JSON, '{\n  "a": [\n    1,\n    {}\n  ],\n  "b": []\n}'),
        (b'{"a":1', TEXT, '{"a":1'),
        (b"[" * 100_000, TEXT, "[" * 4000),
        ("a\u202eb".encode(), TEXT, "a\\u202eb"),
        (b"\x00\x01ab", HEX, "000000  00 01 61 62" + " " * 12 + "  " + " " * 23 + "  ..ab"),
        (b"caf\xe9", HEX, "000000  63 61 66 e9" + " " * 12 + "  " + " " * 23 + "  caf."),
    ],
)
def test_kinds(data, kind, text):
    content = show(data)
    assert (content.kind, content.text) == (kind, text)


def test_indented_json_keeps_numbers_and_strings():
    text = '{"n":1.10,"big":123456789012345678901234567890,"e":1E400,"s":"a, {b}: \\"c\\"","n":true}'
    indented = indent_json(text, 10_000)
    assert json.loads(indented) == json.loads(text)
    for part in ("1.10", "123456789012345678901234567890", "1E400", '"a, {b}: \\"c\\""'):
        assert part in indented
    assert indented.count('"n"') == 2


def test_shortened_json_ends_within_a_string():
    text = json.dumps({"payload": json.dumps({f"field{one}": "value" for one in range(2_000)})})
    started = time.process_time()
    content = show(text.encode())
    # Each quote in the string would begin a search for its end, which takes 0.4 s.
    assert time.process_time() - started < 0.1
    assert content.text == ('{\n  "payload": ' + text.partition(": ")[2])[:LIST_CHARACTERS]
    assert (content.kind, content.is_shortened) == (JSON, True)


def test_large_contents_are_shortened():
    content = show(b"x" * 5_000_000)
    assert (content.is_shortened, len(content.text), content.size_bytes) == (True, 4000, 5_000_000)
    assert content.summary == "x" * 160 + "…"
    # A character at the cut does not make the text binary.
    assert show("ä".encode() * 10_001).kind == show(b"a" + "ä".encode() * 10_001).kind == TEXT
    binary = show(bytes(range(256)) * 100)
    assert binary.is_shortened and binary.kind == HEX and len(binary.text) < 6000
    array = show(json.dumps(list(range(5000))).encode())
    assert array.is_shortened and array.kind == JSON and len(array.text) <= 4000


def test_notes_about_binary_content():
    assert show((7).to_bytes(8, "big")).note == "as a number: 7"
    assert show(b"\x00\x00\x00\x00\x2a\x02x\xff").note == "as a number: " + str(
        int.from_bytes(b"\x00\x00\x00\x00\x2a\x02x\xff", "big")
    )
    assert show(b"\x00\x00\x00\x00\x2a\x02x").note == "may have schema 42 of a schema registry"
    assert show(b"\x00\x04\x00\x00\x00\x02x").note == ""


def test_records_of_internal_topics():
    def show_offsets(key, value):
        return show_record(0, Record(0, 0, key, value, ()), 4000, False, decode=decoder_of("__consumer_offsets"))

    key = b"\x00\x01\x00\x03a\xc3\xa4\x00\x01t\x00\x00\x00\x07"
    shown = show_offsets(key, b"\x00\x03" + (5).to_bytes(8, "big") + b"\xff\xff\xff\xff\x00\x00" + bytes(8))
    assert (shown.key.kind, json.loads(shown.key.text)) == (JSON, {"group": "a\xe4", "topic": "t", "partition": 7})
    assert (shown.value.kind, json.loads(shown.value.text)["offset"]) == (JSON, 5)
    assert (shown.key.note, shown.value.note) == ("OFFSET_COMMIT", "OFFSET_COMMIT, version 3")
    assert (shown.key.size_bytes, shown.value.size_bytes) == (len(key), 24)
    assert show_offsets(key, None).value.kind == NULL
    unknown = show_offsets(b"\x00\x11\x00\x01g", b"\x00\x00\x00\x01x")
    assert (unknown.key.kind, unknown.key.note) == (HEX, "STREAMS_GROUP_METADATA")
    assert "cannot be decoded" in show_offsets(key[:5], b"x").key.note


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__transaction_state"])
@given(key=binary(max_size=40), value=binary(max_size=60) | none(), record_type=integers(0, 25))
def test_damaged_records_of_internal_topics_are_shown(topic, key, value, record_type):
    for stored in (key, record_type.to_bytes(2, "big") + key):
        show_record(0, Record(0, 0, stored, value, ()), 4000, False, decode=decoder_of(topic))


@pytest.mark.parametrize("needle", [b"the-key", b"value", b"header-name", b"header-value"])
def test_all_parts_of_a_record_are_searched(needle):
    record = Record(0, 0, b"the-key", b"a value", (("header-name", b"header-value"), ("null", None)))
    assert contains(record, needle)
    assert not contains(Record(0, 0, None, None, ()), needle)
