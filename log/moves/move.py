"""One move of a replica to another log directory.

The future log is an ordinary log, which a move fills from the current one, as a follower from its leader. It is flushed
while it grows. When it has all records, it replaces the current log:

1. Flushes of the current log are held, so that its durable end does not advance. Acknowledgements that need one wait.
2. The future log becomes durable with its topic id, epochs and checkpoints.
3. The current log's directory gets a durable mark that it is about to be replaced.
4. The last records are copied, and in the same step the future log's directory gets the partition's name. It is served
   from then on. Records that were durable in the current log are durable in it.
5. When that name is durable, the old directory is renamed for removal, with its mark.

A move that ends without 4 removes the mark. After a crash the start finds:

| crash | old disk | new disk | served | with the old disk lost | with the new disk lost |
|---|---|---|---|---|---|
| before 3 | log | copy | old log, the move resumes | none | old log |
| 3 to 4 | marked log | copy | old log, the move resumes | none | none while it is offline, then the old log |
| 4 to 5 | marked log | log | new log | new log | none while it is offline, then the old log |
| after 5 | | log | new log | new log | none |

What must hold:

- No record is lost while both disks exist: a directory without the mark is never removed in favour of another one, and
  a marked one only after the other log is open and its name durable.
- A replica has one copy with all acknowledged records. It is lost with that copy's disk, as in Apache Kafka. Before 4
  this is the old log, whose copy is not served; from 4 on it is the new one.
- A marked log may lack records that only the new one had. It is not served while a log directory is offline: the new
  log may be there, and both would get records. It is served, without its mark, when all log directories are online and
  none has the new log, because its disk was replaced by an empty one or is no longer in log.dirs. Apache Kafka serves
  the old log at once, and refuses to start when the new one returns.
- If the old disk has no space for the mark, the log is moved without. A crash between 4 and 5 then leaves two logs, and
  the next start is refused with the names of both, as in Apache Kafka.

Sources: KIP-113; behaviour of Apache Kafka 3.9 (ReplicaAlterLogDirsThread, Partition, LogManager).
"""

import logging
from collections.abc import Callable, Generator, Iterable
from functools import partial
from typing import Final, NamedTuple, Protocol

from odradek.log.append import UnexpectedOffsetError
from odradek.log.background.tasks import SHORTAGE_RETRY_MS
from odradek.log.management.checkpoint_task import TRUNCATED_CHECKPOINTS, OffsetCheckpoints
from odradek.log.management.flush_task import FlushTask
from odradek.log.management.log_directories import LogDirectories
from odradek.log.management.log_table import Key, LogTable
from odradek.log.management.retirement import LogRetirement
from odradek.log.moves.future_log import (
    copy_epochs,
    copy_offsets,
    find_common_end,
    mark_epochs_unwritten,
    skip_to,
)
from odradek.log.moves.steps import MoveStep, MoveSteps, MoveThrottle, Wait, in_directory, no_work
from odradek.log.partition_log import PartitionLog
from odradek.log.segments.segment_files import DeletedSegment
from odradek.log.storage.checkpoints import REPLACED_REPLICA_FILE
from odradek.log.storage.filesystem import (
    DiskFullError,
    FileRegion,
    FileSystem,
    LogDirFailure,
    ShortageError,
    remove_if_exists,
    storage_error,
    write_whole,
)
from odradek.log.storage.log_directory import ALL_CHECKPOINTS, partition_name
from odradek.log.validation.batch import chunk_batches
from odradek.properties import INT64_MAX

logger = logging.getLogger(__name__)

_READ_BYTES: Final = 1 << 20
_BATCHES_PER_STEP: Final = 64
_BYTES_PER_STEP: Final = 256 << 10
_FLUSH_BYTES: Final = 16 << 20
"""Copied bytes after which the future log is flushed, so that the last flush is short."""
_HELD_BYTES: Final = 256 << 10
_HELD_READS: Final = 32
"""Maximum reads while flushes are held. A move tries again if producers append faster."""
_LAST_READS: Final = 8
_LAST_BATCHES: Final = 16
_LAST_BYTES: Final = 64 << 10
_POLL_MS: Final = 100
_FLUSH_POLL_S: Final = 0.002


class PausableCleaner(Protocol):
    """The part of the cleaner that a move uses. A log that is copied is not compacted."""

    paused: set[Key]

    def is_running(self, key: Key) -> bool: ...

    def cancel(self, key: Key | None = None) -> None: ...


class MoveParts(NamedTuple):
    """Parts of the log manager that moves use. `serve_future` makes the future log of a partition the current one.

    `is_truncating`: a truncation of the current log, which takes several steps, has begun.
    """

    fs: FileSystem
    table: LogTable
    log_dirs: LogDirectories
    checkpoints: OffsetCheckpoints
    retirement: LogRetirement
    flushes: FlushTask
    cleaner: PausableCleaner
    throttle: MoveThrottle
    sleep: Callable[[float], None]
    now_ms: Callable[[], int]
    monotonic_ms: Callable[[], int]
    remove_later: Callable[[PartitionLog, list[DeletedSegment]], None]
    is_truncating: Callable[[Key], bool]
    serve_future: Callable[[Key], None]


class ReplicaMove:
    """A move of a replica from the directory of its current log to that of its future log.

    is_replaced: the future log is served, and only the old directory is left to retire
    is_marked: the directory of the current log may have the mark that it is about to be replaced
    is_cancelled: no further step is run
    """

    def __init__(self, key: Key, current: PartitionLog, future: PartitionLog, parts: MoveParts) -> None:
        self.key = key
        self.current = current
        self.future = future
        self.is_replaced = False
        self.is_marked = False
        self.is_cancelled = False
        self._is_retired = False
        self._is_ended = False
        self._parts = parts
        # Where the mark was written last. After a deletion meanwhile it may be the directory of another log.
        self._marked_directory = current.directory
        self._unflushed_bytes = 0
        # The lowest end of the current log since the last comparison; the logs are not compared yet.
        self._truncated_to: int | None = INT64_MAX

    def __repr__(self) -> str:
        return f"ReplicaMove({self.current.directory} to {self.future.directory})"

    def truncated(self, offset: int) -> None:
        """Truncate the future log as well, because the current log was truncated to `offset`."""
        self._truncated_to = offset if self._truncated_to is None else min(self._truncated_to, offset)

    def steps(self) -> MoveSteps:
        """Copy the log, replace the current one, and retire that. Raises LogDirFailure, other KafkaError."""
        cleaner = self._parts.cleaner
        cleaner.paused.add(self.key)
        try:
            cleaner.cancel(self.key)
            while cleaner.is_running(self.key):
                yield _POLL_MS
            while not self.is_replaced:
                yield from self._unless_short(self._attempt())
        finally:
            cleaner.paused.discard(self.key)
        while not self._is_ended:
            yield from self._unless_short(self._retire_current())

    def _unless_short(self, steps: MoveSteps) -> MoveSteps:
        """Run steps. If a resource is short for one of them, wait: they can be begun again."""
        try:
            yield from steps
        except ShortageError as error:
            self._parts.log_dirs.fail(error.directory, error)
            yield SHORTAGE_RETRY_MS

    def _attempt(self) -> MoveSteps:
        if self.is_marked:
            yield self.unmark
            self.is_marked = False
        yield from self._align()
        if self.future.has_unsynced_truncation:
            # The last attempt lacked a resource: for the sync after a truncation, or for several batches.
            yield from self._flush()
        yield from self._copy(_READ_BYTES)
        if self._unflushed_bytes:
            yield from self._flush()
            yield from self._copy(_READ_BYTES)
        yield from self._replace()

    # Copy

    def _align(self) -> MoveSteps:
        """Truncate the future log to the part that it has in common with the current one."""
        while (limit := self._truncated_to) is not None:
            if self.future.log_start_offset > self.current.log_start_offset:
                yield from self._start_over(self.current.log_start_offset)
            elif (end_offset := min(limit, find_common_end(self.current, self.future))) < self.future.log_end_offset:
                yield from self._truncate(end_offset)
            else:
                copy_epochs(self.current, self.future)
            if self._truncated_to == limit:
                # Not before: after a shortage the next attempt has to truncate.
                self._truncated_to = None

    def _truncate(self, offset: int) -> MoveSteps:
        truncation = self.future.truncate_in_steps(offset, self._parts.now_ms(), self._write_truncated)
        while True:
            try:
                next(truncation)
            except StopIteration as end:
                deleted = end.value
                break
            yield no_work
        yield from self._end_truncation(deleted)

    def _start_over(self, offset: int) -> MoveSteps:
        deleted = self.future.start_over(offset, self._parts.now_ms(), self._write_truncated)
        yield from self._end_truncation(deleted)

    def _end_truncation(self, deleted: list[DeletedSegment]) -> MoveSteps:
        self._parts.remove_later(self.future, deleted)
        yield from self._flush()

    def _write_truncated(self) -> None:
        """Write the checkpoints after a truncation of the future log. Blocks."""
        self._parts.checkpoints.write_truncated_now(self.future.log_directory)

    @property
    def _is_complete(self) -> bool:
        return self._truncated_to is None and self.future.log_end_offset == self.current.log_end_offset

    def _copy(self, near_bytes: int, max_reads: int | None = None) -> MoveSteps:
        """Copy records until the future log has almost all of them: producers append more meanwhile.

        The last read has at most `near_bytes`. A truncation of the current log ends the copy, too.
        """
        reads = 0
        is_near = False
        while self._truncated_to is None and not self._is_complete and not is_near and reads != max_reads:
            reads += 1
            if max_reads is None and self._parts.throttle.is_exceeded():
                yield Wait.THROTTLE
            elif self.future.log_end_offset < self.current.log_start_offset and self.future.size_bytes:
                yield from self._start_over(self.current.log_start_offset)
            else:
                end_offset = self.current.log_end_offset
                size_bytes = yield from self._copy_region()
                is_near = self.future.log_end_offset >= end_offset and size_bytes <= near_bytes
                if max_reads is None and self._unflushed_bytes >= _FLUSH_BYTES:
                    self._unflushed_bytes = 0
                    copy_epochs(self.current, self.future)
                    # The copy continues meanwhile.
                    self._parts.flushes.flush(self.future)

    def _copy_region(self) -> Generator[MoveStep, None, int]:
        """Copy the next records; return their size."""
        region = self._find_region(_READ_BYTES)
        if region is None:
            return 0
        read: list[bytes] = []
        yield self._make_read(region, read)
        for chunk in chunk_batches(memoryview(read[0]), _BATCHES_PER_STEP, _BYTES_PER_STEP):
            if self._truncated_to is not None:
                break
            try:
                self._append(chunk)
            except UnexpectedOffsetError as error:
                # The current log may start within its first batch.
                is_first = self.future.size_bytes == 0
                yield from self._start_over(error.first_offset if is_first else self.current.log_start_offset)
                break
            yield no_work
        return region.size_bytes

    def _make_read(self, region: FileRegion, read: list[bytes]) -> Callable[[], None]:
        """Return the work that reads a region and appends its bytes to `read`."""
        path = self.current.log_directory
        return in_directory(path, "reading a replica to move", lambda: read.append(region.read()))

    def _find_region(self, max_bytes: int) -> FileRegion | None:
        """Return the next records to copy. If there are none, the future log ends where the current log does."""
        current, future = self.current, self.future
        end_offset = current.log_end_offset
        offset = max(future.log_end_offset, current.log_start_offset)
        region = current.read(offset, max_bytes, upper_offset=end_offset, at_least_one=True)
        if region is None:
            skip_to(future, end_offset, self._parts.now_ms())
        return region

    def _append(self, chunk: memoryview) -> None:
        info = self.future.append_as_follower(chunk, now_ms=self._parts.now_ms())
        if info is not None:
            self._unflushed_bytes += info.size_bytes
            self._parts.throttle.record(info.size_bytes)

    def _copy_last(self) -> None:
        """Copy a few records within the present step, since producers append more in each step."""
        for _ in range(_LAST_READS):
            if self._truncated_to is not None or self._is_complete:
                break
            if (region := self._find_region(_LAST_BYTES)) is not None:
                read: list[bytes] = []
                # They are in the page cache, because they were appended recently.
                self._make_read(region, read)()
                self._append(next(chunk_batches(memoryview(read[0]), _LAST_BATCHES, _LAST_BYTES)))

    def _flush(self) -> MoveSteps:
        """Make the future log durable."""
        future = self.future
        yield from self._wait_for_flush(future)
        copy_epochs(self.current, future)
        self._unflushed_bytes = 0
        truncation = future.state.unsynced_truncation
        if truncation is not None:
            yield from self._write_checkpoints(TRUNCATED_CHECKPOINTS)
            truncation.has_checkpoints = True
        sync = future.prepare_flush()
        if sync is not None:
            try:
                yield sync.run
            except ShortageError:
                future.abandon_flush(sync)
                raise
            future.finish_flush(sync, self._parts.monotonic_ms())

    def _wait_for_flush(self, log: PartitionLog) -> MoveSteps:
        """Wait until no flush of a log is in progress: that of a slow disk takes long."""
        while self._parts.flushes.is_flushing(log):
            yield partial(self._parts.sleep, _FLUSH_POLL_S)

    # Replacement

    def _replace(self) -> MoveSteps:
        """Replace the current log, unless that changes too fast, or was truncated.

        It waits for work only, because flushes of the log are held.
        """
        current, flushes = self.current, self._parts.flushes
        flushes.hold(current)
        try:
            yield from self._wait_for_flush(current)
            # What the last of these flushes made durable has to be durable in the future log, too.
            yield from self._copy(_HELD_BYTES, _HELD_READS)
            start_offset = current.log_start_offset
            yield from self._prepare()
            yield from self._copy(_HELD_BYTES, _HELD_READS)
            self._copy_last()
            if (
                self._is_complete
                and current.failure is None
                and not self._parts.is_truncating(self.key)
                and self.future.flushed_offset >= current.flushed_offset
                and current.log_start_offset == start_offset == self.future.log_start_offset
            ):
                self._serve_future()
        finally:
            flushes.release(current, self.future if self.is_replaced else current)

    def _prepare(self) -> MoveSteps:
        """Make the future log durable, with the checkpoints of its log directory, and mark the current one."""
        future = self.future
        copy_offsets(self.current, future)
        yield from self._flush()
        yield in_directory(future.log_directory, "preparing the move of a replica", self._sync_future_names)
        yield from self._write_checkpoints(ALL_CHECKPOINTS)
        self.is_marked = True
        try:
            yield in_directory(self.current.log_directory, "preparing the move of a replica", self._mark)
        except DiskFullError as error:
            logger.warning("a replica is moved without a mark in its old directory: %s", error)

    def _write_checkpoints(self, file_names: Iterable[str]) -> MoveSteps:
        for file_name in file_names:
            write = self._parts.checkpoints.prepare(self.future.log_directory, file_name)
            if write is not None:
                yield write

    def _sync_future_names(self) -> None:
        """Sync the topic id and the names of the files: the flush of a log without records has not synced them."""
        self._parts.fs.sync_path(self.future.state.topic_id_path)
        self._parts.fs.sync_directory(self.future.directory)

    def _mark(self) -> None:
        """Record durably that the current log is about to be replaced.

        The start compares the topic ids of both logs, and that of a new log may not be synced yet.
        """
        directory = self._marked_directory = self.current.directory
        self._parts.fs.sync_path(self.current.state.topic_id_path)
        write_whole(self._parts.fs, f"{directory}/{REPLACED_REPLICA_FILE}", sync=True)
        self._parts.fs.sync_directory(directory)

    def unmark(self) -> None:
        """Record durably that the current log is not replaced. Blocks. Raises LogDirFailure, ShortageError."""
        fs, directory = self._parts.fs, self._marked_directory

        def remove() -> None:
            if remove_if_exists(fs, f"{directory}/{REPLACED_REPLICA_FILE}"):
                fs.sync_directory(directory)

        in_directory(self.current.log_directory, "ending the move of a replica", remove)()

    def _serve_future(self) -> None:
        """Rename the future log's directory, and serve it. Raises LogDirFailure, ShortageError."""
        current, future = self.current, self.future
        path = f"{future.log_directory}/{partition_name(*self.key)}"
        try:
            self._parts.fs.rename(future.directory, path)
        except OSError as error:
            failure = storage_error(future.log_directory, f"renaming {future.directory} failed: {error}", error)
            if isinstance(failure, LogDirFailure):
                self._unmark_at_once()
            raise failure from error
        if future.state.epochs_path in future.state.unsynced_paths:
            # The path is about to change.
            mark_epochs_unwritten(future)
        future.move(path)
        copy_epochs(current, future)
        future.mark_name_unsynced()
        future.update_config(current.config)
        copy_offsets(current, future)
        future.producer_state.take_over(current.producer_state)
        self.is_replaced = True
        self._parts.serve_future(self.key)
        logger.info("moved replica from=%s to=%s end=%d", current.directory, path, future.log_end_offset)

    def _unmark_at_once(self) -> None:
        """Remove the mark, after a rename of the future log that failed but may have taken effect.

        Otherwise the next start would remove the current log, with the records that are acknowledged until then. Raises
        LogDirFailure, which takes the current log offline.
        """
        try:
            self.unmark()
        except ShortageError as error:
            raise LogDirFailure(self.current.log_directory, str(error)) from error
        self.is_marked = False

    def _retire_current(self) -> MoveSteps:
        """Remove the old directory, after the name of the new one is durable."""
        fs, new_path = self._parts.fs, self.future.log_directory
        yield in_directory(new_path, "syncing a moved replica", lambda: fs.sync_directory(new_path))
        self.retire_current()
        old_path = self.current.log_directory
        yield in_directory(old_path, "syncing a moved replica", lambda: fs.sync_directory(old_path))
        self._is_ended = True

    def retire_current(self) -> None:
        """Rename the old directory for removal, once: another log may get its name then.

        Raises LogDirFailure, ShortageError.
        """
        if not self._is_retired:
            self._parts.retirement.discard(self.current)
            self._is_retired = True
