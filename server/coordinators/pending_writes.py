"""Writes of a coordinator that wait for replication, and the time after which their requests are answered anyway."""

from collections.abc import Callable
from typing import Generic

from odradek.coordinator.result import CoordinatorResult
from odradek.server.coordinators.context import CoordinatorContext, S
from odradek.server.work.clock import Clock, DelayedCall


class PendingWrite(Generic[S]):
    """A result that waits for replication, of its own records or of one that its replies depend on.

    `first_offset` is that of the first of its records, or its `after_offset`. `result` is replaced by what is left of
    it when its requests are answered before it is replicated.
    """

    __slots__ = ("deadline_s", "first_offset", "led", "result")

    def __init__(self, led: CoordinatorContext[S], result: CoordinatorResult, first_offset: int) -> None:
        self.led = led
        self.result = result
        self.first_offset = first_offset
        self.deadline_s = 0.0


class WriteTimeouts(Generic[S]):
    """The pending writes of a coordinator whose requests still wait, oldest first, and one timer for all of them.

    `expire` is called once for each write that is still pending after `timeout_ms`. `clock` is the reactor.
    """

    def __init__(self, timeout_ms: int, expire: Callable[[PendingWrite[S]], None], clock: Clock) -> None:
        self._timeout_s = timeout_ms / 1000
        self._expire = expire
        self._clock = clock
        self._pending: dict[PendingWrite[S], None] = {}
        self._timer: DelayedCall | None = None

    def add(self, write: PendingWrite[S]) -> None:
        """Begin to measure the time."""
        write.deadline_s = self._clock.seconds() + self._timeout_s
        self._pending[write] = None
        if self._timer is None:
            self._timer = self._clock.callLater(self._timeout_s, self._expire_due)

    def discard(self, write: PendingWrite[S]) -> None:
        """Stop measuring: the write has ended. The timer is kept; if it finds nothing due, it is set again."""
        self._pending.pop(write, None)

    def stop(self) -> None:
        """Expire nothing any more."""
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
