"""The state of a partition's leader about its followers: their progress, and the in-sync replicas.

Only a partition with several replicas has it. The high watermark is the smallest log end among the leader, the maximal
ISR, and the live followers that were caught up within replica.lag.time.max.ms: without the last ones the high watermark
would run ahead of a follower that is about to join the ISR.

Sources: Kafka documentation ("Replication"), KIP-16, KIP-392, KIP-497, KIP-903.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, Protocol

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.metadata.image import NO_BROKER_EPOCH, ClusterMetadata
from odradek.replication.metadata.store import SessionEvent
from odradek.replication.replicas.isr import IsrChange, IsrPhase, IsrState

if TYPE_CHECKING:
    from odradek.replication.replicas.throttle import Throttle

NEVER: Final = -(1 << 62)
"""A time before all times of the monotonic clock."""

CONFIRMED_WITHIN_MS: Final = 1_000
"""A fetch of a follower confirms the leadership for this time: twice the default of replica.fetch.wait.max.ms."""

PROVED_BY_FETCH_WAITS: Final = 4
"""Validity of a proof of the leadership, in units of replica.fetch.wait.max.ms. A follower of idle partitions fetches
once in each, so that its fetch before the last one is up to two units old; a busy follower fetches later."""

USUAL_FETCH_WAIT_MAX_MS: Final = 500
"""Default of replica.fetch.wait.max.ms."""

DOUBTFUL_AFTER_SESSION_MS: Final = 30_000
"""Time in which the controller's requests arrive: after the session is connected again, or after the controller's first
request to a broker that has registered again."""

ALWAYS: Final = 1 << 62
"""A time after all times of the monotonic clock."""

DOUBTED_WITHIN_MS: Final = 120_000
"""Time after the last fetch of a follower in which a leadership that is not confirmed is doubtful to consumers."""


class IsrChangeOwner(Protocol):
    """The partition that proposed a change of its ISR."""

    topic: str
    topic_id: bytes
    index: int

    def is_pending(self, change: IsrChange) -> bool:
        """Return whether the change still waits for the controller."""

    def finish_isr_change(
        self, change: IsrChange, leader_epoch: int, isr: tuple[int, ...], partition_epoch: int
    ) -> None:
        """Apply the controller's successful response."""

    def revert_isr_change(self, change: IsrChange) -> None:
        """End the change, which was not made and will not be."""


class IsrChangeSender(Protocol):
    """Sends changes of ISRs to the controller."""

    def submit(self, owner: IsrChangeOwner, change: IsrChange) -> None:
        """Send a change; `owner` gets the result, possibly before this returns."""


class Replication:
    """The parts of a cluster member that its leaders use. `throttle` is None if there is none.

    session_timeout_ms: of the session with the metadata store
    """

    __slots__ = (
        "_doubtful_until_ms", "_expired_epoch", "_is_connected", "_proved_within_ms", "image", "isr_changes",
        "lag_time_max_ms", "monotonic_ms", "throttle",
    )  # fmt: skip

    def __init__(
        self,
        image: ClusterMetadata,
        isr_changes: IsrChangeSender,
        monotonic_ms: Callable[[], int],
        lag_time_max_ms: int,
        throttle: "Throttle | None" = None,
        fetch_wait_max_ms: int = USUAL_FETCH_WAIT_MAX_MS,
        session_timeout_ms: int = ALWAYS,
    ) -> None:
        self.image = image
        self.isr_changes = isr_changes
        self.monotonic_ms = monotonic_ms
        self.lag_time_max_ms = lag_time_max_ms
        self.throttle = throttle
        # A session may expire after two thirds of its timeout, because its client pings once in a third.
        usual_ms = PROVED_BY_FETCH_WAITS * max(fetch_wait_max_ms, USUAL_FETCH_WAIT_MAX_MS)
        self._proved_within_ms = min(usual_ms, session_timeout_ms // 2)
        self._doubtful_until_ms = NEVER
        # The epoch of the registration that has expired, until the controller has sent a request to the next one.
        self._expired_epoch: int | None = None
        self._is_connected = True

    def on_session(self, event: SessionEvent, broker_epoch: int) -> None:
        """Leaderships are doubtful while the session with the metadata store is lost, and some time after it.

        broker_epoch: of this broker's last registration
        """
        # A new session follows an expired one without a notice of its connection.
        self._is_connected = event is not SessionEvent.DISCONNECTED
        if event is SessionEvent.EXPIRED:
            self._expired_epoch = broker_epoch
        if event is SessionEvent.CONNECTED:
            self._end_doubt()
        else:
            self._doubtful_until_ms = ALWAYS

    def on_controller_request(self, broker_epoch: int) -> None:
        """A controller has sent a request to this broker, in its registration with this epoch."""
        if self._expired_epoch is not None and broker_epoch > self._expired_epoch:
            self._expired_epoch = None
            self._end_doubt()

    def _end_doubt(self) -> None:
        if self._is_connected and self._expired_epoch is None:
            self._doubtful_until_ms = self.monotonic_ms() + DOUBTFUL_AFTER_SESSION_MS

    def is_doubtful(self) -> bool:
        """Return whether the controller may have elected other leaders because this broker's session was lost."""
        return self.monotonic_ms() < self._doubtful_until_ms

    def find_proved_ms(self, followed_ms: int) -> int:
        """Return the time before which requests must have arrived, so that no other broker led at their arrival.

        followed_ms: the last time at which enough followers followed this leader. It proves the leadership at that
        time, and, unless leaderships are doubtful, for some time after it, because the controller elects no other
        leader before the session timeout. Exceptions are elections by a refused connection, by an operator, and by a
        rebalance of leaders, of which the controller notifies this broker at once, if it can reach it.
        """
        if self.monotonic_ms() - followed_ms < self._proved_within_ms and not self.is_doubtful():
            return ALWAYS
        return followed_ms


class FetchTimes(Protocol):
    """The fetches of one follower, for all of its partitions together."""

    fetched_ms: int
    """Time of the last fetch."""
    previous_ms: int
    """Time of the fetch before the last one."""


class Follower:
    """The progress of a follower, as of its last fetch.

    leader_end_offset: the leader's log end at the time of the last fetch
    broker_epoch: of the broker that fetched last; -1 if it sent none
    """

    __slots__ = (
        "_caught_up_ms", "_fetch_ms", "_proved_ms", "_times", "broker_epoch", "leader_end_offset", "log_end_offset",
        "log_start_offset",
    )  # fmt: skip

    def __init__(self) -> None:
        self.log_end_offset = -1
        self.log_start_offset = -1
        self._caught_up_ms = NEVER
        self._fetch_ms = NEVER
        self._proved_ms = NEVER
        self._times: FetchTimes | None = None
        self.leader_end_offset = -1
        self.broker_epoch = NO_BROKER_EPOCH

    @property
    def caught_up_ms(self) -> int:
        """Return the last time at which the follower had the whole log of the leader."""
        return self._caught_up_ms if self._times is None else self._times.fetched_ms

    @property
    def fetch_ms(self) -> int:
        """Return the time of the last fetch."""
        return self._fetch_ms if self._times is None else self._times.fetched_ms

    @property
    def proved_ms(self) -> int:
        """Return the last time at which the follower certainly followed this leader.

        It sent its last fetch after the response to the one before on the same connection, perhaps long before the
        leader read it: the process or the network may have been suspended meanwhile. This is the time of the fetch
        before the last one. Fetches of several connections may all have waited in their sockets.
        """
        return self._proved_ms if self._times is None else max(self._proved_ms, self._times.previous_ms)

    def begin_to_repeat(self, times: FetchTimes) -> None:
        """Record that all fetches are as the last one, which found the follower caught up, until `end_to_repeat`."""
        self._times = times

    def end_to_repeat(self, times: FetchTimes) -> None:
        """Record each fetch by `record_fetch` again, because the leader's log has changed or `times` have ended."""
        if self._times is times:
            self._set_times(times.fetched_ms, times.fetched_ms)

    def _set_times(self, fetch_ms: int, caught_up_ms: int) -> None:
        """Replace the times of the last fetches; what they prove remains."""
        self._proved_ms = self.proved_ms
        self._fetch_ms, self._caught_up_ms, self._times = fetch_ms, caught_up_ms, None

    def begin_to_follow(self, caught_up_ms: int) -> None:
        """Begin to follow a new leader."""
        self._set_times(NEVER, caught_up_ms)
        self._proved_ms = NEVER

    def record_fetch(
        self,
        log_end_offset: int,
        log_start_offset: int,
        leader_end_offset: int,
        monotonic_ms: int,
        previous_ms: int = NEVER,
    ) -> None:
        """Record a fetch from `log_end_offset`.

        previous_ms: time of the follower's fetch before this one on the same connection, or in the same session

        A follower that reached the leader's log end of its previous fetch was caught up then. Otherwise a follower that
        is always a little behind, because the leader appends all the time, would never be caught up.
        """
        caught_up_ms = self.caught_up_ms
        if log_end_offset >= leader_end_offset:
            caught_up_ms = monotonic_ms
        elif log_end_offset >= self.leader_end_offset and self.fetch_ms > caught_up_ms:
            caught_up_ms = self.fetch_ms
        self.log_end_offset = log_end_offset
        self.log_start_offset = log_start_offset
        if leader_end_offset > self.leader_end_offset:
            self.leader_end_offset = leader_end_offset
        self._set_times(monotonic_ms, caught_up_ms)
        self._proved_ms = max(self._proved_ms, previous_ms)

    def begin_epoch(self, leader_end_offset: int, monotonic_ms: int, *, is_in_sync: bool) -> None:
        """Continue under the same leader in a new leader epoch.

        A follower outside of the ISR does not hold the high watermark back until it is caught up again.
        """
        self.leader_end_offset = leader_end_offset
        begun_ms = monotonic_ms if is_in_sync else NEVER
        self._set_times(begun_ms, begun_ms)


class LeaderState:
    """The followers of a partition that this broker leads, and its in-sync replicas.

    followers: by broker id, all replicas except this one
    isr: the state of the ISR, changed by `Partition` only
    maximal_isr: `isr.maximal`
    """

    __slots__ = ("_cluster", "_local_id", "followers", "isr", "maximal_isr")

    def __init__(self, local_id: int, isr: tuple[int, ...], cluster: Replication | None) -> None:
        self._local_id = local_id
        self._cluster = cluster
        self.followers: dict[int, Follower] = {}
        self.isr = IsrState(isr)
        self.maximal_isr = isr

    def set_isr(self, isr: IsrState) -> None:
        """Replace the state of the ISR."""
        self.isr = isr
        self.maximal_isr = isr.maximal

    def begin_epoch(self, replicas: Iterable[int], leader_end_offset: int, *, is_new_leader: bool) -> None:
        """Begin a leader epoch. The progress of followers is kept if this broker led the previous epoch."""
        known = {} if is_new_leader else self.followers
        now_ms = 0 if self._cluster is None else self._cluster.monotonic_ms()
        self.followers = {
            replica: known.get(replica) or Follower() for replica in replicas if replica != self._local_id
        }
        for replica, follower in self.followers.items():
            is_in_sync = replica in self.isr.committed
            if is_new_leader or replica not in known:
                follower.begin_to_follow(now_ms if is_in_sync else NEVER)
            else:
                follower.begin_epoch(leader_end_offset, now_ms, is_in_sync=is_in_sync)

    def set_replicas(self, replicas: Iterable[int]) -> None:
        """Follow a changed assignment within a leader epoch."""
        followers = self.followers
        self.followers = {
            replica: followers.get(replica) or Follower() for replica in replicas if replica != self._local_id
        }

    def is_live(self, replica: int) -> bool:
        """Return whether the broker of a replica is alive."""
        return self._cluster is None or replica in self._cluster.image.brokers

    def is_confirmed(self) -> bool:
        """Return whether a follower in sync fetched lately, or there is none: no other broker is the leader then.

        A leader that is cut off from the other brokers does not notice at once that it has been replaced. A follower
        may have been added to the ISR although the response was lost.
        """
        cluster, followers = self._cluster, self._list_in_sync()
        if cluster is None or not followers:
            return True
        least_ms = cluster.monotonic_ms() - CONFIRMED_WITHIN_MS
        return any(follower.fetch_ms >= least_ms for follower in followers)

    def may_be_replaced(self) -> bool:
        """Return whether the leadership is not confirmed, but was within DOUBTED_WITHIN_MS.

        Later it is more probable that the followers have the whole log and fetch nothing, and consumers would wait for
        ever.
        """
        if self._cluster is None or self.is_confirmed():
            return False
        least_ms = self._cluster.monotonic_ms() - DOUBTED_WITHIN_MS
        return any(max(one.fetch_ms, one.caught_up_ms) >= least_ms for one in self._list_in_sync())

    def find_proved_ms(self, min_isr: int) -> int:
        """Return the time before which no other leader had committed anything, as enough followers in sync have proved.

        For state of which a client must not get an old version; `is_confirmed` is for errors, and may be true for some
        milliseconds after a pause of the process. Another leader would be a member of the ISR, and would commit nothing
        without `min_isr` (min.insync.replicas) replicas, without this one and without those that still follow it.
        """
        followers = self._list_in_sync()
        if self._cluster is None or not followers:
            return ALWAYS
        needed = max(1, min(len(followers), len(self.followers) + 1 - min_isr))
        followed_ms = sorted(follower.proved_ms for follower in followers)[-needed]
        return self._cluster.find_proved_ms(followed_ms)

    def _list_in_sync(self) -> list[Follower]:
        """Return the followers in the maximal ISR."""
        return [follower for replica, follower in self.followers.items() if replica in self.maximal_isr]

    # -- high watermark and low watermark ------------------------------------------------------------------------------

    def limit_high_watermark(self, offset: int) -> int:
        """Return the smallest log end among the followers that the high watermark waits for, at most `offset`."""
        maximal = self.maximal_isr
        for replica, follower in self.followers.items():
            if follower.log_end_offset < offset and (replica in maximal or self._may_join_soon(replica, follower)):
                offset = follower.log_end_offset
        return offset

    def _may_join_soon(self, replica: int, follower: Follower) -> bool:
        """Return whether a follower outside of the ISR that is behind is alive and was caught up lately."""
        cluster = self._cluster
        if cluster is None or follower.caught_up_ms == NEVER:
            return False
        return cluster.monotonic_ms() - follower.caught_up_ms <= cluster.lag_time_max_ms and self.is_live(replica)

    def limit_low_watermark(self, offset: int) -> int:
        """Return the smallest log start among the live followers, at most `offset`."""
        for replica, follower in self.followers.items():
            if follower.log_start_offset < offset and self.is_live(replica):
                offset = follower.log_start_offset
        return offset

    # -- progress of followers -----------------------------------------------------------------------------------------

    def check_broker_epoch(self, replica: int, follower: Follower, broker_epoch: int) -> None:
        """Record the broker epoch of a fetch.

        Raises KafkaError NOT_LEADER_OR_FOLLOWER for a fetch that the follower sent before it registered again: its log
        may have lost records since (KIP-903).
        """
        if broker_epoch == NO_BROKER_EPOCH:
            return
        known = follower.broker_epoch
        broker = None if self._cluster is None else self._cluster.image.brokers.get(replica)
        if broker is not None:
            known = max(known, broker.epoch)
        if broker_epoch < known:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"epoch {broker_epoch} of broker {replica} is older than {known}"
            )
        follower.broker_epoch = broker_epoch

    def may_join(self, replica: int, high_watermark: int, epoch_start_offset: int) -> bool:
        """Return whether a follower is to be added to the ISR.

        It must have reached the start of the leader epoch: a follower that has not may lack committed records above the
        leader's high watermark, which an earlier leader acknowledged.
        """
        if self._cluster is None or self.isr.phase is not IsrPhase.COMMITTED or replica in self.isr.committed:
            return False
        reached = self.followers[replica].log_end_offset
        return reached >= high_watermark and reached >= epoch_start_offset >= 0 and self.is_live(replica)

    def find_out_of_sync(self, leader_end_offset: int) -> list[int]:
        """Return the ISR members that are behind and were not caught up for replica.lag.time.max.ms."""
        cluster = self._cluster
        if cluster is None or self.isr.phase is not IsrPhase.COMMITTED:
            return []
        found = []
        for replica in self.isr.committed:
            if replica == self._local_id:
                continue
            follower = self.followers.get(replica)
            if follower is None or (
                follower.log_end_offset != leader_end_offset
                and cluster.monotonic_ms() - follower.caught_up_ms > cluster.lag_time_max_ms
            ):
                found.append(replica)
        return found

    def find_broker_epochs(self, replicas: Iterable[int]) -> tuple[int, ...]:
        """Return the broker epochs of the last fetches of these replicas; -1 for the leader, and if it is unknown."""
        found = [self.followers.get(replica) for replica in replicas]
        return tuple([NO_BROKER_EPOCH if follower is None else follower.broker_epoch for follower in found])

    def submit(self, owner: IsrChangeOwner, change: IsrChange) -> None:
        """Send the pending change to the controller."""
        if self._cluster is not None:
            self._cluster.isr_changes.submit(owner, change)

    # -- throttled replication -----------------------------------------------------------------------------------------

    def is_throttled(self, owner: IsrChangeOwner, replica: int) -> bool:
        """Return whether a follower gets no records now. An ISR member is not throttled: it would leave the ISR."""
        throttle = None if self._cluster is None else self._cluster.throttle
        return (
            throttle is not None
            and replica not in self.isr.committed
            and throttle.is_exceeded(owner.topic, owner.index)
        )

    def count_replicated(self, owner: IsrChangeOwner, size_bytes: int) -> None:
        """Count records that were sent to a follower."""
        throttle = None if self._cluster is None else self._cluster.throttle
        if throttle is not None:
            throttle.record(owner.topic, owner.index, size_bytes)

    # -- reads from followers ------------------------------------------------------------------------------------------

    def select_read_replica(self, rack: str, listener: str, offset: int) -> int | None:
        """Return the ISR member in a consumer's rack that has `offset` and is the most caught up (KIP-392).

        None if there is none with the consumer's listener, and if this broker is in that rack.
        """
        cluster = self._cluster
        if cluster is None:
            return None
        brokers = cluster.image.brokers
        local = brokers.get(self._local_id)
        if local is not None and local.rack == rack:
            return None
        candidates = []
        for replica, follower in self.followers.items():
            broker = brokers.get(replica)
            if (
                broker is not None
                and broker.rack == rack
                and broker.endpoint(listener) is not None
                and replica in self.isr.committed
                and follower.log_start_offset <= offset <= follower.log_end_offset
            ):
                candidates.append((follower.log_end_offset, follower.caught_up_ms, replica))
        return max(candidates)[2] if candidates else None
