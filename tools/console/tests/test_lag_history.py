import tracemalloc

from odradek.tools.console.lag_history import MOST_GROUPS, LagHistory


def test_the_line_of_a_group():
    history = LagHistory()
    history.add(1000, {"a": 10, "b": None})
    assert history.draw("a") is None
    history.add(2000, {"a": 0, "b": None})
    history.add(5000, {"a": 5})
    chart = history.draw("a")
    assert chart is not None and chart.line == "0.0,0.0 180.0,140.0 720.0,70.0"
    assert (chart.first.lag, chart.last.lag, chart.highest) == (10, 5, 10)
    assert history.draw("b") is None


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
