import pytest

from odradek.tools.console.assignments import format_ranges, shorten_assignment


@pytest.mark.parametrize(
    ("partitions", "text"),
    [
        ([], ""),
        ([3], "3"),
        ([0, 1], "0\N{EN DASH}1"),
        ([0, 1, 2, 4, 7, 8], "0\N{EN DASH}2, 4, 7\N{EN DASH}8"),
        (range(10_000), "0\N{EN DASH}9999"),
        (range(0, 24, 2), "0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22"),
        (range(0, 26, 2), "0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22 and 1 more partition"),
        (range(0, 5000, 2), "0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22 and 2,488 more partitions"),
    ],
)
def test_ranges(partitions, text):
    assert format_ranges(partitions) == text


def test_an_assignment():
    assert shorten_assignment([]) == ([], 0)
    assert shorten_assignment([("b", 1), ("a", 2), ("b", 0), ("b", 1)]) == ([("a", "2"), ("b", "0\N{EN DASH}1")], 0)
    topics, omitted = shorten_assignment([(f"topic-{index:02}", 0) for index in range(13)])
    assert [topic for topic, _ in topics] == [f"topic-{index:02}" for index in range(10)] and omitted == 3
