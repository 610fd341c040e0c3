"""What the parts of a partition's log have in common: its state, its segments, and how they fail.

The log of one partition is one object, PartitionLog, written in three modules, each on top of the one before:
log_state (this one), log_append, partition_log.
"""

import errno
import logging
import os
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from odradek.log.config import LogConfig
from odradek.log.flush import FlushTask, SyncGate
from odradek.log.leader_epochs import LeaderEpochs
from odradek.log.producers.snapshots import SnapshotWrite
from odradek.log.producers.state import ProducerState
from odradek.log.segments.segment import CorruptSegmentError, Segment, remove_segment_files
from odradek.log.storage import checkpoints
from odradek.log.storage.filesystem import FileSystem, LogDirFailure, ShortageError, is_shortage, storage_error
from odradek.properties import INT64_MAX
from odradek.protocol.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

T = TypeVar("T")


class LoadedState(NamedTuple):
    """What recovery found; a PartitionLog is made of it. The indexes of `rebuilt` segments are not synced yet."""

    segments: list[Segment]
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    leader_epochs: LeaderEpochs
    producer_state: ProducerState
    rebuilt: list[Segment]


class LogState:
    """State and segments of one partition's log.

    Offsets: `log_start_offset` <= `last_stable_offset` <= `high_watermark` <= `log_end_offset`. Everything below
    `flushed_offset` is on the disk. After an I/O error `failure` is set and every change raises it again (E56).
    """

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        topic: str,
        partition: int,
        config: LogConfig,
        state: LoadedState,
        *,
        monotonic_ms: int,
        choose_jitter_ms: Callable[[int], int] = lambda most_ms: 0,
    ) -> None:
        self.fs = fs
        self.directory = directory
        self.topic = topic
        self.partition = partition
        self.segments = state.segments
        self._bases = [segment.base_offset for segment in state.segments]
        self._active = state.segments[-1]
        self.log_start_offset = state.log_start_offset
        self.log_end_offset = state.log_end_offset
        self.flushed_offset = state.recovery_point
        self.high_watermark = state.log_start_offset
        self.leader_epochs = state.leader_epochs
        self.producer_state = state.producer_state
        self.failure: LogDirFailure | None = None
        self.last_flush_ms = monotonic_ms
        """On the monotonic clock."""
        self._gate = SyncGate()
        self._choose_jitter_ms = choose_jitter_ms
        self._unsynced_paths: set[str] = set()
        # Those that take no more appends, in order, whose indexes are still to be synced.
        self._unsynced_segments = [segment for segment in state.rebuilt if segment is not self._active]
        # Snapshots that the next flush writes, in its thread.
        self._unwritten_snapshots: list[SnapshotWrite] = []
        self._flush_tasks: list[FlushTask] = []
        # Whether the name of this log's own directory, or the topic id in it, may not have reached the disk yet.
        self._is_new = state.log_end_offset == state.segments[0].base_offset
        self._known_damage: set[str] = set()
        self._is_closed = False
        # The end of the log and the size of its last segment, as they are on the disk; None if they may not be.
        self._untouched_end: tuple[int, int] | None = None
        self.doubtful_segment: Segment | None = None
        self._unsynced_epoch_at: int | None = None
        self.update_config(config)

    def update_config(self, config: LogConfig) -> None:
        """Take on changed topic properties; existing segments keep their index settings."""
        self.config = config
        self._segment_limit_bytes = config.segment_limit_bytes
        self._max_segment_ms = config.max_segment_ms
        self._max_message_bytes = config.max_message_bytes
        self._flush_messages = 1 if config.flush_before_acks else config.flush_messages
        self._after_max_ms = config.message_timestamp_after_max_ms
        # Whether no rule of the topic needs each record, or changes batches.
        self._is_plain = (
            config.message_timestamp_type == "CreateTime"
            and config.message_timestamp_before_max_ms == INT64_MAX
            and config.compression_type in ("producer", "uncompressed")
            and not config.compacts
        )

    def __repr__(self) -> str:
        return f"PartitionLog({self.directory}, {self.log_start_offset}..{self.log_end_offset})"

    @property
    def log_directory(self) -> str:
        """The entry of log.dirs that the partition's directory is in."""
        return self.directory.rpartition("/")[0]

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)

    @property
    def latest_epoch(self) -> int:
        """The last leader epoch that wrote or was elected; -1 if none did."""
        return self.leader_epochs.latest_epoch

    @property
    def recovery_point(self) -> int:
        """What to write into the recovery point checkpoint: after a crash the segment that holds it is read again.

        So it lies in the first segment whose indexes are not on the disk in full, even if all of its batches are, and
        not behind the start of a leader epoch that the disk has in batches only.
        """
        if self._is_closed:
            return self.flushed_offset
        first = self._unsynced_segments[0] if self._unsynced_segments else self._active
        point = min(self.flushed_offset, first.base_offset)
        return point if self._unsynced_epoch_at is None else min(point, self._unsynced_epoch_at)

    @property
    def last_stable_offset(self) -> int:
        """Below it every transaction is decided."""
        unstable = self.producer_state.first_unstable_offset
        if unstable < 0 or unstable >= self.high_watermark:
            return self.high_watermark
        return max(unstable, self.log_start_offset)

    @property
    def active_segment(self) -> Segment:
        return self._active

    def update_high_watermark(self, offset: int) -> int:
        """Set it, held between log start and log end; what it is now."""
        if offset > self.log_end_offset:
            offset = self.log_end_offset
        elif offset < self.log_start_offset:
            offset = self.log_start_offset
        self.high_watermark = offset
        if self.producer_state.first_unstable_offset >= 0:
            self.producer_state.high_watermark_advanced(offset)
        return offset

    def roll(self, now_ms: int) -> Segment:
        """Begin a new segment at the log's end; the active one itself if it is empty.

        Raises LogDirFailure, ShortageError.
        """
        self._raise_if_failed()
        try:
            return self._roll(self.log_end_offset, now_ms)
        except OSError as error:
            raise self._refuse_or_fail("roll", error) from error

    def _roll(self, first_offset: int, now_ms: int, *, is_doomed: bool = False) -> Segment:
        """`is_doomed`: the active segment is about to be deleted, so that its indexes need not be complete."""
        base_offset = max(first_offset, self.log_end_offset)
        if base_offset == self._active.base_offset:
            return self._active
        if self.fs.spare_descriptors() < 1:
            raise OSError(errno.EMFILE, f"{os.strerror(errno.EMFILE)} (the rest is kept back for short use)")
        if is_doomed:
            self._unless_full(self._active.seal)
        else:
            self._active.seal()
        remove_segment_files(self.fs, self.directory, base_offset)
        self._untouched_end = None
        segment = self._new_segment(base_offset, now_ms)
        # From here on there is no way back; before, a roll that found no room can be tried again.
        self._unsynced_segments.append(self._active)
        self.segments.append(segment)
        self._bases.append(base_offset)
        self._active = segment
        state = self.producer_state
        state.end_offset = base_offset
        if state.is_large:
            self._unwritten_snapshots.append(state.copy_snapshot())
        elif self._unless_full(lambda: state.take_snapshot(sync=False)) is not None:
            self._unsynced_paths.add(state.snapshot_path(base_offset))
        logger.debug("rolled segment directory=%s base_offset=%d", self.directory, base_offset)
        return segment

    def _new_segment(self, base_offset: int, now_ms: int) -> Segment:
        jitter_ms = min(self.config.segment_jitter_ms, self._max_segment_ms)
        return Segment(
            self.fs,
            self.directory,
            base_offset,
            self.config,
            now_ms=now_ms,
            fresh=True,
            roll_jitter_ms=self._choose_jitter_ms(jitter_ms) if jitter_ms else 0,
        )

    def elect(self, epoch: int) -> None:
        """Note that a leader epoch begins at the log's end. The next flush writes it; no batch has it before."""
        if self.leader_epochs.assign(epoch, self.log_end_offset) and self._unsynced_epoch_at is None:
            self._unsynced_epoch_at = self.log_end_offset

    def assign_epoch(self, epoch: int, start_offset: int) -> None:
        """Note that a leader epoch begins, when its first batch arrives. Raises OSError, and then has noted nothing."""
        before = self.leader_epochs
        changed = LeaderEpochs(before.entries)
        changed.dirty = before.dirty
        if changed.assign(epoch, start_offset):
            self.leader_epochs = changed
            try:
                self._write_epochs()
            except OSError:
                self.leader_epochs = before
                raise

    def directory_unsynced(self) -> None:
        """Have the next flush, or the close of the log, sync the directory's name and the topic id in it."""
        self._is_new = True

    @property
    def _epochs_path(self) -> str:
        return f"{self.directory}/{checkpoints.LEADER_EPOCHS_FILE}"

    def _write_epochs(self) -> None:
        """Write the epochs, unsynced. Raises OSError.

        Until a flush has synced the file the recovery point stays where it is: recovery finds epochs in batches again.
        """
        if not self.leader_epochs.dirty:
            return
        path = self._epochs_path
        checkpoints.write_leader_epochs(self.fs, path, self.leader_epochs.entries, sync=False)
        self.leader_epochs.dirty = False
        self._unsynced_paths.add(path)
        if self._unsynced_epoch_at is None:
            self._unsynced_epoch_at = self.flushed_offset

    def _unless_full(self, write: Callable[[], T]) -> T | None:
        """Do what can be done without: None, and nothing changed, if a resource is short. Raises OSError."""
        try:
            return write()
        except OSError as error:
            if not is_shortage(error):
                raise
            logger.warning("no room or no descriptor directory=%s error=%s", self.directory, error)
            return None

    def _refuse_or_fail(self, what: str, error: OSError) -> KafkaError:
        """The error to raise for a failed append or roll.

        ShortageError if only a resource was missing: try again. CORRUPT_MESSAGE if batches of this log are damaged: its
        directory stays online. Otherwise LogDirFailure.
        """
        if isinstance(error, CorruptSegmentError):
            return self._damaged(error)
        if not self._active.is_torn:
            message = f"{what} refused in {self.directory}: {error.strerror}"
            refusal = storage_error(self.log_directory, message, error)
            if isinstance(refusal, ShortageError):
                return refusal
        return self._fail(what, error)

    def _damaged(self, error: OSError | ValueError) -> KafkaError:
        """The error to raise where batches or records are damaged. Each damage is logged once."""
        if str(error) not in self._known_damage:
            self._known_damage.add(str(error))
            logger.error("records are damaged and cannot be read: %s", error)
        return KafkaError(ErrorCode.CORRUPT_MESSAGE, str(error))

    def _fail(self, what: str, error: OSError) -> LogDirFailure:
        logger.error("log directory failed directory=%s during=%s error=%s", self.directory, what, error)
        self.failure = LogDirFailure(self.log_directory, f"{what} failed in {self.directory}: {error}")
        return self.failure

    def _raise_if_failed(self) -> None:
        if self.failure is not None:
            raise LogDirFailure(self.log_directory, f"{self.directory} is offline after an I/O error")
