"""Records around positions in the partitions of a topic: the next ones from there, or those before it.

A scan is bounded in records, bytes and time, so that a page is shown soon; it reports the positions to continue at.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import islice
from typing import Final, NamedTuple

from odradek.protocol.batches.record_reader import Record
from odradek.tools.console.inputs import MOST_OFFSET
from odradek.tools.console.records.decoding import LIST_CHARACTERS, ShownRecord, contains, show_record
from odradek.tools.console.records.fetching import READ_UNCOMMITTED, Fetched, fetch_records
from odradek.tools.console.records.schemas import TopicSchemas
from odradek.tools.console.records.timestamps import fetch_newest_times, fetch_oldest_times
from odradek.tools.kafka.cluster import Cluster
from odradek.tools.logs.decoding import decoder_of

MOST_RECORDS: Final = 50
SEARCHED_OFFSETS: Final = 10_000
"""Offsets of a partition that a search among the newest records reads."""

PARTITIONS_PER_STEP: Final = MOST_RECORDS
"""Partitions that are read before their records are compared with the timestamps of the other partitions."""

MOST_PARTITIONS: Final = 40 * PARTITIONS_PER_STEP
"""Partitions that a page reads; a search reads all."""

MOST_BYTES: Final = 64 << 20
MOST_SECONDS: Final = 4.0
_WINDOW_OF_ALL: Final = 600
_LEAST_WINDOW: Final = 5
_LARGE_BYTES: Final = 64 << 10
"""Contents that are shortened at once, so that a scan does not keep all of them."""

_RECORDS_PER_CHECK: Final = 1_000
"""Records of a batch between checks of the limits; a batch of compressed records may have millions."""

Positions = Mapping[int, int]

_WIDER: Final = 8
"""Factor of a window in which no record was found."""


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
    partitions: number of partitions with records before or behind the positions, of which `partitions_read` were read
    is_ordered: False if the partitions that were not read may have records of the time of these
    """

    records: list[ShownRecord]
    before: Positions
    after: Positions
    scanned: int
    is_complete: bool
    problems: list[str]
    partitions: int
    partitions_read: int
    is_ordered: bool


class _ReadRecord(NamedTuple):
    """A record that is decoded only if it is shown."""

    partition: int
    offset: int
    timestamp_ms: int
    record: Record
    is_transactional: bool


_Found = ShownRecord | _ReadRecord


class _Step(NamedTuple):
    """Partitions that are read together.

    next_time: bound of the timestamps in all later steps, multiplied by `sign`, which is -1 if the newest come first;
        None in the last step
    """

    partitions: Sequence[int]
    next_time: int | None = None
    sign: int = 1


def _measure(record: Record) -> int:
    """Return the bytes of a record's key, value and headers."""
    size_bytes = len(record.key or b"") + len(record.value or b"")
    return size_bytes + sum(len(name) + len(value or b"") for name, value in record.headers)


class _Reading:
    """The progress of a scan in its partitions.

    starts: offsets of the first records, and `reached` those after the last ones
    found: the selected records of each partition, at most MOST_RECORDS; forward the first ones, backward the last ones
    omitted: partitions with more selected records
    has_gaps: the last offsets of a partition have no records, and those before them were not read
    shortened: partitions in which fewer records than usual were read, because they are large
    """

    def __init__(self, starts: Positions) -> None:
        self.starts = dict(starts)
        self.reached = dict(starts)
        self.found: dict[int, deque[_Found]] = {one: deque(maxlen=MOST_RECORDS) for one in starts}
        self.omitted: set[int] = set()
        self.shortened: set[int] = set()
        self.scanned = 0
        self.size_bytes = 0
        self.partitions_read = 0
        self.is_ordered = True
        self.has_gaps = False
        self.problems: list[str] = []

    def restart(self, partition: int, start: int) -> None:
        """Begin again at another offset of a partition."""
        self.starts[partition] = self.reached[partition] = start
        self.found[partition].clear()
        self.omitted.discard(partition)

    def merge(self) -> Iterator[_Found]:
        """Iterate over the found records by timestamp; those of a partition stay in the order of their offsets."""
        return iter(merge(*filter(None, self.found.values()), key=lambda record: record.timestamp_ms))

    def merge_backward(self) -> Iterator[_Found]:
        """Iterate over the found records from the last one to the first."""
        found = map(reversed, filter(None, self.found.values()))
        return iter(merge(*found, key=lambda record: -record.timestamp_ms))


_NO_SCHEMAS: Final = TopicSchemas()


class Scanner:
    """Scans of one topic. `needle` selects records whose key, value or headers contain it; empty selects all."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        ranges: Ranges,
        needle: bytes,
        monotonic: Callable[[], float],
        schemas: TopicSchemas = _NO_SCHEMAS,
    ) -> None:
        self._cluster = cluster
        self._topic = topic
        self._ranges = ranges
        self._needle = needle
        self._monotonic = monotonic
        self._schemas = schemas
        self._decode = decoder_of(topic)
        self._give_up_at = monotonic() + MOST_SECONDS

    def scan_forward(self, positions: Positions, times: Mapping[int, int] | None = None) -> Scan:
        """Return the first records from positions on. `times` are the timestamps of the records there, if known."""
        reading = _Reading({one: self._clamp(one, offset) for one, offset in positions.items()})
        ends = self._ranges.end
        pending = [one for one, offset in reading.reached.items() if offset < ends[one]]
        for step in self._plan_forward(pending, times):
            self._read_after(reading, step.partitions, ends)
            if self._is_last(reading, step, reading.merge()):
                break
        merged = list(reading.merge())
        shown, after = merged[:MOST_RECORDS], dict(reading.reached)
        # A partition with found records that are not shown continues at the first of them.
        for record in reversed(merged[MOST_RECORDS:]):
            after[record.partition] = record.offset
        return self._finish(
            reading, shown, reading.starts, after, len(pending), is_complete=not self._is_exhausted(reading)
        )

    def scan_backward(self, positions: Positions) -> Scan:
        """Return the last records before positions."""
        ends = {one: self._clamp(one, offset) for one, offset in positions.items()}
        reading = _Reading(ends)
        pending = [one for one, end in ends.items() if end > self._ranges.first[one]]
        for step in self._plan_backward(pending):
            self._read_before(reading, step.partitions, ends)
            if self._is_last(reading, step, reading.merge_backward()):
                break
        merged = list(reading.merge_backward())
        shown, before = merged[:MOST_RECORDS][::-1], dict(reading.starts)
        for one in reading.omitted:
            before[one] = reading.found[one][0].offset
        for record in reversed(merged[MOST_RECORDS:]):
            before[record.partition] = record.offset + 1
        is_complete = all(offset >= ends[one] for one, offset in reading.reached.items())
        return self._finish(reading, shown, before, reading.reached, len(pending), is_complete=is_complete)

    def _plan_forward(self, pending: Sequence[int], times: Mapping[int, int] | None) -> Iterator[_Step]:
        if self._needle or len(pending) <= PARTITIONS_PER_STEP:
            return iter([_Step(pending)])
        if times is None:
            times = fetch_oldest_times(self._cluster, self._topic, pending, self._ranges.leaders)
        return _iter_steps({one: times.get(one, -1) for one in pending})

    def _plan_backward(self, pending: Sequence[int]) -> Iterator[_Step]:
        if self._needle or len(pending) <= PARTITIONS_PER_STEP:
            return iter([_Step(pending)])
        times = fetch_newest_times(self._cluster, self._topic, pending, self._ranges.leaders)
        # The newest times come first, and those that are not known.
        return _iter_steps({one: -times.get(one, MOST_OFFSET) for one in pending}, -1)

    def _is_last(self, reading: _Reading, step: _Step, merged: Iterator[_Found]) -> bool:
        """Count a step, and return whether the scan ends with it."""
        reading.partitions_read += len(step.partitions)
        if step.next_time is None:
            return True
        last = next(islice(merged, MOST_RECORDS - 1, None), None)
        if last is not None and step.sign * last.timestamp_ms <= step.next_time:
            return True
        reading.is_ordered = reading.partitions_read < MOST_PARTITIONS and not self._is_exhausted(reading)
        return not reading.is_ordered

    def _read_after(self, reading: _Reading, partitions: Sequence[int], ends: Positions) -> None:
        """Read the first records of partitions."""
        while waiting := {
            one: reading.reached[one]
            for one in partitions
            if reading.reached[one] < ends[one] and len(reading.found[one]) < MOST_RECORDS
        }:
            if not self._read(reading, waiting, ends, keeps_first=True):
                break

    def _read_before(self, reading: _Reading, partitions: Sequence[int], ends: Positions) -> None:
        """Read the last records of partitions."""
        window = SEARCHED_OFFSETS
        if not self._needle:
            window = min(MOST_RECORDS, max(_WINDOW_OF_ALL // max(len(partitions), 1), _LEAST_WINDOW))
        self._read_windows(reading, partitions, ends, window)
        if self._needle:
            return
        self._read_beyond_gaps(reading, partitions, ends, window)
        if window == MOST_RECORDS or self._is_exhausted(reading):
            return
        # A partition all of whose read records are shown may have more of them that are newer than those of others.
        shown = Counter(record.partition for record in islice(reading.merge_backward(), MOST_RECORDS))
        exhausted = [
            one
            for one in partitions
            if reading.starts[one] > self._ranges.first[one]
            and one not in reading.shortened
            and shown[one] == len(reading.found[one])
        ]
        self._read_windows(reading, exhausted, ends, MOST_RECORDS)

    def _read_beyond_gaps(self, reading: _Reading, partitions: Sequence[int], ends: Positions, window: int) -> None:
        """Read further in partitions whose last offsets have no records: they are markers, aborted or compacted."""
        while empty := [
            one for one in partitions if not reading.found[one] and reading.starts[one] > self._ranges.first[one]
        ]:
            if self._is_exhausted(reading):
                reading.has_gaps = True
                return
            window *= _WIDER
            self._read_windows(reading, empty, ends, window)

    def _read_windows(self, reading: _Reading, partitions: Sequence[int], ends: Positions, window: int) -> None:
        for one in partitions:
            reading.restart(one, max(ends[one] - window, self._ranges.first[one]))
        is_first = True
        while waiting := {one: reading.reached[one] for one in partitions if reading.reached[one] < ends[one]}:
            if not self._read(reading, waiting, ends, keeps_first=False):
                break
            if is_first and not self._needle:
                _skip_to_last(reading, partitions, ends)
            is_first = False

    def _finish(
        self,
        reading: _Reading,
        shown: list[_Found],
        before: Positions,
        after: Positions,
        partitions: int,
        *,
        is_complete: bool,
    ) -> Scan:
        return Scan(
            [self._show(one) for one in shown],
            before,
            after,
            reading.scanned,
            is_complete,
            reading.problems,
            partitions,
            reading.partitions_read,
            reading.is_ordered and not reading.has_gaps,
        )

    def _show(self, found: _Found) -> ShownRecord:
        if isinstance(found, ShownRecord):
            return found
        return show_record(
            found.partition, found.record, LIST_CHARACTERS, found.is_transactional, self._schemas, self._decode
        )

    def _read(self, reading: _Reading, offsets: Positions, ends: Positions, *, keeps_first: bool) -> bool:
        """Read one response of each partition; return False if the scan must end."""
        if self._is_exhausted(reading):
            return False
        before = dict(reading.reached)
        fetched = fetch_records(self._cluster, self._topic, offsets, self._ranges.leaders, self._ranges.isolation_level)
        for partition, one in fetched.items():
            self._add(reading, partition, one, ends[partition], keeps_first=keeps_first)
        for partition in offsets.keys() - fetched.keys():
            problem = f"{self._topic}-{partition} cannot be read: its leader has moved, or its records were deleted"
            if problem not in reading.problems:
                reading.problems.append(problem)
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
                    size_bytes = _measure(record)
                    reading.size_bytes += size_bytes
                    if self._needle and not contains(record, self._needle):
                        continue
                    if len(found) == MOST_RECORDS:
                        reading.omitted.add(partition)
                        if keeps_first:
                            reading.reached[partition] = record.offset
                            return
                    one = _ReadRecord(partition, record.offset, record.timestamp, record, header.is_transactional)
                    found.append(self._show(one) if size_bytes > _LARGE_BYTES else one)
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


def _skip_to_last(reading: _Reading, partitions: Sequence[int], ends: Positions) -> None:
    """Skip records in partitions whose first response did not reach the end, because records are large.

    As many records as fitted into that response are expected to fit into the next one.
    """
    for partition in partitions:
        start = ends[partition] - max(len(reading.found[partition]), 1)
        if reading.reached[partition] < ends[partition] and start > reading.starts[partition]:
            reading.restart(partition, start)
            reading.shortened.add(partition)


def _iter_steps(times: Mapping[int, int], sign: int = 1) -> Iterator[_Step]:
    """Iterate over partitions in the order of `times`."""
    order = sorted(times, key=lambda one: (times[one], one))
    for start in range(0, len(order), PARTITIONS_PER_STEP):
        end = start + PARTITIONS_PER_STEP
        yield _Step(order[start:end], times[order[end]] if end < len(order) else None, sign)
