"""The lag of groups over time, kept in memory while the console runs."""

import threading
from array import array
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

SAMPLE_S: Final = 30.0
MOST_GROUPS: Final = 1_000
"""Groups that are sampled: first those whose pages were opened last."""

_MOST_POINTS: Final = 480
_MOST_LISTED: Final = 20
_GAP_MS: Final = int(3 * SAMPLE_S * 1000)
_TOPS: Final = (1, 2, 3, 4, 5, 6, 8, 10)
"""The highest values of a scale, times a power of ten."""

_MOST_REMEMBERED: Final = 2 * MOST_GROUPS
_WIDTH: Final = 720
_HEIGHT: Final = 140


class Point(NamedTuple):
    """The lag of a group at a time."""

    time_ms: int
    lag: int


class Line(NamedTuple):
    """Points of successive samples in the syntax of SVG's polyline, from `left` to `right`."""

    points: str
    left: str
    right: str


class Chart(NamedTuple):
    """Lines in a picture of `width` by `height`, one more after each gap in the samples.

    scale: the values at the top, in the middle and at the bottom
    listed: some of the samples from the newest, at most _MOST_LISTED
    """

    lines: list[Line]
    width: int
    height: int
    scale: tuple[int, int, int]
    first: Point
    last: Point
    highest: int
    listed: list[Point]


class LagHistory:
    """Samples of the lag of groups, the newest _MOST_POINTS of each.

    A group has an array of times and lags in turn, of 8 bytes each: at most 16 MiB for _MOST_REMEMBERED groups.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._points: dict[str, array[int]] = {}
        self._opened: dict[str, None] = {}

    def mark_opened(self, group: str) -> None:
        """Prefer a group in the selection, because its page was opened."""
        with self._lock:
            self._opened.pop(group, None)
            self._opened[group] = None
            if len(self._opened) > _MOST_REMEMBERED:
                del self._opened[next(iter(self._opened))]

    def select(self, groups: Sequence[str]) -> list[str]:
        """Return the groups to sample."""
        existing = set(groups)
        with self._lock:
            preferred = [group for group in reversed(self._opened) if group in existing]
        chosen = dict.fromkeys([*preferred, *groups])
        return list(chosen)[:MOST_GROUPS]

    def add(self, time_ms: int, lags: Mapping[str, int | None]) -> None:
        """Add a sample of groups; groups that are not in it any more are forgotten when there are too many."""
        with self._lock:
            for group, lag in lags.items():
                if lag is not None:
                    points = self._points.setdefault(group, array("q"))
                    del points[: max(len(points) - 2 * (_MOST_POINTS - 1), 0)]
                    points.extend((time_ms, lag))
            if len(self._points) > _MOST_REMEMBERED:
                self._points = {group: points for group, points in self._points.items() if group in lags}

    def draw(self, group: str) -> Chart | None:
        """Return the chart of a group; None with fewer than two points."""
        with self._lock:
            numbers = iter(tuple(self._points.get(group, ())))
        points = [Point(time_ms, lag) for time_ms, lag in zip(numbers, numbers, strict=True)]
        if len(points) < 2:
            return None
        first, last, highest = points[0], points[-1], max(point.lag for point in points)
        top = find_top(highest)
        lines = [_make_line(run, points, top) for run in _split(points)]
        return Chart(lines, _WIDTH, _HEIGHT, (top, top // 2, 0), first, last, highest, _select_listed(points))


def find_top(highest: int) -> int:
    """Return an even round number from `highest`."""
    power = 1
    while True:
        for top in _TOPS:
            if top * power >= highest and top * power % 2 == 0:
                return top * power
        power *= 10


def _split(points: Sequence[Point]) -> list[list[Point]]:
    """Return runs of points without gaps."""
    runs: list[list[Point]] = []
    for point in points:
        if not runs or point.time_ms - runs[-1][-1].time_ms > _GAP_MS:
            runs.append([])
        runs[-1].append(point)
    return runs


def _make_line(run: Sequence[Point], points: Sequence[Point], top: int) -> Line:
    start_ms = points[0].time_ms
    duration_ms = max(points[-1].time_ms - start_ms, 1)
    lefts = [f"{(point.time_ms - start_ms) * _WIDTH / duration_ms:.1f}" for point in run]
    pairs = [f"{left},{_HEIGHT - point.lag * _HEIGHT / top:.1f}" for left, point in zip(lefts, run, strict=True)]
    # A line of one point is drawn as a dot only if it has an end.
    return Line(" ".join(pairs if len(pairs) > 1 else 2 * pairs), lefts[0], lefts[-1])


def _select_listed(points: Sequence[Point]) -> list[Point]:
    """Return points in equal steps, with the first and the last."""
    count = min(len(points), _MOST_LISTED)
    return [points[index * (len(points) - 1) // (count - 1)] for index in reversed(range(count))]
