"""Batches written without a look at each record."""

import io

import pytest
from confluent_kafka import Message

from odradek.tools.records.writing import PlainWriter

PAIRS = [(b"k", b"v"), (None, b"w"), (b"l", None), (b"", b"")]


@pytest.mark.parametrize(
    ("separator", "most", "text"),
    [
        (None, 9, b"v\nw\nNIL\n\n"),
        (b":", 9, b"k:v\nNIL:w\nl:NIL\n:\n"),
        (b"", 9, b"kv\nNILw\nlNIL\n\n"),
        (b"::", 1, b"k::v\n"),
        (b":", 0, b""),
    ],
)
def test_keys_and_values(separator, most, text):
    messages = [Message(topic="t", partition=0, offset=n, key=key, value=value) for n, (key, value) in enumerate(PAIRS)]
    stream = io.BytesIO()
    count = min(most, len(messages))
    assert PlainWriter(stream, b"NIL", separator).write(messages, most) == (count, count, len(text))
    assert stream.getvalue() == text
