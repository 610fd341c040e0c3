"""The log of one partition: an ordered list of segments, of which the last one gets the appends.

Sources: Kafka documentation ("Log"), KIP-101 (leader epochs), KIP-107 (DeleteRecords), KIP-98 (aborted transactions).
"""

from collections.abc import Callable, Generator

from odradek.log.append import Appender
from odradek.log.config import LogConfig
from odradek.log.deletion import SegmentDeletion
from odradek.log.flush import LogFlusher, LogSync
from odradek.log.leader_epochs import LeaderEpochs
from odradek.log.read import LogReader
from odradek.log.replacement import SegmentReplacement
from odradek.log.roll import SegmentRoller
from odradek.log.segments.segment import Segment
from odradek.log.segments.segment_files import DeletedSegment
from odradek.log.segments.timestamps import TimestampOffset
from odradek.log.state import LoadedState, LogState
from odradek.log.storage.filesystem import FileSystem, LogDirFailure
from odradek.log.truncation import LogTruncation
from odradek.protocol.batches.streaming import Step


class PartitionLog:
    """Facade of a log: its state, and the methods of the parts that read and change it.

    Created by `recovery.open_partition_log` or `empty_log.create_partition_log`. Not thread-safe, except for
    `LogSync.run`, `remove_deleted` and regions that were read.

    `state` is shared by the parts. The produce and fetch paths read it directly, because a property costs a call; for
    the same reason the methods of these paths are attributes, bound to the parts. Neither the state nor a part refers
    to the PartitionLog: the files of a deleted log are closed with the last reference to it.
    """

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        topic: str,
        partition: int,
        config: LogConfig,
        loaded: LoadedState,
        *,
        monotonic_ms: int,
        choose_jitter_ms: Callable[[int], int] = lambda most_ms: 0,
    ) -> None:
        state = self.state = LogState(fs, directory, topic, partition, config, loaded)
        self.fs = fs
        self.topic = topic
        self.partition = partition
        self.segments = state.segments
        self.producer_state = state.producer_state
        roller = SegmentRoller(state, choose_jitter_ms)
        flusher = LogFlusher(state, monotonic_ms)
        appender = Appender(state, roller, flusher)
        reader = LogReader(state)
        deletion = SegmentDeletion(state, roller)
        self.roller = roller
        self.reader = reader
        self.flusher = flusher
        self.deletion = deletion
        self.truncation = LogTruncation(state, roller, flusher, deletion)
        self.replacement = SegmentReplacement(state, deletion)

        self.append_as_leader = appender.append_as_leader
        self.append_as_follower = appender.append_as_follower
        self.update_high_watermark = state.update_high_watermark
        self.read = reader.read
        self.add_end_hint = reader.add_end_hint
        self.aborted_transactions = reader.aborted_transactions

    def __repr__(self) -> str:
        return f"PartitionLog({self.directory}, {self.log_start_offset}..{self.log_end_offset})"

    # Change

    def update_config(self, config: LogConfig) -> None:
        """Apply changed topic properties; existing segments keep their index settings."""
        self.state.update_config(config)

    def elect(self, epoch: int) -> None:
        """Begin a leader epoch at the log's end. The next flush writes it; no batch has it before."""
        self.state.elect(epoch)

    def assign_epoch(self, epoch: int, start_offset: int) -> None:
        """Begin a leader epoch with its first batch. If it raises OSError, nothing has changed."""
        self.state.assign_epoch(epoch, start_offset)

    def roll(self, now_ms: int) -> Segment:
        """Begin a new segment at the log's end (`SegmentRoller.roll`)."""
        return self.roller.roll(now_ms)

    def advance_log_start(self, offset: int) -> None:
        """Advance the log's start, after DeleteRecords, a deletion of segments, or an advance on the leader."""
        self.state.advance_log_start(offset)

    def delete_records_before(self, offset: int) -> int:
        """Advance the log's start for DeleteRecords (`LogTruncation.delete_records_before`)."""
        return self.truncation.delete_records_before(offset)

    def truncate_in_steps(
        self, offset: int, now_ms: int, write_checkpoints: Callable[[], None]
    ) -> Generator[None, None, list[DeletedSegment]]:
        """Remove all batches that reach `offset` (`LogTruncation.truncate_in_steps`)."""
        return self.truncation.truncate_in_steps(offset, now_ms, write_checkpoints)

    def start_over(self, offset: int, now_ms: int, write_checkpoints: Callable[[], None]) -> list[DeletedSegment]:
        """Remove all segments; the empty log starts and ends at `offset` (`LogTruncation.start_over`)."""
        return self.truncation.start_over(offset, now_ms, write_checkpoints)

    def complete_truncation(self) -> None:
        """Make the last truncation durable, if it is not (`LogFlusher.complete_truncation`). Blocks."""
        self.flusher.complete_truncation()

    def delete_old_segments(self, now_ms: int) -> list[DeletedSegment]:
        """Apply the log's start and retention (`SegmentDeletion.delete_old_segments`)."""
        return self.deletion.delete_old_segments(now_ms)

    def remove_deleted(self, segments: list[DeletedSegment]) -> None:
        """Remove the files of deleted segments, in any thread (`SegmentDeletion.remove_deleted`)."""
        self.deletion.remove_deleted(segments)

    # Look up

    def offset_for_timestamp(self, timestamp: int) -> Generator[Step, None, TimestampOffset | None]:
        """Find the first record, in offset order, with this timestamp or a later one, in steps."""
        return self.reader.offset_for_timestamp(timestamp)

    def offset_of_max_timestamp(self) -> Generator[Step, None, TimestampOffset | None]:
        """Find the first record that has the largest timestamp of the log, in steps (KIP-734)."""
        return self.reader.offset_of_max_timestamp()

    def offset_for_leader_epoch(self, epoch: int) -> tuple[int, int]:
        """Return the largest epoch at or below `epoch` and its end offset, or (-1, -1): KIP-101, KIP-320."""
        return self.state.leader_epochs.end_offset_for(epoch, self.state.log_end_offset)

    def epoch_for_offset(self, offset: int) -> int:
        """Return the leader epoch that wrote `offset`; -1 if unknown."""
        return self.state.leader_epochs.epoch_for(offset)

    # Flush and close

    def flush_due_offset(self, monotonic_ms: int) -> int | None:
        """Return the offset up to which a flush is due now; None if none is."""
        return self.flusher.flush_due_offset(monotonic_ms)

    def prepare_flush(self, target_offset: int | None = None) -> LogSync | None:
        """Return the task that makes batches below `target_offset` durable (`LogFlusher.prepare_flush`)."""
        return self.flusher.prepare_flush(target_offset)

    def finish_flush(self, task: LogSync, monotonic_ms: int) -> None:
        """Record that the task ran."""
        self.flusher.finish_flush(task, monotonic_ms)

    def abandon_flush(self, task: LogSync) -> None:
        """Postpone the syncs of a task for which no descriptor was left."""
        self.flusher.abandon_flush(task)

    def flush(self, monotonic_ms: int, target_offset: int | None = None) -> None:
        """Run all three steps of a flush. Blocks. Raises LogDirFailure, ExhaustedError."""
        self.flusher.flush(monotonic_ms, target_offset)

    def prepare_close(self) -> LogSync | None:
        """Write the files of a clean stop, unsynced; return None if nothing has changed since the last one."""
        return self.flusher.prepare_close()

    def finish_close(self, task: LogSync, monotonic_ms: int) -> None:
        """Record that the task of `prepare_close` ran."""
        self.flusher.finish_close(task, monotonic_ms)

    def close(self, monotonic_ms: int) -> None:
        """Make everything durable, so that the next start needs no recovery. Blocks."""
        self.flusher.close(monotonic_ms)

    def mark_name_unsynced(self) -> None:
        """Make the next flush, or the close of the log, sync the name of the directory and the topic id in it."""
        self.state.has_unsynced_name = True

    def end_of_gaps(self) -> int:
        """Return the base offset of the last segment that follows a gap, as after a compaction; 0 if there is no gap.

        Reads the end of each segment.
        """
        pairs = zip(self.segments, self.state.bases[1:], strict=False)
        return max((next_base for segment, next_base in pairs if segment.next_offset() < next_base), default=0)

    def move(self, directory: str) -> None:
        """Use a new path of the partition's directory: it was renamed for deletion, or its future log is served now."""
        self.state.directory = directory
        self.producer_state.directory = directory
        self.state.unsynced_paths.clear()
        # Unwritten snapshots have the old path.
        self.flusher.cancel_snapshots()
        for segment in self.segments:
            segment.move(directory)

    # Values of the state

    @property
    def config(self) -> LogConfig:
        return self.state.config

    @property
    def directory(self) -> str:
        return self.state.directory

    @property
    def log_directory(self) -> str:
        """The entry of log.dirs that the partition's directory is in."""
        return self.state.log_directory

    @property
    def failure(self) -> LogDirFailure | None:
        """The I/O error that has taken the log offline."""
        return self.state.failure

    @property
    def log_start_offset(self) -> int:
        return self.state.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self.state.log_end_offset

    @property
    def high_watermark(self) -> int:
        return self.state.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """Offset below which every transaction is decided."""
        return self.state.last_stable_offset

    @property
    def flushed_offset(self) -> int:
        """Offset below which batches are durable."""
        return self.state.flushed_offset

    @property
    def recovery_point(self) -> int:
        """Offset for the recovery point checkpoint."""
        return self.state.recovery_point

    @property
    def has_unsynced_truncation(self) -> bool:
        """Return whether a truncation must be made durable before the next append."""
        return self.state.unsynced_truncation is not None

    @property
    def leader_epochs(self) -> LeaderEpochs:
        return self.state.leader_epochs

    @property
    def latest_epoch(self) -> int:
        """The last leader epoch, with or without batches; -1 if there is none."""
        return self.state.leader_epochs.latest_epoch

    @property
    def active_segment(self) -> Segment:
        return self.state.active

    @property
    def doubtful_segment(self) -> Segment | None:
        """The segment whose records have to be read before retention can be applied to it; None for none."""
        return self.state.doubtful_segment

    @property
    def last_flush_ms(self) -> int:
        """Time of the last flush, on the monotonic clock."""
        return self.flusher.last_flush_ms

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)
