"""The nearest names of a misspelt one, in order."""

import difflib

import pytest

from odradek.tools.kafka.similar_names import MOST_COMPARED, find_similar, suggest


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


@pytest.mark.parametrize(
    "wrong", ["orders-eu-events", "order-eu-events-v2", "xorders-eu-events-v2x", "ordres-eu-events-v2"]
)
def test_few_of_very_many_names_are_compared(monkeypatch, wrong):
    compared = []

    class Matcher(difflib.SequenceMatcher[str]):
        def set_seq1(self, each):
            compared.append(each)
            super().set_seq1(each)

    monkeypatch.setattr(difflib, "SequenceMatcher", Matcher)
    names = [f"{team}-{number:04}-v2" for team in ("orders", "invoices", "eu-events") for number in range(2000)]
    assert find_similar(wrong, [*names, "orders-eu-events-v2"])[0] == "orders-eu-events-v2"
    assert len(list(filter(None, compared))) <= MOST_COMPARED


def test_a_suggestion():
    assert suggest("ax1", ["ax3", "ax2"]) == "; did you mean ax2 or ax3?"
    assert suggest("ax1", ["zz"]) == ""
