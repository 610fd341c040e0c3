"""Requests that wait: for records to fetch, or for replicas to catch up. Each is completed exactly once.

An operation is woken by the partitions it watches and by its timeout, whichever comes first. Waking asks it whether
it can be completed now; the timeout does not ask.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from odradek.server.waits import Wait

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from odradek.replication.partition import Partition

_MOST_NAMED: Final = 3


class DelayedOperation:
    """One waiting request.

    `try_complete` returns the response, or None to go on waiting. `on_timeout` returns the response that the time
    running out forces. The answer comes through `deferred`; cancelling that (the client is gone) drops the operation.
    """

    __slots__ = ("_on_timeout", "_timer", "_try_complete", "_watching", "deferred")

    def __init__(self, try_complete: Callable[[], Any | None], on_timeout: Callable[[], Any]) -> None:
        self.deferred: Deferred[Any] = Wait(self._describe, self._cancelled)
        self._try_complete = try_complete
        self._on_timeout = on_timeout
        self._watching: list[Partition] = []
        self._timer: Any = None

    def wait(self, clock: Any, timeout_ms: int, partitions: "Iterable[Partition]") -> "Deferred[Any]":
        """Begin to wait, at most `timeout_ms`; what is not positive ends in the next reactor turn."""
        for partition in partitions:
            partition.watchers[self] = None
            self._watching.append(partition)
        self._timer = clock.callLater(max(0, timeout_ms) / 1000, self._timed_out)
        return self.deferred

    def wake(self) -> None:
        """Something changed; complete if that was what was missing."""
        if self.deferred.called:
            return
        response, error = None, None
        try:
            response = self._try_complete()
        except Exception as failure:
            error = failure
        # To look may be to find a disk broken, which wakes whoever watches it, this operation included.
        if self.deferred.called or (response is None and error is None):
            return
        self._finish()
        if error is None:
            self.deferred.callback(response)
        else:
            self.deferred.errback(error)

    def _timed_out(self) -> None:
        self._timer = None
        if self.deferred.called:
            return
        self._finish()
        try:
            response = self._on_timeout()
        except Exception as error:
            self.deferred.errback(error)
            return
        self.deferred.callback(response)

    def _describe(self) -> str:
        names = [f"{partition.topic}-{partition.index}" for partition in self._watching[:_MOST_NAMED]]
        more = len(self._watching) - len(names)
        return f"purgatory: {', '.join(names)}{f' and {more} more' if more else ''}"

    def _cancelled(self, deferred: "Deferred[Any]") -> None:
        self._finish()

    def _finish(self) -> None:
        """Leave every list that could wake this again."""
        for partition in self._watching:
            partition.watchers.pop(self, None)
        self._watching.clear()
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._timer = None
