"""Compaction of logs with cleanup.policy=compact: selection of logs, and replacement of their segments.

The dirtiest log comes first. A worker maps the last offset of each key in the part that is not compacted yet (the
dirty part), then rewrites the log, group of segments by group, without the records that a later record of the same key
replaces. The main thread puts each rewritten segment in place. cleaner-offset-checkpoint records the offset up to which
a log is compacted. Old segments of these logs are deleted here too, so that retention never takes what is being
compacted.

The worker is a process if the host has one (`process` has the reason), else a thread.

Sources: Kafka documentation ("Log Compaction"), Kafka's log cleaner for what happens when.
"""

import logging
from collections.abc import Callable, Iterator
from typing import Protocol

from odradek.log.background.tasks import STEP_S, RunInThread, drain
from odradek.log.compaction.cleanable import Target, find_target, first_dirty_offset
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

# A log with less to read is compacted by a thread of the broker: a process takes longer to start.
_LEAST_BYTES_FOR_PROCESS = 256 * 1024
_BYTES_PER_OFFSET = 4
"""The number of offsets counts as well, since time and memory depend on the number of records."""
_VISITS_PER_STEP = 200
_MAX_LOSSES = 3
_LEAST_BACKOFF_MS = 100
"""With 0 the broker would visit all logs without a break, as Apache Kafka does."""
_STALLED_SECONDS = 600.0
"""Other logs are compacted before one whose process made no progress is tried again."""
_RENAMED_AT_ONCE = 4
_SHORTAGE_SECONDS = 1.0


class CleanerHost(Protocol):
    """The methods of the log manager that the cleaner uses."""

    def all_logs(self) -> list[PartitionLog]: ...

    def serves(self, log: PartitionLog) -> bool:
        """Return whether the log is served; false after its deletion."""
        ...

    def fail_directory(self, path: str, error: Exception) -> None: ...

    def delete_old_segments(self, log: PartitionLog, now_ms: int) -> bool:
        """Apply the log's start and retention, a few segments at a time; return whether more are deleted soon."""
        ...

    def remove_later(self, log: PartitionLog, deleted: list[DeletedSegment]) -> None: ...

    def record_recovery_point(self, log: PartitionLog, offset: int, done: Callable[[Exception | None], None]) -> None:
        """Make the log durable up to `offset`, and its recovery point; then call `done`, with the failure if any."""
        ...

    def checkpoint_cleaned(self, path: str, done: Callable[[], None]) -> None:
        """Write the cleaner's `offsets` of a log directory, then call `done`."""
        ...

    def clean_soon(self) -> None:
        """Have `step` called at once."""
        ...


class Cleaner:
    """Compacts the logs of a host, log.cleaner.threads of them at a time.

    `offsets` has the offset up to which each log is compacted. `uncleanable` are logs with records that cannot be read;
    they are not compacted until the next start. `start_worker(is_patient)` starts a process, and raises OSError if it
    cannot; a patient one may give up on a busy machine.
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
        self._fs = fs
        self._host = host
        self._run_in_thread = run_in_thread
        self._monotonic = monotonic
        self._sleep = sleep
        self._start_worker = start_worker
        self._running: dict[Key, Compaction] = {}
        self._processes: list[Worker] = []
        self._losses: dict[Key, int] = {}
        # Of logs whose process made no progress: when they are tried again, by `monotonic`.
        self._stalled_until: dict[Key, float] = {}
        self._sweep: Iterator[PartitionLog] | None = None
        self._found: list[Target] = []
        self._due: list[Target] = []
        self._swept_s = float("-inf")
        self._is_closed = False

    @property
    def running(self) -> set[Key]:
        """Logs that are being compacted."""
        return set(self._running)

    @property
    def backoff_ms(self) -> int:
        """Time between two sweeps over all logs while there is nothing to compact."""
        return max(_LEAST_BACKOFF_MS, self.settings.log_cleaner_backoff_ms)

    def is_running(self, key: Key) -> bool:
        return key in self._running

    def step(self, now_ms: int) -> bool:
        """Find logs that are due and begin with the dirtiest; return whether there may be more to do at once."""
        if self._is_closed:
            return False
        is_stale = self._monotonic() - self._swept_s >= self.backoff_ms / 1000
        if (self._sweep is not None or not self._due or is_stale) and not self._sweep_on(now_ms):
            return True
        has_begun = False
        while self._due and len(self._running) < self.settings.log_cleaner_threads:
            has_begun = self._begin(self._due.pop(), now_ms) or has_begun
            if has_begun and not self._running:
                # Done already, in this thread: others may have become dirtier.
                return True
        if not self._running and not self._due:
            self._let_processes_go()
        return False

    # Choosing

    def _sweep_on(self, now_ms: int) -> bool:
        """Visit some of the logs: delete old segments, note what is due. Return whether all were visited."""
        if self._sweep is None:
            self._sweep = drain(self._host.all_logs())
            self._found = []
            self._swept_s = self._monotonic()
        end_s = self._monotonic() + STEP_S
        for _ in range(_VISITS_PER_STEP):
            if self._monotonic() > end_s:
                break
            log = next(self._sweep, None)
            if log is None:
                self._sweep = None
                self._due = sorted(self._found, key=lambda target: target.ratio)
                return True
            if not log.config.compacts or log.failure is not None or not self._host.serves(log):
                continue
            if (log.topic, log.partition) not in self._running:
                self._visit(log, now_ms)
        return False

    def _visit(self, log: PartitionLog, now_ms: int) -> None:
        if self._host.delete_old_segments(log, now_ms):
            # A compaction now would rewrite segments that are deleted soon, and delay their deletion.
            return
        key = (log.topic, log.partition)
        if log.failure is None and key not in self.uncleanable:
            self._check_checkpoint(log, key)
            target = self._find_target(log, now_ms)
            if target is not None:
                self._found.append(target)

    def _check_checkpoint(self, log: PartitionLog, key: Key) -> None:
        """Reset a checkpoint outside of the log: the log may grow up to it, with nothing compacted below."""
        checkpoint = self.offsets.get(key)
        if checkpoint is None:
            return
        first_dirty = first_dirty_offset(log, checkpoint)
        if first_dirty == checkpoint:
            return
        # With both policies the start moves on its own.
        if checkpoint > first_dirty or not log.config.deletes:
            logger.warning(
                "compacting from the log's start: the checkpoint is outside of the log log=%s checkpoint=%d",
                log,
                checkpoint,
            )
        self.offsets[key] = first_dirty
        self._host.checkpoint_cleaned(log.log_directory, lambda: None)

    def _find_target(self, log: PartitionLog, now_ms: int) -> Target | None:
        key = (log.topic, log.partition)
        if self._monotonic() < self._stalled_until.get(key, float("-inf")):
            return None
        try:
            target = find_target(log, self.offsets.get(key), now_ms)
        except CorruptSegmentError as error:
            self.uncleanable.add(key)
            logger.error("cannot compact log=%s error=%s; compaction is tried again only after a restart", log, error)
            return None
        except OSError as error:
            self._host.fail_directory(log.log_directory, error)
            return None
        return target if target is not None and target.is_due else None

    # One compaction

    def _begin(self, found: Target, now_ms: int) -> bool:
        log = found.log
        key = (log.topic, log.partition)
        if log.failure is not None or key in self._running or key in self.uncleanable or not log.config.compacts:
            return False
        if not self._host.serves(log):
            return False
        target = self._find_target(log, now_ms)
        if target is None:
            return False
        compaction = Compaction(target, self._worker(target), now_ms)
        try:
            job = compaction.job(self.settings)
        except OSError as error:
            self._put_back(compaction.worker)
            self._host.fail_directory(log.log_directory, error)
            return False
        logger.info("compacting log=%s from=%d to=%d", log, target.first_dirty_offset, target.end_offset)
        self._running[key] = compaction

        def begin() -> None:
            compaction.mapped = compaction.worker.begin(job)

        self._run(compaction, begin, lambda: self._plan(compaction))
        return True

    def _worker(self, target: Target) -> Worker:
        if self._start_worker is not None:
            # A small batch may have millions of records.
            offsets = target.end_offset - target.first_dirty_offset
            size_bytes = max(target.clean_bytes + target.cleanable_bytes, offsets * _BYTES_PER_OFFSET)
            key = (target.log.topic, target.log.partition)
            is_patient = key not in self._losses and key not in self._stalled_until
            if self._processes and is_patient and size_bytes >= _LEAST_BYTES_FOR_PROCESS:
                return self._processes.pop()
            if size_bytes >= _LEAST_BYTES_FOR_PROCESS:
                try:
                    return self._start_worker(is_patient)
                except OSError as error:
                    logger.warning("cannot start a process, compacting in a thread error=%s", error)
        return LocalWorker(self._fs, self._monotonic, self._sleep)

    def _put_back(self, worker: Worker) -> None:
        if isinstance(worker, LocalWorker):
            worker.close()
        else:
            self._processes.append(worker)

    def _let_processes_go(self) -> None:
        while self._processes:
            # In a thread: it takes a while until the memory of a process is given back.
            self._run_in_thread(self._processes.pop().close, lambda error: None)

    def _run(self, compaction: Compaction, work: Callable[[], None], then: Callable[[], None]) -> None:
        def finish(error: Exception | None) -> None:
            if error is None and not compaction.is_cancelled:
                then()
            else:
                self._give_up(compaction, error)

        self._run_in_thread(work, finish)

    def _plan(self, compaction: Compaction) -> None:
        try:
            compaction.plan()
        except OSError as error:
            self._give_up(compaction, error)
            return

        def recorded(error: Exception | None) -> None:
            if error is None and not compaction.is_cancelled:
                self._next_group(compaction)
            else:
                self._give_up(compaction, error)

        # Between two rewritten segments offsets are missing. Behind the recovery point recovery takes that for a lost
        # end, and cuts the log there, unless it is still to be compacted.
        self._host.record_recovery_point(compaction.log, compaction.target.end_offset, recorded)

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
            self._give_up(compaction, None)
            return
        try:
            log.replacement.begin_replacement(replacement, group)
        except (LogDirFailure, ShortageError) as failure:
            self._give_up(compaction, failure)
            return
        compaction.bytes_before += sum(segment.size_bytes for segment in group)
        compaction.bytes_after += replacement.size_bytes
        self._retire_replaced(compaction, list(group), replacement, [])

    def _retire_replaced(
        self, compaction: Compaction, left: list[Segment], replacement: Segment, deleted: list[DeletedSegment]
    ) -> None:
        """Rename the files of replaced segments, a few at a time, because each blocks the main thread.

        Continues after a cancellation.
        """
        log = compaction.log
        if self._is_closed:
            # The directory may belong to another broker by now, whose start finishes the replacement.
            return
        if log.failure is not None or log.directory != compaction.directory:
            compaction.is_cancelled = True
            self._give_up(compaction, None)
            return
        try:
            # Oldest first, so that after a crash no value remains without the tombstone behind it.
            for _ in range(min(len(left), _RENAMED_AT_ONCE)):
                deleted.append(log.replacement.retire_replaced(left[0], replacement))
                del left[0]
            if not left:
                log.replacement.finish_replacement(replacement)
            wait_seconds = 0.0
        except LogDirFailure as failure:
            self._give_up(compaction, failure)
            return
        except ShortageError:
            # The replacement cannot be reverted; it continues when there is room.
            wait_seconds = _SHORTAGE_SECONDS
        if left or wait_seconds:
            # Through a thread, so that events that wait for the main thread come first.
            self._run_in_thread(
                lambda: self._sleep(wait_seconds),
                lambda _: self._retire_replaced(compaction, left, replacement, deleted),
            )
            return

        def finish(error: Exception | None) -> None:
            if error is None:
                # Not earlier: the names of the replacements are durable only now.
                self._host.remove_later(log, deleted)
            if error is None and not compaction.is_cancelled:
                self._next_group(compaction)
            else:
                self._give_up(compaction, error)

        self._run_in_thread(lambda: self._fs.sync_directory(compaction.directory), finish)

    def _finish(self, compaction: Compaction) -> None:
        """Record the compaction, after all replacements are durable."""
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
        self._losses.pop(compaction.key, None)
        self._stalled_until.pop(compaction.key, None)
        self._put_back(compaction.worker)

        def done() -> None:
            del self._running[compaction.key]
            self._host.clean_soon()

        self._host.checkpoint_cleaned(log.log_directory, done)

    # Endings

    def _give_up(self, compaction: Compaction, error: Exception | None) -> None:
        log, key = compaction.log, compaction.key
        # A missing file was deleted with its segment or log.
        if compaction.is_cancelled or error is None or isinstance(error, FileNotFoundError | Cancelled):
            logger.info("compaction cancelled log=%s", log)
        elif isinstance(error, OSError | LogDirFailure | ShortageError):
            self._host.fail_directory(log.log_directory, error)
        elif isinstance(error, WorkerStalled):
            self._stalled_until[key] = self._monotonic() + _STALLED_SECONDS
            logger.error(
                "%s: check that the disk of log=%s answers and that the machine is not overloaded; compaction of this "
                "log is tried again in %.0f s",
                error,
                log,
                _STALLED_SECONDS,
            )
        elif isinstance(error, WorkerLost) and self._losses.get(key, 0) + 1 < _MAX_LOSSES:
            self._losses[key] = self._losses.get(key, 0) + 1
            logger.warning("compaction will be tried again log=%s error=%s", log, error)
        else:
            self.uncleanable.add(key)
            logger.error(
                "cannot compact log=%s error=%s; it is served as it is but grows, and compaction is tried again only "
                "after a restart: keep a copy of its directory, then delete and fill the topic anew",
                log,
                error,
                exc_info=None if isinstance(error, WorkerLost) else error,
            )

        def tidy() -> None:
            compaction.worker.close()
            if self._fs.is_directory(compaction.directory):
                remove_cleaned(self._fs, compaction.directory)

        def done(failure: Exception | None) -> None:
            del self._running[key]
            if failure is not None and not isinstance(failure, FileNotFoundError):
                self._host.fail_directory(log.log_directory, failure)
            if compaction.is_cancelled or key in self.uncleanable:
                self._host.clean_soon()

        self._run_in_thread(tidy, done)

    def cancel(self, key: Key | None = None) -> None:
        """Cancel the compaction of `key`, or all of them."""
        for compaction in list(self._running.values()):
            if key in (None, compaction.key) and not compaction.is_cancelled:
                compaction.is_cancelled = True
                compaction.worker.cancel()

    def update_settings(self, settings: CleanerSettings) -> None:
        """Apply changed properties; compactions under way begin again with them."""
        self.settings = settings
        self.cancel()

    def close(self) -> None:
        """Cancel all compactions and end the processes. Files that are being written have no effect."""
        self._is_closed = True
        self.cancel()
        while self._processes:
            self._processes.pop().close()

    def forget(self, key: Key) -> None:
        """Drop all that is stored about a deleted log."""
        self.cancel(key)
        self.offsets.pop(key, None)
        self.uncleanable.discard(key)
        self._losses.pop(key, None)
        self._stalled_until.pop(key, None)

    def truncated(self, key: Key, offset: int) -> None:
        """Lower the offset of a truncated log to `offset`: batches behind it will be new."""
        self.cancel(key)
        if self.offsets.get(key, -1) > offset:
            self.offsets[key] = offset
