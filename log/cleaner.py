"""Compaction of logs with cleanup.policy=compact: which log is due, and how it is carried out.

One log at a time. A thread maps the last offset of each key in the part that is not compacted yet (the dirty part),
then rewrites the log, group of segments by group, leaving out what a later record of the same key replaces. Each
rewritten segment is put in place in the main thread. How far a log is compacted is in cleaner-offset-checkpoint.

Sources: Kafka documentation ("Log Compaction"), KIP-58 (min.compaction.lag.ms), KIP-354 (max.compaction.lag.ms).
"""

import logging
from bisect import bisect_right
from collections.abc import Callable
from typing import NamedTuple, Protocol

from odradek.log.background import RunInThread
from odradek.log.compaction import Cancelled, Filter, LastRecord, Transactions, build_map, rewrite
from odradek.log.config import LogConfig
from odradek.log.filesystem import FileSystem, LogDirFailure, remove_if_exists
from odradek.log.offset_map import OffsetMap
from odradek.log.pacing import Pacer
from odradek.log.partition_log import PartitionLog
from odradek.log.segment import (
    CLEANED_SUFFIX,
    INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    DeletedSegment,
    Segment,
)
from odradek.log.transaction_index import AbortedTransaction

logger = logging.getLogger(__name__)

Key = tuple[str, int]

_MAX_RELATIVE_OFFSET = 0x7FFFFFFF
_OFFSET_ENTRY_BYTES = 8
_TIME_ENTRY_BYTES = 12


class CleanerSettings(Protocol):
    """The broker's properties that compaction heeds."""

    @property
    def log_cleaner_dedupe_buffer_size(self) -> int: ...
    @property
    def log_cleaner_io_buffer_load_factor(self) -> float: ...
    @property
    def log_cleaner_io_max_bytes_per_second(self) -> float: ...


class CleanerHost(Protocol):
    """What the cleaner needs of the log manager."""

    def all_logs(self) -> list[PartitionLog]: ...

    def fail_directory(self, path: str, error: Exception) -> None: ...

    def remove_later(self, log: PartitionLog, deleted: list[DeletedSegment], now_ms: int) -> None: ...

    def checkpoint_cleaned(self, path: str, done: Callable[[], None]) -> None:
        """Write the cleaner's `offsets` of a log directory, then call `done`, and see that `step` is called soon."""
        ...


class Target(NamedTuple):
    """A log that could be compacted, and from where to where."""

    log: PartitionLog
    first_dirty_offset: int
    end_offset: int
    clean_bytes: int
    cleanable_bytes: int
    is_overdue: bool

    @property
    def ratio(self) -> float:
        """The share of what is not compacted yet."""
        return self.cleanable_bytes / (self.clean_bytes + self.cleanable_bytes)

    @property
    def is_due(self) -> bool:
        return self.is_overdue or self.ratio > self.log.config.min_cleanable_dirty_ratio


def find_target(log: PartitionLog, checkpoint: int | None, now_ms: int) -> Target | None:
    """What of the log can be compacted, whether or not it is due; None if nothing can. Raises OSError.

    Only whole segments before the active one, below the last stable offset and older than min.compaction.lag.ms.
    """
    config, segments = log.config, log.segments
    first_dirty = log.log_start_offset if checkpoint is None else checkpoint
    if not log.log_start_offset <= first_dirty <= log.log_end_offset:
        first_dirty = log.log_start_offset
    bases = [segment.base_offset for segment in segments]
    first = max(0, bisect_right(bases, first_dirty) - 1)
    limit = max(0, bisect_right(bases, max(log.last_stable_offset, first_dirty)) - 1)
    if config.min_compaction_lag_ms > 0:
        for index in range(first, limit):
            if segments[index].largest_timestamp_ms > now_ms - config.min_compaction_lag_ms:
                limit = index
                break
    cleanable_bytes = sum(segment.size_bytes for segment in segments[first:limit])
    if cleanable_bytes == 0:
        return None
    # The segment that holds the first dirty offset counts with both.
    clean_bytes = sum(segment.size_bytes for segment in segments[:limit] if segment.base_offset < first_dirty)
    timestamps = [segment.first_timestamp for segment in segments[first:limit]]
    oldest = min((timestamp for timestamp in timestamps if timestamp > 0), default=None)
    is_overdue = oldest is not None and oldest < now_ms - config.max_compaction_lag_ms
    return Target(log, first_dirty, bases[limit], clean_bytes, cleanable_bytes, is_overdue)


def group_segments(segments: list[Segment], config: LogConfig, end_offset: int) -> list[list[Segment]]:
    """Neighbours that fit into one segment together, by bytes, index entries and span of offsets."""
    groups: list[list[Segment]] = []
    sizes = (0, 0, 0)
    limits = (config.segment_limit_bytes, config.segment_index_bytes, config.segment_index_bytes)
    for index, segment in enumerate(segments):
        own = (
            segment.size_bytes,
            segment.offset_index.count * _OFFSET_ENTRY_BYTES,
            segment.time_index.count * _TIME_ENTRY_BYTES,
        )
        together = (sizes[0] + own[0], sizes[1] + own[1], sizes[2] + own[2])
        next_base = segments[index + 1].base_offset if index + 1 < len(segments) else end_offset
        if (
            groups
            and all(size <= limit for size, limit in zip(together, limits, strict=True))
            and (segment.size_bytes == 0 or next_base - 1 - groups[-1][0].base_offset <= _MAX_RELATIVE_OFFSET)
        ):
            groups[-1].append(segment)
            sizes = together
        else:
            groups.append([segment])
            sizes = own
    return groups


class _Compaction:
    """One run over one log. `prepare` and `write_group` are for a thread, the rest for the main one."""

    def __init__(self, fs: FileSystem, target: Target, settings: CleanerSettings, now_ms: int, pause: Pacer) -> None:
        log = target.log
        self.fs = fs
        self.log = log
        self.key = (log.topic, log.partition)
        self.target = target
        self.now_ms = now_ms
        self.pause = pause
        self.directory = log.directory
        self.groups: list[list[Segment]] = []
        self.end_offset = target.first_dirty_offset
        self.bytes_before = self.bytes_after = 0
        self.offsets = OffsetMap(settings.log_cleaner_dedupe_buffer_size, settings.log_cleaner_io_buffer_load_factor)
        self._segments = [segment for segment in log.segments if segment.base_offset < target.end_offset]
        self._aborted = _aborted_transactions(log)
        self._filter: Filter | None = None
        self._transactions = Transactions(self._aborted)

    def prepare(self) -> None:
        """Remove what an earlier, unfinished run left, then read the dirty part."""
        for name in self.fs.list_names(self.directory):
            if name.endswith(CLEANED_SUFFIX):
                remove_if_exists(self.fs, f"{self.directory}/{name}")
        bases = [segment.base_offset for segment in self._segments]
        first = max(0, bisect_right(bases, self.target.first_dirty_offset) - 1)
        dirty = list(zip(self._segments[first:], [*bases[first + 1 :], self.target.end_offset], strict=True))
        start = self.target.first_dirty_offset
        aborted = [entry for entry in self._aborted if entry.last_offset >= start]
        build_map(self.offsets, dirty, start, Transactions(aborted), self.pause)

    def plan(self) -> bool:
        """Group the segments; whether anything would be gained."""
        self.end_offset = self.offsets.latest_offset + 1
        if self.end_offset <= self.target.first_dirty_offset:
            return False
        config = self.log.config
        segments = [segment for segment in self._segments if segment.base_offset < self.end_offset]
        self.groups = group_segments(segments, config, self.target.end_offset)
        self._filter = Filter(
            self.offsets,
            self._transactions,
            upper_offset=self.target.end_offset,
            now_ms=self.now_ms,
            delete_retention_ms=config.delete_retention_ms,
        )
        return True

    def writing(self, group: list[Segment]) -> "tuple[Callable[[], None], list[Segment]]":
        """What writes a group's replacement, in a thread, and the list it then adds it to."""
        decide, log = self._filter, self.log
        written: list[Segment] = []
        assert decide is not None, "plan comes first"
        # What the producers are at now: a batch of theirs may have become the last one only since.
        decide.last_records = {
            producer_id: LastRecord(entry.batches[-1].last_offset if entry.batches else -1, entry.epoch)
            for producer_id, entry in log.producer_state.producers.items()
        }
        config = log.config

        def write() -> None:
            self.pause(0)
            segment = Segment(
                self.fs,
                self.directory,
                group[0].base_offset,
                config,
                now_ms=self.now_ms,
                fresh=True,
                suffix=CLEANED_SUFFIX,
            )
            self._transactions.index = segment.transaction_index
            rewrite(group, segment, decide, self.pause)
            segment.seal()
            segment.file.sync()
            for kind in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX):
                self.fs.sync_path(segment.path(kind))
            self.fs.set_modified_ms(segment.path(".log"), self.fs.modified_ms(group[-1].path(".log")))
            self.pause(0)
            written.append(segment)

        return write, written

    def is_in_place(self, group: list[Segment]) -> bool:
        """Whether the log still has these segments, side by side."""
        segments = self.log.segments
        try:
            first = segments.index(group[0])
        except ValueError:
            return False
        return segments[first : first + len(group)] == group and len(segments) > first + len(group)


def _aborted_transactions(log: PartitionLog) -> list[AbortedTransaction]:
    """All there are: the marker of data in an early segment may be in a late one."""
    return [entry for segment in log.segments for entry in segment.transaction_index.entries()]


class Cleaner:
    """Compacts the logs of a host, one after the other.

    `offsets` says of each log how far it is compacted. `uncleanable` are logs with records that cannot be read; they
    are left alone until the next start.
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
    ) -> None:
        self.settings = settings
        self.offsets: dict[Key, int] = {}
        self.uncleanable: set[Key] = set()
        self._fs = fs
        self._host = host
        self._run_in_thread = run_in_thread
        self._monotonic = monotonic
        self._sleep = sleep
        self._current: _Compaction | None = None
        self._cancelled = False

    @property
    def current(self) -> Key | None:
        """The log that is being compacted."""
        return self._current.key if self._current is not None else None

    def step(self, now_ms: int) -> bool:
        """Begin with the dirtiest log that is due, unless one is being compacted."""
        if self._current is not None:
            return False
        target = self._dirtiest(now_ms)
        if target is None:
            return False
        logger.info("compacting log=%s from=%d to=%d", target.log, target.first_dirty_offset, target.end_offset)
        self._cancelled = False
        pacer = Pacer(self.settings.log_cleaner_io_max_bytes_per_second, self._monotonic, self._sleep, self._check)
        try:
            compaction = _Compaction(self._fs, target, self.settings, now_ms, pacer)
        except OSError as error:
            self._host.fail_directory(target.log.log_directory, error)
            return False
        self._current = compaction
        self._run(compaction, compaction.prepare, lambda: self._plan(compaction))
        # Work that was done at once leaves room for the next log.
        return self._current is None

    def cancel(self, key: Key | None = None) -> None:
        """Give up the log being compacted: the one of `key`, or whichever it is."""
        if self._current is not None and key in (None, self._current.key):
            self._cancelled = True

    def forget(self, key: Key) -> None:
        """The log is gone."""
        self.cancel(key)
        self.offsets.pop(key, None)
        self.uncleanable.discard(key)

    def truncated(self, key: Key, offset: int) -> None:
        """The log was cut at `offset`: what comes behind it will be new."""
        self.cancel(key)
        if self.offsets.get(key, -1) > offset:
            self.offsets[key] = offset

    def _dirtiest(self, now_ms: int) -> Target | None:
        best: Target | None = None
        for log in self._host.all_logs():
            key = (log.topic, log.partition)
            if not log.config.compacts or log.failure is not None or key in self.uncleanable:
                continue
            try:
                target = find_target(log, self.offsets.get(key), now_ms)
            except OSError as error:
                self._host.fail_directory(log.log_directory, error)
                continue
            if target is not None and target.is_due and (best is None or target.ratio > best.ratio):
                best = target
        return best

    def _check(self) -> None:
        if self._cancelled:
            raise Cancelled

    def _run(self, compaction: _Compaction, work: Callable[[], None], then: Callable[[], None]) -> None:
        def finish(error: Exception | None) -> None:
            if error is None and not self._cancelled:
                then()
            else:
                self._give_up(compaction, error)

        self._run_in_thread(work, finish)

    def _give_up(self, compaction: _Compaction, error: Exception | None) -> None:
        self._current = None
        log = compaction.log
        # A file that is not there was deleted with its segment or log, whoever did that.
        if self._cancelled or error is None or isinstance(error, FileNotFoundError):
            logger.info("compaction cancelled log=%s", log)
        elif isinstance(error, OSError | LogDirFailure):
            self._host.fail_directory(log.log_directory, error)
        else:
            self.uncleanable.add(compaction.key)
            logger.error("cannot compact log=%s error=%s", log, error, exc_info=error)

    def _plan(self, compaction: _Compaction) -> None:
        try:
            has_gain = compaction.plan()
        except OSError as error:
            self._give_up(compaction, error)
            return
        if has_gain:
            self._next_group(compaction)
        else:
            self._give_up(compaction, ValueError("log.cleaner.dedupe.buffer.size is too small for one batch"))

    def _next_group(self, compaction: _Compaction) -> None:
        if not compaction.groups:
            self._finish(compaction)
            return
        group = compaction.groups.pop(0)
        write, written = compaction.writing(group)
        self._run(compaction, write, lambda: self._swap(compaction, group, written[0]))

    def _swap(self, compaction: _Compaction, group: list[Segment], replacement: Segment) -> None:
        log = compaction.log
        if log.failure is not None or log.directory != compaction.directory or not compaction.is_in_place(group):
            self._cancelled = True
            self._give_up(compaction, None)
            return
        try:
            deleted = log.replace_segments(replacement, group)
        except LogDirFailure as failure:
            self._give_up(compaction, failure)
            return
        compaction.bytes_before += sum(segment.size_bytes for segment in group)
        compaction.bytes_after += replacement.size_bytes

        def finish(error: Exception | None) -> None:
            if error is None:
                # Not before: the names of what replaces them are durable only now.
                self._host.remove_later(log, deleted, compaction.now_ms)
            if error is None and not self._cancelled:
                self._next_group(compaction)
            else:
                self._give_up(compaction, error)

        self._run_in_thread(lambda: self._fs.sync_directory(compaction.directory), finish)

    def _finish(self, compaction: _Compaction) -> None:
        """Only now, with all replacements durable, may the log count as compacted up to there."""
        log = compaction.log
        logger.info(
            "compacted log=%s up_to=%d bytes_before=%d bytes_after=%d keys=%d",
            log,
            compaction.end_offset,
            compaction.bytes_before,
            compaction.bytes_after,
            len(compaction.offsets),
        )
        self.offsets[compaction.key] = compaction.end_offset

        def done() -> None:
            self._current = None

        self._host.checkpoint_cleaned(log.log_directory, done)
