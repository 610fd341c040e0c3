"""Opening a partition's directory: after a clean stop, after a crash, and one that Apache Kafka wrote.

After a crash every segment from the one with the recovery point on is read: the first batch with a wrong length
or checksum ends the log. Indexes, leader epochs and producers are rebuilt from the batches.
"""

import logging
from bisect import bisect_right
from collections.abc import Callable
from functools import partial

from odradek.log.config import LogConfig
from odradek.log.leader_epochs import LeaderEpochs
from odradek.log.partition_log import PartitionLog
from odradek.log.producers import replay as producer_replay
from odradek.log.producers.in_flight_batches import restore_batches
from odradek.log.producers.state import ProducerState
from odradek.log.segments.epoch_check import find_wrong_epoch
from odradek.log.segments.segment import Segment
from odradek.log.segments.segment_files import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    MAX_RELATIVE_OFFSET,
    SEGMENT_SUFFIXES,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    CorruptSegmentError,
    file_name,
)
from odradek.log.segments.segment_scan import SegmentScan
from odradek.log.segments.transaction_index import CorruptTransactionIndexError
from odradek.log.segments.transaction_index_check import check_transaction_index
from odradek.log.state import LoadedState
from odradek.log.storage import checkpoints
from odradek.log.storage.filesystem import TEMPORARY_SUFFIX, FileSystem, remove_if_exists, storage_error
from odradek.protocol.batches.record_batch import CONTROL_FLAG, TRANSACTIONAL_FLAG, BatchHeader

logger = logging.getLogger(__name__)

DEFAULT_PRODUCER_EXPIRATION_MS = 86_400_000
_MAX_SEQUENCE = 0x7FFFFFFF
_MAX_OFFSET = 1 << 63


class DamagedLogError(Exception):
    """A log that cannot be served unchanged, and must not be changed automatically; str contains the remedy."""


class RecoveryReport:
    """Work done to open logs.

    `logs`, `segments`, `verified_bytes`: logs with segments that were read completely, these segments, and their bytes
    `removed_bytes`, `removed_segments`: what was removed from the ends of logs and segments
    """

    __slots__ = ("logs", "removed_bytes", "removed_segments", "segments", "verified_bytes")

    def __init__(self) -> None:
        self.logs = self.segments = self.verified_bytes = self.removed_bytes = self.removed_segments = 0

    def add(self, other: "RecoveryReport") -> None:
        """Add the report of one log."""
        self.logs += other.segments > 0
        self.segments += other.segments
        self.verified_bytes += other.verified_bytes
        self.removed_bytes += other.removed_bytes
        self.removed_segments += other.removed_segments


def open_partition_log(
    fs: FileSystem,
    directory: str,
    topic: str,
    partition: int,
    config: LogConfig,
    *,
    now_ms: int,
    monotonic_ms: int = 0,
    is_clean: bool,
    log_start_offset: int = 0,
    recovery_point: int = 0,
    cleaned_to: int = 0,
    producer_expiration_ms: int = DEFAULT_PRODUCER_EXPIRATION_MS,
    choose_jitter_ms: Callable[[int], int] = lambda most_ms: 0,
    report: RecoveryReport | None = None,
) -> PartitionLog:
    """Open, or create, the log in `directory`.

    `is_clean`: the last stop was clean. `log_start_offset` and `recovery_point` are those of the checkpoints, 0 if
    they have none, and `cleaned_to` the offset up to which the log was compacted. `report` counts the work. The high
    watermark is the log's start; set the checkpointed one with `update_high_watermark`. flush.ms counts from
    `monotonic_ms`.

    Blocks while it reads. Raises LogDirFailure, ShortageError, DamagedLogError.
    """
    loader = _Loader(fs, directory, config, now_ms, producer_expiration_ms, report or RecoveryReport(), cleaned_to)
    try:
        fs.make_directory(directory)
        state = loader.load(is_clean, log_start_offset, recovery_point)
        log = PartitionLog(
            fs, directory, topic, partition, config, state, monotonic_ms=monotonic_ms, choose_jitter_ms=choose_jitter_ms
        )
        if is_clean and loader.has_found_segments and not loader.rebuilt:
            log.flusher.mark_untouched()
        # After a second crash, epochs that were removed now could be those of batches that are appended meanwhile.
        log.state.unless_full(partial(log.state.write_epochs, sync=not is_clean))
        return log
    except CorruptSegmentError as error:
        raise DamagedLogError(
            f"{error}; to copy the partition from another replica, move its directory {directory} away and restart"
        ) from error
    except OSError as error:
        parent = directory.rpartition("/")[0]
        raise storage_error(parent, f"loading {directory} failed: {error}", error) from error


class _Loader:
    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        config: LogConfig,
        now_ms: int,
        expiration_ms: int,
        report: RecoveryReport,
        cleaned_to: int,
    ) -> None:
        self.report = report
        self.cleaned_to = cleaned_to
        self.fs = fs
        self.directory = directory
        self.config = config
        self.now_ms = now_ms
        self.expiration_ms = expiration_ms
        self.segments: list[Segment] = []
        self.rebuilt: set[Segment] = set()
        # True if a segment was truncated and later ones were kept.
        self.has_gap = False
        self.epochs = LeaderEpochs()
        self.has_found_segments = False

    def load(self, is_clean: bool, log_start_offset: int, recovery_point: int) -> LoadedState:
        """Open the segments, and recover them after a crash. Raises OSError, DamagedLogError."""
        self._finish_replacements()
        self._read_epochs()
        bases = self._open_segments()
        if is_clean:
            self._remove_refused_segments(recovery_point)
        first = len(bases) if is_clean else bisect_right(bases[1:], recovery_point)
        self._rebuild_damaged(self.segments[:first], log_start_offset, is_clean=is_clean)
        if not is_clean and bases and self._lacks_first_epochs(max(log_start_offset, bases[0])):
            self.epochs.clear()
        if not self.epochs.entries:
            self._find_epochs(self.segments[:first])
        if not is_clean:
            self._recover_from(first, log_start_offset)
            self._correct_epochs()
        end_offset = self._find_end(log_start_offset) if self.segments else None
        if end_offset is not None and end_offset < recovery_point and first:
            end_offset = self._verify_flushed(self.segments[:first], end_offset, log_start_offset, recovery_point)
        if end_offset is not None and end_offset < log_start_offset:
            self._empty(end_offset, log_start_offset, recovery_point if is_clean else None)
            end_offset = None
        if end_offset is None:
            end_offset = log_start_offset
            self.segments = [self._segment(log_start_offset, fresh=True)]
        else:
            self.has_found_segments = True
        return self._make_state(log_start_offset, end_offset, recovery_point, is_clean=is_clean)

    def _make_state(
        self, log_start_offset: int, end_offset: int, recovery_point: int, *, is_clean: bool
    ) -> LoadedState:
        """Rebuild the producers, and return the result of the recovery."""
        new_point = end_offset if is_clean else min(recovery_point, end_offset)
        start_offset = max(log_start_offset, self.segments[0].base_offset)
        self.epochs.truncate_from_end(end_offset)
        self.epochs.truncate_from_start(start_offset)
        producers = self._producer_state()
        producers.remove_stray_snapshots([segment.base_offset for segment in self.segments])
        producer_replay.rebuild(producers, self.segments, start_offset, end_offset, self.now_ms, is_clean=is_clean)
        restore_batches(producers, self.segments, self.now_ms)
        rebuilt = [segment for segment in self.segments if segment in self.rebuilt]
        if self.has_gap:
            # Unsynced segments would lower the recovery point, and the next recovery would truncate the log at the gap.
            # After a crash the removed bytes must not reappear either.
            for path in [segment.path(kind) for segment in rebuilt for kind in SEGMENT_SUFFIXES]:
                self.fs.sync_path(path)
            self.fs.sync_directory(self.directory)
            rebuilt = []
        return LoadedState(self.segments, start_offset, end_offset, new_point, self.epochs, producers, rebuilt)

    def _verify_flushed(
        self, segments: list[Segment], end_offset: int, log_start_offset: int, recovery_point: int
    ) -> int:
        """Recover the segments below the recovery point, which the log does not reach; return the new end."""
        logger.warning(
            "verifying the whole log, because it does not reach its recovery point directory=%s end=%d point=%d",
            self.directory,
            end_offset,
            recovery_point,
        )
        for number, segment in enumerate(segments):
            self._rebuild_flushed(segment, number, log_start_offset)
        return self.segments[-1].next_offset()

    def _empty(self, end_offset: int, log_start_offset: int, clean_end_offset: int | None) -> None:
        """Remove all segments of a log that ends before its start.

        After a clean stop the log ended at `clean_end_offset`, possibly in a gap of compaction. Raises DamagedLogError
        if the start is above it.
        """
        if clean_end_offset is not None and clean_end_offset < log_start_offset:
            raise DamagedLogError(
                f"the log in {self.directory} ends at {end_offset}, but its start in "
                f"{checkpoints.LOG_START_OFFSETS_FILE} is {log_start_offset}; correct that entry, or remove it to "
                "keep the whole log"
            )
        logger.warning(
            "log ends before its log start offset and is emptied directory=%s end=%d start=%d",
            self.directory,
            end_offset,
            log_start_offset,
        )
        self._delete(self.segments)
        self.segments = []
        self.epochs.clear()

    def _find_end(self, log_start_offset: int) -> int:
        """Return the log's end. If the last segment's file has bytes after its last batch, recover and truncate it."""
        last = self.segments[-1]
        next_offset, position = last.find_end()
        if position == last.size_bytes:
            return next_offset
        logger.warning("verifying a segment with bytes after its last batch file=%s", last.path(LOG_SUFFIX))
        self._recover_from(len(self.segments) - 1, log_start_offset)
        return last.next_offset()

    def _read_epochs(self) -> None:
        """Read the checkpoint, which is unsynced between two flushes: after a power loss it may be incomplete."""
        path = f"{self.directory}/{checkpoints.LEADER_EPOCHS_FILE}"
        try:
            self.epochs = LeaderEpochs(checkpoints.read_leader_epochs(self.fs, path))
        except checkpoints.MalformedFileError as error:
            logger.warning("rebuilding leader epochs from the batches: %s", error)

    def _lacks_first_epochs(self, start_offset: int) -> bool:
        """Return whether the first epoch begins after the log's start.

        The epochs below a later log start were removed, and then a crash has undone the advance of the log start.
        """
        earliest = self.epochs.earliest()
        return earliest is not None and earliest[1] > start_offset

    def _find_epochs(self, segments: list[Segment]) -> None:
        for segment in segments:
            for _, header in segment.headers():
                if header.partition_leader_epoch > self.epochs.latest_epoch:
                    self.epochs.assign(header.partition_leader_epoch, header.base_offset)

    def _correct_epochs(self) -> None:
        """From the first epoch that contradicts the batches on, find all epochs in the batches.

        A truncation that removes only an epoch without batches is not synced before the next append: a power loss can
        restore the epoch. The checkpoint may be damaged, too.
        """
        entries = self.epochs.entries
        wrong = find_wrong_epoch(entries, self.segments) if self.segments else None
        if wrong is None:
            return
        epoch, start_offset = entries[wrong]
        logger.warning(
            "rebuilding leader epochs from the batches, which contradict the checkpoint directory=%s epoch=%d start=%d",
            self.directory,
            epoch,
            start_offset,
        )
        self._reset_epochs(entries[:wrong])
        complete_to = entries[wrong - 1][1] if wrong else -1
        self._find_epochs([segment for segment in self.segments if segment.next_offset() > complete_to])

    def _reset_epochs(self, entries: list[tuple[int, int]]) -> None:
        """Continue with these epochs, which the checkpoint may not have."""
        self.epochs = LeaderEpochs(entries)
        self.epochs.dirty = True

    def _segment(self, base_offset: int, *, fresh: bool = False, suffix: str = "") -> Segment:
        return Segment(
            self.fs, self.directory, base_offset, self.config, now_ms=self.now_ms, fresh=fresh, suffix=suffix
        )

    def _producer_state(self) -> ProducerState:
        return ProducerState(self.fs, self.directory, expiration_ms=self.expiration_ms)

    # Files of interrupted changes

    def _finish_replacements(self) -> None:
        """Remove deleted and incomplete files, and put complete replacements (.swap) in place of the replaced files."""
        names = self.fs.list_names(self.directory)
        cleaned = [name for name in names if name.endswith(CLEANED_SUFFIX)]
        first_cleaned = min((_base_offset(name) for name in cleaned), default=_MAX_OFFSET)
        swaps = [name for name in names if name.endswith(SWAP_SUFFIX)]
        # A .swap file at or after the first .cleaned file belongs to the same unfinished change.
        unfinished = [name for name in swaps if _base_offset(name) >= first_cleaned]
        for name in [name for name in names if name.endswith(DELETED_SUFFIX)] + unfinished + cleaned:
            self._remove(name)
        swaps = [name for name in swaps if name not in unfinished]
        low, high = _MAX_OFFSET, -1
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
        """Open all segments; return their base offsets."""
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
            elif name.endswith(TEMPORARY_SUFFIX):
                logger.info("removing incomplete file directory=%s name=%s", self.directory, name)
                self._remove(name)
        return [segment.base_offset for segment in self.segments]

    def _remove_refused_segments(self, end_offset: int) -> None:
        """Remove the empty segments above the log's end at the clean stop, `end_offset`.

        The disk has refused their first batches, and then their removal.
        """
        kept = self.segments[:]
        while len(kept) > 1 and not kept[-1].size_bytes and kept[-1].base_offset > end_offset:
            kept.pop()
        refused = self.segments[len(kept) :]
        # Otherwise the recovery point is not that of the clean stop.
        if refused and kept[-1].next_offset() <= end_offset:
            for segment in refused:
                logger.info("removing empty segment above the log's end file=%s", segment.path(LOG_SUFFIX))
            self._delete(refused)
            self.segments = kept

    def _rebuild_damaged(self, segments: list[Segment], log_start_offset: int, *, is_clean: bool) -> None:
        """Rebuild those of `segments` whose indexes are missing or damaged."""
        names = set(self.fs.list_names(self.directory))
        for number, segment in enumerate(segments):
            # The batches of the last one are on the disk, but a power loss may have undone the truncation of its
            # preallocated files.
            is_last = not is_clean and number == len(segments) - 1
            if self._must_rebuild(segment, names, segments[: number + 1], is_clean=is_clean) or (
                is_last and self._has_untrimmed_file(segment)
            ):
                self._rebuild_flushed(segment, number, log_start_offset)

    def _must_rebuild(self, segment: Segment, names: set[str], segments: list[Segment], *, is_clean: bool) -> bool:
        for kind in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            if file_name(segment.base_offset, kind) not in names and (segment.size_bytes or kind == INDEX_SUFFIX):
                logger.warning("rebuilding segment because of a missing index file=%s", segment.path(kind))
                return True
        if file_name(segment.base_offset, TRANSACTION_INDEX_SUFFIX) in names:
            try:
                entries = segment.transaction_index.entries()
                # After a clean stop the index is valid; in a compacted log a transaction's first batch may be missing.
                if not (is_clean or self.config.compacts or segment.base_offset < self.cleaned_to):
                    check_transaction_index(segment, segments, entries, self.cleaned_to)
            except CorruptTransactionIndexError as error:
                logger.warning("rebuilding segment because of its transaction index: %s", error)
                return True
        return False

    def _has_untrimmed_file(self, segment: Segment) -> bool:
        for index in (segment.offset_index, segment.time_index):
            if index.ends_in_zeros:
                logger.warning("rebuilding segment because of an index that ends in zeros file=%s", index.path)
                return True
        if segment.find_end()[1] < segment.size_bytes:
            # The file was truncated when its log was opened before, and a power loss undid that.
            logger.warning("rebuilding segment because of bytes after its last batch file=%s", segment.path(LOG_SUFFIX))
            return True
        return False

    # Recovery

    def _rebuild_flushed(self, segment: Segment, index: int, log_start_offset: int) -> None:
        """Recover a segment below the recovery point. Later segments are kept: they contain acknowledged records."""
        flaw = self._recover(segment, log_start_offset, index)
        if flaw is None:
            return
        logger.error(
            "segment truncated at its first bad byte; later segments are kept file=%s at=%d why=%s",
            segment.path(LOG_SUFFIX),
            segment.size_bytes,
            flaw,
        )
        self.has_gap = True

    def _recover_from(self, first: int, log_start_offset: int) -> None:
        """Recover the segments from `first` on, which may not have been flushed: the first bad byte ends the log."""
        for index in range(first, len(self.segments)):
            segment = self.segments[index]
            later = self.segments[index + 1 :]
            found_bytes = segment.size_bytes
            flaw = self._recover(segment, log_start_offset, index)
            if flaw is None and self._has_lost_end(
                segment, later, log_start_offset, has_trailing_zeros=segment.size_bytes < found_bytes
            ):
                flaw = f"its end is missing: the next segment begins at {later[0].base_offset}"
            if flaw is not None:
                logger.warning(
                    "log truncated at its first bad byte file=%s at=%d why=%s removed_bytes=%d removed_segments=%d "
                    "end_offset=%d",
                    segment.path(LOG_SUFFIX),
                    segment.size_bytes,
                    flaw,
                    self.report.removed_bytes + sum(one.size_bytes for one in later),
                    len(later),
                    segment.next_offset(),
                )
                self.report.removed_bytes += sum(one.size_bytes for one in later)
                self.report.removed_segments += len(later)
                self._delete(later)
                del self.segments[index + 1 :]
                # Otherwise the removed bytes might reappear after a crash, behind newer batches.
                segment.file.sync()
                self.fs.sync_directory(self.directory)
                return

    def _recover(self, segment: Segment, log_start_offset: int, index: int) -> str | None:
        """Scan a segment, truncate it at the first bad byte, and rebuild its indexes; return the flaw, or None."""
        size_bytes, epochs = segment.size_bytes, self.epochs.entries
        found = self._rebuild_segment(segment, log_start_offset, index, size_bytes)
        if found.misplaced is not None:
            position, expected_offset = found.misplaced
            self._reset_epochs(epochs)
            found = self._rebuild_segment(segment, log_start_offset, index, position)
            found.flaw = f"a batch has a base offset that does not fit, expected {expected_offset}"
        removed_bytes = size_bytes - segment.size_bytes
        report = self.report
        report.verified_bytes += segment.size_bytes
        if found.flaw is not None:
            report.removed_bytes += removed_bytes
        elif removed_bytes:
            # Without `preallocate` the zeros may be in place of unsynced data that a power loss destroyed.
            level = logging.INFO if self.config.preallocate else logging.WARNING
            path, at = segment.path(LOG_SUFFIX), segment.size_bytes
            logger.log(level, "removed the zeros after the last batch file=%s at=%d bytes=%d", path, at, removed_bytes)
        report.segments += 1
        return found.flaw

    def _rebuild_segment(self, segment: Segment, log_start_offset: int, index: int, end_position: int) -> SegmentScan:
        """Rebuild a segment's indexes, and add its batches before `end_position` to epochs and producers."""
        before, after = self.segments[:index], self.segments[index + 1 : index + 2]
        base_offset = segment.base_offset
        producers = self._producer_state()
        producers.spare_latest_snapshot(base_offset)
        producer_replay.rebuild(producers, before, log_start_offset, base_offset, self.now_ms, is_clean=False)
        self.rebuilt.add(segment)

        def visit(fields: tuple[int, ...], batch: memoryview) -> None:
            start, _, epoch, _, _, attributes, last_delta, _, timestamp, producer_id, producer_epoch, first, _ = fields
            if epoch > self.epochs.latest_epoch:
                self.epochs.assign(epoch, start)
            if producer_id < 0:
                return
            if attributes & CONTROL_FLAG:
                producer_replay.add_batch(producers, segment, BatchHeader._make(fields), batch)
                return
            last_sequence = (first + last_delta) & _MAX_SEQUENCE if first >= 0 else first
            is_transactional = attributes & TRANSACTIONAL_FLAG != 0
            producers.add_data(
                producer_id, producer_epoch, last_sequence, start, start + last_delta, timestamp, is_transactional
            )

        limit_offset = after[0].base_offset if after else _MAX_OFFSET
        found = segment.rebuild(limit_offset, self.epochs.latest_epoch, visit, end_position)
        producers.end_offset = max(producers.end_offset, found.next_offset)
        producers.settle_latest_snapshot(sync=bool(after))
        return found

    def _has_lost_end(
        self, segment: Segment, later: list[Segment], log_start_offset: int, *, has_trailing_zeros: bool
    ) -> bool:
        """Return whether batches are missing before the next segment: its file was durable, this one's end was not.

        Batches after such a gap must be removed, or a replica with a gap could become leader. Only gaps that compaction
        left are kept, which are below the compacted offset: a follower's segment begins where its last one ends, also
        if its first batch follows a gap of the leader's log. The exception is a gap that no segment can span, before
        which the last one is synced. Without a batch after it the gap is not kept: the disk may have refused the batch.
        Compaction leaves no zeros. Batches below the log's start are deleted.
        """
        end_offset = segment.next_offset()
        if not later or end_offset >= later[0].base_offset:
            return False
        if has_trailing_zeros:
            return True
        if later[0].base_offset <= max(self.cleaned_to, log_start_offset):
            return False
        first = next((header for _, header in later[0].headers()), None)
        if first is None:
            return True
        if later[0].base_offset - end_offset > MAX_RELATIVE_OFFSET + 1:
            return False
        if first.base_offset != later[0].base_offset:
            return True
        return first.last_offset - end_offset <= MAX_RELATIVE_OFFSET

    def _delete(self, segments: list[Segment]) -> None:
        for segment in reversed(segments):
            for name in segment.mark_deleted().names:
                self._remove(name)


def _base_offset(name: str) -> int:
    """Return the base offset in the name of a segment's file, with or without a suffix; -1 for any other name."""
    stem, _, rest = name.partition(".")
    return int(stem) if rest and stem.isdigit() else -1
