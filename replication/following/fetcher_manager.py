"""The fetchers of a broker, and the assignment of the partitions that it follows to them.

Each leader has up to num.replica.fetchers fetchers. A partition's topic and index determine the number of its fetcher.
"""

import logging
import zlib
from collections.abc import Callable

from odradek.replication.following.drop_behind import DropBehind
from odradek.replication.following.fetched_partition import FetchedPartition, PartitionKey
from odradek.replication.following.fetcher import Fetcher
from odradek.replication.following.settings import FetcherParts
from odradek.replication.replicas.follower_replica import FollowerLogs, FollowerReplica
from odradek.replication.replicas.partition import Partition

logger = logging.getLogger(__name__)


class ReplicaFetcherManager:
    """All fetchers of a broker. Call `follow` after each change of a partition by the controller.

    fetchers: by leader and number; those without partitions are stopped and removed
    """

    def __init__(
        self,
        parts: FetcherParts,
        logs: FollowerLogs,
        now_ms: Callable[[], int],
        fetchers_per_leader: int = 1,
    ) -> None:
        self.fetchers: dict[tuple[int, int], Fetcher] = {}
        self._parts = parts
        self._logs = logs
        self._now_ms = now_ms
        self._fetchers_per_leader = fetchers_per_leader
        self._followed: dict[PartitionKey, tuple[Fetcher, FetchedPartition]] = {}
        self._is_finishing = False
        self._is_closed = False

    def follow(self, partition: Partition) -> None:
        """Fetch a partition from its present leader, in its present leader epoch, if another broker leads it.

        Nothing changes if it is fetched in that epoch already, even if it is parked.
        """
        if self._is_closed or partition.is_leader or partition.leader < 0 or partition.log is None:
            self.unfollow(partition)
            return
        key = partition.topic_id, partition.index
        known = self._followed.get(key)
        if known is not None:
            fetched = known[1]
            is_same = fetched.replica.partition is partition and fetched.leader == partition.leader
            if is_same and fetched.leader_epoch == partition.leader_epoch:
                return
        if self._is_finishing:
            self.unfollow(partition)
            return
        self._assign(self._make_fetched(partition))

    def list_fetched(self) -> list[FetchedPartition]:
        """Return the partitions that are fetched, in any state."""
        return [fetched for _, fetched in self._followed.values()]

    def unfollow(self, partition: Partition) -> None:
        """Fetch a partition no longer: this broker leads it, it has no leader, or the replica is removed."""
        self._remove((partition.topic_id, partition.index))

    def finish(self) -> None:
        """Follow no further leader, because the broker shuts down; partitions that are followed remain.

        The controller would reject this broker as a member of a new leader's ISR. A leader of Apache Kafka then does
        not raise the high watermark until the next append.
        """
        self._is_finishing = True

    def close(self) -> None:
        """Stop all fetchers; none is started later."""
        self._is_closed = True
        for fetcher in self.fetchers.values():
            fetcher.stop()
        self.fetchers.clear()
        self._followed.clear()

    def resize(self, fetchers_per_leader: int) -> None:
        """Change the number of fetchers per leader (num.replica.fetchers).

        All followed partitions are assigned again, and begin to fetch anew in their present leader epochs.
        """
        if fetchers_per_leader == self._fetchers_per_leader:
            return
        self._fetchers_per_leader = fetchers_per_leader
        for _, fetched in list(self._followed.values()):
            self._assign(self._make_fetched(fetched.replica.partition))

    def _make_fetched(self, partition: Partition) -> FetchedPartition:
        replica = FollowerReplica(partition, self._logs, self._now_ms)
        return FetchedPartition(replica, DropBehind(self._parts.run_drop_behind))

    def _assign(self, fetched: FetchedPartition) -> None:
        """Assign a partition to the fetcher of its leader. A fetcher that is left without partitions is stopped."""
        number = zlib.crc32(fetched.topic.encode()) + fetched.index
        address = fetched.leader, number % self._fetchers_per_leader
        fetcher = self.fetchers.get(address)
        known = self._followed.get(fetched.key)
        if known is not None and known[0] is not fetcher:
            self._remove(fetched.key)
        is_new = fetcher is None
        if fetcher is None:
            fetcher = self.fetchers[address] = Fetcher(*address, self._parts)
        self._followed[fetched.key] = fetcher, fetched
        fetcher.add(fetched)
        if is_new:
            fetcher.start()

    def _remove(self, key: PartitionKey) -> None:
        known = self._followed.pop(key, None)
        if known is None:
            return
        fetcher = known[0]
        fetcher.remove(key)
        if not fetcher.partitions:
            fetcher.stop()
            del self.fetchers[fetcher.leader, fetcher.number]
