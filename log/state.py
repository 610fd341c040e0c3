"""State of one partition's log, shared by the parts that PartitionLog consists of, and the handling of its failures."""

import logging
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from odradek.log.config import LogConfig
from odradek.log.leader_epochs import LeaderEpochs
from odradek.log.producers.snapshots import SnapshotWrite
from odradek.log.producers.state import ProducerState
from odradek.log.segments.segment import Segment
from odradek.log.segments.segment_files import CorruptSegmentError
from odradek.log.storage import checkpoints
from odradek.log.storage.filesystem import FileSystem, LogDirFailure, ShortageError, is_shortage, storage_error
from odradek.properties import INT64_MAX
from odradek.protocol.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

T = TypeVar("T")


class LoadedState(NamedTuple):
    """Result of recovery, for a new PartitionLog. The indexes of `rebuilt` segments are not synced yet."""

    segments: list[Segment]
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    leader_epochs: LeaderEpochs
    producer_state: ProducerState
    rebuilt: list[Segment]


class GapAtEnd(NamedTuple):
    """Offsets at the log's end that compaction left without batches: the log was truncated to an offset in a gap."""

    start_offset: int
    end_offset: int


class UnsyncedTruncation:
    """A truncation whose result is not durable yet. A flush and a write of the checkpoints make it durable.

    `write_checkpoints` writes the checkpoints that contain offsets of the log; it blocks. `has_checkpoints`: they were
    written since the truncation.
    """

    __slots__ = ("_file", "_is_cut", "_size_bytes", "has_checkpoints", "write_checkpoints")

    def __init__(self, last: Segment, write_checkpoints: Callable[[], None]) -> None:
        self._file = last.file
        self._size_bytes = last.size_bytes
        self._is_cut = False
        self.write_checkpoints = write_checkpoints
        self.has_checkpoints = False

    def cut_file(self) -> None:
        """Remove the truncated batches from the file of the last segment. For one thread at a time; raises OSError.

        Later segments must have been removed durably: a crash must not leave them behind a gap. Only the first call
        cuts the file: a sync that runs late must not remove batches that were appended since.
        """
        if self._is_cut:
            return
        if self._file.size_bytes() > self._size_bytes:
            self._file.truncate(self._size_bytes)
        self._is_cut = True

    def keep_file(self) -> None:
        """Do not cut the file, because another truncation removes more of the log. A sync in progress may cut it."""
        self._is_cut = True


class LogState:
    """State of one partition's log.

    Offsets: `log_start_offset` <= `last_stable_offset` <= `high_watermark` <= `log_end_offset`. Batches below
    `flushed_offset` are durable. After an I/O error `failure` is set, and every further change raises LogDirFailure.

    `segments` is the same list object as long as the log is open; `bases` contains the base offsets of its items, and
    `active` is its last item, which gets the appends.

    What is not durable yet: `unsynced_paths` are files to sync by name. `unsynced_segments` get no more appends, in
    order, and their indexes are not synced. `unwritten_snapshots` are written by the next flush, in its thread.
    `has_unsynced_name`: the name of the log's own directory, or the topic id in it, may not be durable, and no flush in
    progress syncs it.
    `unsynced_epoch_at`: from this offset on, leader epochs may be durable in the batches only.
    `has_unwritten_epochs`: all leader epochs are in the batches only, because the checkpoint has none.
    `unsynced_truncation` is set by a truncation, or a refusal of several batches, until its result is durable: nothing
    is appended before.

    `gap_at_end` is set by a truncation into a gap, and outdated after the next append.
    `untouched_end`: log end and size of the last segment when the log was loaded after a clean stop, None after a
    change. `doubtful_segment`: the segment whose records have to be read before retention can be applied to it.
    """

    def __init__(
        self, fs: FileSystem, directory: str, topic: str, partition: int, config: LogConfig, loaded: LoadedState
    ) -> None:
        self.fs = fs
        self.directory = directory
        self.topic = topic
        self.partition = partition
        self.segments = loaded.segments
        self.bases = [segment.base_offset for segment in loaded.segments]
        self.active = loaded.segments[-1]
        self.log_start_offset = loaded.log_start_offset
        self.log_end_offset = loaded.log_end_offset
        self.flushed_offset = loaded.recovery_point
        self.high_watermark = loaded.log_start_offset
        self.leader_epochs = loaded.leader_epochs
        self.producer_state = loaded.producer_state
        self.failure: LogDirFailure | None = None
        self.unsynced_paths: set[str] = set()
        self.unsynced_segments = [segment for segment in loaded.rebuilt if segment is not self.active]
        self.unwritten_snapshots: list[SnapshotWrite] = []
        self.has_unsynced_name = loaded.log_end_offset == loaded.segments[0].base_offset
        self.unsynced_epoch_at: int | None = None
        self.has_unwritten_epochs = False
        self.unsynced_truncation: UnsyncedTruncation | None = None
        self.gap_at_end: GapAtEnd | None = None
        self.untouched_end: tuple[int, int] | None = None
        self.doubtful_segment: Segment | None = None
        self.is_closed = False
        self._known_damage: set[str] = set()
        self.update_config(config)

    def update_config(self, config: LogConfig) -> None:
        """Apply changed topic properties; existing segments keep their index settings."""
        self.config = config
        self.segment_limit_bytes = config.segment_limit_bytes
        self.max_segment_ms = config.max_segment_ms
        self.max_message_bytes = config.max_message_bytes
        self.flush_messages = 1 if config.flush_before_acks else config.flush_messages
        self.timestamp_after_max_ms = config.message_timestamp_after_max_ms
        # True if no property of the topic requires a check of each record, or a change of the batch.
        self.is_plain = (
            config.message_timestamp_type == "CreateTime"
            and config.message_timestamp_before_max_ms == INT64_MAX
            and config.compression_type in ("producer", "uncompressed")
            and not config.compacts
        )

    @property
    def log_directory(self) -> str:
        """The entry of log.dirs that the partition's directory is in."""
        return self.directory.rpartition("/")[0]

    @property
    def next_base_offset(self) -> int:
        """Base offset of the next segment: the end of the last batch, which is the log's end, or before a gap there.

        Recovery takes a gap between two segments that this log's own compaction has not left for lost batches.
        """
        gap = self.gap_at_end
        if gap is not None and gap.end_offset == self.log_end_offset:
            return max(gap.start_offset, self.active.base_offset)
        return self.log_end_offset

    @property
    def recovery_point(self) -> int:
        """Offset for the recovery point checkpoint: after a crash the segment that contains it is read again.

        It is in the first segment whose indexes are not completely durable, even if all of its batches are, and not
        after the start of a leader epoch that is durable in batches only.
        """
        if self.is_closed:
            return self.flushed_offset
        first = self.unsynced_segments[0] if self.unsynced_segments else self.active
        point = min(self.flushed_offset, first.base_offset)
        return point if self.unsynced_epoch_at is None else min(point, self.unsynced_epoch_at)

    @property
    def last_stable_offset(self) -> int:
        """Offset below which every transaction is decided."""
        unstable = self.producer_state.first_unstable_offset
        if unstable < 0 or unstable >= self.high_watermark:
            return self.high_watermark
        return max(unstable, self.log_start_offset)

    def update_high_watermark(self, offset: int) -> int:
        """Set the high watermark to `offset`, bounded by log start and log end. Return the result."""
        if offset > self.log_end_offset:
            offset = self.log_end_offset
        elif offset < self.log_start_offset:
            offset = self.log_start_offset
        self.high_watermark = offset
        if self.producer_state.first_unstable_offset >= 0:
            self.producer_state.high_watermark_advanced(offset)
        return offset

    def advance_log_start(self, offset: int) -> None:
        """Advance the log's start, after DeleteRecords, a deletion of segments, or an advance on the leader."""
        if offset <= self.log_start_offset:
            return
        self.log_start_offset = offset
        if self.high_watermark < offset:
            self.high_watermark = offset
        self.leader_epochs.truncate_from_start(offset)
        self.producer_state.log_start_advanced(offset)
        try:
            # The next start corrects a checkpoint with epochs below the log's start.
            self.unless_full(self.write_epochs)
        except OSError as error:
            raise self.fail("epoch checkpoint", error) from error

    def sync_refused_batches(self) -> None:
        """Make the removal of refused batches from the active segment durable before the next append.

        Of several batches the first ones may have been complete in the file. A power loss could restore them in place
        of the next ones, which may have the same leader epoch, or behind them.
        """
        self.untouched_end = None
        truncation = self.unsynced_truncation = UnsyncedTruncation(self.active, lambda: None)
        # The checkpoints contain no offset of a refused batch.
        truncation.has_checkpoints = True

    # Leader epochs

    def elect(self, epoch: int) -> None:
        """Begin a leader epoch at the log's end. The next flush writes it; no batch has it before."""
        if self.leader_epochs.assign(epoch, self.log_end_offset) and self.unsynced_epoch_at is None:
            self.unsynced_epoch_at = self.log_end_offset

    def assign_epoch(self, epoch: int, start_offset: int) -> None:
        """Begin a leader epoch with its first batch. If it raises OSError, nothing has changed.

        The first epoch of a log is written by the next flush: without epochs in the checkpoint, recovery finds them in
        the batches. To create the file would take longer than the first append to each of many new partitions.
        """
        before = self.leader_epochs
        changed = LeaderEpochs(before.entries)
        changed.dirty = before.dirty
        if changed.assign(epoch, start_offset):
            self.leader_epochs = changed
            if not before.entries and not before.dirty:
                self.has_unwritten_epochs = True
                if self.unsynced_epoch_at is None:
                    self.unsynced_epoch_at = start_offset
                return
            try:
                self.write_epochs()
            except OSError:
                self.leader_epochs = before
                raise

    @property
    def epochs_path(self) -> str:
        return f"{self.directory}/{checkpoints.LEADER_EPOCHS_FILE}"

    @property
    def topic_id_path(self) -> str:
        return f"{self.directory}/{checkpoints.PARTITION_METADATA_FILE}"

    def write_epochs(self, *, sync: bool = False) -> None:
        """Write the leader epochs. Raises OSError.

        Until a flush has synced the file the recovery point does not advance: recovery finds epochs in batches again.
        """
        if not self.leader_epochs.dirty:
            return
        path = self.epochs_path
        checkpoints.write_leader_epochs(self.fs, path, self.leader_epochs.entries, sync=sync)
        self.leader_epochs.dirty = self.has_unwritten_epochs = False
        self.unsynced_paths.add(path)
        if self.unsynced_epoch_at is None:
            self.unsynced_epoch_at = self.flushed_offset

    # Failures

    def unless_full(self, write: Callable[[], T]) -> T | None:
        """Run a write that may be omitted; return None if a resource is short. `write` must change nothing then."""
        try:
            return write()
        except OSError as error:
            if not is_shortage(error):
                raise
            logger.warning("a write is postponed for lack of a resource directory=%s error=%s", self.directory, error)
            return None

    def refuse_or_fail(self, what: str, error: OSError) -> KafkaError:
        """Return the error to raise for a failed append or roll.

        ShortageError if only a resource was short: the operation can be retried. CORRUPT_MESSAGE if batches of this log
        are damaged: its directory stays online. Otherwise LogDirFailure.
        """
        if isinstance(error, CorruptSegmentError):
            return self.damage_error(error)
        if not self.active.is_torn:
            message = f"{what} refused in {self.directory}: {error.strerror}"
            refusal = storage_error(self.log_directory, message, error)
            if isinstance(refusal, ShortageError):
                return refusal
        return self.fail(what, error)

    def damage_error(self, error: OSError | ValueError) -> KafkaError:
        """Return the error to raise for damaged batches or records. Each damage is logged once."""
        if str(error) not in self._known_damage:
            self._known_damage.add(str(error))
            logger.error("records are damaged and cannot be read: %s", error)
        return KafkaError(ErrorCode.CORRUPT_MESSAGE, str(error))

    def fail(self, what: str, error: OSError) -> LogDirFailure:
        """Record an I/O error as the log's failure, and return the error to raise."""
        logger.error("log directory failed directory=%s during=%s error=%s", self.directory, what, error)
        self.failure = LogDirFailure(self.log_directory, f"{what} failed in {self.directory}: {error}")
        return self.failure

    def raise_if_failed(self) -> None:
        """Raise LogDirFailure if an I/O error has taken the log offline."""
        if self.failure is not None:
            raise LogDirFailure(self.log_directory, f"{self.directory} is offline after an I/O error")
