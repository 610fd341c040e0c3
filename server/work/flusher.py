"""Syncs for the acknowledgements of topics with `flush.before.acks` or `flush.messages`.

With `flush.before.acks` the high watermark follows the sync: `request` schedules a sync, after which `Partition.synced`
is called. With `flush.messages` single responses wait: `flush` returns a Deferred.

A sync runs on a thread. It begins in the next reactor iteration, so that all requests of one iteration share it.
Requests that arrive during a partition's sync share the next one, which begins when that ends. Several partitions are
synced at the same time. No sync is delayed to collect more requests. The responses of all requests that shared a sync
are sent in slices.
"""

import logging
from typing import TYPE_CHECKING, Final

from odradek.log.storage.filesystem import ShortageError
from odradek.server.work.clock import Clock
from odradek.server.work.waits import RetryQueue, Wait, complete

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from odradek.log.log_manager import LogManager
    from odradek.replication.replicas.partition import Partition

logger = logging.getLogger(__name__)

_Waiting = list["Deferred[bool]"]
_SHORTAGE_RETRY_S: Final = 1.0


class Flusher:
    """Syncs partitions for the acknowledgements that wait for it.

    clock: the reactor
    completions: completes the requests that waited
    """

    def __init__(self, logs: "LogManager", clock: Clock, completions: RetryQueue) -> None:
        self._logs = logs
        self._clock = clock
        self._completions = completions
        self._is_scheduled = False
        self._under_way: set[Partition] = set()
        self._next: dict[Partition, _Waiting] = {}

    def request(self, partition: "Partition") -> None:
        """Schedule a sync of everything appended so far, after which `partition.synced` is called if it succeeds."""
        if partition in self._next:
            return
        self._next[partition] = []
        # During a sync the requests of all iterations make one call of the log manager, instead of one each.
        if not self._is_scheduled and partition not in self._under_way:
            self._is_scheduled = True
            self._clock.callLater(0, self._begin_all)

    def flush(self, partition: "Partition") -> "Deferred[bool]":
        """Sync everything appended so far. The Deferred fires with True, or with False if the sync fails."""
        deferred: Wait[bool] = Wait(lambda: f"sync of {partition.topic}-{partition.index} to the disk")
        self.request(partition)
        self._next[partition].append(deferred)
        return deferred

    def _begin_all(self) -> None:
        self._is_scheduled = False
        for partition in [one for one in self._next if one not in self._under_way]:
            self._begin(partition)

    def _begin(self, partition: "Partition") -> None:
        waiting = self._next.pop(partition)
        log = partition.log
        if log is None:
            self._fire(waiting, False)
            return
        self._under_way.add(partition)
        try:
            self._logs.flush(log, lambda error: self._on_ended(partition, waiting, error))
        except Exception as error:
            # The syncs of other partitions begin nevertheless, and so does the next one of this partition.
            logger.exception("a sync failed to begin; please report it partition=%r", partition)
            self._on_ended(partition, waiting, error)

    def _on_ended(self, partition: "Partition", waiting: _Waiting, error: Exception | None) -> None:
        is_synced = error is None
        self._under_way.discard(partition)
        if partition in self._next:
            # Before the responses, so that the disk is not idle while they are sent.
            self._begin(partition)
        if isinstance(error, ShortageError):
            # With `flush.before.acks` the high watermark waits for a sync that succeeds.
            self._clock.callLater(_SHORTAGE_RETRY_S, self.request, partition)
        try:
            if is_synced:
                partition.synced()
        finally:
            self._fire(waiting, is_synced)

    def _fire(self, waiting: _Waiting, is_synced: bool) -> None:
        for deferred in waiting:
            complete(self._completions, deferred, is_synced)
