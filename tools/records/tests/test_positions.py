"""Positions, partitions and the size of batches."""

import pytest

from odradek.tools.records.errors import InvalidOptionError
from odradek.tools.records.positions import BEGINNING, END, LAST, OFFSET, TIME, parse_partitions, parse_position

NOW_MS = 1_800_000_000_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("beginning", (BEGINNING, 0)),
        ("earliest", (BEGINNING, 0)),
        ("end", (END, 0)),
        ("0", (OFFSET, 0)),
        ("123456789012", (OFFSET, 123456789012)),
        ("-5", (LAST, 5)),
        ("@5", (TIME, 5)),
        ("90m", (TIME, NOW_MS - 5_400_000)),
        ("P1DT2H", (TIME, NOW_MS - 93_600_000)),
        ("1970-01-01T00:00:01", (TIME, 1000)),
        ("1970-01-01T01:00:01+01:00", (TIME, 1000)),
    ],
)
def test_positions(text, expected):
    assert parse_position(text, NOW_MS) == expected


@pytest.mark.parametrize("text", ["", "first", "1x", "--1", "@", "9" * 30])
def test_invalid_positions(text):
    with pytest.raises(InvalidOptionError, match="is no position; use beginning"):
        parse_position(text, NOW_MS)


def test_partitions():
    assert parse_partitions("3, 0-2,1") == [0, 1, 2, 3]
    for text in ("", "a", "1-", "-1", "0-9999999"):
        with pytest.raises(InvalidOptionError, match=r"^--partitions"):
            parse_partitions(text)
