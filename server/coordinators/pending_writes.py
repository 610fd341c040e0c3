"""Writes of a coordinator that wait for replication, and the timeouts after which their requests get an error."""

from collections.abc import Callable
from typing import Generic

from odradek.coordinator.result import CoordinatorResult
from odradek.server.coordinators.context import CoordinatorContext, S
from odradek.server.work.clock import Clock, DelayedCall


class PendingWrite(Generic[S]):
    """A result that waits for the replication of its own records or of its `after_offset`.

    `first_offset` is the offset of its first record, or its `after_offset`. After a timeout, `result` is replaced by
    one without replies.
    """

    __slots__ = ("context", "deadline_s", "first_offset", "result")

    def __init__(self, context: CoordinatorContext[S], result: CoordinatorResult, first_offset: int) -> None:
        self.context = context
        self.result = result
        self.first_offset = first_offset
        self.deadline_s = 0.0


class WriteTimeouts(Generic[S]):
    """The pending writes of a coordinator whose requests have no response yet, oldest first, with one timer for all.

    `expire` is called once for each write that is pending after `timeout_ms`. `clock` is the reactor.
    """

    def __init__(self, timeout_ms: int, expire: Callable[[PendingWrite[S]], None], clock: Clock) -> None:
        self._timeout_s = timeout_ms / 1000
        self._expire = expire
        self._clock = clock
        self._pending: dict[PendingWrite[S], None] = {}
        self._timer: DelayedCall | None = None

    def add(self, write: PendingWrite[S]) -> None:
        """Start the timeout of a write."""
        write.deadline_s = self._clock.seconds() + self._timeout_s
        self._pending[write] = None
        if self._timer is None:
            self._timer = self._clock.callLater(self._timeout_s, self._expire_due)

    def discard(self, write: PendingWrite[S]) -> None:
        """Remove a completed write. The timer is kept and is set again when it finds no expired write."""
        self._pending.pop(write, None)

    def stop(self) -> None:
        """Remove all writes and cancel the timer."""
        self._pending.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire_due(self) -> None:
        self._timer = None
        now_s = self._clock.seconds()
        while self._pending:
            write = next(iter(self._pending))
            if write.deadline_s > now_s:
                if self._timer is None:
                    self._timer = self._clock.callLater(write.deadline_s - now_s, self._expire_due)
                return
            del self._pending[write]
            self._expire(write)
