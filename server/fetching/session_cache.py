"""Fetch sessions (KIP-227), as leaders keep them: requests and responses contain only partitions that have changed.

A session stores each partition's fetch parameters, and the values last sent to the client. A request's session epoch
determines its effect: 0 opens a session and ends the one that the request names, -1 only ends it, n > 0 continues it.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from odradek.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from odradek.server.fetching.read_rights import ReadRights
    from odradek.server.fetching.session_watch import SessionWatch

INVALID_SESSION_ID: Final = 0
INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
EVICTION_MS: Final = 120_000
"""Time without a request after which a session is stale, and age from which on a larger session may displace it."""

MAX_EPOCH: Final = 2**31 - 1
MAX_SESSION_PARTITIONS: Final = 100_000
"""A fetch of more partitions gets no session: each takes about 300 bytes, also after the client has disconnected."""
MAX_PARTITIONS: Final = 500_000
"""Limit of all sessions together."""
NOT_SENT: Final = -1
"""In place of the high watermark last sent to the client: every high watermark differs from it."""

PartitionKey = tuple[str | bytes, int]
"""Topic id (from Fetch 13 on) or topic name, and partition index."""


class FetchPartition:
    """One partition to be fetched: its fetch parameters, and the values last sent to the client.

    fetcher_log_start_offset: the log start offset of the follower that fetches
    high_watermark, log_start_offset: the values last sent
    """

    __slots__ = (
        "current_leader_epoch",
        "fetch_offset",
        "fetcher_log_start_offset",
        "high_watermark",
        "index",
        "last_fetched_epoch",
        "log_start_offset",
        "max_bytes",
        "topic",
        "topic_id",
    )

    def __init__(self, topic: str, topic_id: bytes, index: int) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.fetch_offset = 0
        self.max_bytes = 0
        self.current_leader_epoch = -1
        self.last_fetched_epoch = -1
        self.fetcher_log_start_offset = -1
        self.high_watermark = -1
        self.log_start_offset = -1

    def is_changed(self, high_watermark: int, log_start_offset: int) -> bool:
        """Return whether these values differ from the values last sent."""
        return high_watermark != self.high_watermark or log_start_offset != self.log_start_offset

    def record_sent(self, high_watermark: int, log_start_offset: int, failed: bool) -> bool:
        """Record the values of a response; return whether they differ from the values last sent.

        After an error the next row without an error is sent even if its values have not changed.
        """
        is_changed = failed or high_watermark != self.high_watermark or log_start_offset != self.log_start_offset
        self.high_watermark = -1 if failed else high_watermark
        self.log_start_offset = log_start_offset
        return is_changed


class FetchSession:
    """The partitions of one fetcher.

    `partitions` changes only after `epoch`: a request that iterates over them in several steps compares the epoch.

    epoch: the epoch of the next request
    is_busy: a request is being applied in steps, and no other is accepted
    is_privileged: the fetcher is a follower. A consumer's session displaces this one only if it is stale (EVICTION_MS)
    counted: the number of partitions that the cache counts for this session
    read_rights: the decisions of the authorizer; None without authorization, and of a follower's session
    watch: of a session that a follower opened
    """

    __slots__ = (
        "counted", "created_ms", "epoch", "id", "is_busy", "is_privileged", "last_used_ms", "partitions",
        "read_rights", "uses_topic_ids", "watch",
    )  # fmt: skip

    def __init__(
        self, session_id: int, uses_topic_ids: bool, monotonic_ms: int, *, is_privileged: bool = False
    ) -> None:
        self.id = session_id
        self.uses_topic_ids = uses_topic_ids
        self.is_privileged = is_privileged
        self.epoch = 1
        self.created_ms = monotonic_ms
        self.last_used_ms = monotonic_ms
        self.is_busy = False
        self.counted = 0
        self.read_rights: ReadRights | None = None
        self.watch: SessionWatch | None = None
        self.partitions: OrderedDict[PartitionKey, FetchPartition] = OrderedDict()

    def update(self, requested: dict[PartitionKey, FetchPartition], forgotten: Iterable[PartitionKey]) -> None:
        """Apply an incremental request.

        The object of a changed partition is replaced: an earlier fetch that still waits keeps its own parameters.
        """
        partitions = self.partitions
        for key, partition in requested.items():
            known = partitions.get(key)
            if known is not None:
                partition.high_watermark = known.high_watermark
                partition.log_start_offset = known.log_start_offset
            partitions[key] = partition
            if self.watch is not None:
                self.watch.unsettle(key)
        for key in forgotten:
            partitions.pop(key, None)
            if self.watch is not None:
                self.watch.forget(key)

    def advance(self) -> None:
        """Set the next epoch; after MAX_EPOCH that is 1, because 0 opens a session."""
        self.epoch = 1 if self.epoch == MAX_EPOCH else self.epoch + 1


class FetchSessionCache:
    """All fetch sessions of a broker, at most `max_sessions` (Kafka: `max.incremental.fetch.session.cache.slots`).

    They have at most `MAX_PARTITIONS` partitions in total. Beyond that the cache ends the least recently used session
    with more than its share: many small sessions are not ended because of a few large ones.

    evictions: sessions that the cache has ended
    """

    def __init__(self, max_sessions: int, random_id: Callable[[], int]) -> None:
        self.evictions = 0
        self._max_sessions = max_sessions
        self._random_id = random_id
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self._partitions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partition_count(self) -> int:
        """The number of partitions in all sessions."""
        return self._partitions

    def create(
        self,
        partitions: dict[PartitionKey, FetchPartition],
        uses_topic_ids: bool,
        monotonic_ms: int,
        *,
        is_privileged: bool = False,
    ) -> FetchSession | None:
        """Create a session; return None if it is too large, or if the cache is full and no session may be evicted.

        An OrderedDict of partitions becomes the session's own: a copy takes long for many partitions.
        """
        if len(partitions) > MAX_SESSION_PARTITIONS:
            return None
        is_full = len(self._sessions) >= self._max_sessions
        if is_full and not self._evict(len(partitions), monotonic_ms, is_privileged=is_privileged):
            return None
        session_id = self._random_id()
        while session_id in self._sessions or session_id == INVALID_SESSION_ID:
            session_id = self._random_id()
        session = FetchSession(session_id, uses_topic_ids, monotonic_ms, is_privileged=is_privileged)
        self._sessions[session_id] = session
        session.partitions = partitions if isinstance(partitions, OrderedDict) else OrderedDict(partitions)
        self._count(session)
        return session

    def update(
        self, session: FetchSession, requested: dict[PartitionKey, FetchPartition], forgotten: Iterable[PartitionKey]
    ) -> None:
        """Apply an incremental request, or a part of it.

        Raises FETCH_SESSION_ID_NOT_FOUND if the session becomes too large, and ends it: the client opens another one.
        """
        session.update(requested, forgotten)
        if len(session.partitions) > MAX_SESSION_PARTITIONS:
            self.remove(session.id)
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if self._sessions.get(session.id) is session:
            self._count(session)

    def remove(self, session_id: int) -> None:
        """Remove a session, if it exists."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partitions -= session.counted
            if session.watch is not None:
                session.watch.release()

    def resume(self, session_id: int, epoch: int, uses_topic_ids: bool, monotonic_ms: int) -> FetchSession:
        """Return the session that an incremental request continues.

        Raises FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, or FETCH_SESSION_TOPIC_ID_ERROR if the session
        was opened with topic names and is continued with topic ids, or vice versa.
        """
        session = self._sessions.get(session_id)
        if session is None:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != epoch or session.is_busy:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_topic_ids != uses_topic_ids:
            raise KafkaError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        session.last_used_ms = monotonic_ms
        self._sessions.move_to_end(session_id)
        return session

    def _evict(self, new_size: int, monotonic_ms: int, *, is_privileged: bool) -> bool:
        """Evict the least recently used session if it is stale, else the smallest one that the new session displaces.

        A privileged session displaces every session that is not privileged. Otherwise a session displaces one that is
        old, smaller, and not privileged unless the new one is. Return False if there is no session to evict. Source:
        Kafka's FetchSessionCache.
        """
        if not self._sessions:
            return False
        oldest = next(iter(self._sessions.values()))
        if monotonic_ms - oldest.last_used_ms > EVICTION_MS:
            self._end(oldest.id)
            return True
        least = min(
            (
                (session.is_privileged, len(session.partitions), session.id)
                for session in self._sessions.values()
                if monotonic_ms - session.created_ms > EVICTION_MS or (is_privileged and not session.is_privileged)
            ),
            default=None,
        )
        if least is None or least[:2] >= (is_privileged, new_size):
            return False
        self._end(least[2])
        return True

    def _end(self, session_id: int) -> None:
        self.evictions += 1
        self.remove(session_id)

    def _count(self, session: FetchSession) -> None:
        """Count the partitions of a changed session, and end sessions if there are too many partitions."""
        self._partitions += len(session.partitions) - session.counted
        session.counted = len(session.partitions)
        while self._partitions > MAX_PARTITIONS:
            share = MAX_PARTITIONS // self._max_sessions
            self._end(next(one.id for one in self._sessions.values() if one.counted > share))
