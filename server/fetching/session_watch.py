"""The watch of a follower's fetch session: its fetches read only the partitions that may have changed.

A follower may fetch thousands of partitions many times per second, of which few have changed. A partition is settled
when the follower is in sync and has all records, all replicas in sync have them too, and the follower has received the
present high watermark and log start. The next append, or a change of the leadership, wakes it. From then on each fetch
reads it, until it is settled again. Retention wakes no partition: every SWEEP_MS all partitions are read.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from odradek.replication.replicas.leader_state import NEVER
from odradek.server.fetching.limited_read import FetchTarget
from odradek.server.fetching.session_cache import FetchPartition, PartitionKey

if TYPE_CHECKING:
    from collections.abc import Mapping

    from odradek.replication.replicas.leader_state import Follower
    from odradek.replication.replicas.partition import Partition
    from odradek.server.fetching.purgatory import DelayedOperation

SWEEP_MS: Final = 5_000
"""Interval of the fetches of a session that read all of its partitions."""


class WatchedTarget(FetchTarget):
    """A partition of the session, and its watcher between and during the fetches.

    follower: its progress, while the partition is settled
    """

    __slots__ = ("follower", "key", "watch")

    def __init__(self, key: PartitionKey, requested: FetchPartition, partition: "Partition", watch: "SessionWatch"):
        super().__init__(requested, partition)
        self.key = key
        self.watch = watch
        self.follower: Follower | None = None
        self.watchers = partition.log_end_watchers

    def wake(self) -> None:
        """Read the partition in the next fetch, or in the one that waits."""
        self.unsettle()
        watch = self.watch
        watch.unsettled[self.key] = None
        operation = watch.operation
        if operation is not None:
            operation.changed[self] = None
            operation.wake()

    def unsettle(self) -> None:
        follower, self.follower = self.follower, None
        if follower is not None:
            follower.end_to_repeat(self.watch)


class SessionWatch:
    """The state of one session's partitions.

    follower_id: the broker that fetches
    fetched_ms, previous_ms: time of the last fetch, and of the one before, on the monotonic clock
        (`leader_state.FetchTimes`)
    unsettled: partitions to read, those that were read last at the end
    operation: the fetch that waits
    """

    __slots__ = (
        "_is_released", "_swept_ms", "_targets", "fetched_ms", "follower_id", "operation", "previous_ms", "unsettled",
    )  # fmt: skip

    def __init__(self, follower_id: int, fetched_ms: int = NEVER) -> None:
        """Begin after the fetch at `fetched_ms`, whose response opens the session."""
        self.follower_id = follower_id
        self._is_released = False
        self._swept_ms: int | None = None
        self.fetched_ms = fetched_ms
        self.previous_ms = NEVER
        self._targets: dict[PartitionKey, WatchedTarget] = {}
        self.operation: DelayedOperation[Any] | None = None
        self.unsettled: dict[PartitionKey, None] = {}

    def select(
        self, partitions: "Mapping[PartitionKey, FetchPartition]", monotonic_ms: int
    ) -> "Mapping[PartitionKey, FetchPartition]":
        """Return the partitions that a new fetch reads."""
        self._add_fetch(monotonic_ms)
        if self._swept_ms is None or monotonic_ms - self._swept_ms >= SWEEP_MS:
            self._swept_ms = monotonic_ms
            self.unsettled = dict.fromkeys(partitions)
            return partitions
        return self.select_unsettled(partitions)

    def select_unsettled(
        self, partitions: "Mapping[PartitionKey, FetchPartition]"
    ) -> "Mapping[PartitionKey, FetchPartition]":
        """Return the partitions that are not settled."""
        return {key: partitions[key] for key in self.unsettled if key in partitions}

    def find_target(self, key: PartitionKey, requested: FetchPartition, partition: "Partition") -> FetchTarget:
        """Return the target of a partition, which is watched from now on unless the session has ended."""
        target = self._targets.get(key)
        if target is None or target.partition is not partition:
            self.unwatch(key)
            target = WatchedTarget(key, requested, partition, self)
            if not self._is_released:
                self._targets[key] = target
                target.watchers[target] = None
        target.requested = requested
        return target

    def find_caught_up(
        self, requested: "Mapping[PartitionKey, FetchPartition]", follower: int, monotonic_ms: int
    ) -> FetchTarget | None:
        """Return the target of the only partition whose parameters a fetch at the log end sets.

        None if the fetch may read another partition, has to read this one, or is not by the follower that opened the
        session: another client must not record its progress. Otherwise the target gets the parameters.
        """
        if follower != self.follower_id:
            return None
        ((key, parameters),) = requested.items()
        unsettled = self.unsettled
        if self._swept_ms is None or monotonic_ms - self._swept_ms >= SWEEP_MS:
            return None
        if unsettled and (len(unsettled) > 1 or key not in unsettled):
            return None
        target = self._targets.get(key)
        if target is None or not self._is_caught_up(parameters, target.partition):
            return None
        target.requested = parameters
        # Of an earlier fetch: a retry that measures the partition subtracts it from the total.
        target.available_bytes = 0
        return target

    def _add_fetch(self, monotonic_ms: int) -> None:
        self.previous_ms, self.fetched_ms = self.fetched_ms, monotonic_ms

    def record_progress(self, target: FetchTarget, broker_epoch: int, monotonic_ms: int) -> None:
        """Record the progress of the follower by a fetch at the log end.

        Raises as `Partition.update_follower`; then the fetch is not recorded.
        """
        requested, partition = target.requested, target.partition
        partition.update_follower(
            self.follower_id,
            requested.fetch_offset,
            requested.fetcher_log_start_offset,
            monotonic_ms,
            broker_epoch,
            self.fetched_ms,
        )
        self._add_fetch(monotonic_ms)
        if partition.log is not None:
            partition.log.add_end_hint()

    def _is_caught_up(self, requested: FetchPartition, partition: "Partition") -> bool:
        """Return whether a fetch with these parameters is valid, and begins at the end of the leader's log."""
        log = partition.log
        if log is None or not partition.is_leader:
            return False
        state, fetched_epoch = log.state, requested.last_fetched_epoch
        return (
            requested.fetch_offset == state.log_end_offset
            and requested.current_leader_epoch in (-1, partition.leader_epoch)
            and (fetched_epoch < 0 or fetched_epoch == state.leader_epochs.latest_epoch)
            and self.follower_id in partition.followers
        )

    def settle(self, targets: Iterable[FetchTarget]) -> None:
        """Record that these partitions were just read."""
        if self._is_released:
            return
        for target in targets:
            assert isinstance(target, WatchedTarget)
            if self._is_settled(target.requested, target.partition):
                target.follower = target.partition.followers[self.follower_id]
                target.follower.begin_to_repeat(self)
                self.unsettled.pop(target.key, None)

    def _is_settled(self, requested: FetchPartition, partition: "Partition") -> bool:
        log = partition.log
        if log is None or self.follower_id not in partition.isr or not self._is_caught_up(requested, partition):
            return False
        high_watermark = log.state.high_watermark
        return requested.fetch_offset == high_watermark and not requested.is_changed(
            high_watermark, log.state.log_start_offset
        )

    @property
    def is_empty(self) -> bool:
        """True if no partition of the session can be read."""
        return not self._targets

    def unsettle(self, key: PartitionKey) -> None:
        """Read a partition in the next fetch, after those that are unsettled already."""
        self.unsettled.pop(key, None)
        self.unsettled[key] = None

    def forget(self, key: PartitionKey) -> None:
        """Remove a partition from the session."""
        self.unsettled.pop(key, None)
        self.unwatch(key)

    def release(self) -> None:
        """End all watches, because the session ends. A fetch in it may still read partitions."""
        self._is_released = True
        for key in list(self._targets):
            self.unwatch(key)
        self.unsettled.clear()
        self.operation = None

    def unwatch(self, key: PartitionKey) -> None:
        """End the watch of a partition."""
        target = self._targets.pop(key, None)
        if target is not None:
            target.unsettle()
            target.watchers.pop(target, None)
