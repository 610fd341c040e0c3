"""Records around positions in the partitions of a topic: the next ones from there, or those before it.

A scan is bounded in records, bytes and time, so that a page is shown soon; it reports the positions to continue at.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from heapq import merge
from typing import Final, NamedTuple

from odradek.tools.console.records.decoding import LIST_CHARACTERS, ShownRecord, contains, show_record
from odradek.tools.console.records.fetching import READ_UNCOMMITTED, Fetched, fetch_records
from odradek.tools.console.records.schemas import SchemaDecoder
from odradek.tools.kafka.cluster import Cluster

MOST_RECORDS: Final = 50
SEARCHED_OFFSETS: Final = 10_000
"""Offsets of a partition that a search among the newest records reads."""

MOST_BYTES: Final = 64 << 20
MOST_SECONDS: Final = 4.0
_WINDOW_OF_ALL: Final = 600
_LEAST_WINDOW: Final = 5
_RECORDS_PER_CHECK: Final = 1_000
"""Records of a batch between checks of the limits; a batch of compressed records may have millions."""

Positions = Mapping[int, int]


class Ranges(NamedTuple):
    """Leaders, first offsets and end offsets of the partitions of a topic.

    isolation_level: READ_COMMITTED for committed records, which end before the first open transaction
    problems: why partitions are missing whose leaders do not answer
    """

    leaders: Positions
    first: Positions
    end: Positions
    isolation_level: int = READ_UNCOMMITTED
    problems: Sequence[str] = ()


class Scan(NamedTuple):
    """Records in the order of their timestamps, within a partition in that of their offsets.

    before: positions for the records before these, and `after` for those behind them
    scanned: number of records that were read
    is_complete: False if the scan ended at its limit of bytes or time
    problems: batches that could not be decoded
    """

    records: list[ShownRecord]
    before: Positions
    after: Positions
    scanned: int
    is_complete: bool
    problems: list[str]


class _Reading:
    """The progress of a scan in its partitions.

    starts: offsets of the first records, and `reached` those after the last ones
    found: the selected records of each partition, at most MOST_RECORDS; forward the first ones, backward the last ones
    omitted: partitions with more selected records
    """

    def __init__(self, starts: Positions) -> None:
        self.starts = dict(starts)
        self.reached = dict(starts)
        self.found: dict[int, deque[ShownRecord]] = {one: deque(maxlen=MOST_RECORDS) for one in starts}
        self.omitted: set[int] = set()
        self.scanned = 0
        self.size_bytes = 0
        self.problems: list[str] = []

    def restart(self, partition: int, start: int) -> None:
        """Begin again at a later offset of a partition."""
        self.starts[partition] = self.reached[partition] = start
        self.found[partition].clear()
        self.omitted.discard(partition)

    def merge(self) -> list[ShownRecord]:
        """Return the found records by timestamp; those of a partition stay in the order of their offsets."""
        return list(merge(*self.found.values(), key=lambda record: record.timestamp_ms))

    def merge_backward(self) -> list[ShownRecord]:
        """Return the found records from the last one to the first."""
        return list(merge(*map(reversed, self.found.values()), key=lambda record: -record.timestamp_ms))


class Scanner:
    """Scans of one topic. `needle` selects records whose key, value or headers contain it; empty selects all."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        ranges: Ranges,
        needle: bytes,
        monotonic: Callable[[], float],
        schemas: SchemaDecoder | None = None,
    ) -> None:
        self._cluster = cluster
        self._topic = topic
        self._ranges = ranges
        self._needle = needle
        self._monotonic = monotonic
        self._schemas = schemas
        self._give_up_at = monotonic() + MOST_SECONDS

    def scan_forward(self, positions: Positions) -> Scan:
        """Return the first records from positions on."""
        reading = _Reading({one: self._clamp(one, offset) for one, offset in positions.items()})
        ends = self._ranges.end
        while waiting := {
            one: offset
            for one, offset in reading.reached.items()
            if offset < ends[one] and len(reading.found[one]) < MOST_RECORDS
        }:
            if not self._read(reading, waiting, ends, keeps_first=True):
                break
        merged = reading.merge()
        shown, after = merged[:MOST_RECORDS], dict(reading.reached)
        # A partition with found records that are not shown continues at the first of them.
        for record in reversed(merged[MOST_RECORDS:]):
            after[record.partition] = record.offset
        return self._finish(reading, shown, reading.starts, after, is_complete=not self._is_exhausted(reading))

    def scan_backward(self, positions: Positions) -> Scan:
        """Return the last records before positions."""
        ends = {one: self._clamp(one, offset) for one, offset in positions.items()}
        window = SEARCHED_OFFSETS
        if not self._needle:
            window = min(MOST_RECORDS, max(_WINDOW_OF_ALL // max(len(ends), 1), _LEAST_WINDOW))
        reading = _Reading({one: max(end - window, self._ranges.first[one]) for one, end in ends.items()})
        is_first = True
        while waiting := {one: offset for one, offset in reading.reached.items() if offset < ends[one]}:
            if not self._read(reading, waiting, ends, keeps_first=False):
                break
            if is_first and not self._needle:
                _skip_to_last(reading, ends)
            is_first = False
        merged = reading.merge_backward()
        shown, before = merged[:MOST_RECORDS][::-1], dict(reading.starts)
        for one in reading.omitted:
            before[one] = reading.found[one][0].offset
        for record in reversed(merged[MOST_RECORDS:]):
            before[record.partition] = record.offset + 1
        is_complete = all(offset >= ends[one] for one, offset in reading.reached.items())
        return self._finish(reading, shown, before, reading.reached, is_complete=is_complete)

    def _finish(
        self, reading: _Reading, shown: list[ShownRecord], before: Positions, after: Positions, *, is_complete: bool
    ) -> Scan:
        return Scan(shown, before, after, reading.scanned, is_complete, reading.problems)

    def _read(self, reading: _Reading, offsets: Positions, ends: Positions, *, keeps_first: bool) -> bool:
        """Read one response of each partition; return False if the scan must end."""
        if self._is_exhausted(reading):
            return False
        before = dict(reading.reached)
        fetched = fetch_records(self._cluster, self._topic, offsets, self._ranges.leaders, self._ranges.isolation_level)
        for partition, one in fetched.items():
            self._add(reading, partition, one, ends[partition], keeps_first=keeps_first)
        return reading.reached != before

    def _add(self, reading: _Reading, partition: int, fetched: Fetched, end: int, *, keeps_first: bool) -> None:
        found = reading.found[partition]
        for batch in fetched.iter_batches():
            header = batch.header
            try:
                for record in fetched.iter_records(batch):
                    if record.offset >= end:
                        break
                    is_check_due = reading.scanned > 0 and reading.scanned % _RECORDS_PER_CHECK == 0
                    if is_check_due and self._is_exhausted(reading):
                        reading.reached[partition] = record.offset
                        return
                    reading.scanned += 1
                    reading.size_bytes += len(record.key or b"") + len(record.value or b"")
                    if self._needle and not contains(record, self._needle):
                        continue
                    if len(found) == MOST_RECORDS:
                        reading.omitted.add(partition)
                        if keeps_first:
                            reading.reached[partition] = record.offset
                            return
                    found.append(
                        show_record(partition, record, LIST_CHARACTERS, header.is_transactional, self._schemas)
                    )
            except ValueError as error:
                problem = f"the batch at offset {header.base_offset} cannot be decoded: {error}"
                reading.problems.append(f"{self._topic}-{partition}: {problem}")
            reading.reached[partition] = max(reading.reached[partition], min(header.next_offset, end))
            if self._is_exhausted(reading):
                return

    def _is_exhausted(self, reading: _Reading) -> bool:
        return reading.size_bytes >= MOST_BYTES or self._monotonic() >= self._give_up_at

    def _clamp(self, partition: int, offset: int) -> int:
        return min(max(offset, self._ranges.first[partition]), self._ranges.end[partition])


def _skip_to_last(reading: _Reading, ends: Positions) -> None:
    """Skip records in partitions whose first response did not reach the end, because records are large.

    As many records as fitted into that response are expected to fit into the next one.
    """
    for partition, reached in reading.reached.items():
        start = ends[partition] - max(len(reading.found[partition]), 1)
        if reached < ends[partition] and start > reading.starts[partition]:
            reading.restart(partition, start)
