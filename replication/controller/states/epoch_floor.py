"""Lower bounds of the leader epochs that begin at a start, derived from the log directories.

A leader epoch is never used twice: consumers and followers find lost records by it, ignore metadata of an older one,
and partitions refuse the markers of an older coordinator, whose epoch is the leader epoch in `__transaction_state`. The
metadata store has the last epochs, unless it was restored from a backup, or lost.
"""

from collections.abc import Callable, Iterable
from typing import Final

from odradek.log.storage.found_directories import FoundLog
from odradek.replication.metadata.image import ClusterMetadata
from odradek.replication.metadata.topic_names import TRANSACTION_STATE_TOPIC

LeastEpoch = Callable[[str, int], int]
"""The least leader epoch of a partition, by topic and number."""

NEVER_LED: Final = -1
_MS_PER_MINUTE: Final = 60_000


def no_floor(topic: str, partition: int) -> int:
    """Accept each stored epoch."""
    return 0


def epoch_of_time(now_ms: int) -> int:
    """Return an epoch that no earlier one has reached: minutes since 1970, which fit into 32 bits.

    Epochs begin at 0 or at an earlier time, and unclean starts, each of which begins one, are rarer than one a minute.
    """
    return max(now_ms, 0) // _MS_PER_MINUTE


def latest_coordinator_epoch(found: Iterable[FoundLog]) -> int:
    """Return the largest epoch of a transaction coordinator in the markers of all logs."""
    return max((log.coordinator_epoch for log in found), default=NEVER_LED)


class FoundEpochs:
    """Epochs found in the log directories. `broker_epoch` is the largest one recorded there by an earlier start."""

    def __init__(self, found: Iterable[FoundLog] = (), broker_epoch: int = NEVER_LED) -> None:
        logs = list(found)
        self._latest = {(log.topic, log.partition): log.latest_epoch for log in logs}
        self._coordinator_epoch = latest_coordinator_epoch(logs)
        self._broker_epoch = broker_epoch

    def is_ahead_of(self, image: ClusterMetadata, broker_epoch: int) -> bool:
        """Return whether the store is behind: it did not begin these epochs. `broker_epoch` is the current one."""
        if self._broker_epoch >= broker_epoch:
            return True
        for topic in image.topics.values():
            for index, partition in enumerate(topic.partitions):
                if self._latest.get((topic.name, index), NEVER_LED) > partition.leader_epoch:
                    return True
        return False

    def least_epoch(self, image: ClusterMetadata, now_ms: int, *, store_is_behind: bool) -> LeastEpoch:
        """Return the least epochs of the partitions of an image.

        If the store is behind, the epochs of all partitions increase, to that of the present time at least: the store
        lacks epochs of which no log has a record either. In any case coordinators have the epochs of all markers.
        """
        now = epoch_of_time(now_ms) if store_is_behind else 0

        def least(topic: str, partition: int) -> int:
            stored = image.topics[topic].partitions[partition].leader_epoch
            marked = self._coordinator_epoch if topic == TRANSACTION_STATE_TOPIC else NEVER_LED
            if store_is_behind:
                return max(stored, self._latest.get((topic, partition), NEVER_LED), marked, now - 1) + 1
            return marked + 1 if marked > stored else 0

        return least
