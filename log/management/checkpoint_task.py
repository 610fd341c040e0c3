"""Checkpoints of offsets in the log directories: recovery points, log starts, high watermarks, compacted offsets."""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from itertools import chain
from typing import Final

from odradek.log.background.shared_write import SharedWrite
from odradek.log.background.tasks import Done, RunInThread, Schedule
from odradek.log.management.log_directories import LogDirectories
from odradek.log.management.log_table import Key, LogTable
from odradek.log.partition_log import PartitionLog
from odradek.log.storage.checkpoint_file import Offsets
from odradek.log.storage.checkpoints import (
    CLEANER_OFFSETS_FILE,
    HIGH_WATERMARKS_FILE,
    LOG_START_OFFSETS_FILE,
    RECOVERY_POINTS_FILE,
)
from odradek.log.storage.log_directory import ALL_CHECKPOINTS, LogDirectory

TRUNCATED_CHECKPOINTS: Final = (
    RECOVERY_POINTS_FILE, LOG_START_OFFSETS_FILE, CLEANER_OFFSETS_FILE, HIGH_WATERMARKS_FILE,
)  # fmt: skip
"""Checkpoints that are written after a truncation, before the next append.

Otherwise a start would treat batches that are appended then as flushed, compacted, or committed, because the offsets in
the checkpoints are above the new end.
"""

_AFTER_ROLL_MS = 1_000

_LOGS_PER_STEP: Final = 500
"""Logs whose offsets are collected in one step, which takes less than 1 ms."""


class OffsetCheckpoints:
    """Writes checkpoints. `cleaned` contains the offsets up to which logs are compacted."""

    def __init__(
        self,
        table: LogTable,
        log_dirs: LogDirectories,
        schedule: Schedule,
        run_in_thread: RunInThread,
        cleaned: Mapping[Key, int],
    ) -> None:
        self._table = table
        self._log_dirs = log_dirs
        self._schedule = schedule
        self._run_in_thread = run_in_thread
        self._cleaned = cleaned
        paths = log_dirs.by_path
        prepare = self._prepare_several
        self._log_start_writes = {path: self._shared_write(path, prepare, LOG_START_OFFSETS_FILE) for path in paths}
        self._truncation_writes = {path: self._shared_write(path, prepare, *TRUNCATED_CHECKPOINTS) for path in paths}
        self._removals = {path: self._shared_write(path, self._prepare_removals) for path in paths}
        # Directories for which a write of the recovery points is scheduled.
        self._scheduled: set[str] = set()

    def offsets(self, file_name: str, path: str) -> Offsets:
        """Return the current content of a checkpoint file. A damaged log keeps its entry until it is repaired."""
        table = self._table
        # A future log is a copy with the gaps of the current log, so that it has the same compacted offset.
        served = chain(table.logs.items(), table.future_logs.items())
        return self._with_offline(self._offsets_of(served, file_name, path), file_name, path)

    def _with_offline(self, offsets: Offsets, file_name: str, path: str) -> Offsets:
        for key, directory in self._table.offline.items():
            if directory.rpartition("/")[0] == path and key not in offsets:
                entry = self._log_dirs.by_path[path].recorded_offset(file_name, key)
                if entry is not None:
                    offsets[key] = entry
        return offsets

    def _served(self, keys: Iterable[Key]) -> Iterator[tuple[Key, PartitionLog]]:
        for key in keys:
            for logs in (self._table.logs, self._table.future_logs):
                if (log := logs.get(key)) is not None:
                    yield key, log

    def _offsets_of(self, logs: Iterable[tuple[Key, PartitionLog]], file_name: str, path: str) -> Offsets:
        if len(self._log_dirs.by_path) > 1:
            logs = ((key, log) for key, log in logs if log.log_directory == path)
        if file_name == RECOVERY_POINTS_FILE:
            return {key: log.state.recovery_point for key, log in logs}
        if file_name == HIGH_WATERMARKS_FILE:
            return {key: log.state.high_watermark for key, log in logs}
        if file_name == CLEANER_OFFSETS_FILE:
            return {key: self._cleaned[key] for key, _ in logs if key in self._cleaned}
        # Apache Kafka omits a start that equals the base offset of the first segment. It is written here, because a
        # power loss may undo the removal of earlier segments.
        return {key: start for key, log in logs if (start := log.state.log_start_offset) > 0}

    def write_now(self, directory: LogDirectory, file_name: str) -> None:
        """Write a checkpoint. Blocks; raises LogDirFailure, ShortageError."""
        directory.write_checkpoint(file_name, self.offsets(file_name, directory.path))

    def write_truncated_now(self, path: str) -> None:
        """Write the checkpoints of a directory after a truncation. Blocks; raises LogDirFailure, ShortageError."""
        for file_name in TRUNCATED_CHECKPOINTS:
            self.write_now(self._log_dirs.by_path[path], file_name)

    def write(self, directory: LogDirectory, file_name: str) -> None:
        """Write a checkpoint in a thread. Its content is collected in steps, as one-time actions of the schedule."""
        self._continue(self._write_in_steps(directory, file_name))

    def _continue(self, steps: Generator[None, None, None]) -> None:
        for _ in steps:
            self._schedule.once(0, lambda: self._continue(steps))
            return

    def _write_in_steps(self, directory: LogDirectory, file_name: str) -> Generator[None, None, None]:
        """Collect the content of a checkpoint in steps, between which logs change, then write it.

        An entry may be outdated, but its log is still served at the last step: a new log of the same name would get the
        entry of a deleted one. Content that was recorded meanwhile is newer, and is kept: the collected one may have
        offsets from before a truncation.
        """
        path, recorded = directory.path, directory.recorded_offsets(file_name)
        removed: set[Key] = set()
        self._table.removal_listeners.append(removed.add)
        try:
            # Keys, because logs that are deleted meanwhile would all be closed together after the last step.
            keys, offsets = [*self._table.logs, *self._table.future_logs], Offsets()
            for first in range(0, len(keys), _LOGS_PER_STEP):
                if first:
                    yield
                offsets |= self._offsets_of(self._served(keys[first : first + _LOGS_PER_STEP]), file_name, path)
        finally:
            self._table.removal_listeners.remove(removed.add)
        for key in removed:
            offsets.pop(key, None)
        offsets |= self._offsets_of(self._served(removed), file_name, path)
        if directory.recorded_offsets(file_name) is recorded:
            write = directory.prepare_checkpoint(file_name, self._with_offline(offsets, file_name, path))
            if write is not None:
                self._log_dirs.run(path, write)

    def prepare(self, path: str, file_name: str) -> Callable[[], None] | None:
        """Return the write that saves a checkpoint's current content, for any thread; None if the file has it."""
        return self._log_dirs.by_path[path].prepare_checkpoint(file_name, self.offsets(file_name, path))

    def write_then(self, path: str, file_name: str, done: Done) -> None:
        """Write a checkpoint in a thread, then call `done`, with the error if there was one."""
        self._run_in_thread(self.prepare(path, file_name) or (lambda: None), done)

    def write_recovery_points_soon(self, path: str) -> None:
        """Schedule a write of the recovery points, after a roll: recovery need not read a flushed segment again."""
        if path in self._scheduled:
            return
        self._scheduled.add(path)

        def write() -> None:
            self._scheduled.discard(path)
            directory = self._log_dirs.by_path[path]
            if directory.failure is None:
                self.write(directory, RECOVERY_POINTS_FILE)

        self._schedule.once(_AFTER_ROLL_MS, write)

    def _prepare_several(self, path: str, *file_names: str) -> list[Callable[[], None]]:
        return [write for name in file_names if (write := self.prepare(path, name)) is not None]

    def _shared_write(
        self, path: str, prepare_writes: Callable[..., list[Callable[[], None]]], *file_names: str
    ) -> SharedWrite:
        """Make a shared write of the checkpoints of a directory that `prepare_writes(path, *file_names)` returns."""

        def prepare() -> Callable[[], None] | None:
            writes = prepare_writes(path, *file_names)

            def write_all() -> None:
                for write in writes:
                    write()

            return write_all if writes else None

        def ended(error: Exception | None) -> Exception | None:
            if error is not None:
                self._log_dirs.work_failed(path, error)
            return error

        return SharedWrite(prepare, self._run_in_thread, ended)

    def write_log_starts(self, path: str, done: Done) -> None:
        """Make the starts of a directory's logs durable, then call `done`, with the failure if there was one.

        Callers during a write share the next one. After a failure the starts in memory remain, and the next checkpoint
        saves them if the directory is still online.
        """
        self._request(self._log_start_writes, path, done)

    def write_truncated(self, path: str, done: Done) -> None:
        """Make the offsets of a directory's truncated logs durable, then call `done` as in `write_log_starts`."""
        self._request(self._truncation_writes, path, done)

    def remove_deleted(self, path: str, done: Done) -> None:
        """Remove the entries of deleted logs in a directory, in a thread, then call `done` as in `write_log_starts`."""
        self._request(self._removals, path, done)

    def remove_deleted_now(self, path: str) -> None:
        """Remove the entries of deleted logs in a directory. Blocks; raises LogDirFailure, ShortageError."""
        for write in self._prepare_removals(path):
            write()

    def _prepare_removals(self, path: str) -> list[Callable[[], None]]:
        """Prepare checkpoints without the entries of logs that were deleted or moved to another directory.

        The other entries may be outdated.
        """
        directory, kept = self._log_dirs.by_path[path], self._keys_in(path)
        writes = []
        for file_name in ALL_CHECKPOINTS:
            recorded = directory.recorded_offsets(file_name).items()
            write = directory.prepare_checkpoint(file_name, {key: offset for key, offset in recorded if key in kept})
            if write is not None:
                writes.append(write)
        return writes

    def _keys_in(self, path: str) -> set[Key]:
        """Return the partitions that have a log in a log directory."""
        table, has_one = self._table, len(self._log_dirs.by_path) == 1
        logs = chain(table.logs.items(), table.future_logs.items())
        keys = {key for key, log in logs if has_one or log.log_directory == path}
        keys.update(key for key, directory in table.offline.items() if directory.rpartition("/")[0] == path)
        return keys

    def _request(self, writes: Mapping[str, SharedWrite], path: str, done: Done) -> None:
        directory = self._log_dirs.by_path[path]
        writes[path].request(lambda error: done(error or directory.failure))


class CheckpointTask:
    """A step of background work that writes one checkpoint in every directory."""

    __slots__ = ("_checkpoints", "_file_name", "_log_dirs")

    def __init__(self, checkpoints: OffsetCheckpoints, log_dirs: LogDirectories, file_name: str) -> None:
        self._checkpoints = checkpoints
        self._log_dirs = log_dirs
        self._file_name = file_name

    def __call__(self, now_ms: int) -> bool:
        for directory in self._log_dirs.online():
            self._checkpoints.write(directory, self._file_name)
        return False
