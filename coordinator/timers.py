"""Deadlines by key, on a monotonic clock.

A caller gives the delay, never the time: `now_ms` elsewhere in this package is the wall clock, which may be set.
"""

from collections.abc import Callable, Hashable
from heapq import heappop, heappush, heapreplace
from typing import Final

from odradek.coordinator.result import CoordinatorResult

DEADLINES_PER_TICK: Final = 16
"""Each may end a join phase or a transaction; what else is due waits for the next tick."""

Key = tuple[Hashable, ...]
Action = Callable[[CoordinatorResult, int], None]


class DeadlineHeap:
    """At most one deadline and action per key; equal deadlines fire in the order in which they were set.

    Moving a deadline later, which every heartbeat does, only rewrites the table: the key's entry stays in the heap
    where it was and is put right when it comes to the top. Of several entries of one key only the one in `_entries`
    counts; there is a second one only where a deadline was moved earlier.
    """

    __slots__ = ("_actions", "_entries", "_heap", "_sequence", "monotonic_ms")

    def __init__(self, monotonic_ms: Callable[[], int]) -> None:
        self.monotonic_ms = monotonic_ms
        self._actions: dict[Key, tuple[int, int, Action]] = {}  # key -> deadline_ms, order of setting, action
        self._entries: dict[Key, tuple[int, int, Key]] = {}
        self._heap: list[tuple[int, int, Key]] = []
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._actions)

    def __contains__(self, key: Key) -> bool:
        return key in self._actions

    def schedule(self, key: Key, delay_ms: int, action: Action) -> None:
        """Set the key's only deadline, `delay_ms` from now, in place of the one it had."""
        deadline_ms = self.monotonic_ms() + delay_ms
        self._sequence += 1
        self._actions[key] = (deadline_ms, self._sequence, action)
        entry = self._entries.get(key)
        if entry is None or deadline_ms < entry[0]:
            entry = self._entries[key] = (deadline_ms, self._sequence, key)
            heappush(self._heap, entry)

    def cancel(self, key: Key) -> None:
        """Forget the key; nothing happens if it has no deadline."""
        self._actions.pop(key, None)

    def clear(self) -> None:
        """Forget every key."""
        self._actions.clear()
        self._entries.clear()
        self._heap.clear()

    def next_deadline_ms(self) -> int | None:
        """The earliest deadline on the monotonic clock, or None."""
        top = self._settle()
        return None if top is None else top[0]

    def next_key(self) -> Key | None:
        """The key of the earliest deadline, or None."""
        top = self._settle()
        return None if top is None else top[2]

    def pop_due(self, due_ms: int) -> Action | None:
        """Take out and return the earliest action whose deadline is not after `due_ms`; None if there is none."""
        top = self._settle()
        if top is None or top[0] > due_ms:
            return None
        heappop(self._heap)
        del self._entries[top[2]]
        return self._actions.pop(top[2])[2]

    def _settle(self) -> tuple[int, int, Key] | None:
        """Drop and move entries until the top one is true."""
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
