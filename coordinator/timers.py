"""Deadlines by key, on the monotonic clock.

Callers pass delays rather than times, because `now_ms` elsewhere in this package is the wall clock, which may be set.
"""

from collections.abc import Callable, Hashable, Iterator
from heapq import heappop, heappush, heapreplace
from typing import Final

from odradek.coordinator.result import CoordinatorResult

DEADLINES_PER_TICK: Final = 16
"""Maximum number of deadlines of a tick, because a deadline may end a join phase or a transaction."""

DeadlineKey = tuple[Hashable, ...]
"""The kind of a deadline, and what it applies to."""

Action = Callable[[CoordinatorResult, int], None]
"""Handle a deadline, at `now_ms`: add records and replies to a result."""


class DeadlineHeap:
    """At most one deadline and action per key; equal deadlines fire in the order in which they were set.

    A deadline that moves later, as with every heartbeat, changes `_actions` only: the key's heap entry keeps its old
    deadline until it reaches the top. If a deadline moves earlier, a second entry is added; of a key's entries only the
    one in `_entries` is valid.
    """

    __slots__ = ("_actions", "_entries", "_heap", "_sequence", "monotonic_ms")

    def __init__(self, monotonic_ms: Callable[[], int]) -> None:
        self.monotonic_ms = monotonic_ms
        self._actions: dict[DeadlineKey, tuple[int, int, Action]] = {}  # key -> deadline_ms, order of setting, action
        self._entries: dict[DeadlineKey, tuple[int, int, DeadlineKey]] = {}
        self._heap: list[tuple[int, int, DeadlineKey]] = []
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._actions)

    def __contains__(self, key: DeadlineKey) -> bool:
        return key in self._actions

    def schedule(self, key: DeadlineKey, delay_ms: int, action: Action) -> None:
        """Set the key's deadline, `delay_ms` from now, in place of its current one."""
        deadline_ms = self.monotonic_ms() + delay_ms
        self._sequence += 1
        self._actions[key] = (deadline_ms, self._sequence, action)
        entry = self._entries.get(key)
        if entry is None or deadline_ms < entry[0]:
            entry = self._entries[key] = (deadline_ms, self._sequence, key)
            heappush(self._heap, entry)

    def cancel(self, key: DeadlineKey) -> None:
        """Remove the key's deadline if it has one."""
        self._actions.pop(key, None)

    def discard(self) -> Iterator[None]:
        """Remove all deadlines, of which there may be many, in steps."""
        for table in (self._actions, self._entries):
            while table:
                table.popitem()
                yield
        while self._heap:
            self._heap.pop()
            yield

    def next_deadline_ms(self) -> int | None:
        """Return the earliest deadline on the monotonic clock; None if there is none."""
        top = self._update_top()
        return None if top is None else top[0]

    def next_key(self) -> DeadlineKey | None:
        """Return the key of the earliest deadline; None if there is none."""
        top = self._update_top()
        return None if top is None else top[2]

    def pop_due(self, due_ms: int) -> Action | None:
        """Remove and return the earliest action whose deadline is not after `due_ms`; None if there is none."""
        top = self._update_top()
        if top is None or top[0] > due_ms:
            return None
        heappop(self._heap)
        del self._entries[top[2]]
        return self._actions.pop(top[2])[2]

    def _update_top(self) -> tuple[int, int, DeadlineKey] | None:
        """Remove and move heap entries until the top one is valid and has its key's current deadline."""
        while self._heap:
            entry = self._heap[0]
            key = entry[2]
            if self._entries.get(key) is not entry:
                heappop(self._heap)
                continue
            current = self._actions.get(key)
            if current is None:
                heappop(self._heap)
                del self._entries[key]
            elif current[1] == entry[1]:
                return entry
            else:
                moved = self._entries[key] = (current[0], current[1], key)
                heapreplace(self._heap, moved)
        return None
