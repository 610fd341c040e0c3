"""Purgatory: delayed fetch and produce requests, each of which is completed exactly once.

A `DelayedOperation` is retried when a partition that it watches has changed, and completed when its timeout expires.
One append may wake a thousand operations: `CompletionQueue` retries some of them at once and the others in slices.
"""

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.task import SchedulerStopped
from twisted.python.failure import Failure

from odradek.server.work.clock import Clock, DelayedCall, IterationEnd
from odradek.server.work.waits import AnyDeferred, Retryable, RetryQueue, Wait

if TYPE_CHECKING:
    from odradek.replication.replicas.partition import Partition, Watcher
    from odradek.server.work.slices import Slices

logger = logging.getLogger(__name__)

T = TypeVar("T")
"""The response."""

_MAX_NAMES: Final = 3

_COMPLETION_S: Final = 0.001
"""Time in a reactor iteration for the retries of one queue, in addition to the slices.

A retry that completes a produce request takes 15 us, so 2,000 requests are completed in some 30 iterations.
"""


class PartitionWatch:
    """A watcher of one partition, for an operation that may watch many.

    operation, watchers: set by `DelayedOperation.watch`: the operation, and the partition's watchers of the same kind
    """

    __slots__ = ("operation", "partition", "watchers")

    operation: "DelayedOperation[Any]"  # of any response
    watchers: "dict[Watcher, None]"

    def __init__(self, partition: "Partition") -> None:
        self.partition = partition

    def wake(self) -> None:
        """Retry the operation, because the partition has changed."""
        self.operation.changed[self] = None
        self.operation.wake()


class DelayedOperation(Generic[T]):
    """One delayed request.

    `try_complete` returns the response, a Deferred of it if it takes several slices, or None to continue to wait.
    `on_timeout` returns the response or a Deferred of it. `deferred` fires with the response; its cancellation (the
    connection is lost) drops the operation. With a `queue`, operations that are woken together are retried in slices.

    changed: the watches that were woken; `try_complete` removes those that it has checked
    """

    __slots__ = (
        "_completion", "_is_checking", "_is_expired", "_is_queued", "_is_woken", "_on_timeout", "_queue", "_timer",
        "_try_complete", "_watching", "changed", "deferred",
    )  # fmt: skip

    def __init__(
        self,
        try_complete: Callable[[], "T | Deferred[T] | None"],
        on_timeout: Callable[[], "T | Deferred[T]"],
        queue: "RetryQueue | None" = None,
    ) -> None:
        self.deferred: Wait[T] = Wait(self._describe, self._cancel)
        self.changed: dict[PartitionWatch, None] = {}
        self._try_complete = try_complete
        self._on_timeout: Callable[[], T | Deferred[T] | None] = on_timeout
        self._queue = queue
        self._watching: list[PartitionWatch] = []
        self._timer: DelayedCall | None = None
        self._completion: Deferred[T] | None = None
        self._is_checking = self._is_expired = self._is_queued = self._is_woken = False

    def wait(self, clock: Clock, timeout_ms: int, partitions: "Iterable[Partition]") -> "Deferred[T]":
        """Watch `partitions` for at most `timeout_ms`. A timeout <= 0 expires in the next reactor iteration."""
        for partition in partitions:
            self.watch(PartitionWatch(partition))
        return self.begin(clock, timeout_ms)

    def watch(self, watch: PartitionWatch, *, log_end: bool = False) -> None:
        """Watch a partition's high watermark and log start, or its log end, up to which followers read."""
        watch.operation = self
        watch.watchers = watch.partition.log_end_watchers if log_end else watch.partition.watchers
        watch.watchers[watch] = None
        self._watching.append(watch)

    def begin(self, clock: Clock, timeout_ms: int) -> "Deferred[T]":
        """Wait for at most `timeout_ms`. If a watched partition may have changed already, call `wake` afterwards."""
        self._timer = clock.callLater(max(0, timeout_ms) / 1000, self._expire)
        return self.deferred

    def allow_shortening(self, clock: Clock, timeout_ms: int) -> None:
        """Allow `shorten_wait` to leave at most `timeout_ms` of the wait. `clock` is as in `begin`."""

        def shorten() -> None:
            timer = self._timer
            if timer is not None and timer.active() and timer.getTime() - clock.seconds() > timeout_ms / 1000:
                timer.reset(timeout_ms / 1000)

        self.deferred.shorten = shorten

    def wake(self) -> None:
        """Retry, because a watched partition changed."""
        if self._timer is None and not self._is_expired:
            # The wait has not begun, or the operation is complete.
            return
        if self._queue is None:
            self.check()
        elif not self._is_queued:
            self._is_queued = True
            self._queue.add(self)

    def check(self) -> None:
        """Retry now, or complete if the timeout has expired.

        `try_complete` may discover a disk failure, which wakes all watchers of the partition, including this operation:
        it is retried afterwards, not within, and only if there is no response yet.
        """
        self._is_queued = False
        if self._is_checking:
            self._is_woken = True
            return
        if self.deferred.called or self._completion is not None:
            return
        self._is_checking = True
        while True:
            self._is_woken = False
            outcome, error = None, None
            try:
                outcome = self._on_timeout() if self._is_expired else self._try_complete()
            except Exception as failure:
                error = failure
            if not self._is_woken or self.deferred.called or outcome is not None:
                break
        self._is_checking = False
        if self.deferred.called or (outcome is None and error is None):
            return
        self.drop()
        if error is not None:
            self.deferred.errback(error)
        elif isinstance(outcome, Deferred):
            self._completion = outcome
            outcome.chainDeferred(self.deferred)
        elif outcome is not None:
            self.deferred.callback(outcome)

    def _expire(self) -> None:
        self._timer = None
        self._is_expired = True
        self.wake()

    def _describe(self) -> str:
        names = [f"{watch.partition.topic}-{watch.partition.index}" for watch in self._watching[:_MAX_NAMES]]
        more = len(self._watching) - len(names)
        return f"purgatory: {', '.join(names)}{f' and {more} more' if more else ''}"

    def _cancel(self, deferred: AnyDeferred) -> None:
        self.drop()
        if self._completion is not None:
            self._completion.cancel()

    def drop(self) -> None:
        """Remove all watches and the timer, and all references that form a cycle with this object."""
        for watch in self._watching:
            watch.watchers.pop(watch, None)
        self._watching.clear()
        self.changed.clear()
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._timer = None
        self._is_expired = False
        self._try_complete = self._on_timeout = _do_nothing


def _do_nothing() -> None:
    """Replaces callbacks that are never called again."""


def _ignore_stop(failure: Failure) -> Failure | None:
    return None if isinstance(failure.value, SchedulerStopped) else failure


class CompletionQueue:
    """Retries operations in the order in which they were woken: at once while there is time, else in slices.

    The slices are separate from those of long work and of other queues: an operation waits for the operations of its
    queue that were woken before it, however many requests do long work. One call of `add` retries operations for at
    most `_COMPLETION_S`, and the time of one retry.
    """

    def __init__(self, slices: "Slices") -> None:
        self._slices = slices.make_separate(_COMPLETION_S)
        self._operations: deque[Retryable] = deque()
        self._is_running = False

    def add(self, operation: Retryable) -> None:
        """Retry an operation. Operations that it wakes are retried after it, not within."""
        if self._is_running:
            self._operations.append(operation)
            return
        self._is_running = True
        is_over = self._slices.begin()
        if is_over is None:
            self._operations.append(operation)
        else:
            self._retry(operation)
            while not is_over() and self._operations:
                self._retry(self._operations.popleft())
        if self._operations:
            self._slices.run(self._retry_in_steps()).addErrback(_ignore_stop)
        else:
            self._is_running = False

    def _retry_in_steps(self) -> Generator[None, None, None]:
        while self._operations:
            self._retry(self._operations.popleft())
            yield
        self._is_running = False

    def _retry(self, operation: Retryable) -> None:
        try:
            operation.check()
        except Exception:
            logger.exception("a delayed request failed; please report it")


class LateCompletions:
    """Retries operations at the end of the reactor iteration, once for all appends that woke them in it."""

    def __init__(self, queue: RetryQueue, iteration_end: IterationEnd) -> None:
        self._queue = queue
        self._iteration_end = iteration_end
        self._operations: list[Retryable] = []

    def add(self, operation: Retryable) -> None:
        """Retry an operation later."""
        self._operations.append(operation)
        if len(self._operations) == 1:
            self._iteration_end.add(self)

    def flush(self) -> None:
        """Retry the operations."""
        operations, self._operations = self._operations, []
        for operation in operations:
            self._queue.add(operation)

    def abort(self) -> None:
        """Do nothing: a failure of one operation is logged by the queue."""
