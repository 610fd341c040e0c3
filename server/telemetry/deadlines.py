"""Times at which keys expire."""

from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

K = TypeVar("K", bytes, str)

_SLACK: Final = 1000


class Deadlines(Generic[K]):
    """A deadline for each key, which may be moved in both directions.

    A key whose deadline is moved back keeps its entry in the heap, which is corrected when it is taken from there.
    """

    def __init__(self) -> None:
        self._deadlines_ms: dict[K, int] = {}
        self._heap: list[tuple[int, K]] = []

    def set(self, key: K, deadline_ms: int) -> None:
        """Set or move the deadline of a key."""
        before_ms = self._deadlines_ms.get(key)
        self._deadlines_ms[key] = deadline_ms
        if before_ms is None or deadline_ms < before_ms:
            heappush(self._heap, (deadline_ms, key))
            if len(self._heap) > 2 * len(self._deadlines_ms) + _SLACK:
                self._heap = [(time_ms, each) for each, time_ms in self._deadlines_ms.items()]
                heapify(self._heap)

    def remove(self, key: K) -> None:
        """Remove a key, if there is one."""
        self._deadlines_ms.pop(key, None)

    def take_due(self, now_ms: int, most: int) -> list[K]:
        """Remove and return up to `most` keys whose deadline has come. At most 100 others are examined for each."""
        due: list[K] = []
        examined = 0
        while self._heap and self._heap[0][0] <= now_ms and len(due) < most and examined < 100 * most:
            examined += 1
            _, key = heappop(self._heap)
            deadline_ms = self._deadlines_ms.get(key)
            if deadline_ms is None:
                continue
            if deadline_ms > now_ms:
                heappush(self._heap, (deadline_ms, key))
            else:
                del self._deadlines_ms[key]
                due.append(key)
        return due
