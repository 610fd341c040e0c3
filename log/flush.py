"""Durability of a log: flushes, and the close of a log.

A flush has three steps: `prepare_flush` collects what to sync in the log's thread, `LogSync.run` syncs in any thread,
`finish_flush` records the result in the log's thread.
"""

import errno
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from threading import Lock

from odradek.log.producers.snapshots import SnapshotWrite
from odradek.log.segments.segment import Segment
from odradek.log.segments.segment_files import LOG_SUFFIX, SEGMENT_SUFFIXES
from odradek.log.state import LogState, UnsyncedTruncation
from odradek.log.storage.filesystem import ExhaustedError, File, FileSystem, LogDirFailure


class SyncGate:
    """Lock for one sync of a log at a time, and the failure after which no sync runs.

    The operating system reports a failed write to one sync only: a later or a simultaneous one would succeed.
    """

    __slots__ = ("failure", "lock")

    def __init__(self) -> None:
        self.lock = Lock()
        self.failure: LogDirFailure | None = None


class LogSync:
    """Syncs after which batches below `target_offset` survive a crash of the machine.

    `files` are open and may grow, `paths` are synced by name, so the log can append, roll and delete meanwhile;
    `directories` have new names in them. `sealed_segments` get no more appends, and their indexes are synced too.
    `snapshots` are written first. `truncation` is the last one before the task, if it is not durable. `has_name`: the
    name of the log's directory and the topic id in it are synced too. After ExhaustedError (no descriptor to sync a
    path with) nothing has failed, and the syncs can be repeated.
    """

    __slots__ = (
        "_directories", "_files", "_fs", "_gate", "_log_directory", "has_name", "paths",
        "sealed_segments", "snapshots", "target_offset", "truncation",
    )  # fmt: skip

    def __init__(
        self,
        fs: FileSystem,
        log_directory: str,
        target_offset: int,
        *,
        files: list[File],
        paths: list[str],
        directories: list[str],
        sealed_segments: list[Segment],
        gate: SyncGate,
        truncation: UnsyncedTruncation | None = None,
        snapshots: Sequence[SnapshotWrite] = (),
        has_name: bool = False,
    ) -> None:
        self._fs = fs
        self._log_directory = log_directory
        self.target_offset = target_offset
        self._files = files
        self.paths = paths
        self._directories = directories
        self.sealed_segments = sealed_segments
        self._gate = gate
        self.truncation = truncation
        self.snapshots = snapshots
        self.has_name = has_name

    def run(self) -> None:
        """Sync. Blocks; raises LogDirFailure, ExhaustedError."""
        gate = self._gate
        with gate.lock:
            if gate.failure is not None:
                raise gate.failure
            try:
                self._sync()
            except OSError as error:
                # ENOMEM may be the result of a sync, and is reported only once. EMFILE and ENFILE precede a sync.
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    raise ExhaustedError(self._log_directory, f"flush postponed: {error}") from error
                gate.failure = LogDirFailure(self._log_directory, f"flush failed: {error}")
                raise gate.failure from error

    def raise_if_failed(self) -> None:
        """Wait for the sync of the log that is in progress. Raises the LogDirFailure of the first that failed."""
        with self._gate.lock:
            if self._gate.failure is not None:
                raise self._gate.failure

    def _sync(self) -> None:
        for snapshot in self.snapshots:
            snapshot.run(self._fs, sync=True)
        if self.truncation is not None:
            for directory in self._directories:
                self._fs.sync_directory(directory)
            self.truncation.cut_file()
        for file in self._files:
            file.sync()
        for path in self.paths:
            self._fs.sync_path(path)
        for directory in self._directories:
            self._fs.sync_directory(directory)


class LogFlusher:
    """Flushes one log. `last_flush_ms` is on the monotonic clock."""

    __slots__ = ("_gate", "_log", "_tasks", "last_flush_ms")

    def __init__(self, log: LogState, monotonic_ms: int) -> None:
        self._log = log
        self._gate = SyncGate()
        self._tasks: list[LogSync] = []
        self.last_flush_ms = monotonic_ms

    def flush_due_offset(self, monotonic_ms: int) -> int | None:
        """Return the offset up to which flush.messages, flush.ms or a roll require a flush now; None if none does."""
        log = self._log
        unflushed = log.log_end_offset - log.flushed_offset
        if unflushed > 0 and (
            unflushed >= log.flush_messages or monotonic_ms - self.last_flush_ms >= log.config.flush_ms
        ):
            return log.log_end_offset
        return log.active.base_offset if log.unsynced_segments else None

    def prepare_flush(self, target_offset: int | None = None) -> LogSync | None:
        """Return the task that makes batches below `target_offset` durable; None if everything is.

        `target_offset` is the log's end by default. Run the task in any thread, then call `finish_flush`, or after an
        ExhaustedError `abandon_flush`, in the log's thread. Raises LogDirFailure.
        """
        log = self._log
        log.raise_if_failed()
        target = log.log_end_offset if target_offset is None else min(target_offset, log.log_end_offset)
        try:
            log.unless_full(log.write_epochs)
        except OSError as error:
            raise log.fail("epoch checkpoint", error) from error
        sealed = [segment for segment in log.unsynced_segments if segment.base_offset < target]
        truncation = log.unsynced_truncation
        if target <= log.flushed_offset and not sealed and not log.unsynced_paths and truncation is None:
            return None
        paths = sorted(log.unsynced_paths)
        snapshots = [snapshot for snapshot in log.unwritten_snapshots if snapshot.offset in log.bases]
        log.unwritten_snapshots.clear()
        has_new_names = bool(paths or sealed or snapshots) or truncation is not None
        log.unsynced_paths.clear()
        unflushed = self._unflushed_segments(target)
        has_new_names = has_new_names or any(segment.base_offset >= log.flushed_offset for segment in unflushed)
        for segment in sealed:
            # The active segment's indexes are not synced: they are rebuilt after a crash.
            paths += [segment.path(kind) for kind in SEGMENT_SUFFIXES]
        directories = [log.directory] if has_new_names else []
        has_name, log.has_unsynced_name = log.has_unsynced_name, False
        if has_name:
            paths.append(log.topic_id_path)
            directories.append(log.log_directory)
        task = LogSync(
            log.fs,
            log.log_directory,
            target,
            files=[segment.file for segment in unflushed],
            paths=paths,
            directories=directories,
            sealed_segments=sealed,
            gate=self._gate,
            truncation=truncation,
            snapshots=snapshots,
            has_name=has_name,
        )
        self._tasks.append(task)
        return task

    def _unflushed_segments(self, target_offset: int) -> list[Segment]:
        """Return the segments with batches to sync below `target_offset`, and the one that was truncated."""
        log = self._log
        return [
            segment
            for segment in log.segments[max(0, bisect_right(log.bases, log.flushed_offset) - 1) :]
            # The truncated segment is the last one. It may be empty.
            if segment.base_offset < target_offset or (log.unsynced_truncation is not None and segment is log.active)
        ]

    def finish_flush(self, task: LogSync, monotonic_ms: int) -> None:
        """Record that the task ran: batches below its target are durable, unless the disk failed meanwhile."""
        log = self._log
        self._tasks.remove(task)
        if log.failure is not None:
            return
        self._add_snapshots(task.snapshots)
        unsynced = [log.unsynced_paths, *(left.paths for left in self._tasks)]
        if not log.leader_epochs.dirty and not any(log.epochs_path in paths for paths in unsynced):
            log.unsynced_epoch_at = None
        truncation = log.unsynced_truncation
        if truncation is not None and truncation is task.truncation and truncation.has_checkpoints:
            log.unsynced_truncation = None
        log.flushed_offset = max(log.flushed_offset, task.target_offset)
        log.unsynced_segments = [s for s in log.unsynced_segments if s not in task.sealed_segments]
        self.last_flush_ms = monotonic_ms

    def abandon_flush(self, task: LogSync) -> None:
        """Postpone the syncs of a task for which no descriptor was left."""
        log = self._log
        self._tasks.remove(task)
        log.unsynced_paths.update(task.paths)
        log.has_unsynced_name = log.has_unsynced_name or task.has_name
        self._add_snapshots(task.snapshots)

    def _add_snapshots(self, snapshots: Iterable[SnapshotWrite]) -> None:
        """Register snapshots that were written, unless their segments were deleted meanwhile."""
        log = self._log
        for snapshot in snapshots:
            if not snapshot.is_written or snapshot.path != log.producer_state.snapshot_path(snapshot.offset):
                # Not written, or the log was moved or deleted: a file with the old path may belong to another log.
                continue
            if snapshot.offset in log.bases and not snapshot.is_cancelled:
                log.producer_state.add_snapshot(snapshot.offset)
            elif not log.producer_state.has_snapshot(snapshot.offset):
                snapshot.remove(log.fs)

    def cancel_snapshots(self) -> None:
        """Discard snapshots that are not written yet, because their batches are truncated or the directory moves."""
        self._log.unwritten_snapshots.clear()
        for task in self._tasks:
            for snapshot in task.snapshots:
                snapshot.is_cancelled = True

    def lower_targets(self, offset: int) -> None:
        """Lower the targets of flushes in progress, because the log was truncated to `offset`."""
        for task in self._tasks:
            task.target_offset = min(task.target_offset, offset)

    def flush(self, monotonic_ms: int, target_offset: int | None = None) -> None:
        """Run all three steps of a flush. Blocks. Raises LogDirFailure, ExhaustedError."""
        task = self.prepare_flush(target_offset)
        if task is not None:
            try:
                task.run()
            except LogDirFailure as failure:
                self._log.failure = failure
                raise
            except ExhaustedError:
                self.abandon_flush(task)
                raise
            self.finish_flush(task, monotonic_ms)

    def complete_truncation(self) -> None:
        """Make the last truncation durable, if it is not: before an append that cannot wait for a flush. Blocks.

        Raises LogDirFailure, ShortageError.
        """
        truncation = self._log.unsynced_truncation
        if truncation is not None:
            self.flush(self.last_flush_ms)
            if not truncation.has_checkpoints:
                truncation.write_checkpoints()
            self._log.unsynced_truncation = None

    def close(self, monotonic_ms: int) -> None:
        """Make everything durable, so that the next start needs no recovery. Blocks. Raises as `prepare_close`."""
        log = self._log
        task = self.prepare_close()
        if task is not None:
            task.run()
            log.fs.sync_directory(log.log_directory)
            self.finish_close(task, monotonic_ms)

    def prepare_close(self) -> LogSync | None:
        """Write the files of a clean stop, unsynced; return None if nothing has changed since the last one.

        Run the task and sync the log directory before `finish_close`. Blocks. Raises LogDirFailure; ShortageError if
        a resource is short, in which case the next start recovers.
        """
        log = self._log
        if log.failure is not None:
            return None
        if self.is_untouched:
            log.is_closed = True
            return None
        self._take_back_flushes()
        if log.unsynced_truncation is not None:
            # The broker writes all checkpoints after the logs.
            self.flush(self.last_flush_ms)
        try:
            log.write_epochs()
            log.active.seal()
            log.unsynced_segments.append(log.active)
            written = [snapshot for snapshot in log.unwritten_snapshots if snapshot.offset in log.bases]
            for snapshot in written:
                snapshot.run(log.fs, sync=False)
            self._add_snapshots(written)
            log.producer_state.take_snapshot(sync=False)
        except OSError as error:
            raise log.refuse_or_fail("close", error) from error
        files = log.segments[max(0, bisect_right(log.bases, log.flushed_offset) - 1) :]
        # An empty active segment is above the target of every flush, but has files.
        paths = {segment.path(kind) for segment in log.unsynced_segments for kind in SEGMENT_SUFFIXES}
        paths |= log.unsynced_paths | log.producer_state.unsynced_paths
        paths |= {log.producer_state.snapshot_path(snapshot.offset) for snapshot in written}
        if log.has_unsynced_name:
            log.has_unsynced_name = False
            paths.add(log.topic_id_path)
        task = LogSync(
            log.fs,
            log.log_directory,
            log.log_end_offset,
            files=[segment.file for segment in files],
            paths=sorted(paths - {segment.path(LOG_SUFFIX) for segment in files}),
            directories=[log.directory],
            sealed_segments=list(log.unsynced_segments),
            gate=self._gate,
        )
        self._tasks.append(task)
        return task

    def _take_back_flushes(self) -> None:
        """Take over the writes and syncs of flushes that wait for a thread."""
        log = self._log
        with self._gate.lock:
            for task in self._tasks:
                log.unsynced_paths.update(task.paths)
                log.unwritten_snapshots += [one for one in task.snapshots if not one.is_cancelled]
                task.snapshots = ()

    def finish_close(self, task: LogSync, monotonic_ms: int) -> None:
        """Record that the task ran. Raises LogDirFailure if a sync of this log has failed, now or before."""
        log = self._log
        try:
            task.raise_if_failed()
        except LogDirFailure as failure:
            log.failure = failure
            raise
        self.finish_flush(task, monotonic_ms)
        log.is_closed = True

    def mark_untouched(self) -> None:
        """Record that all of the log is durable: it was loaded after a clean stop."""
        log = self._log
        log.has_unsynced_name = False
        log.untouched_end = log.log_end_offset, log.active.size_bytes

    @property
    def is_untouched(self) -> bool:
        """Return whether the log has not changed since it was loaded after a clean stop."""
        log = self._log
        return (
            log.untouched_end == (log.log_end_offset, log.active.size_bytes)
            and not log.has_unsynced_name
            and not log.leader_epochs.dirty
            and not log.unsynced_paths
            and not log.unsynced_segments
            and not self._tasks
            and log.active.is_sealed
            and log.producer_state.is_saved
        )
