import pytest

from odradek.tools.console.formats import NOTHING, format_bytes, format_duration, format_time
from odradek.tools.console.paging import read_view, select

KEYS = {"name": lambda row: row[0], "size": lambda row: row[1]}


def show(rows, **arguments):
    return select(rows, read_view(arguments, ("name", "size")), KEYS, lambda row: row[0])


def test_pages_of_a_long_table():
    rows = [(f"topic-{index:03}", index) for index in range(120)]
    shown = show(rows, page="3")
    assert (shown.pages, shown.first, shown.last, len(shown.rows)) == (3, 101, 120, 20)
    assert show(rows, page="99").view.page == 3
    assert [show(rows, page=page).view.page for page in ("0", "-1", "x", "", "9" * 5000)] == [1, 1, 1, 1, 1]
    assert show([]).pages == 1 and (show([]).first, show([]).last) == (0, 0)


def test_order_and_search():
    rows = [("b", 1), ("A", None), ("c", 3)]
    assert [row[0] for row in show(rows, sort="-size").rows] == ["c", "b", "A"]
    assert [row[0] for row in show(rows, sort="size").rows] == ["A", "b", "c"]
    assert show(rows, sort="-nothing").view.order == "name"
    shown = show(rows, search=" a ")
    assert ([row[0] for row in shown.rows], shown.found, shown.total) == (["A"], 1, 3)


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(None, NOTHING), (0, "0 B"), (1023, "1023 B"), (1536, "1.50 KiB"), (20 << 20, "20.0 MiB"), (300 << 30, "300 GiB")],
)
def test_sizes(size_bytes, text):
    assert format_bytes(size_bytes) == text


def test_times_and_durations():
    assert format_time(1_700_000_000_007) == "2023-11-14 22:13:20.007"
    assert (format_time(-1), format_time(1 << 62)) == (NOTHING, str(1 << 62))
    assert [format_duration(ms) for ms in (12, 61_000, 90_061_000)] == ["12 ms", "1 min 1 s", "1 d 1 h"]
