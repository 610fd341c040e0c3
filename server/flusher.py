"""Acknowledgements that wait for the disk: `flush.messages` reached, the answer follows the sync.

The sync runs on a thread. Producers that come to a partition while its sync is under way share the next one, so the
disk is asked once for all of them (group commit).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred

from odradek.log.filesystem import LogDirFailure
from odradek.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from odradek.log.flush import FlushTask
    from odradek.log.partition_log import PartitionLog
    from odradek.replication.partition import Partition

RunInThread = Callable[[Callable[[], Any]], "Deferred[Any]"]
_Waiting = list[tuple["Deferred[None]", Any]]


class Flusher:
    """Syncs partitions one after the other for whoever waits for it."""

    def __init__(
        self,
        run_in_thread: RunInThread,
        now_ms: Callable[[], int],
        directory_failed: Callable[[str], None],
    ) -> None:
        self._run_in_thread = run_in_thread
        self._now_ms = now_ms
        self._directory_failed = directory_failed
        self._waiting: dict[Partition, _Waiting] = {}

    def flush(self, partition: "Partition", row: Any) -> "Deferred[None]":
        """Fires when everything appended so far is on the disk; if it cannot be, `row` gets KAFKA_STORAGE_ERROR."""
        deferred: Deferred[None] = Deferred()
        waiting = self._waiting.get(partition)
        if waiting is not None:
            waiting.append((deferred, row))
        else:
            self._waiting[partition] = [(deferred, row)]
            self._sync(partition)
        return deferred

    def _sync(self, partition: "Partition") -> None:
        served = self._waiting[partition]
        self._waiting[partition] = []
        log = partition.log
        try:
            task = None if log is None else log.prepare_flush()
        except LogDirFailure as failure:
            self._failed(partition, served, failure)
            return
        if log is None or task is None:
            self._served(partition, served)
            return
        self._run_in_thread(task.run).addCallbacks(
            lambda _: self._synced(partition, served, log, task),
            lambda failure: self._failed(partition, served, failure.value),
        )

    def _synced(self, partition: "Partition", served: _Waiting, log: "PartitionLog", task: "FlushTask") -> None:
        log.finish_flush(task, self._now_ms())
        self._served(partition, served)

    def _failed(self, partition: "Partition", served: _Waiting, error: BaseException) -> None:
        for _, row in served:
            row.error_code = ErrorCode.KAFKA_STORAGE_ERROR
            row.base_offset = -1
        if isinstance(error, LogDirFailure):
            if partition.log is not None:
                partition.log.failure = error
            self._directory_failed(error.directory)
        self._served(partition, served)

    def _served(self, partition: "Partition", served: _Waiting) -> None:
        """Answer those who waited for this sync, and begin the next if others came meanwhile."""
        if self._waiting[partition]:
            self._sync(partition)
        else:
            del self._waiting[partition]
        for deferred, _ in served:
            deferred.callback(None)
