"""Removing files of deleted logs and segments, in a thread.

A topic may have had thousands of partitions. One piece of work at a time has the thread, so that the syncs which
acknowledgements wait for, in the same threads, do not stand behind all of them.
"""

from collections.abc import Callable
from typing import Final

from odradek.log.background.tasks import RunInThread

_AT_ONCE: Final = 32

_Removal = tuple[str, Callable[[], None]]
"""A log directory, and what removes something in it."""


class Removals:
    """What is to be removed. `failed(path, error)` returns whether a removal is to be kept for `retry`."""

    __slots__ = ("_failed", "_is_running", "_refused", "_run_in_thread", "_waiting")

    def __init__(self, run_in_thread: RunInThread, failed: Callable[[str, Exception], bool]) -> None:
        self._run_in_thread = run_in_thread
        self._failed = failed
        self._waiting: list[_Removal] = []
        self._refused: list[_Removal] = []
        self._is_running = False

    def add(self, path: str, remove: Callable[[], None]) -> None:
        """Have something in the log directory `path` removed."""
        self._waiting.append((path, remove))
        if not self._is_running:
            self._begin()

    def retry(self) -> None:
        """Try again what there was no room for."""
        self._waiting += self._refused
        self._refused = []
        if self._waiting and not self._is_running:
            self._begin()

    def _begin(self) -> None:
        begun, self._waiting = self._waiting[:_AT_ONCE], self._waiting[_AT_ONCE:]
        self._is_running = True
        failures: list[tuple[_Removal, Exception]] = []

        def work() -> None:
            for removal in begun:
                try:
                    removal[1]()
                except Exception as error:
                    failures.append((removal, error))

        def finish(_: Exception | None) -> None:
            self._is_running = False
            for removal, error in failures:
                if self._failed(removal[0], error):
                    self._refused.append(removal)
            if self._waiting and not self._is_running:
                self._begin()

        self._run_in_thread(work, finish)
