"""Removal of the files of deleted logs and segments, in a thread.

A deleted topic may have thousands of partitions. Only one batch of removals at a time occupies a thread, so that syncs,
for which acknowledgements wait, are not queued behind all removals in the same threads.
"""

from collections.abc import Callable
from typing import Final

from odradek.log.background.tasks import RunInThread

_AT_ONCE: Final = 32

_Removal = tuple[str, Callable[[], None]]
"""A log directory, and the function that removes something in it."""


class Removals:
    """Removals that wait for a thread.

    `is_online(path)` returns whether a log directory is online. `failed(path, error)` returns whether a removal is kept
    for `retry`.
    """

    __slots__ = ("_failed", "_is_online", "_is_running", "_refused", "_run_in_thread", "_waiting")

    def __init__(
        self,
        run_in_thread: RunInThread,
        failed: Callable[[str, Exception], bool],
        is_online: Callable[[str], bool] = lambda path: True,
    ) -> None:
        self._run_in_thread = run_in_thread
        self._failed = failed
        self._is_online = is_online
        self._waiting: list[_Removal] = []
        self._refused: list[_Removal] = []
        self._is_running = False

    def add(self, path: str, remove: Callable[[], None]) -> None:
        """Run `remove` in a thread, unless the log directory `path` is offline."""
        if not self._is_online(path):
            return
        self._waiting.append((path, remove))
        if not self._is_running:
            self._begin()

    def retry(self) -> None:
        """Repeat the removals for which a resource was short."""
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
