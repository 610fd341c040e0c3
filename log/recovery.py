"""Opening a partition's directory: after a clean stop, after a crash, and one that Apache Kafka wrote.

After a crash every segment from the one that holds the recovery point on is read: the first batch with a wrong length
or checksum ends the log. Indexes, leader epochs and producers are built anew from what is read.
"""

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterator

from odradek.log import checkpoints, producer_replay
from odradek.log.config import LogConfig
from odradek.log.filesystem import DiskFullError, FileSystem, LogDirFailure, is_disk_full, remove_if_exists
from odradek.log.index import IndexOffsetError
from odradek.log.leader_epochs import LeaderEpochs
from odradek.log.partition_log import LoadedState, PartitionLog
from odradek.log.producer_state import ProducerState
from odradek.log.segment import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SWAP_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    Segment,
    file_name,
)
from odradek.log.transaction_index import CorruptTransactionIndexError
from odradek.protocol.record_batch import RECORD_BATCH_OVERHEAD, BatchHeader, crc_is_valid, read_header

logger = logging.getLogger(__name__)

DEFAULT_PRODUCER_EXPIRATION_MS = 86_400_000
_READ_BYTES = 1 << 20
_LAST = 1 << 63


def open_partition_log(
    fs: FileSystem,
    directory: str,
    topic: str,
    partition: int,
    config: LogConfig,
    *,
    now_ms: int,
    is_clean: bool,
    log_start_offset: int = 0,
    recovery_point: int = 0,
    producer_expiration_ms: int = DEFAULT_PRODUCER_EXPIRATION_MS,
    choose_jitter_ms: Callable[[int], int] = lambda most_ms: 0,
) -> PartitionLog:
    """Open, or create, the log in `directory`.

    `is_clean`: the last stop was clean. `log_start_offset` and `recovery_point` are those of the checkpoints, 0 if
    they have none. The high watermark is the log's start; set the checkpointed one with `update_high_watermark`.

    Blocks while it reads. Raises LogDirFailure, DiskFullError; MalformedFileError for a leader-epoch-checkpoint that
    cannot be read.
    """
    loader = _Loader(fs, directory, config, now_ms, producer_expiration_ms)
    try:
        fs.make_directory(directory)
        state = loader.load(is_clean, log_start_offset, recovery_point)
        log = PartitionLog(
            fs, directory, topic, partition, config, state, now_ms=now_ms, choose_jitter_ms=choose_jitter_ms
        )
        log._unless_full(log._write_epochs)
        return log
    except OSError as error:
        parent = directory.rpartition("/")[0]
        kind = DiskFullError if is_disk_full(error) else LogDirFailure
        raise kind(parent, f"loading {directory} failed: {error}") from error


class _Loader:
    def __init__(self, fs: FileSystem, directory: str, config: LogConfig, now_ms: int, expiration_ms: int) -> None:
        self.fs = fs
        self.directory = directory
        self.config = config
        self.now_ms = now_ms
        self.expiration_ms = expiration_ms
        self.segments: list[Segment] = []
        self.rebuilt: set[Segment] = set()
        self.epochs = LeaderEpochs()

    def load(self, is_clean: bool, log_start_offset: int, recovery_point: int) -> LoadedState:
        self._finish_replacements()
        self._read_epochs(is_clean)
        bases = self._open_segments()
        first = len(bases) if is_clean else bisect_right(bases[1:], recovery_point)
        self._rebuild_lacking(self.segments[:first], log_start_offset)
        if not is_clean:
            self._recover_from(first, log_start_offset)
        end_offset = self.segments[-1].next_offset() if self.segments else None
        if end_offset is not None and end_offset < log_start_offset:
            logger.warning(
                "log ends before its start, starting over directory=%s end=%d start=%d",
                self.directory,
                end_offset,
                log_start_offset,
            )
            self._delete(self.segments)
            self.segments = []
            self.epochs.clear()
            end_offset = None
        if end_offset is None:
            end_offset = log_start_offset
            self.segments = [self._segment(log_start_offset, fresh=True)]
        new_point = end_offset if is_clean else min(recovery_point, end_offset)
        start_offset = max(log_start_offset, self.segments[0].base_offset)
        self.epochs.truncate_from_end(end_offset)
        self.epochs.truncate_from_start(start_offset)
        producers = self._producer_state()
        producers.remove_stray_snapshots([segment.base_offset for segment in self.segments])
        producer_replay.rebuild(producers, self.segments, start_offset, end_offset, self.now_ms, is_clean=is_clean)
        rebuilt = [segment for segment in self.segments if segment in self.rebuilt]
        return LoadedState(self.segments, start_offset, end_offset, new_point, self.epochs, producers, rebuilt)

    def _read_epochs(self, is_clean: bool) -> None:
        """The checkpoint is written unsynced between two flushes, so a crash of the machine may have torn it."""
        path = f"{self.directory}/{checkpoints.LEADER_EPOCHS_FILE}"
        try:
            self.epochs = LeaderEpochs(checkpoints.read_leader_epochs(self.fs, path))
        except checkpoints.MalformedFileError as error:
            if is_clean:
                raise
            logger.warning("finding leader epochs in the batches again: %s", error)

    def _segment(self, base_offset: int, *, fresh: bool = False, suffix: str = "") -> Segment:
        return Segment(
            self.fs, self.directory, base_offset, self.config, now_ms=self.now_ms, fresh=fresh, suffix=suffix
        )

    def _producer_state(self) -> ProducerState:
        return ProducerState(self.fs, self.directory, expiration_ms=self.expiration_ms)

    # Files that an interrupted change left

    def _finish_replacements(self) -> None:
        """Remove what was deleted or half made, and put finished replacements (.swap) in place of what they replace."""
        names = self.fs.list_names(self.directory)
        cleaned = [name for name in names if name.endswith(CLEANED_SUFFIX)]
        first_cleaned = min((_base_offset(name) for name in cleaned), default=_LAST)
        swaps = [name for name in names if name.endswith(SWAP_SUFFIX)]
        # A swap file behind a half-made one belongs to the same unfinished change.
        unfinished = [name for name in swaps if _base_offset(name) >= first_cleaned]
        for name in [name for name in names if name.endswith(DELETED_SUFFIX)] + unfinished + cleaned:
            self._remove(name)
        swaps = [name for name in swaps if name not in unfinished]
        low, high = _LAST, -1
        for name in swaps:
            if name.endswith(LOG_SUFFIX + SWAP_SUFFIX):
                segment = self._segment(_base_offset(name), suffix=SWAP_SUFFIX)
                low, high = min(low, segment.base_offset), max(high, segment.next_offset())
        for name in names:
            if low <= _base_offset(name) < high and not name.endswith((SWAP_SUFFIX, DELETED_SUFFIX, CLEANED_SUFFIX)):
                self._remove(name)
        for name in swaps:
            self.fs.rename(f"{self.directory}/{name}", f"{self.directory}/{name.removesuffix(SWAP_SUFFIX)}")

    def _remove(self, name: str) -> None:
        remove_if_exists(self.fs, f"{self.directory}/{name}")

    def _open_segments(self) -> list[int]:
        """Open all of them; their base offsets."""
        names = set(self.fs.list_names(self.directory))
        for name in sorted(names):
            base_offset = _base_offset(name)
            if base_offset < 0:
                continue
            if name == file_name(base_offset, LOG_SUFFIX):
                self.segments.append(self._segment(base_offset))
            elif name.endswith(SEGMENT_SUFFIXES) and file_name(base_offset, LOG_SUFFIX) not in names:
                logger.warning("removing index without log directory=%s name=%s", self.directory, name)
                self._remove(name)
        return [segment.base_offset for segment in self.segments]

    def _rebuild_lacking(self, segments: list[Segment], log_start_offset: int) -> None:
        """Rebuild those of sound segments whose indexes are missing or damaged."""
        names = set(self.fs.list_names(self.directory))
        for number, segment in enumerate(segments):
            if self._must_rebuild(segment, names):
                self._recover(segment, log_start_offset, segments[:number])

    def _must_rebuild(self, segment: Segment, names: set[str]) -> bool:
        if file_name(segment.base_offset, INDEX_SUFFIX) not in names:
            return True
        if file_name(segment.base_offset, TRANSACTION_INDEX_SUFFIX) in names:
            try:
                segment.transaction_index.entries()
            except CorruptTransactionIndexError as error:
                logger.warning("rebuilding segment because of its transaction index: %s", error)
                return True
        return False

    # Recovery

    def _recover_from(self, first: int, log_start_offset: int) -> None:
        if not self.epochs.entries:
            for segment in self.segments[:first]:
                for _, header in segment.headers():
                    self._note_epoch(header)
        for index in range(first, len(self.segments)):
            segment = self.segments[index]
            try:
                removed_bytes = self._recover(segment, log_start_offset, self.segments[:index])
            except IndexOffsetError as error:
                logger.warning("emptying segment with invalid offsets: %s", error)
                segment.rebuild_begin()
                removed_bytes = max(1, segment.rebuild_end(0))
            later = self.segments[index + 1 :]
            if removed_bytes or self._lost_its_end(segment, later):
                logger.warning(
                    "log cut at first bad batch directory=%s segment=%d removed_bytes=%d removed_segments=%d",
                    self.directory,
                    segment.base_offset,
                    removed_bytes,
                    len(later),
                )
                self._delete(later)
                del self.segments[index + 1 :]
                # Or what was cut off might come back in the next crash, behind what has taken its place.
                segment.file.sync()
                self.fs.sync_directory(self.directory)
                return

    def _recover(self, segment: Segment, log_start_offset: int, before: list[Segment]) -> int:
        """Read a segment whole and rebuild all that follows from it; how many bytes were cut off its end."""
        producers = self._producer_state()
        producers.spare_latest_snapshot(segment.base_offset)
        producer_replay.rebuild(producers, before, log_start_offset, segment.base_offset, self.now_ms, is_clean=False)
        self.rebuilt.add(segment)
        segment.rebuild_begin()
        end = 0
        for position, header, batch in _valid_batches(segment):
            segment.rebuild_add(position, header)
            self._note_epoch(header)
            producer_replay.add_batch(producers, segment, header, batch)
            producers.end_offset = header.next_offset
            end = position + header.size_bytes
        removed_bytes = segment.rebuild_end(end)
        producers.settle_latest_snapshot()
        return removed_bytes

    def _lost_its_end(self, segment: Segment, later: list[Segment]) -> bool:
        """Whether whole batches are missing before the next segment: its file reached the disk, this one's end did not.

        What follows a hole must go, or a replica with a hole could become leader. Only compaction leaves holes.
        """
        return bool(later) and not self.config.compacts and segment.next_offset() < later[0].base_offset

    def _note_epoch(self, header: BatchHeader) -> None:
        if header.partition_leader_epoch > self.epochs.latest_epoch:
            self.epochs.assign(header.partition_leader_epoch, header.base_offset)

    def _delete(self, segments: list[Segment]) -> None:
        for segment in reversed(segments):
            for name in segment.mark_deleted().names:
                self._remove(name)


def _valid_batches(segment: Segment) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """(position, header, batch) up to the first that is cut off or has a wrong length, magic or checksum."""
    position, end = 0, segment.size_bytes
    chunk, chunk_start = memoryview(b""), 0
    while position + RECORD_BATCH_OVERHEAD <= end:
        at = position - chunk_start
        if at + RECORD_BATCH_OVERHEAD > len(chunk):
            chunk, chunk_start, at = memoryview(segment.file.pread(position, _READ_BYTES)), position, 0
        header = read_header(chunk, at)
        size_bytes = header.size_bytes
        if size_bytes < RECORD_BATCH_OVERHEAD or position + size_bytes > end or header.magic != 2:
            return
        if at + size_bytes > len(chunk):
            chunk, chunk_start, at = memoryview(segment.file.pread(position, max(size_bytes, _READ_BYTES))), position, 0
        batch = chunk[at : at + size_bytes]
        if not crc_is_valid(batch):
            return
        yield position, header, batch
        position += size_bytes


def _base_offset(name: str) -> int:
    """The base offset in the name of a segment's file, with or without a suffix; -1 for any other name."""
    stem, _, rest = name.partition(".")
    return int(stem) if rest and stem.isdigit() else -1
