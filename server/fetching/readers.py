"""Positions of readers: the offset that each client reads next in each partition, and the time of its last fetch.

Consumers that commit no offsets, such as Spark's, have no lag in any tool. The broker receives the offset that a
client reads next with each fetch. After a fetch that returned all records at once it is the offset after them: a
reader may begin its next fetch only when there are more, as Spark does. Positions are kept for each client id, while
the broker has a `metrics.listener`.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from odradek.replication.replicas.partition import Partition
    from odradek.server.fetching.limited_read import FetchTarget

MAX_CLIENTS: Final = 1_000
"""Client ids with positions; beyond that those are removed that have not fetched for the longest time."""

MAX_POSITIONS: Final = 50_000
"""Positions of all clients; each takes some 150 bytes."""

MAX_ID_LENGTH: Final = 200
"""Characters of a client id; those of longer ids are cut off. Each position has the id in three lines of /metrics."""

EXPIRY_MS: Final = 24 * 3_600_000
"""Time without a fetch after which a position is removed: a reader that has stopped has a lag, too."""


class ReaderPosition(NamedTuple):
    """The position of a reader in a partition that this broker leads.

    offset: of the last fetch, or after its records if it returned all at once; all records below it were sent
    fetched_ms: the time of the last fetch, by the wall clock
    """

    client_id: str
    partition: "Partition"
    offset: int
    fetched_ms: int

    @property
    def lag(self) -> int:
        """The number of offsets up to the high watermark."""
        log = self.partition.log
        return 0 if log is None else max(0, log.high_watermark - self.offset)


class Readers:
    """The positions of all readers. Fetches of followers are none."""

    def __init__(self, now_ms: Callable[[], int], monotonic_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = monotonic_ms
        # The clients that have not fetched for the longest time come first.
        self._by_client: OrderedDict[str, dict[Partition, tuple[int, int]]] = OrderedDict()
        self._count = 0

    def record(self, client_id: str, targets: "Iterable[FetchTarget]") -> None:
        """Record the partitions of a fetch."""
        client_id = client_id[:MAX_ID_LENGTH]
        positions = self._by_client.get(client_id)
        if positions is None:
            positions = self._by_client[client_id] = {}
        else:
            self._by_client.move_to_end(client_id)
        monotonic_ms = self._monotonic_ms()
        before = len(positions)
        for target in targets:
            positions[target.partition] = target.requested.fetch_offset, monotonic_ms
        self._count += len(positions) - before
        while len(self._by_client) > MAX_CLIENTS or (self._count > MAX_POSITIONS and len(self._by_client) > 1):
            _, removed = self._by_client.popitem(last=False)
            self._count -= len(removed)

    def record_ends(self, client_id: str, ends: "Iterable[tuple[Partition, int]]") -> None:
        """Record that a fetch returned all records of these partitions, up to the offsets."""
        positions = self._by_client.get(client_id[:MAX_ID_LENGTH], {})
        for partition, offset in ends:
            if (position := positions.get(partition)) is not None:
                positions[partition] = offset, position[1]

    def list_positions(self, size: int = 100) -> Iterator[list[ReaderPosition]]:
        """Return the positions in partitions that this broker leads, in lists of up to about `size`.

        The others, and those that have expired, are removed.
        """
        for client_id in list(self._by_client):
            partitions = iter(list(self._by_client.get(client_id, ())))
            while some := list(islice(partitions, size)):
                # The client may have been removed, or may have fetched, between two lists.
                yield list(self._list_some(client_id, some))
            if client_id in self._by_client and not self._by_client[client_id]:
                del self._by_client[client_id]

    def _list_some(self, client_id: str, partitions: "list[Partition]") -> Iterator[ReaderPosition]:
        now_ms, monotonic_ms = self._now_ms(), self._monotonic_ms()
        positions = self._by_client.get(client_id, {})
        for partition in partitions:
            position = positions.get(partition)
            if position is None:
                continue
            offset, fetched_ms = position
            age_ms = monotonic_ms - fetched_ms
            if age_ms > EXPIRY_MS or not partition.is_leader:
                del positions[partition]
                self._count -= 1
            else:
                yield ReaderPosition(client_id, partition, offset, now_ms - age_ms)
