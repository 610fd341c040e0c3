"""The end of a reactor's turn: where small answers leave together.

A response sent while other requests wait to be read costs the kernel more than one of many sent in a row. So they are
held back, for no longer than the events of one poll take.
"""

from typing import Final, Protocol


class Flushable(Protocol):
    """Something that holds data back until the end of the turn."""

    def flush(self) -> None:
        """Send it now."""
        ...


class Turn:
    """What is to be sent when the events at hand are dealt with. Nothing waits for more than `LIMIT` others."""

    LIMIT: Final = 64

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[Flushable] = []

    def add(self, waiting: Flushable) -> None:
        """Have `waiting` flushed at the end of the turn."""
        self._waiting.append(waiting)
        if len(self._waiting) >= self.LIMIT:
            self.flush()

    def flush(self) -> None:
        """The end of the turn."""
        waiting = self._waiting
        if waiting:
            self._waiting = []
            for one in waiting:
                one.flush()
