"""The fetcher's side of a fetch session (KIP-227): requests contain only the partitions that changed.

A request with session epoch 0 contains all partitions and opens a session; it ends the one whose id it has. Then the
epoch is incremented by each request. The leader answers only partitions with records, an error, or other offsets than
in its last response; so a fetcher that ignores a row opens a new session.
"""

import logging
from collections import OrderedDict
from typing import Final

from odradek.protocol.errors import ErrorCode, read_error_code
from odradek.protocol.messages.fetch import (
    FetchRequestFetchPartition,
    FetchRequestFetchTopic,
    FetchRequestForgottenTopic,
    FetchResponse,
)
from odradek.replication.following.fetched_partition import PartitionKey

logger = logging.getLogger(__name__)

NO_SESSION: Final = 0
FIRST_EPOCH: Final = 0
MAX_EPOCH: Final = 2**31 - 1


class FetcherSession:
    """The session of one fetcher with its leader: the partitions to fetch, and those the leader does not have yet."""

    __slots__ = ("_changed", "_forgotten", "_requested", "_rows", "epoch", "id")

    def __init__(self) -> None:
        self.id = NO_SESSION
        self.epoch = FIRST_EPOCH
        self._rows: OrderedDict[PartitionKey, FetchRequestFetchPartition] = OrderedDict()
        self._changed: dict[PartitionKey, None] = {}
        # Partitions that the leader still has in the session, and whether a row of a response was ignored since.
        self._forgotten: dict[PartitionKey, bool] = {}
        # The partitions of the last request if that was a full one.
        self._requested: frozenset[PartitionKey] | None = None

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def has_nothing_to_send(self) -> bool:
        """Return whether there is no partition to fetch, and none for the leader to forget."""
        return not self._rows and not (self._forgotten and self.epoch)

    def put(self, key: PartitionKey, row: FetchRequestFetchPartition) -> None:
        """Fetch a partition with these parameters from the next request on."""
        if self._rows.get(key) != row:
            self._rows[key] = row
            # Without a session the leader reads the partitions in the order of the request, up to its limits.
            self._rows.move_to_end(key)
            self._changed[key] = None
        if self._forgotten.pop(key, False):
            self.restart()

    def drop(self, key: PartitionKey) -> None:
        """Fetch a partition no longer."""
        if self._rows.pop(key, None) is not None:
            self._changed.pop(key, None)
            self._forgotten[key] = False

    def ignore_row(self, key: PartitionKey) -> None:
        """Record that a row of a response was ignored, because the partition is not fetched now."""
        if key in self._forgotten:
            self._forgotten[key] = True

    def take_changes(self) -> tuple[list[FetchRequestFetchTopic], list[FetchRequestForgottenTopic]]:
        """Return the partitions and the forgotten partitions of the next request."""
        is_full = self.epoch == FIRST_EPOCH
        keys = list(self._rows) if is_full else list(self._changed)
        forgotten = [] if is_full else list(self._forgotten)
        self._requested = frozenset(keys) if is_full else None
        self._changed.clear()
        self._forgotten.clear()
        topics: dict[bytes, list[FetchRequestFetchPartition]] = {}
        for key in keys:
            topics.setdefault(key[0], []).append(self._rows[key])
        dropped: dict[bytes, list[int]] = {}
        for topic_id, index in forgotten:
            dropped.setdefault(topic_id, []).append(index)
        return (
            [FetchRequestFetchTopic(topic="", topic_id=topic_id, partitions=rows) for topic_id, rows in topics.items()],
            [
                FetchRequestForgottenTopic(topic="", topic_id=topic_id, partitions=indexes)
                for topic_id, indexes in dropped.items()
            ],
        )

    def accept(self, response: FetchResponse) -> bool:
        """Set the id and the epoch of the next request; return whether the partitions of the response are valid."""
        if response.error_code:
            error = read_error_code(response.error_code)
            logger.info("fetch session refused id=%d epoch=%d error=%s", self.id, self.epoch, error.name)
            if error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
                self.id = NO_SESSION
            self.restart()
            return False
        expected = self._requested
        if expected is not None and expected != {
            (topic.topic_id, row.partition_index) for topic in response.responses for row in topic.partitions
        }:
            logger.warning("a response to a full fetch does not have all partitions; the fetch is repeated")
            self.id = NO_SESSION
            self.restart()
            return False
        if response.session_id == NO_SESSION:
            # The leader has no room for a session, or has closed it.
            self.id, self.epoch = NO_SESSION, FIRST_EPOCH
        elif expected is not None:
            self.id, self.epoch = response.session_id, FIRST_EPOCH + 1
        else:
            self.epoch = self.epoch + 1 if self.epoch < MAX_EPOCH else 1
        return True

    def restart(self) -> None:
        """Make the next request a full one, which ends this session. Also after a request without a response."""
        self.epoch = FIRST_EPOCH
