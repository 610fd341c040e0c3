"""The log of one partition: an ordered list of segments, of which the last takes the appends.

Sources: Kafka documentation ("Log"), KIP-101 (leader epochs), KIP-107 (DeleteRecords), KIP-98 (aborted transactions).
"""

import logging
from bisect import bisect_right
from collections.abc import Generator, Iterable

from odradek.log import retention
from odradek.log.append import AppendInfo, LogAppend, UnexpectedOffsetError
from odradek.log.flush import FlushTask
from odradek.log.producers import replay as producer_replay
from odradek.log.producers.snapshots import SnapshotWrite
from odradek.log.segments import timestamps
from odradek.log.segments.segment import (
    DELETED_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SWAP_SUFFIX,
    CorruptSegmentError,
    DeletedSegment,
    Segment,
    remove_segment_files,
)
from odradek.log.segments.timestamps import TimestampOffset
from odradek.log.segments.transaction_index import AbortedTransaction
from odradek.log.state import LoadedState
from odradek.log.storage import checkpoints
from odradek.log.storage.filesystem import (
    ExhaustedError,
    FileRegion,
    LogDirFailure,
    is_exhausted,
    is_shortage,
    remove_if_exists,
    storage_error,
)
from odradek.log.validation.batch import Origin
from odradek.protocol.compression import CompressionError
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.record_batch import InvalidRecordError
from odradek.protocol.streaming import Step

logger = logging.getLogger(__name__)

_FEW_TRANSACTIONS = 8

__all__ = ["AppendInfo", "LoadedState", "Origin", "PartitionLog", "UnexpectedOffsetError"]


class PartitionLog(LogAppend):
    """Made by `odradek.log.recovery.open_partition_log`.

    Not thread-safe, but for `FlushTask.run`, `remove_deleted` and regions that were read.
    """

    # Read

    def read(self, offset: int, max_bytes: int, *, upper_offset: int, at_least_one: bool) -> FileRegion | None:
        """Where the batches from the one that holds `offset` on are, in one segment and below `upper_offset`.

        At most `max_bytes`, cut anywhere behind the first batch; the first batch is whole, or there is none: unless
        `at_least_one`, a first batch that does not fit gives None, as does reading at or behind `upper_offset`.
        Raises KafkaError E1 for an offset outside of the log, E2 where the bytes are no batches, E56 if the disk fails.
        """
        end_offset = self.log_end_offset
        if not self.log_start_offset <= offset <= end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is outside of {self.log_start_offset} to {end_offset}",
            )
        try:
            if offset >= upper_offset:
                if offset == end_offset:
                    self.add_end_hint()
                return None
            return self._read(offset, max_bytes, min(upper_offset, end_offset), at_least_one)
        except OSError as error:
            raise self._unreadable(error) from error

    def add_end_hint(self) -> None:
        """A consumer waits at the log's end: it asks for this offset again when something was appended."""
        self._active.add_hint(self.log_end_offset, self._active.size_bytes)

    def _read(self, offset: int, max_bytes: int, upper_offset: int, at_least_one: bool) -> FileRegion | None:
        index = len(self._bases) - 1
        if offset < self._bases[index]:
            index = bisect_right(self._bases, offset) - 1
        while True:
            segment = self.segments[index]
            position = segment.locate(offset)
            if position >= 0:
                break
            index += 1
            if index == len(self.segments):
                return None
        if upper_offset == self.log_end_offset or (
            segment is not self._active and upper_offset >= self._bases[index + 1]
        ):
            end = segment.size_bytes
        else:
            end = segment.locate(upper_offset)
            if end < 0:
                end = segment.size_bytes
            if upper_offset <= segment.base_offset:
                end = 0
        available = end - position
        if available <= 0:
            return None
        if available > max_bytes:
            first_batch_bytes, last_offset = segment.batch_at(position)
            if max_bytes < first_batch_bytes and not at_least_one:
                return None
            if max_bytes <= first_batch_bytes:
                segment.move_hint(offset, last_offset + 1, position + first_batch_bytes)
                return FileRegion(segment.file, position, min(first_batch_bytes, available))
            return FileRegion(segment.file, position, max_bytes)
        if segment is self._active:
            segment.add_hint(upper_offset, end)
        return FileRegion(segment.file, position, available)

    def _unreadable(self, error: OSError | ValueError) -> KafkaError:
        """The error of a read that failed: no descriptor, a failed disk, or damaged records (CORRUPT_MESSAGE)."""
        if is_exhausted(error):
            return ExhaustedError(self.log_directory, f"read refused in {self.directory}: {error}")
        if isinstance(error, OSError) and not isinstance(error, CorruptSegmentError):
            return self._fail("read", error)
        return self._damaged(error)

    def offset_for_leader_epoch(self, epoch: int) -> tuple[int, int]:
        """(largest epoch at or below it, where it ends), or (-1, -1): KIP-101, KIP-320."""
        return self.leader_epochs.end_offset_for(epoch, self.log_end_offset)

    def epoch_for_offset(self, offset: int) -> int:
        """The leader epoch that wrote `offset`; -1 if unknown."""
        return self.leader_epochs.epoch_for(offset)

    def offset_for_timestamp(self, timestamp: int) -> Generator[Step, None, TimestampOffset | None]:
        """Find the first record, in offset order, with this timestamp or a later one, in steps.

        The caller bounds it by HW or LSO.
        """
        try:
            while True:
                start_offset = self.log_start_offset
                found = yield from timestamps.offset_for_timestamp(self.segments, timestamp, start_offset)
                if found is None or found.offset >= self.log_start_offset:
                    return found
        except (OSError, InvalidRecordError, CompressionError) as error:
            raise self._unreadable(error) from error

    def offset_of_max_timestamp(self) -> Generator[Step, None, TimestampOffset | None]:
        """Find the first record that bears the largest timestamp of the log, in steps (KIP-734)."""
        try:
            return (yield from timestamps.offset_of_max_timestamp(self.segments))
        except (OSError, InvalidRecordError, CompressionError) as error:
            raise self._unreadable(error) from error

    def aborted_transactions(self, offset: int, region: FileRegion) -> list[AbortedTransaction]:
        """What a read_committed consumer must skip in a region that `read` gave for `offset`; it may name more."""
        try:
            return self._aborted_transactions(offset, region)
        except OSError as error:
            raise self._unreadable(error) from error

    def _aborted_transactions(self, offset: int, region: FileRegion) -> list[AbortedTransaction]:
        index = max(0, bisect_right(self._bases, offset) - 1)
        while self.segments[index].file is not region.file:
            index += 1
            if index == len(self.segments):
                return []
        rest = 0
        for number in range(index, len(self.segments)):
            rest += self.segments[number].transaction_index.count_from(offset)
            if rest > _FEW_TRANSACTIONS:
                break
        if not rest:
            return []
        # To name a few that come later is less work than to find where the region ends.
        upper = self.log_end_offset
        if rest > _FEW_TRANSACTIONS:
            above = self.segments[index].offset_above_position(region.position + region.size_bytes)
            if above is not None:
                upper = above
            elif index + 1 < len(self._bases):
                upper = self._bases[index + 1]
        found: list[AbortedTransaction] = []
        for number in range(index, len(self.segments)):
            entries, is_complete = self.segments[number].transaction_index.collect(offset, upper)
            found += entries
            if is_complete:
                break
        return found

    # Cut

    def delete_records_before(self, offset: int) -> int:
        """Move the log's start to `offset`, -1 meaning the high watermark; what it is now (KIP-107).

        Segments that lie wholly before it go with the next `delete_old_segments`. Raises KafkaError: E1 for an offset
        above the high watermark, E44 for a topic that is only compacted.
        """
        self._raise_if_failed()
        if self.config.compacts and not self.config.deletes:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, "records of a compacted topic cannot be deleted")
        if offset == -1:
            offset = self.high_watermark
        if offset < 0 or offset > self.high_watermark:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} is above the high watermark {self.high_watermark}"
            )
        self.advance_log_start(offset)
        return self.log_start_offset

    def advance_log_start(self, offset: int) -> None:
        """Move the log's start, never backwards: as DeleteRecords, a deleted segment or the leader has it."""
        if offset <= self.log_start_offset:
            return
        self.log_start_offset = offset
        if self.high_watermark < offset:
            self.high_watermark = offset
        self.leader_epochs.truncate_from_start(offset)
        self.producer_state.log_start_advanced(offset)
        try:
            # A checkpoint that begins too early is cut at the next start.
            self._unless_full(self._write_epochs)
        except OSError as error:
            raise self._fail("epoch checkpoint", error) from error

    def truncate_to(self, offset: int, now_ms: int) -> list[DeletedSegment]:
        """Drop all batches that reach `offset`. The files of whole segments wait for `remove_deleted`."""
        self._raise_if_failed()
        self._forget_truncated()
        try:
            if offset >= self.log_end_offset:
                self.leader_epochs.truncate_from_end(self.log_end_offset)
                self._unless_full(self._write_epochs)
                return []
            if offset < self._bases[0]:
                return self._start_over(offset, now_ms)
            keep = bisect_right(self._bases, offset)
            deleted = self._drop(self.segments[keep:])
            self._unsynced_segments = [s for s in self._unsynced_segments if s is not self._active]
            self._active.truncate_to(offset, now_ms)
            self._set_end(offset)
            self.leader_epochs.truncate_from_end(offset)
            # Epochs behind the log's end are cut at the next start.
            self._unless_full(self._write_epochs)
            self.log_start_offset = min(self.log_start_offset, offset)
            producer_replay.rebuild(
                self.producer_state, self.segments, self.log_start_offset, offset, now_ms, is_clean=False
            )
            return deleted
        except OSError as error:
            raise self._fail("truncate", error) from error

    def start_over(self, offset: int, now_ms: int) -> list[DeletedSegment]:
        """Drop everything; the log is empty and starts and ends at `offset`."""
        self._raise_if_failed()
        try:
            return self._start_over(offset, now_ms)
        except OSError as error:
            raise self._fail("truncate", error) from error

    def _start_over(self, offset: int, now_ms: int) -> list[DeletedSegment]:
        self._forget_truncated()
        deleted = [segment.mark_deleted() for segment in reversed(self.segments)]
        self._unsynced_segments.clear()
        self._active = self._new_segment(offset, now_ms)
        self.segments[:] = [self._active]
        self._bases[:] = [offset]
        self.leader_epochs.clear()
        self._unless_full(self._write_epochs)
        self.producer_state.truncate_fully(offset)
        self.log_start_offset = offset
        self._set_end(offset)
        return deleted

    def _forget_truncated(self) -> None:
        """The log is being cut: its files change, and snapshots not written yet may be of what goes."""
        self._untouched_end = None
        self._cancel_snapshots()

    def _cancel_snapshots(self) -> None:
        self._unwritten_snapshots.clear()
        for task in self._flush_tasks:
            for snapshot in task.snapshots:
                snapshot.is_cancelled = True

    def _set_end(self, offset: int) -> None:
        self.log_end_offset = offset
        for task in self._flush_tasks:
            task.target_offset = min(task.target_offset, offset)
        self.flushed_offset = min(self.flushed_offset, offset)
        if self.high_watermark > offset or self.high_watermark < self.log_start_offset:
            self.high_watermark = offset

    def _drop(self, segments: list[Segment]) -> list[DeletedSegment]:
        """Take segments out of the log, last first, so that a crash in between leaves no gap."""
        deleted = []
        self._unsynced_segments = [s for s in self._unsynced_segments if s not in segments]
        for segment in reversed(segments):
            index = self._bases.index(segment.base_offset)
            marked = segment.mark_deleted()
            del self.segments[index], self._bases[index]
            deleted.append(self._with_snapshot(marked))
        self._active = self.segments[-1]
        return deleted

    def _with_snapshot(self, deleted: DeletedSegment) -> DeletedSegment:
        name = self.producer_state.forget_snapshot(deleted.base_offset)
        if name is None:
            return deleted
        path, marked = f"{self.directory}/{name}", name + DELETED_SUFFIX
        try:
            self.fs.rename(path, f"{self.directory}/{marked}")
        except FileNotFoundError:
            return deleted
        except OSError as error:
            if not is_shortage(error):
                raise
            # The longer name has no room. If not even the removal has, it is tried again with the other files.
            if self._unless_full(lambda: remove_if_exists(self.fs, path)) is not None:
                return deleted
            marked = name
        return deleted._replace(names=(*deleted.names, marked))

    def delete_old_segments(self, now_ms: int) -> list[DeletedSegment]:
        """Apply retention and the log's start; the log's start moves up to the first segment that stays.

        At most `retention.MOST_AT_ONCE` segments go: after so many, call again, since more may be deletable.
        The files are renamed; hand the result to `remove_deleted` after file.delete.delay.ms. What a full disk does not
        let go yet goes with a later call. `doubtful_segment` is then the one whose records have to be read before
        retention.ms can decide about it. Raises LogDirFailure, ShortageError.
        """
        self._raise_if_failed()
        try:
            count = retention.count_deletable(self, now_ms)
            self.doubtful_segment = retention.find_doubtful(self, count, now_ms)
            if count == len(self.segments):
                rolled = self._unless_full(lambda: self._roll(self.log_end_offset, now_ms, is_doomed=True))
                count -= rolled is None
            if count == 0:
                return []
            self._untouched_end = None
            self.advance_log_start(self._bases[count])
            deleted: list[DeletedSegment] = []
            for segment in self.segments[:count]:
                marked = self._unless_full(segment.mark_deleted)
                if marked is None:
                    break
                del self.segments[0], self._bases[0]
                deleted.append(self._with_snapshot(marked))
            left = set(self.segments)
            self._unsynced_segments = [s for s in self._unsynced_segments if s in left]
            return deleted
        except CorruptSegmentError as error:
            # Raised before anything is deleted. Segments whose age is unknown stay.
            self._damaged(error)
            return []
        except OSError as error:
            raise self._refuse_or_fail("retention", error) from error

    def begin_replacement(self, replacement: Segment, replaced: list[Segment]) -> None:
        """Put a compacted segment, complete and synced under the suffix .cleaned, in place of neighbours it is made of.

        Then `put_away` each of these, oldest first, and `finish_replacement`. After a crash in between, the next start
        finishes or undoes it. Raises LogDirFailure; ShortageError, in which case the log is as before.
        """
        self._raise_if_failed()
        self._untouched_end = None
        try:
            first = self._bases.index(replaced[0].base_offset)
            replacement.rename(SWAP_SUFFIX)
        except OSError as error:
            # Under that name it would replace what is there by then when the log is opened next.
            try:
                remove_segment_files(self.fs, self.directory, replacement.base_offset, SWAP_SUFFIX)
            except OSError as left:
                raise self._fail("compaction", left) from error
            raise self._refuse_or_fail("compaction", error) from error
        self.segments[first : first + len(replaced)] = [replacement]
        self._bases[first : first + len(replaced)] = [replacement.base_offset]

    def put_away(self, segment: Segment, replacement: Segment) -> DeletedSegment:
        """Rename the files of a segment that was replaced. Raises LogDirFailure; ShortageError: try again."""
        try:
            marked = segment.mark_deleted()
            return marked if segment.base_offset == replacement.base_offset else self._with_snapshot(marked)
        except OSError as error:
            raise self._refuse_or_fail("compaction", error) from error

    def finish_replacement(self, replacement: Segment) -> None:
        """Give it the name of those that are out of its way, if it was not deleted meanwhile. Raises as `put_away`."""
        try:
            if replacement.suffix == SWAP_SUFFIX:
                replacement.rename("")
        except OSError as error:
            raise self._refuse_or_fail("compaction", error) from error

    def remove_deleted(self, segments: list[DeletedSegment]) -> None:
        """Remove the files of deleted segments. Only files are touched: it may run in another thread.

        Raises LogDirFailure; ShortageError where a removal needs a resource: try again.
        """
        try:
            for segment in segments:
                for name in segment.names:
                    remove_if_exists(self.fs, f"{self.directory}/{name}")
        except OSError as error:
            raise storage_error(self.log_directory, f"removing deleted segments failed: {error}", error) from error

    # Flush and close

    def flush_due_offset(self, monotonic_ms: int) -> int | None:
        """Up to where the log ought to be flushed now, by flush.messages, flush.ms or a roll; None if nowhere."""
        unflushed = self.log_end_offset - self.flushed_offset
        if unflushed > 0 and (
            unflushed >= self._flush_messages or monotonic_ms - self.last_flush_ms >= self.config.flush_ms
        ):
            return self.log_end_offset
        return self._active.base_offset if self._unsynced_segments else None

    def prepare_flush(self, target_offset: int | None = None) -> FlushTask | None:
        """The syncs that make everything below `target_offset` (the log's end) durable; None if there is nothing to do.

        Run the task in any thread, then hand it to `finish_flush` in this one.
        """
        self._raise_if_failed()
        target = self.log_end_offset if target_offset is None else min(target_offset, self.log_end_offset)
        try:
            self._unless_full(self._write_epochs)
        except OSError as error:
            raise self._fail("epoch checkpoint", error) from error
        sealed = [segment for segment in self._unsynced_segments if segment.base_offset < target]
        if target <= self.flushed_offset and not sealed and not self._unsynced_paths:
            return None
        paths = sorted(self._unsynced_paths)
        snapshots = [snapshot for snapshot in self._unwritten_snapshots if snapshot.offset in self._bases]
        self._unwritten_snapshots.clear()
        has_new_names = bool(paths or sealed or snapshots)
        self._unsynced_paths.clear()
        files = []
        for segment in self.segments[max(0, bisect_right(self._bases, self.flushed_offset) - 1) :]:
            if segment.base_offset < target:
                files.append(segment.file)
                has_new_names = has_new_names or segment.base_offset >= self.flushed_offset
        for segment in sealed:
            # The active segment's indexes are not worth a sync: they are built anew after a crash.
            paths += [segment.path(kind) for kind in SEGMENT_SUFFIXES]
        directories = [self.directory] if has_new_names else []
        if self._is_new:
            paths.append(self._topic_id_path)
            directories.append(self.log_directory)
        task = FlushTask(
            self.fs,
            self.log_directory,
            target,
            files=files,
            paths=paths,
            directories=directories,
            sealed_segments=sealed,
            gate=self._gate,
            snapshots=snapshots,
        )
        self._flush_tasks.append(task)
        return task

    def finish_flush(self, task: FlushTask, monotonic_ms: int) -> None:
        """The task ran: all below its target is durable, unless the disk failed meanwhile."""
        self._flush_tasks.remove(task)
        if self.failure is not None:
            return
        self._add_snapshots(task.snapshots)
        unsynced = [self._unsynced_paths, *(left.paths for left in self._flush_tasks)]
        if not self.leader_epochs.dirty and not any(self._epochs_path in paths for paths in unsynced):
            self._unsynced_epoch_at = None
        self.flushed_offset = max(self.flushed_offset, task.target_offset)
        self._is_new = False
        self._unsynced_segments = [s for s in self._unsynced_segments if s not in task.sealed_segments]
        self.last_flush_ms = monotonic_ms

    def abandon_flush(self, task: FlushTask) -> None:
        """The task had no descriptor to sync with: leave what it was to sync to a later one."""
        self._flush_tasks.remove(task)
        self._unsynced_paths.update(task.paths)
        self._add_snapshots(task.snapshots)

    def _add_snapshots(self, snapshots: Iterable[SnapshotWrite]) -> None:
        """Count on snapshots that were written, unless their segments were deleted meanwhile."""
        for snapshot in snapshots:
            if not snapshot.is_written or snapshot.path != self.producer_state.snapshot_path(snapshot.offset):
                # Of a deleted log: what has its name now is another log's.
                continue
            if snapshot.offset in self._bases and not snapshot.is_cancelled:
                self.producer_state.add_snapshot(snapshot.offset)
            elif not self.producer_state.has_snapshot(snapshot.offset):
                snapshot.remove(self.fs)

    def flush(self, monotonic_ms: int, target_offset: int | None = None) -> None:
        """All three steps of a flush at once; blocks. Raises LogDirFailure, ExhaustedError."""
        task = self.prepare_flush(target_offset)
        if task is not None:
            try:
                task.run()
            except LogDirFailure as failure:
                self.failure = failure
                raise
            except ExhaustedError:
                self.abandon_flush(task)
                raise
            self.finish_flush(task, monotonic_ms)

    def close(self, monotonic_ms: int) -> None:
        """Make everything durable, so that the next start need not recover. Blocks. Raises as `prepare_close`."""
        task = self.prepare_close()
        if task is not None:
            task.run()
            self.fs.sync_directory(self.log_directory)
            self.finish_close(task, monotonic_ms)

    def prepare_close(self) -> FlushTask | None:
        """Write all that a start relies on, unsynced; None if nothing was changed since the last clean stop.

        What the task syncs, and the names in the log directory, have to be durable before `finish_close`. Blocks.
        Raises LogDirFailure; ShortageError if there is no room: the next start recovers then.
        """
        if self.failure is not None:
            return None
        if self._is_untouched:
            self._is_closed = True
            return None
        self._take_back_flushes()
        try:
            self._write_epochs()
            self._active.seal()
            self._unsynced_segments.append(self._active)
            written = [snapshot for snapshot in self._unwritten_snapshots if snapshot.offset in self._bases]
            for snapshot in written:
                snapshot.run(self.fs, sync=False)
            self._add_snapshots(written)
            self.producer_state.take_snapshot(sync=False)
        except OSError as error:
            raise self._refuse_or_fail("close", error) from error
        files = self.segments[max(0, bisect_right(self._bases, self.flushed_offset) - 1) :]
        # An empty active segment lies behind every flush, and has files all the same.
        paths = {segment.path(kind) for segment in self._unsynced_segments for kind in SEGMENT_SUFFIXES}
        paths |= self._unsynced_paths | self.producer_state.unsynced_paths
        paths |= {self.producer_state.snapshot_path(snapshot.offset) for snapshot in written}
        if self._is_new:
            paths.add(self._topic_id_path)
        task = FlushTask(
            self.fs,
            self.log_directory,
            self.log_end_offset,
            files=[segment.file for segment in files],
            paths=sorted(paths - {segment.path(LOG_SUFFIX) for segment in files}),
            directories=[self.directory],
            sealed_segments=list(self._unsynced_segments),
            gate=self._gate,
        )
        self._flush_tasks.append(task)
        return task

    def _take_back_flushes(self) -> None:
        """The log is being closed: what flushes that wait for a thread were to write and sync is left to the close."""
        with self._gate.lock:
            for task in self._flush_tasks:
                self._unsynced_paths.update(task.paths)
                self._unwritten_snapshots += [one for one in task.snapshots if not one.is_cancelled]
                task.snapshots = ()

    def finish_close(self, task: FlushTask, monotonic_ms: int) -> None:
        """What the task syncs is durable. Raises LogDirFailure if a sync of this log has failed, now or before."""
        try:
            task.raise_if_failed()
        except LogDirFailure as failure:
            self.failure = failure
            raise
        self.finish_flush(task, monotonic_ms)
        self._is_closed = True

    def has_holes(self) -> bool:
        """Return whether offsets are missing between two segments, as after a compaction. Reads the end of each."""
        pairs = zip(self.segments, self._bases[1:], strict=False)
        return any(segment.next_offset() < next_base for segment, next_base in pairs)

    def mark_untouched(self) -> None:
        """All of the log is on the disk as it is: it was loaded after a clean stop."""
        self._is_new = False
        self._untouched_end = self.log_end_offset, self._active.size_bytes

    @property
    def _is_untouched(self) -> bool:
        """Return whether a start after this life would find the files that this life found."""
        return (
            self._untouched_end == (self.log_end_offset, self._active.size_bytes)
            and not self._is_new
            and not self.leader_epochs.dirty
            and not self._unsynced_paths
            and not self._unsynced_segments
            and not self._flush_tasks
            and self._active.is_sealed
            and self.producer_state.is_saved
        )

    @property
    def _topic_id_path(self) -> str:
        return f"{self.directory}/{checkpoints.PARTITION_METADATA_FILE}"

    def move(self, directory: str) -> None:
        """The partition's directory has been renamed (it is being deleted, or was a future replica)."""
        self.directory = directory
        self.producer_state.directory = directory
        self._unsynced_paths.clear()
        # They go by the name that the directory had.
        self._cancel_snapshots()
        for segment in self.segments:
            segment.move(directory)
