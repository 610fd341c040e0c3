"""The nearest names of a misspelt one, in order."""

import pytest

from odradek.tools.kafka.similar_names import find_similar, suggest


@pytest.mark.parametrize(
    ("name", "names", "expected"),
    [
        ("ordres", ["orders", "invoices"], ["orders"]),
        ("orders", ["orders", "orders2"], ["orders2"]),
        ("ORDERS", ["orders"], ["orders"]),
        ("ord", ["orders", "order-lines"], ["orders", "order-lines"]),
        ("team01.topic-001", [f"team01.topic-{n:04}" for n in range(5000)], ["0001", "0010", "0011"]),
        ("xyzzy", ["orders"], []),
        ("", ["orders"], []),
    ],
)
def test_the_nearest_names(name, names, expected):
    assert [each.removeprefix("team01.topic-") for each in find_similar(name, names)] == expected


def test_a_suggestion():
    assert suggest("ax1", ["ax3", "ax2"]) == "; did you mean ax2 or ax3?"
    assert suggest("ax1", ["zz"]) == ""
