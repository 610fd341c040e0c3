"""A coordinator's shard whose partition this broker leads: its runtime state."""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

from odradek.coordinator.shard_interface import Shard
from odradek.log.validation.batch import Origin
from odradek.protocol.errors import ErrorCode
from odradek.server.coordinators.load_waits import LoadWaits
from odradek.server.work.clock import DelayedCall
from odradek.server.work.waits import Wait

if TYPE_CHECKING:
    from odradek.log.append import AppendInfo
    from odradek.replication.replicas.partition import Partition
    from odradek.server.request import Reply


S = TypeVar("S", bound=Shard)
"""The kind of shard."""

R = TypeVar("R")
"""The kind of response."""


class PendingReply(Generic[R]):
    """The token of a request in a shard. `outcome` returns the response, or a Deferred of it if there is none yet."""

    __slots__ = ("_deferred", "_describe", "_response")

    def __init__(self, describe: Callable[[], str]) -> None:
        self._deferred: Wait[R] | None = None
        self._describe = describe
        self._response: R | None = None

    def respond(self, response: R) -> None:
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
    """A shard whose partition this broker leads, with its pending writes and its timer.

    It ends with the leadership (`wake`). In a later leader epoch of the same leader its state is still valid, since no
    other broker has written to the log. `CoordinatorRuntime.begins_again_after_others` ends it if epochs are missing.

    leader_epoch: the last leader epoch in which the shard was valid
    waiting: in the order of registration, the last offset that must be replicated, and the function to call with NONE
        when it is, or with an error when the leadership ends
    load_waits: the requests that wait for the load of the shard
    failures: number of unexpected exceptions after which the shard was loaded again, since the leadership began
    load_failures: number of consecutive failed attempts to load
    alarm, alarm_ms: the timer for the shard's next deadline, or for the next attempt to load, and the deadline
    is_appending: a batch is being appended; changes of the partition are handled afterwards
    is_ticking: due deadlines are being handled
    is_completing: the functions of replicated records are being called
    """

    __slots__ = (
        "alarm", "alarm_ms", "failures", "is_appending", "is_completing", "is_ticking", "leader_epoch",
        "load_failures", "load_waits", "on_wake", "partition", "shard", "waiting",
    )  # fmt: skip

    def __init__(
        self,
        partition: "Partition",
        shard: S,
        load_waits: LoadWaits,
        on_wake: "Callable[[CoordinatorContext[S]], None]",
        failures: int = 0,
    ) -> None:
        self.failures = failures
        self.load_waits = load_waits
        self.on_wake = on_wake
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.shard = shard
        self.alarm: DelayedCall | None = None
        self.alarm_ms = 0
        self.is_appending = False
        self.is_ticking = False
        self.is_completing = False
        self.load_failures = 0
        self.waiting: deque[tuple[int, Callable[[ErrorCode], None]]] = deque()

    @property
    def log_end_offset(self) -> int:
        """The end offset of the partition's log; 0 if its log directory has failed."""
        log = self.partition.log
        return 0 if log is None else log.log_end_offset

    def leads(self) -> bool:
        """Return whether this broker leads the partition, and its log directory is online."""
        return self.partition.is_leader and self.partition.log is not None

    def wake(self) -> None:
        """Handle a change of the partition: of its high watermark, its leader, or its log directory."""
        if not self.is_appending and (self.waiting or not self.leads()):
            self.on_wake(self)

    def append(self, batch: bytes, now_ms: int, transaction_version: int = 0) -> "AppendInfo":
        """Append to the partition. The caller then calls `CoordinatorRuntime.when_replicated`.

        Until that call, older records are not completed, because their completions may append further records, which
        would be registered before these. Raises like `Partition.append_as_leader`; the caller calls `wake` after it has
        handled the failure.
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
    """Return whether a record is below the partition's high watermark."""
    log = partition.log
    return log is not None and log.high_watermark > offset
