"""Acknowledgements that wait for the disk: `flush.messages` reached, the answer follows the sync.

The sync runs on a thread. Producers that come to a partition while its sync is under way share the next one, so the
disk is asked once for all of them (group commit).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred

if TYPE_CHECKING:
    from odradek.log.log_manager import LogManager
    from odradek.replication.partition import Partition

_Waiting = list["Deferred[bool]"]


class Flusher:
    """Syncs partitions for whoever waits for it, one sync of a partition at a time."""

    def __init__(self, logs: "LogManager", now_ms: Callable[[], int]) -> None:
        self._logs = logs
        self._now_ms = now_ms
        self._waiting: dict[Partition, _Waiting] = {}

    def flush(self, partition: "Partition") -> "Deferred[bool]":
        """Fires when everything appended so far is on the disk (True), or cannot be written to it (False)."""
        deferred: Deferred[bool] = Deferred()
        waiting = self._waiting.get(partition)
        if waiting is not None:
            waiting.append(deferred)
        else:
            self._waiting[partition] = [deferred]
            self._sync(partition)
        return deferred

    def _sync(self, partition: "Partition") -> None:
        served = self._waiting[partition]
        self._waiting[partition] = []
        log = partition.log
        if log is None:
            self._served(partition, served, False)
            return
        self._logs.flush(log, self._now_ms(), lambda error: self._served(partition, served, error is None))

    def _served(self, partition: "Partition", served: _Waiting, is_synced: bool) -> None:
        """Answer those who waited for this sync, and begin the next if others came meanwhile."""
        if self._waiting[partition]:
            self._sync(partition)
        else:
            del self._waiting[partition]
        for deferred in served:
            deferred.callback(is_synced)
