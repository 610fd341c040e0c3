"""The lag of groups over time, kept in memory while the console runs."""

import threading
from array import array
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

SAMPLE_S: Final = 30.0
MOST_GROUPS: Final = 1_000
"""Groups that are sampled: first those whose pages were opened last."""

_MOST_POINTS: Final = 480
_MOST_REMEMBERED: Final = 2 * MOST_GROUPS
_WIDTH: Final = 720
_HEIGHT: Final = 140


class Point(NamedTuple):
    """The lag of a group at a time."""

    time_ms: int
    lag: int


class Chart(NamedTuple):
    """A line in a picture of `width` by `height`, in the syntax of SVG's polyline."""

    line: str
    width: int
    height: int
    first: Point
    last: Point
    highest: int


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
        """Return the line of a group; None with fewer than two points."""
        with self._lock:
            numbers = iter(tuple(self._points.get(group, ())))
        points = [Point(time_ms, lag) for time_ms, lag in zip(numbers, numbers, strict=True)]
        if len(points) < 2:
            return None
        first, last, highest = points[0], points[-1], max(point.lag for point in points)
        duration_ms = max(last.time_ms - first.time_ms, 1)
        line = " ".join(
            f"{(point.time_ms - first.time_ms) * _WIDTH / duration_ms:.1f},"
            f"{_HEIGHT - point.lag * _HEIGHT / max(highest, 1):.1f}"
            for point in points
        )
        return Chart(line, _WIDTH, _HEIGHT, first, last, highest)
