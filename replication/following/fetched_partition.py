"""The state of a partition that this broker fetches from its leader, as a table of transitions.

A fetched partition belongs to one leader epoch. With the next epoch a new one replaces it.
"""

import logging
from enum import Enum

from odradek.log.partition_log import PartitionLog
from odradek.protocol.messages.fetch import FetchRequestFetchPartition
from odradek.replication.following.drop_behind import DropBehind
from odradek.replication.replicas.follower_replica import FollowerReplica

logger = logging.getLogger(__name__)

PartitionKey = tuple[bytes, int]
"""Topic id and partition index."""


class FetchState(Enum):
    """The states of a fetched partition."""

    TRUNCATING = "truncating"
    """The log has no leader epochs. It is truncated to the high watermark before the first fetch."""
    FETCHING = "fetching"
    RESETTING = "resetting"
    """The leader does not have the fetch offset. Its log start and log end determine the next one."""
    DELAYED = "delayed"
    """A fetch failed, or replication is throttled. Fetching is resumed after replica.fetch.backoff.ms."""
    PARKED = "parked"
    """Fetching cannot succeed before the controller sends the next leader epoch."""


_NEXT_STATES: dict[FetchState, frozenset[FetchState]] = {
    FetchState.TRUNCATING: frozenset({FetchState.FETCHING, FetchState.DELAYED, FetchState.PARKED}),
    FetchState.FETCHING: frozenset({FetchState.RESETTING, FetchState.DELAYED, FetchState.PARKED}),
    FetchState.RESETTING: frozenset({FetchState.FETCHING, FetchState.DELAYED, FetchState.PARKED}),
    FetchState.DELAYED: frozenset({FetchState.TRUNCATING, FetchState.FETCHING}),
    FetchState.PARKED: frozenset(),
}


class FetchedPartition:
    """A partition that is fetched in one leader epoch.

    row: its parameters in the last fetch request; None before the first one
    lag: number of offsets up to the leader's high watermark at the last fetch; None before
    due_ms: the end of the delay, on the monotonic clock
    """

    __slots__ = ("drop_behind", "due_ms", "key", "lag", "leader", "leader_epoch", "replica", "row", "state")

    def __init__(self, replica: FollowerReplica, drop_behind: DropBehind) -> None:
        partition = replica.partition
        self.replica = replica
        self.drop_behind = drop_behind
        self.key: PartitionKey = (partition.topic_id, partition.index)
        self.leader = partition.leader
        self.leader_epoch = partition.leader_epoch
        self.state = self._first_state()
        self.row: FetchRequestFetchPartition | None = None
        self.lag: int | None = None
        self.due_ms = 0

    def __repr__(self) -> str:
        partition = self.replica.partition
        return f"{partition.topic}-{partition.index} (leader {self.leader}, epoch {self.leader_epoch})"

    def stop(self) -> None:
        """Change nothing more, because another fetcher may change the log, in the same leader epoch."""
        self.replica.stop()
        self.drop_behind.stop()

    @property
    def topic(self) -> str:
        return self.replica.partition.topic

    @property
    def index(self) -> int:
        return self.replica.partition.index

    @property
    def is_parked(self) -> bool:
        return self.state is FetchState.PARKED

    def _first_state(self) -> FetchState:
        """Return the state in which fetching begins or is resumed."""
        log = self.replica.partition.log
        return FetchState.FETCHING if log is None or log.latest_epoch >= 0 else FetchState.TRUNCATING

    def change_state(self, state: FetchState, reason: str) -> None:
        """Enter a state. Raises RuntimeError for a transition that is not in the table."""
        if state not in _NEXT_STATES[self.state]:
            raise RuntimeError(f"{self!r} cannot change from {self.state.value} to {state.value}")
        # A partition is parked at nearly every election, until its new role arrives.
        level = logging.INFO if state is FetchState.PARKED else logging.DEBUG
        logger.log(
            level, "replica fetch partition=%r old=%s new=%s reason=%s", self, self.state.value, state.value, reason
        )
        self.state = state

    def delay(self, due_ms: int, reason: str) -> None:
        """Stop fetching until `due_ms`."""
        self.change_state(FetchState.DELAYED, reason)
        self.due_ms = due_ms

    def resume(self) -> None:
        """End a delay."""
        is_first = self.row is None
        self.change_state(self._first_state() if is_first else FetchState.FETCHING, "the delay has passed")

    def make_row(self, max_bytes: int) -> FetchRequestFetchPartition:
        """Return the parameters of the next fetch. Raises KafkaError: as `FollowerReplica.log`."""
        log = self.replica.log(self.leader_epoch)
        return FetchRequestFetchPartition(
            partition=self.index,
            current_leader_epoch=self.leader_epoch,
            fetch_offset=log.log_end_offset,
            last_fetched_epoch=log.latest_epoch,
            log_start_offset=log.log_start_offset,
            partition_max_bytes=max_bytes,
        )

    def expects(self, log_end_offset: int) -> bool:
        """Return whether a response to the last request can be appended at this log end."""
        row = self.row
        return self.state is FetchState.FETCHING and row is not None and row.fetch_offset == log_end_offset

    def update_lag(self, log: PartitionLog, high_watermark: int, appended_bytes: int) -> None:
        """Compute the lag after the last fetch, of which this many bytes were appended."""
        was_behind = self.lag
        self.lag = max(0, high_watermark - log.log_end_offset)
        if self.lag and appended_bytes and self.row is not None:
            appended_offsets = log.log_end_offset - self.row.fetch_offset
            self.drop_behind.note_append(log.active_segment, appended_bytes, appended_offsets, self.lag)
        elif was_behind and not self.lag:
            self.drop_behind.forget()
