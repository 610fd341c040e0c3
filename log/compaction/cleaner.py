"""Log cleaner: selection of the logs to compact (cleanup.policy=compact), and replacement of their segments.

The log with the highest dirty ratio is compacted first. A worker maps each key in the dirty part (not compacted yet) to
its last offset. It then rewrites the log, one group of segments after the other, without the records that a
later record with the same key supersedes. The main thread replaces each group with its cleaned segment.
cleaner-offset-checkpoint records the offset up to which each log is compacted. The cleaner also applies retention to
these logs, so that no segment is deleted during its compaction.

The worker of a large log is a process, if the environment can start one (see `process`), otherwise a thread.

Sources: Kafka documentation ("Log Compaction"); Kafka's log cleaner, for the order of events.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from odradek.log.background.tasks import STEP_S, Postponed, RunInThread, drain
from odradek.log.compaction.cleanable import CleanableRange, find_cleanable, first_dirty_offset
from odradek.log.compaction.compaction import CleanerSettings, Compaction
from odradek.log.compaction.run import (
    Cancelled,
    LocalWorker,
    Worker,
    WorkerLost,
    WorkerStalled,
    remove_cleaned,
)
from odradek.log.partition_log import PartitionLog
from odradek.log.segments.segment import Segment
from odradek.log.segments.segment_files import CLEANED_SUFFIX, CorruptSegmentError, DeletedSegment
from odradek.log.storage.filesystem import FileSystem, LogDirFailure, ShortageError

logger = logging.getLogger(__name__)

Key = tuple[str, int]

# A smaller log is compacted in a thread, which takes less time than starting a process.
_MIN_BYTES_FOR_PROCESS = 256 * 1024
_BYTES_PER_OFFSET = 4
"""Assumed size of a record. The cost of a compaction also depends on the number of records, which is estimated."""
_VISITS_PER_STEP = 200
_MAX_WORKER_LOSSES = 3
_MIN_BACKOFF_MS = 100
"""With 0 the broker would visit all logs without a break, as Apache Kafka does."""
_STALL_BACKOFF_SECONDS = 600.0
"""Delay after a stalled compaction before this log is tried again; other logs are compacted meanwhile."""
_RENAMES_PER_STEP = 4
_SHORTAGE_BACKOFF_SECONDS = 1.0


class EndedCompaction(NamedTuple):
    """The duration of a compaction, and the size of the segments that it has read and written."""

    duration_s: float
    bytes_before: int
    bytes_after: int


class CleanerHost(Protocol):
    """The methods of the log manager that the cleaner uses."""

    def all_logs(self) -> list[PartitionLog]: ...

    def serves(self, log: PartitionLog) -> bool:
        """Return whether the log is served; false after its deletion."""
        ...

    def fail_directory(self, path: str, error: Exception) -> None: ...

    def delete_old_segments(self, log: PartitionLog, now_ms: int) -> bool:
        """Delete a few segments by the log's start and retention; return whether more are deleted soon."""
        ...

    def remove_later(self, log: PartitionLog, deleted: list[DeletedSegment]) -> None: ...

    def record_recovery_point(self, log: PartitionLog, offset: int, done: Callable[[Exception | None], None]) -> None:
        """Make the log durable up to `offset`, and its recovery point; then call `done` with the failure, or None."""
        ...

    def checkpoint_cleaned(self, path: str, done: Callable[[], None]) -> None:
        """Write cleaner-offset-checkpoint of a log directory from the cleaner's `offsets`, then call `done`."""
        ...

    def clean_soon(self) -> None:
        """Make `step` due immediately."""
        ...


class Cleaner:
    """Compacts the logs of a host, at most log.cleaner.threads at a time.

    `offsets`: the offset up to which each log is compacted
    `uncleanable`: logs that cannot be read, or lost several workers; they are not compacted until the next start
    `max_dirty_ratio`, `max_overdue_ms`: of the logs that were due in the last sweep
    `ended`: the last compactions, as many as log.cleaner.threads
    `paused`: logs that are not compacted for now, because they are being copied to another log directory
    `start_worker(is_idle_priority)` starts a process or raises OSError. A process at idle priority exits if it gets
    too little processor time.
    """

    def __init__(
        self,
        fs: FileSystem,
        host: CleanerHost,
        settings: CleanerSettings,
        run_in_thread: RunInThread,
        *,
        monotonic: Callable[[], float],
        sleep: Callable[[float], None],
        start_worker: Callable[[bool], Worker] | None = None,
    ) -> None:
        self.settings = settings
        self.offsets: dict[Key, int] = {}
        self.uncleanable: set[Key] = set()
        self.paused: set[Key] = set()
        self._fs = fs
        self._host = host
        self._run_in_thread = run_in_thread
        self._monotonic = monotonic
        self._sleep = sleep
        self._start_worker = start_worker
        self._running: dict[Key, Compaction] = {}
        self._processes: list[Worker] = []
        self._worker_losses: dict[Key, int] = {}
        # The time (s, `monotonic`) at which the compaction of a log whose worker stalled is tried again.
        self._retry_s: dict[Key, float] = {}
        self._sweep: Iterator[PartitionLog] | None = None
        self._due_in_sweep: list[CleanableRange] = []
        self._due: list[CleanableRange] = []
        self._sweep_started_s = float("-inf")
        self.max_dirty_ratio = 0.0
        self.max_overdue_ms = 0
        self.ended: deque[EndedCompaction] = deque()
        self._is_closed = False

    @property
    def since_sweep_ms(self) -> int:
        """Time since the last sweep over all logs began; 0 before the first."""
        since_s = self._monotonic() - self._sweep_started_s
        return 0 if since_s == float("inf") else int(since_s * 1000)

    @property
    def running(self) -> set[Key]:
        """The logs that are being compacted."""
        return set(self._running)

    @property
    def backoff_ms(self) -> int:
        """Interval between the sweeps over all logs while there is nothing to compact."""
        return max(_MIN_BACKOFF_MS, self.settings.log_cleaner_backoff_ms)

    def is_running(self, key: Key) -> bool:
        return key in self._running

    def step(self, now_ms: int) -> bool:
        """Find the logs that are due and compact the dirtiest; return whether to call again immediately."""
        if self._is_closed:
            return False
        is_stale = self._monotonic() - self._sweep_started_s >= self.backoff_ms / 1000
        if (self._sweep is not None or not self._due or is_stale) and not self._continue_sweep(now_ms):
            return True
        has_begun = False
        while self._due and len(self._running) < self.settings.log_cleaner_threads:
            has_begun = self._begin(self._due.pop(), now_ms) or has_begun
            if has_begun and not self._running:
                # The compaction ran in this thread and has ended. The dirty ratios may have changed meanwhile.
                return True
        if not self._running and not self._due:
            self._end_processes()
        return False

    # Selection

    def _continue_sweep(self, now_ms: int) -> bool:
        """Visit some logs: delete old segments, and collect the logs that are due. Return whether all were visited."""
        if self._sweep is None:
            self._sweep = drain(self._host.all_logs())
            self._due_in_sweep = []
            self._sweep_started_s = self._monotonic()
        end_s = self._monotonic() + STEP_S
        for _ in range(_VISITS_PER_STEP):
            if self._monotonic() > end_s:
                break
            log = next(self._sweep, None)
            if log is None:
                self._sweep = None
                self._due = sorted(self._due_in_sweep, key=lambda cleanable: cleanable.ratio)
                self.max_dirty_ratio = self._due[-1].ratio if self._due else 0.0
                self.max_overdue_ms = max((cleanable.overdue_ms for cleanable in self._due), default=0)
                return True
            if not log.config.compacts or log.failure is not None or not self._host.serves(log):
                continue
            if (log.topic, log.partition) not in self._running:
                self._visit(log, now_ms)
        return False

    def _visit(self, log: PartitionLog, now_ms: int) -> None:
        if self._host.delete_old_segments(log, now_ms):
            # A compaction would rewrite segments that are about to be deleted, and delay their deletion.
            return
        key = (log.topic, log.partition)
        if log.failure is None and key not in self.uncleanable and key not in self.paused:
            self._check_checkpoint(log, key)
            cleanable = self._find_due(log, now_ms)
            if cleanable is not None:
                self._due_in_sweep.append(cleanable)

    def _check_checkpoint(self, log: PartitionLog, key: Key) -> None:
        """Reset a checkpoint that is outside the log.

        Otherwise a log that later grows beyond the checkpoint would count as compacted below it.
        """
        checkpoint = self.offsets.get(key)
        if checkpoint is None:
            return
        first_dirty = first_dirty_offset(log, checkpoint)
        if first_dirty == checkpoint:
            return
        # No warning in the usual case: with cleanup.policy=compact,delete retention advances the log start above it.
        if checkpoint > first_dirty or not log.config.deletes:
            logger.warning(
                "compacting from the log's start: the cleaner checkpoint is outside the log log=%s checkpoint=%d",
                log,
                checkpoint,
            )
        self.offsets[key] = first_dirty
        self._host.checkpoint_cleaned(log.log_directory, lambda: None)

    def _find_due(self, log: PartitionLog, now_ms: int) -> CleanableRange | None:
        """Return the cleanable part of a log if its compaction is due."""
        key = (log.topic, log.partition)
        if self._monotonic() < self._retry_s.get(key, float("-inf")):
            return None
        try:
            cleanable = find_cleanable(log, self.offsets.get(key), now_ms)
        except CorruptSegmentError as error:
            self.uncleanable.add(key)
            logger.error("cannot compact log=%s error=%s; compaction is retried only after a restart", log, error)
            return None
        except OSError as error:
            self._host.fail_directory(log.log_directory, error)
            return None
        return cleanable if cleanable is not None and cleanable.is_due else None

    # One compaction

    def _begin(self, due: CleanableRange, now_ms: int) -> bool:
        """Begin a compaction if the log is still due; return whether it has begun."""
        log = due.log
        key = (log.topic, log.partition)
        if log.failure is not None or key in self._running or key in self.uncleanable or not log.config.compacts:
            return False
        if key in self.paused:
            return False
        if not self._host.serves(log):
            return False
        cleanable = self._find_due(log, now_ms)
        if cleanable is None:
            return False
        compaction = Compaction(cleanable, self._acquire_worker(cleanable), now_ms, self._monotonic())
        try:
            job = compaction.job(self.settings)
        except OSError as error:
            self._release_worker(compaction.worker)
            self._host.fail_directory(log.log_directory, error)
            return False
        logger.info("compacting log=%s from=%d to=%d", log, cleanable.first_dirty_offset, cleanable.end_offset)
        self._running[key] = compaction

        def begin() -> None:
            compaction.mapped = compaction.worker.begin(job)

        self._run(compaction, begin, lambda: self._plan(compaction))
        return True

    def _acquire_worker(self, cleanable: CleanableRange) -> Worker:
        if self._start_worker is not None:
            # Even a small batch may contain millions of records.
            offsets = cleanable.end_offset - cleanable.first_dirty_offset
            size_bytes = max(cleanable.clean_bytes + cleanable.cleanable_bytes, offsets * _BYTES_PER_OFFSET)
            key = (cleanable.log.topic, cleanable.log.partition)
            is_idle_priority = key not in self._worker_losses and key not in self._retry_s
            if self._processes and is_idle_priority and size_bytes >= _MIN_BYTES_FOR_PROCESS:
                return self._processes.pop()
            if size_bytes >= _MIN_BYTES_FOR_PROCESS:
                try:
                    return self._start_worker(is_idle_priority)
                except OSError as error:
                    logger.warning("cannot start a compaction process, compacting in a thread error=%s", error)
        return LocalWorker(self._fs, self._monotonic, self._sleep)

    def _release_worker(self, worker: Worker) -> None:
        if isinstance(worker, LocalWorker):
            worker.close()
        else:
            self._processes.append(worker)

    def _end_processes(self) -> None:
        while self._processes:
            # In a thread, because the operating system needs some time to release the memory of a process.
            self._run_in_thread(self._processes.pop().close, lambda error: None)

    def _run(self, compaction: Compaction, work: Callable[[], None], then: Callable[[], None]) -> None:
        def finish(error: Exception | None) -> None:
            if error is None and not compaction.is_cancelled:
                then()
            else:
                self._abort(compaction, error)

        self._run_in_thread(work, finish)

    def _plan(self, compaction: Compaction) -> None:
        try:
            compaction.plan()
        except OSError as error:
            self._abort(compaction, error)
            return

        def recorded(error: Exception | None) -> None:
            if error is None and not compaction.is_cancelled:
                self._next_group(compaction)
            else:
                self._abort(compaction, error)

        # A cleaned segment may end below the base offset of the next one. Above the recovery point, recovery would
        # treat such a gap as the lost end of a segment and truncate the log there.
        self._host.record_recovery_point(compaction.log, compaction.cleanable.end_offset, recorded)

    def _next_group(self, compaction: Compaction) -> None:
        if not compaction.groups:
            self._finish(compaction)
            return
        group = compaction.groups.pop(0)
        producers = bytes(compaction.log.producer_state.producers.records)
        bases = tuple(segment.base_offset for segment in group)
        written: list[Segment] = []

        def write() -> None:
            compaction.worker.write(bases, producers)
            config = compaction.log.config
            written.append(
                Segment(
                    self._fs,
                    compaction.directory,
                    bases[0],
                    config,
                    now_ms=compaction.now_ms,
                    fresh=False,
                    suffix=CLEANED_SUFFIX,
                )
            )

        self._run(compaction, write, lambda: self._swap(compaction, group, written[0]))

    def _swap(self, compaction: Compaction, group: list[Segment], replacement: Segment) -> None:
        log = compaction.log
        if log.failure is not None or log.directory != compaction.directory or not compaction.is_in_place(group):
            compaction.is_cancelled = True
            self._abort(compaction, None)
            return
        try:
            log.replacement.begin_replacement(replacement, group)
        except (LogDirFailure, ShortageError) as failure:
            self._abort(compaction, failure)
            return
        compaction.bytes_before += sum(segment.size_bytes for segment in group)
        compaction.bytes_after += replacement.size_bytes
        self._retire_replaced(compaction, list(group), replacement, [])

    def _retire_replaced(
        self, compaction: Compaction, left: list[Segment], replacement: Segment, deleted: list[DeletedSegment]
    ) -> None:
        """Rename the files of replaced segments, a few per step, because a rename blocks the main thread.

        A cancellation does not interrupt this.
        """
        log = compaction.log
        if self._is_closed:
            # Another broker may use the directory by now; its start completes the replacement.
            return
        if log.failure is not None or log.directory != compaction.directory:
            compaction.is_cancelled = True
            self._abort(compaction, None)
            return
        try:
            # Oldest first: otherwise a crash could remove a tombstone but not the older value that it deletes.
            for _ in range(min(len(left), _RENAMES_PER_STEP)):
                deleted.append(log.replacement.retire_replaced(left[0], replacement))
                del left[0]
            if not left:
                log.replacement.finish_replacement(replacement)
            wait_seconds = 0.0
        except LogDirFailure as failure:
            self._abort(compaction, failure)
            return
        except ShortageError:
            # The replacement cannot be reverted. It continues when there is disk space again.
            wait_seconds = _SHORTAGE_BACKOFF_SECONDS
        if left or wait_seconds:
            # Continued from a thread, so that the main thread handles other events first.
            self._run_in_thread(
                lambda: self._sleep(wait_seconds),
                lambda _: self._retire_replaced(compaction, left, replacement, deleted),
            )
            return

        def finish(error: Exception | None) -> None:
            if error is None:
                # The old segments must exist until the replacement's name is durable.
                self._host.remove_later(log, deleted)
            if error is None and not compaction.is_cancelled:
                self._next_group(compaction)
            else:
                self._abort(compaction, error)

        self._run_in_thread(lambda: self._fs.sync_directory(compaction.directory), finish)

    def _finish(self, compaction: Compaction) -> None:
        """End a compaction, all of whose replacements are durable, and write its checkpoint."""
        log = compaction.log
        logger.info(
            "compacted log=%s up_to=%d bytes_before=%d bytes_after=%d keys=%d",
            log,
            compaction.end_offset,
            compaction.bytes_before,
            compaction.bytes_after,
            compaction.mapped.keys,
        )
        self.offsets[compaction.key] = compaction.end_offset
        self.ended.append(
            EndedCompaction(
                self._monotonic() - compaction.began_s, compaction.bytes_before, compaction.bytes_after
            )
        )
        while len(self.ended) > max(1, self.settings.log_cleaner_threads):
            self.ended.popleft()
        self._worker_losses.pop(compaction.key, None)
        self._retry_s.pop(compaction.key, None)
        self._release_worker(compaction.worker)

        def done() -> None:
            del self._running[compaction.key]
            self._host.clean_soon()

        self._host.checkpoint_cleaned(log.log_directory, done)

    # Failures and cancellation

    def _abort(self, compaction: Compaction, error: Exception | None) -> None:
        """End a compaction that failed with `error` or was cancelled."""
        log, key = compaction.log, compaction.key
        # A missing file means that its segment or log was deleted meanwhile.
        if compaction.is_cancelled or error is None or isinstance(error, FileNotFoundError | Cancelled | Postponed):
            logger.info("compaction cancelled log=%s", log)
        elif isinstance(error, OSError | LogDirFailure | ShortageError):
            self._host.fail_directory(log.log_directory, error)
        elif isinstance(error, WorkerStalled):
            self._retry_s[key] = self._monotonic() + _STALL_BACKOFF_SECONDS
            logger.error(
                "%s: check that the disk of log=%s responds and that the machine is not overloaded; compaction of this "
                "log is retried in %.0f s",
                error,
                log,
                _STALL_BACKOFF_SECONDS,
            )
        elif isinstance(error, WorkerLost) and self._worker_losses.get(key, 0) + 1 < _MAX_WORKER_LOSSES:
            self._worker_losses[key] = self._worker_losses.get(key, 0) + 1
            logger.warning("compaction will be retried log=%s error=%s", log, error)
        else:
            self.uncleanable.add(key)
            logger.error(
                "cannot compact log=%s error=%s; the log is still served but grows, and compaction is retried only "
                "after a restart. If it fails again, copy the partition's directory, then delete, re-create and refill "
                "the topic",
                log,
                error,
                exc_info=None if isinstance(error, WorkerLost) else error,
            )

        def clean_up() -> None:
            compaction.worker.close()
            if self._fs.is_directory(compaction.directory):
                remove_cleaned(self._fs, compaction.directory)

        def done(failure: Exception | None) -> None:
            del self._running[key]
            if failure is not None and not isinstance(failure, FileNotFoundError):
                self._host.fail_directory(log.log_directory, failure)
            if compaction.is_cancelled or key in self.uncleanable:
                self._host.clean_soon()

        self._run_in_thread(clean_up, done)

    def cancel(self, key: Key | None = None) -> None:
        """Cancel the compaction of `key`, or all of them."""
        for compaction in list(self._running.values()):
            if key in (None, compaction.key) and not compaction.is_cancelled:
                compaction.is_cancelled = True
                compaction.worker.cancel()

    def update_settings(self, settings: CleanerSettings) -> None:
        """Apply changed properties; running compactions are cancelled and begin again."""
        self.settings = settings
        self.cancel()

    def close(self) -> None:
        """Cancel all compactions and end the processes. Unfinished files have no effect."""
        self._is_closed = True
        self.cancel()
        while self._processes:
            self._processes.pop().close()

    def forget(self, key: Key) -> None:
        """Remove the state of a deleted log."""
        self.cancel(key)
        self.offsets.pop(key, None)
        self.uncleanable.discard(key)
        self._worker_losses.pop(key, None)
        self._retry_s.pop(key, None)

    def truncated(self, key: Key, offset: int) -> None:
        """Lower the compacted offset of a log that was truncated to `offset`: batches above it are not compacted."""
        self.cancel(key)
        if self.offsets.get(key, -1) > offset:
            self.offsets[key] = offset
