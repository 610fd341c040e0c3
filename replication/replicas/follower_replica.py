"""The follower's side of a replica: appends of the leader's batches, truncation, and the leader's offsets.

Every change requires that this broker follows the partition in the caller's leader epoch: a response that arrives after
an election changes nothing.

Sources: KIP-101, KIP-279, KIP-320 and KIP-595 (truncation by leader epoch), KIP-107 (log start offset).
"""

import logging
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from odradek.log.append import AppendInfo, UnexpectedOffsetError
from odradek.log.background.tasks import Done
from odradek.log.partition_log import PartitionLog
from odradek.log.storage.filesystem import LogDirFailure, ShortageError
from odradek.log.validation.batch import chunk_batches
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.replicas.partition import Partition

logger = logging.getLogger(__name__)

BATCHES_PER_STEP: Final = 64
BYTES_PER_STEP: Final = 1 << 20
_LAST: Final = object()


class FollowerLogs(Protocol):
    """The part of the log manager that truncates logs, with their checkpoints, and syncs them."""

    def flush(self, log: PartitionLog, done: Done) -> None: ...

    def truncate_in_steps(
        self, topic: str, partition: int, offset: int, now_ms: int
    ) -> Generator[None, None, None]: ...

    def start_over(self, topic: str, partition: int, offset: int, now_ms: int) -> None: ...


class FollowerReplica:
    """Changes of a partition's log by its follower.

    All methods that take `leader_epoch` raise KafkaError: FENCED_LEADER_EPOCH if this broker does not follow the
    partition in that epoch, KAFKA_STORAGE_ERROR if the log is offline or its disk fails (LogDirFailure), or if a
    resource is short (ShortageError). Those that return a generator work in short steps.
    """

    __slots__ = ("_is_stopped", "_logs", "_now_ms", "partition")

    def __init__(self, partition: Partition, logs: FollowerLogs, now_ms: Callable[[], int]) -> None:
        self.partition = partition
        self._logs = logs
        self._now_ms = now_ms
        self._is_stopped = False

    def stop(self) -> None:
        """Change nothing more, because another fetcher may change the log, in the same leader epoch."""
        self._is_stopped = True

    def log(self, leader_epoch: int) -> PartitionLog:
        """Return the log if this broker follows the partition in `leader_epoch`."""
        partition = self.partition
        is_fenced = partition.is_leader or partition.leader < 0 or partition.leader_epoch != leader_epoch
        if is_fenced or self._is_stopped:
            raise KafkaError(
                ErrorCode.FENCED_LEADER_EPOCH, f"{partition!r} is not a follower in leader epoch {leader_epoch}"
            )
        log = partition.log
        if log is None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{partition.topic}-{partition.index} is offline")
        return log

    def append(
        self, records: memoryview, leader_start_offset: int, leader_epoch: int
    ) -> Generator[None, None, int]:
        """Append the leader's batches; return the appended bytes.

        The first batch may begin below the log's end if the leader's log starts in the middle of it. This log then
        starts over with the batch, because the leader has deleted all records that it has. Raises KafkaError
        CORRUPT_MESSAGE, UnexpectedOffsetError; batches of earlier steps stay in the log.
        """
        appended_bytes = 0
        for chunk in chunk_batches(records, BATCHES_PER_STEP, BYTES_PER_STEP):
            if appended_bytes:
                yield
            log = self.log(leader_epoch)
            try:
                info = log.append_as_follower(chunk, now_ms=self._now_ms(), leader_epoch=leader_epoch)
            except UnexpectedOffsetError as error:
                end_offset = log.log_end_offset
                is_obsolete = end_offset in (log.log_start_offset, leader_start_offset)
                if not (is_obsolete and error.first_offset < end_offset <= error.last_offset):
                    raise
                with self._reporting_failures():
                    info = self._start_over_with(chunk, error.first_offset, log, leader_epoch)
            except (LogDirFailure, ShortageError) as failure:
                self.partition.report_failure(failure)
                raise
            if info is None:
                break
            appended_bytes += info.size_bytes
        return appended_bytes

    def _start_over_with(
        self, records: memoryview, offset: int, log: PartitionLog, leader_epoch: int
    ) -> AppendInfo | None:
        """Replace all batches by these, which begin at `offset`. The log's start is the end that the log had."""
        start_offset = log.log_end_offset
        partition = self.partition
        self._logs.start_over(partition.topic, partition.index, offset, self._now_ms())
        info = log.append_as_follower(records, now_ms=self._now_ms(), leader_epoch=leader_epoch)
        log.advance_log_start(start_offset)
        return info

    def requires_sync(self, leader_epoch: int) -> bool:
        """Return whether the log has to be synced before the next fetch.

        The leader counts records below the fetch offset as replicated. With flush.messages or flush.before.acks a
        power loss must not remove them. A power loss must not restore truncated batches, either.
        """
        log = self.log(leader_epoch)
        return log.has_unsynced_truncation or log.log_end_offset - log.flushed_offset >= log.state.flush_messages

    def sync(self, leader_epoch: int, done: Done) -> None:
        """Sync the log in a thread, then call `done`."""
        self._logs.flush(self.log(leader_epoch), done)

    def update_offsets(self, high_watermark: int, log_start_offset: int, leader_epoch: int) -> None:
        """Adopt the leader's high watermark, bounded by this log, and its log start offset.

        The next retention check deletes the segments before the log start. The high watermark can fall.
        """
        log = self.log(leader_epoch)
        previous = log.high_watermark, log.log_start_offset
        # Only a log start is written to disk.
        log.update_high_watermark(high_watermark)
        if log_start_offset > log.log_start_offset:
            with self._reporting_failures():
                log.advance_log_start(min(log_start_offset, log.high_watermark))
        if (log.high_watermark, log.log_start_offset) != previous:
            self.partition.wake_watchers()

    def truncate_to_high_watermark(self, leader_epoch: int) -> Generator[None, None, bool]:
        """Remove the batches above the high watermark, because no leader epoch is known to compare with the leader."""
        log = self.log(leader_epoch)
        return self._truncate_to(log.high_watermark, leader_epoch, "its leader epochs are unknown")

    def truncate_to_divergence(
        self, epoch: int, end_offset: int, leader_epoch: int
    ) -> Generator[None, None, bool]:
        """Remove the batches that are not in the leader's log; return whether anything changed.

        On the leader the largest epoch up to the last one of this log is `epoch`, and it ends at `end_offset`. If this
        log has that epoch, the logs are equal up to the smaller of both ends of the epoch. Otherwise they diverge at
        the latest where this log's preceding epoch ends, and the next fetch compares that one.
        """
        log = self.log(leader_epoch)
        own_epoch, own_end_offset = log.offset_for_leader_epoch(epoch)
        offset = log.log_end_offset
        if own_epoch >= 0:
            offset = min(offset, own_end_offset)
        if own_epoch < 0 or own_epoch == epoch:
            offset = min(offset, end_offset)
        return self._truncate_to(offset, leader_epoch, f"on the leader epoch {epoch} ends at {end_offset}")

    def truncate_to_leader_end(self, end_offset: int, leader_epoch: int) -> Generator[None, None, bool]:
        """Remove the batches at or above the leader's log end; return whether anything changed."""
        return self._truncate_to(end_offset, leader_epoch, f"the leader's log ends at {end_offset}")

    def start_over(self, offset: int, leader_epoch: int) -> None:
        """Remove all batches; the empty log begins at `offset`, the leader's log start."""
        log, partition = self.log(leader_epoch), self.partition
        logger.warning(
            "log starts over partition=%s-%d old=%d..%d new=%d reason=\"the leader's log starts at %d\"",
            partition.topic, partition.index, log.log_start_offset, log.log_end_offset, offset, offset,
        )  # fmt: skip
        with self._reporting_failures():
            self._logs.start_over(partition.topic, partition.index, offset, self._now_ms())
        partition.wake_watchers()

    def _truncate_to(self, offset: int, leader_epoch: int, reason: str) -> Generator[None, None, bool]:
        """Truncate the log unless its leader epoch ends between two steps. The next `sync` makes that durable."""
        log, partition = self.log(leader_epoch), self.partition
        steps = self._logs.truncate_in_steps(partition.topic, partition.index, offset, self._now_ms())
        while True:
            before = log.log_end_offset, log.latest_epoch
            high_watermark = log.high_watermark
            with self._reporting_failures():
                if next(steps, _LAST) is _LAST:
                    break
            yield
            if self.log(leader_epoch) is not log:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{partition!r} has another log")
        if (log.log_end_offset, log.latest_epoch) == before:
            return False
        level = logging.WARNING if offset < high_watermark else logging.INFO
        logger.log(
            level,
            "log truncated partition=%s-%d leader_epoch=%d old_end=%d new_end=%d high_watermark=%d reason=%s",
            partition.topic, partition.index, partition.leader_epoch, before[0], log.log_end_offset, high_watermark,
            reason,
        )  # fmt: skip
        if offset < high_watermark:
            partition.wake_watchers()
        return True

    @contextmanager
    def _reporting_failures(self) -> Iterator[None]:
        try:
            yield
        except (LogDirFailure, ShortageError) as failure:
            self.partition.report_failure(failure)
            raise
