"""One batch of a pipeline: decode records, write dead letters, pass rows to the sink.

After a crash a batch is repeated with the same records; the sink writes no row twice.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as f
from pyspark.storagelevel import StorageLevel

from odradek.spark_it.dead_letters.bad_records import find_bad_record
from odradek.spark_it.dead_letters.writer import DeadLetterWriter
from odradek.spark_it.definition.settings import ErrorSettings
from odradek.spark_it.interfaces.sink import BatchSink, Range, SinkBatch, SinkError, WrittenCounts
from odradek.spark_it.interfaces.source import Stream
from odradek.spark_it.spark.columns import column
from odradek.spark_it.spark.internals import find_offset_ranges, wait_for_metrics
from odradek.spark_it.transforms.plan import READ, Plan, union_dead_letters

FIRST_DELAY_S = 0.5
_COUNTED_S = 5.0

T = TypeVar("T")


class StoppedError(Exception):
    """The pipeline was stopped before a batch completed; the next run repeats the batch."""


@dataclass(frozen=True)
class BatchOutcome:
    """The outcome of a batch. `read` is None if it was not counted; `broken` is the number of rows that violate an
    expectation, by table and expectation.
    """

    id: int
    written: int
    dead_lettered: int
    read: int | None = None
    broken: Mapping[tuple[str, str], int] = field(default_factory=dict)


class ObservedCounts:
    """Counts that Spark collects while it computes a batch (`Observation`)."""

    def __init__(self) -> None:
        self._observations: list[tuple[str, Observation]] = []

    def observe(self, frame: DataFrame, name: str, counts: Sequence[Column]) -> DataFrame:
        observation = Observation()
        self._observations.append((name, observation))
        return frame.observe(observation, *counts)

    def collect(self) -> dict[tuple[str, str], int]:
        """Return the counts by table and name. A frame that the sink did not read has no counts."""
        give_up_at = time.monotonic() + _COUNTED_S
        counts: dict[tuple[str, str], int] = {}
        for table, observation in self._observations:
            metrics = wait_for_metrics(observation, give_up_at) or {}
            counts |= {(table, name): int(count or 0) for name, count in metrics.items()}
        return counts


@dataclass(frozen=True)
class BatchContent:
    """The rows and dead letters of a batch."""

    rows: DataFrame
    dead: DataFrame | None
    counts: ObservedCounts


class BatchWriter:
    """Writes batches to the sink, and retries while it is unavailable.

    `log` is called with the reason of each failure. Waiting ends when `stop` is set. `add_locations` adds the headers
    to dead letters that are too expensive to compute for every row.
    """

    def __init__(
        self,
        sink: BatchSink,
        dead_letters: DeadLetterWriter | None,
        errors: ErrorSettings,
        generation: int,
        log: Callable[[str], None],
        stop: threading.Event,
        state: str = "",
        add_locations: Callable[[DataFrame], DataFrame] = lambda dead: dead,
    ) -> None:
        self._sink = sink
        self._dead_letters = dead_letters
        self._errors = errors
        self._generation = generation
        self._state = state
        self._log = log
        self.stop = stop
        self._add_locations = add_locations

    def write(
        self, make_content: Callable[[], BatchContent], batch_id: int, ranges: tuple[Range, ...] | None
    ) -> BatchOutcome:
        """Write dead letters, then rows. Raises SinkError, StoppedError, BadRecordError."""
        dead_lettered: list[int] = []

        def attempt() -> BatchOutcome:
            # Each attempt needs new frames, because a Spark Observation can be used only once.
            content = make_content()
            dead = content.dead
            if dead is not None and not self._sink.takes_dead_letters:
                if not dead_lettered:
                    assert self._dead_letters is not None
                    dead_lettered.append(self._dead_letters.write(self._add_locations(dead)))
                dead = None
            elif dead is not None:
                dead = self._add_locations(dead)
            batch = SinkBatch(batch_id, self._generation, content.rows.sparkSession, ranges, self._state)
            written = self._sink.write(content.rows, dead, batch)
            return _make_outcome(batch_id, written, sum(dead_lettered), content.counts.collect())

        return self.retry_until_done(attempt)

    def retry_until_done(self, attempt: Callable[[], T]) -> T:
        """Call `attempt` until it succeeds; retry after retriable errors, until `retry.timeout` is exceeded."""
        started_at_s = time.monotonic()
        longest_s = self._errors.retry_delay_max_ms / 1000
        delay_s = min(FIRST_DELAY_S, longest_s)
        while True:
            try:
                return attempt()
            except SinkError as error:
                elapsed_ms = (time.monotonic() - started_at_s) * 1000
                is_late = 0 <= self._errors.retry_timeout < elapsed_ms + delay_s * 1000
                if not error.is_retriable or is_late:
                    raise
                self._log(f"{error}; retrying in {delay_s:g} s")
            if self.stop.wait(delay_s):
                raise StoppedError("stopped while the sink was unavailable")
            delay_s = min(delay_s * 2, longest_s)


def _make_outcome(
    batch_id: int, written: WrittenCounts, dead_lettered: int, counted: Mapping[tuple[str, str], int]
) -> BatchOutcome:
    read = [count for (_, name), count in counted.items() if name == READ]
    return BatchOutcome(
        id=batch_id,
        written=written.rows,
        dead_lettered=dead_lettered + written.dead_letters,
        read=sum(read) if read else None,
        broken={at: count for at, count in counted.items() if at[1] != READ and count},
    )


class StatelessBatches:
    """Batches of a stateless pipeline: the stream has the raw records of one source; the plan is applied to each
    batch."""

    def __init__(self, name: str, stream: Stream, plan: Plan, writer: BatchWriter, *, has_ranges: bool) -> None:
        self._name = name
        self._stream = stream
        self._plan = plan
        self._writer = writer
        self._has_ranges = has_ranges

    def __call__(self, raw: DataFrame, batch_id: int) -> BatchOutcome:
        ranges = find_offset_ranges(raw) if self._has_ranges else None
        decoded = self._stream.decode(raw)
        # Rows and dead letters must come from a single read, so the decoded frame is persisted until both are written.
        persisted = decoded.persist(StorageLevel.MEMORY_AND_DISK) if self._plan.has_dead_letters else None

        def make_content() -> BatchContent:
            counts = ObservedCounts()
            parts = self._plan.apply(raw.sparkSession, {self._name: decoded}, counts.observe)
            return BatchContent(parts.rows, union_dead_letters(parts), counts)

        try:
            return self._writer.write(make_content, batch_id, ranges)
        finally:
            if persisted is not None:
                persisted.unpersist()


class StatefulBatches:
    """Batches of a stateful pipeline: the stream includes the plan. Rows and dead letters are in one frame, which is
    split for each batch."""

    def __init__(self, plan: Plan, writer: BatchWriter) -> None:
        self._plan = plan
        self._writer = writer
        self._has_dead = False

    def make_frame(self, spark: SparkSession, decoded: Mapping[str, DataFrame]) -> DataFrame:
        """Return the streaming frame for the decoded frames of all sources. Spark's progress events have the counts."""
        parts = self._plan.apply(spark, decoded, lambda frame, name, counts: frame.observe(name, *counts))
        dead = union_dead_letters(parts)
        if dead is None:
            return parts.rows
        self._has_dead = True
        row, letter = f.struct(*_list_columns(parts.rows)), f.struct(*_list_columns(dead))
        row_type, letter_type = parts.rows.schema, dead.schema
        rows = parts.rows.select(row.alias("row"), f.lit(None).cast(letter_type).alias("dead"))
        return rows.unionAll(dead.select(f.lit(None).cast(row_type).alias("row"), letter.alias("dead")))

    def __call__(self, frame: DataFrame, batch_id: int) -> BatchOutcome:
        # A sink may compute its rows several times, but Spark's state must be computed only once per batch.
        persisted = frame.persist(StorageLevel.MEMORY_AND_DISK)
        rows, dead = persisted, None
        if self._has_dead:
            rows = persisted.filter(f.col("row").isNotNull()).select("row.*")
            dead = persisted.filter(f.col("dead").isNotNull()).select("dead.*")
        try:
            return self._writer.write(lambda: BatchContent(rows, dead, ObservedCounts()), batch_id, None)
        finally:
            persisted.unpersist()


def _list_columns(frame: DataFrame) -> list[Column]:
    return [column(name) for name in frame.columns]


class BatchFunction:
    """The function for foreachBatch, which stores outcomes and failures for the runner.

    `begin` is called with the batch's number before each batch.
    """

    def __init__(
        self,
        batches: Callable[[DataFrame, int], BatchOutcome],
        stop: threading.Event,
        begin: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._batches = batches
        self._begin = begin
        self._stop = stop
        self._outcomes: dict[int, BatchOutcome] = {}
        self._lock = threading.Lock()
        self.failure: BaseException | None = None

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        with self._lock:
            try:
                if self._stop.is_set():
                    raise StoppedError("stopped before the batch")
                self._begin(batch_id)
                self._outcomes[batch_id] = self._batches(frame, batch_id)
            except BaseException as error:
                self.failure = find_bad_record(error) or error
                # The reason stays in `failure`; Spark would add Python's and Java's stack traces to it.
                raise RuntimeError(f"batch {batch_id} failed") from None

    def take_outcome(self, batch_id: int) -> BatchOutcome | None:
        """Remove and return the outcome of a batch; None if there is none."""
        return self._outcomes.pop(batch_id, None)

    def wait_until_idle(self) -> None:
        """Wait for the batch in progress. If `stop` is set, no other batch starts."""
        with self._lock:
            pass
