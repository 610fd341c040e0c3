"""A coordinator's shard that is led here: what the runtime needs of a shard, and what it keeps beside it."""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from odradek.coordinator.coordinator_state import CoordinatorState
from odradek.coordinator.result import CoordinatorResult
from odradek.coordinator.steps import Steps
from odradek.log.validation.batch import Origin
from odradek.protocol.errors import ErrorCode
from odradek.server.work.clock import DelayedCall
from odradek.server.work.waits import Wait

if TYPE_CHECKING:
    from odradek.log.append import AppendInfo
    from odradek.replication.replicas.partition import Partition
    from odradek.server.request import Reply


class Shard(Protocol):
    """What the runtime needs of a shard, whatever it coordinates."""

    @property
    def coordinator_state(self) -> CoordinatorState: ...

    def replay(self, key: bytes, value: bytes | None, offset: int = -1, producer_id: int = -1) -> None: ...

    def finish_loading(self, now_ms: int) -> Steps[CoordinatorResult]: ...

    def resign(self, now_ms: int) -> CoordinatorResult: ...

    def on_appended(
        self, result: CoordinatorResult, base_offset: int, now_ms: int, *, is_replicated: bool = False
    ) -> None: ...

    def on_written(self, result: CoordinatorResult, base_offset: int, now_ms: int) -> CoordinatorResult: ...

    def on_write_failed(self, result: CoordinatorResult, error: ErrorCode, now_ms: int) -> CoordinatorResult: ...

    def on_write_timed_out(self, result: CoordinatorResult, now_ms: int) -> CoordinatorResult: ...

    def next_deadline_ms(self) -> int | None: ...

    def tick(self, now_ms: int) -> CoordinatorResult: ...


S = TypeVar("S", bound=Shard)
"""The kind of shard."""

R = TypeVar("R")
"""The kind of response."""


class PendingReply(Generic[R]):
    """The token of one request: holds the response if it comes at once, and makes a Deferred of it otherwise."""

    __slots__ = ("_deferred", "_describe", "_response")

    def __init__(self, describe: Callable[[], str]) -> None:
        self._deferred: Wait[R] | None = None
        self._describe = describe
        self._response: R | None = None

    def answer(self, response: R) -> None:
        """Set the response; called once."""
        if self._deferred is None:
            self._response = response
        else:
            self._deferred.callback(response)

    def outcome(self) -> "Reply[R]":
        """Return the response, or a Deferred of it."""
        if self._response is not None:
            return self._response
        self._deferred = Wait(self._describe)
        return self._deferred


class CoordinatorContext(Generic[S]):
    """A shard that is led here, with what waits for replication, in the order of its offsets, and its alarm.

    What waits is the last offset that must be replicated, and what to call with NONE then, or with an error when that
    will not happen here any more. `load_failures` counts the attempts to load that have failed in a row; after one
    that is tried again, `alarm` is set for the next attempt. `is_ticking` is set while deadlines that are due take
    effect.
    """

    __slots__ = (
        "alarm", "alarm_ms", "is_appending", "is_ticking", "leader_epoch", "load_failures", "on_wake", "partition",
        "shard", "waiting",
    )  # fmt: skip

    def __init__(self, partition: "Partition", shard: S, on_wake: "Callable[[CoordinatorContext[S]], None]") -> None:
        self.on_wake = on_wake
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.shard = shard
        self.alarm: DelayedCall | None = None
        self.alarm_ms = 0
        self.is_appending = False
        self.is_ticking = False
        self.load_failures = 0
        self.waiting: deque[tuple[int, Callable[[ErrorCode], None]]] = deque()

    @property
    def log_end_offset(self) -> int:
        """The end of the partition's log; 0 if it has none, because its directory has failed."""
        log = self.partition.log
        return 0 if log is None else log.log_end_offset

    def leads(self) -> bool:
        """Return whether the partition is led here still, in the epoch in which the shard was loaded."""
        return self.partition.is_leader and self.partition.leader_epoch == self.leader_epoch

    def wake(self) -> None:
        """The partition calls this when its high watermark has moved, or when its disk has failed."""
        if not self.is_appending and (self.waiting or self.partition.log is None):
            self.on_wake(self)

    def append(self, batch: bytes, now_ms: int, transaction_version: int = 0) -> "AppendInfo":
        """Append to the partition; hand what is to follow to `CoordinatorRuntime.when_replicated`.

        Older records are not completed before that: what follows from them may append too, and its turn would come
        before that of these. Raises as `Partition.append_as_leader`; the caller calls `wake` when it has handled the
        failure.
        """
        self.is_appending = True
        try:
            return self.partition.append_as_leader(
                memoryview(batch),
                required_acks=-1,
                now_ms=now_ms,
                origin=Origin.COORDINATOR,
                transaction_version=transaction_version,
            )
        finally:
            self.is_appending = False


def is_replicated(partition: "Partition", offset: int) -> bool:
    """Whether a record is below the partition's high watermark."""
    log = partition.log
    return log is not None and log.high_watermark > offset
