import tracemalloc

import pytest

from odradek.tools.console.lag_history import MOST_GROUPS, LagHistory, Point, find_top


def test_the_line_of_a_group():
    history = LagHistory()
    history.add(1000, {"a": 10, "b": None})
    assert history.draw("a") is None
    history.add(2000, {"a": 0, "b": None})
    history.add(5000, {"a": 5})
    chart = history.draw("a")
    assert chart is not None and chart.lines == [("0.0,0.0 180.0,140.0 720.0,70.0", "0.0", "720.0")]
    assert (chart.first.lag, chart.last.lag, chart.highest, chart.scale) == (10, 5, 10, (10, 5, 0))
    assert history.draw("b") is None


def test_a_gap_between_samples_is_not_a_line():
    history = LagHistory()
    for time_ms, lag in ((0, 4), (30_000, 2), (600_000, 4), (1_200_000, 0)):
        history.add(time_ms, {"a": lag})
    chart = history.draw("a")
    assert chart is not None
    assert [line.points for line in chart.lines] == [
        "0.0,0.0 18.0,70.0",
        "360.0,0.0 360.0,0.0",
        "720.0,140.0 720.0,140.0",
    ]


def test_some_samples_are_listed_from_the_newest():
    history = LagHistory()
    for time_ms in range(2):
        history.add(time_ms, {"a": 7})
    chart = history.draw("a")
    assert chart is not None and chart.listed == [Point(1, 7), Point(0, 7)]
    for time_ms in range(2, 400):
        history.add(time_ms, {"a": 7})
    chart = history.draw("a")
    assert chart is not None and len(chart.listed) == 20
    assert (chart.listed[0].time_ms, chart.listed[-1].time_ms) == (399, 0)


@pytest.mark.parametrize(
    ("highest", "top"), [(0, 2), (1, 2), (3, 4), (9, 10), (11, 20), (2400, 3000), (2**63 - 1, 10**19)]
)
def test_the_top_of_the_scale(highest, top):
    assert find_top(highest) == top


def test_groups_whose_pages_were_opened_are_sampled_first():
    history = LagHistory()
    names = [f"group-{number:04}" for number in range(MOST_GROUPS + 100)]
    for name in ("group-1090", "deleted", "group-1080"):
        history.mark_opened(name)
    chosen = history.select(names)
    assert chosen[:3] == ["group-1080", "group-1090", "group-0000"]
    assert len(chosen) == len(set(chosen)) == MOST_GROUPS


def test_the_number_of_points_and_groups_is_bounded():
    history = LagHistory()
    for time_ms in range(1000):
        history.add(time_ms, {"a": 1})
    chart = history.draw("a")
    assert chart is not None and chart.first.time_ms == 1000 - 480
    for number in range(3):
        history.add(number, {f"group-{number}-{index}": 1 for index in range(MOST_GROUPS)})
    assert history.draw("a") is None


def test_the_memory_is_bounded():
    history = LagHistory()
    tracemalloc.start()
    for time_ms in range(1000):
        history.add(time_ms, {f"group-{index}": 10**9 + time_ms for index in range(20)})
    size_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # 2,000 groups may be remembered.
    assert 100 * size_bytes <= 18 << 20
