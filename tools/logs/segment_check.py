"""Check of a segment: its batches, their records, and its indexes."""

from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from odradek.log.segments.segment_files import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    file_name,
)
from odradek.log.storage.filesystem import File
from odradek.tools.logs.batches import Damage, StoredBatch, read_batches
from odradek.tools.logs.directories import DirectoryState
from odradek.tools.logs.findings import Severity
from odradek.tools.logs.index_checks import OffsetIndexCheck, TimeIndexCheck
from odradek.tools.logs.partition_state import COPY, MAX_OFFSET, PartitionState
from odradek.tools.logs.record_checks import find_header_flaws, find_record_flaws

Index = TypeVar("Index", OffsetIndexCheck, TimeIndexCheck)

_PROGRESS_BYTES: Final = 4 << 20


class SegmentCheck:
    """Check of one segment. `limit` is the base offset of the next one."""

    def __init__(self, partition: PartitionState, base: int, limit: int) -> None:
        self.of = partition
        self.base = base
        self.limit = limit
        self.is_last = limit == MAX_OFFSET
        self.report = partition.report
        self.path = partition.path(file_name(base, LOG_SUFFIX))
        self.file: File = partition.fs.open(self.path)
        self.size_bytes = self.file.size_bytes()
        self.has_damage = False
        # A running broker appends after the size of the file is read.
        self.is_growing = self.is_last and partition.parent.state is DirectoryState.IN_USE
        self.is_sealed = not self.is_last or partition.is_clean
        fs = partition.fs
        self.offset_index = self._open(INDEX_SUFFIX, partial(OffsetIndexCheck, fs))
        self.time_index = self._open(TIME_INDEX_SUFFIX, partial(TimeIndexCheck, fs))

    def _open(self, suffix: str, open_index: Callable[..., Index]) -> Index | None:
        path = self.of.path(file_name(self.base, suffix))
        try:
            return open_index(path, self.base, self.report, is_sealed=self.is_sealed, may_grow=self.is_growing)
        except FileNotFoundError:
            if self.is_sealed and self.size_bytes:
                remedy = "nothing in Odradek, whose next start rebuilds it; Apache Kafka rebuilds a missing .index only"
                self.report.add(Severity.WARNING, "missing-index", path, "the index is missing", remedy)
            return None

    def run(self) -> None:
        """Read all batches of the segment once."""
        reported = 0
        for item in read_batches(self.file, self.size_bytes):
            if isinstance(item, Damage):
                self._add_damage(item)
            else:
                self._add_batch(item)
                if item.position - reported > _PROGRESS_BYTES:
                    self.of.options.on_progress(item.position - reported)
                    reported = item.position
        self.of.options.on_progress(self.size_bytes - reported)
        self._finish()

    def _finish(self) -> None:
        partition, end_offset = self.of, self.of.next_offset
        if self.offset_index is not None:
            self.offset_index.finish(end_offset, may_exceed=self.has_damage or self.is_growing)
        if self.time_index is not None:
            self.time_index.finish(may_exceed=self.has_damage or self.is_growing)
        if not self.is_last and end_offset < self.limit:
            self._report_gap(self.size_bytes, end_offset, self.limit)
            partition.next_offset = self.limit
        transactions = partition.path(file_name(self.base, TRANSACTION_INDEX_SUFFIX))
        partition.producers.end_segment(
            transactions, partition.start_offset, end_offset if self.is_growing else MAX_OFFSET
        )

    def _add_batch(self, batch: StoredBatch) -> None:
        partition, totals = self.of, self.of.totals
        position, fields, data = batch
        first, _, epoch, _, _, _, last_delta, _, max_timestamp, producer_id, _, _, count = fields
        last = first + last_delta
        totals.batches += 1
        totals.records += count
        totals.size_bytes += len(data)
        for severity, problem in find_header_flaws(fields):
            self._add(severity, "header", problem, position)
        if partition.options.check_records:
            for severity, problem in find_record_flaws(fields, data):
                self._add(severity, "records", f"the batch with offsets {first} to {last}: {problem}", position)
        if first != partition.next_offset:
            self._check_offsets(position, first)
        if not self.base <= first <= last < self.limit:
            problem = f"a batch has offsets {first} to {last}, the segment {self.base} to {self.limit - 1}"
            self._add(Severity.ERROR, "offsets", problem, position)
        if count != last_delta + 1:
            partition.producers.has_gaps = True
        if partition.epochs is not None:
            partition.epochs.add(epoch, first, self.path, position)
        if self.offset_index is not None:
            self.offset_index.add(position, len(data), first, last)
        if self.time_index is not None:
            self.time_index.add(first, last, max_timestamp)
        if first >= partition.producers.next_snapshot:
            partition.producers.reach(first)
        if producer_id >= 0:
            partition.producers.add(fields, data, self.path, position)
        partition.next_offset = last + 1

    def _check_offsets(self, position: int, first: int) -> None:
        expected = self.of.next_offset
        if first > expected:
            self._report_gap(position, expected, first)
        else:
            problem = f"a batch begins at offset {first}, but the one before it ends at {expected - 1}"
            self._add(Severity.ERROR, "offsets", problem, position)

    def _report_gap(self, position: int, first: int, end: int) -> None:
        """Report missing offsets, unless compaction or damage explains them.

        Compaction leaves gaps above the offset in its checkpoint while it is in progress, or if it was interrupted.
        """
        partition, state = self.of, self.of.parent.state
        shows_compaction = partition.shows_compaction
        partition.producers.has_gaps = True
        if self.has_damage or partition.allows_gap(end):
            return
        is_inside = position < self.size_bytes
        partition.shows_compaction |= is_inside
        remedy = f"nothing if the topic is or was compacted; otherwise records are lost: {COPY}"
        if partition.was_compacted:
            if state is DirectoryState.IN_USE:
                return
            severity = Severity.NOTE
            remedy = f"nothing if a compaction was interrupted; otherwise records are lost: {COPY}"
        elif state is DirectoryState.IN_USE and (is_inside or shows_compaction):
            severity = Severity.NOTE
        elif is_inside or shows_compaction or state is DirectoryState.UNKNOWN:
            severity = Severity.WARNING
        else:
            severity = Severity.ERROR
        self.report.add(severity, "gap", self.path, f"offsets {first} to {end - 1} are missing", remedy, position)

    def _add(self, severity: Severity, check: str, problem: str, position: int) -> None:
        self.report.add(severity, check, self.path, problem, COPY, position)

    # Damage

    def _add_damage(self, damage: Damage) -> None:
        if damage.has_zeros_only:
            self._add_zeros(damage)
            return
        self.has_damage = self.of.producers.has_gaps = True
        if self.offset_index is not None:
            self.offset_index.skip(damage.end)
        if self.time_index is not None:
            self.time_index.skip()
        size = damage.end - damage.position
        if not self.is_last or not damage.is_last:
            problem = f"{damage.reason}; {size} bytes are skipped"
            remedy = (
                "consumers and followers cannot read past this position, and a recovery ends the segment there: stop "
                f"the broker, and {COPY}"
            )
            self.report.add(Severity.ERROR, "batch", self.path, problem, remedy, damage.position)
            return
        self._add_torn_tail(damage, size)

    def _add_torn_tail(self, damage: Damage, size: int) -> None:
        """Report damage at the end of the log: unflushed bytes of a crash, unless the end was flushed."""
        state = self.of.parent.state
        recovery_point = self.of.parent.recovery_point(self.of.partition.key) or 0
        problem = f"{damage.reason}; the last {size} bytes of the log are no valid batch"
        severity, remedy = Severity.WARNING, "nothing; the broker's next start removes them"
        if self.of.is_clean:
            severity = Severity.ERROR
            remedy = f"a clean stop leaves no such bytes: if records are missing, {COPY}"
        elif self.of.next_offset < recovery_point:
            severity = Severity.ERROR
            problem += f", below the recovery point {recovery_point}"
            remedy = f"flushed records are lost: {COPY}"
        elif state is DirectoryState.IN_USE:
            severity = Severity.NOTE
            remedy = "nothing if the broker is writing a batch; if it remains, the disk may be full"
        self.report.add(severity, "torn-tail", self.path, problem, remedy, damage.position)

    def _add_zeros(self, damage: Damage) -> None:
        if self.is_last and self.of.parent.state in (DirectoryState.IN_USE, DirectoryState.UNKNOWN):
            # Preallocated space.
            return
        size = damage.end - damage.position
        remedy = "nothing; the broker's next start removes them, and they are no records"
        problem = f"the last {size} bytes are zeros: preallocated space, or data that a power failure destroyed"
        self.report.add(Severity.WARNING, "zeros", self.path, problem, remedy, damage.position)
