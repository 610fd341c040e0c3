"""The main thread's state of one compaction of one log."""

from bisect import bisect_right
from typing import Protocol

from odradek.log.compaction.cleanable import CleanableRange, group_segments
from odradek.log.compaction.run import CompactionJob, MappedKeys, Worker
from odradek.log.segments.segment import Segment


class CleanerSettings(Protocol):
    """The broker's properties that compaction uses."""

    @property
    def log_cleaner_threads(self) -> int: ...
    @property
    def log_cleaner_backoff_ms(self) -> int: ...
    @property
    def log_cleaner_dedupe_buffer_size(self) -> int: ...
    @property
    def log_cleaner_io_buffer_size(self) -> int: ...
    @property
    def log_cleaner_io_buffer_load_factor(self) -> float: ...
    @property
    def log_cleaner_io_max_bytes_per_second(self) -> float: ...


class Compaction:
    """A compaction of one log, from its first dirty offset to `end_offset`, that began at `began_s` (monotonic)."""

    def __init__(self, cleanable: CleanableRange, worker: Worker, now_ms: int, began_s: float = 0.0) -> None:
        log = cleanable.log
        self.log = log
        self.key = (log.topic, log.partition)
        self.cleanable = cleanable
        self.worker = worker
        self.now_ms = now_ms
        self.began_s = began_s
        self.directory = log.directory
        self.is_cancelled = False
        self.groups: list[list[Segment]] = []
        self.mapped = MappedKeys(-1, 0)
        self.end_offset = cleanable.first_dirty_offset
        self.bytes_before = self.bytes_after = 0
        self._segments = [segment for segment in log.segments if segment.base_offset < cleanable.end_offset]

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self._segments)

    def job(self, settings: CleanerSettings) -> CompactionJob:
        """Return the job for the worker. All threads share the cleaner's memory and I/O rate. Raises OSError."""
        log, config, share = self.log, self.log.config, max(1, settings.log_cleaner_threads)
        start_offset = self.cleanable.first_dirty_offset
        bases = [segment.base_offset for segment in self._segments]
        dirty = self._segments[max(0, bisect_right(bases, start_offset) - 1)]
        return CompactionJob(
            directory=self.directory,
            sources=tuple((segment.base_offset, segment.size_bytes) for segment in self._segments),
            all_bases=tuple(segment.base_offset for segment in log.segments),
            unwritten_aborted=tuple(
                (segment.base_offset, segment.transaction_index.unwritten)
                for segment in log.segments
                if segment.transaction_index.unwritten
            ),
            first_dirty_offset=start_offset,
            first_dirty_position=dirty.offset_index.floor_position(start_offset),
            end_offset=self.cleanable.end_offset,
            now_ms=self.now_ms,
            delete_retention_ms=config.delete_retention_ms,
            index_interval_bytes=config.index_interval_bytes,
            segment_index_bytes=config.segment_index_bytes,
            dedupe_bytes=settings.log_cleaner_dedupe_buffer_size // share,
            load_factor=settings.log_cleaner_io_buffer_load_factor,
            read_bytes=settings.log_cleaner_io_buffer_size // share // 2,
            bytes_per_second=max(1.0, settings.log_cleaner_io_max_bytes_per_second / share),
        )

    def plan(self) -> None:
        """Group the segments up to the last mapped offset. Raises OSError."""
        self.end_offset = self.mapped.latest_offset + 1
        segments = [segment for segment in self._segments if segment.base_offset < self.end_offset]
        self.groups = group_segments(segments, self.log.config, self.cleanable.end_offset)

    def is_in_place(self, group: list[Segment]) -> bool:
        """Return whether the log still contains these segments, adjacent and before its active segment."""
        segments = self.log.segments
        try:
            first = segments.index(group[0])
        except ValueError:
            return False
        return segments[first : first + len(group)] == group and len(segments) > first + len(group)
