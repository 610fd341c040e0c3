"""One batch of a pipeline: decode records, write dead letters, pass rows to the sink.

All of this may be repeated with the same records after a crash; the sink writes no row twice.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as f
from pyspark.storagelevel import StorageLevel

from odradek.spark_it.dead_letters.bad_records import bad_record
from odradek.spark_it.dead_letters.writer import DeadLetterWriter
from odradek.spark_it.definition.settings import ErrorSettings
from odradek.spark_it.interfaces.sink import Batch, BatchSink, Range, SinkError, Written
from odradek.spark_it.interfaces.source import Stream
from odradek.spark_it.spark.columns import column
from odradek.spark_it.spark.internals import metrics_of, offset_ranges
from odradek.spark_it.transforms.plan import READ, Plan, union_dead_letters

FIRST_DELAY_S = 0.5
_COUNTED_S = 5.0

T = TypeVar("T")


class StoppedError(Exception):
    """The pipeline was stopped while a batch was not done; the next run repeats it."""


@dataclass(frozen=True)
class BatchOutcome:
    """The outcome of a batch. `read` is None if it was not counted; `broken` has the number of rows that violate an
    expectation, by table and expectation.
    """

    id: int
    written: int
    dead_lettered: int
    read: int | None = None
    broken: Mapping[tuple[str, str], int] = field(default_factory=dict)


class Counts:
    """Counts that Spark makes while it computes a batch."""

    def __init__(self) -> None:
        self._observations: list[tuple[str, Observation]] = []

    def watch(self, frame: DataFrame, name: str, counts: Sequence[Column]) -> DataFrame:
        observation = Observation()
        self._observations.append((name, observation))
        return frame.observe(observation, *counts)

    def found(self) -> dict[tuple[str, str], int]:
        """Return the counts by table and name; none for a frame that the sink has not read."""
        give_up_at = time.monotonic() + _COUNTED_S
        counted: dict[tuple[str, str], int] = {}
        for table, observation in self._observations:
            metrics = metrics_of(observation, give_up_at) or {}
            counted |= {(table, name): int(count or 0) for name, count in metrics.items()}
        return counted


@dataclass(frozen=True)
class Content:
    """The rows and dead letters of a batch."""

    rows: DataFrame
    dead: DataFrame | None
    counts: Counts


class BatchWriter:
    """Passes batches to the sink, and retries while it is down.

    `said` is called with the reason of each failure. Waiting ends when `stop` is set. `located` adds headers to dead
    letters that are looked up for them only.
    """

    def __init__(
        self,
        sink: BatchSink,
        dead_letters: DeadLetterWriter | None,
        errors: ErrorSettings,
        generation: int,
        said: Callable[[str], None],
        stop: threading.Event,
        state: str = "",
        located: Callable[[DataFrame], DataFrame] = lambda dead: dead,
    ) -> None:
        self._sink = sink
        self._dead_letters = dead_letters
        self._errors = errors
        self._generation = generation
        self._state = state
        self._said = said
        self.stop = stop
        self._located = located

    def write(self, make: Callable[[], Content], batch_id: int, ranges: tuple[Range, ...] | None) -> BatchOutcome:
        """Write dead letters, then rows. Raises SinkError, StoppedError, BadRecordError."""
        dead_lettered: list[int] = []

        def once() -> BatchOutcome:
            # Made anew for each try, since Spark counts only once.
            content = make()
            dead = content.dead
            if dead is not None and not self._sink.takes_dead_letters:
                if not dead_lettered:
                    assert self._dead_letters is not None
                    dead_lettered.append(self._dead_letters.write(self._located(dead)))
                dead = None
            elif dead is not None:
                dead = self._located(dead)
            batch = Batch(batch_id, self._generation, content.rows.sparkSession, ranges, self._state)
            written = self._sink.write(content.rows, dead, batch)
            return _outcome(batch_id, written, sum(dead_lettered), content.counts.found())

        return self.until_done(once)

    def until_done(self, do: Callable[[], T]) -> T:
        """Retry a call while it fails with errors that may pass, until `retry.timeout` is over."""
        begun = time.monotonic()
        longest_s = self._errors.retry_delay_max_ms / 1000
        delay_s = min(FIRST_DELAY_S, longest_s)
        while True:
            try:
                return do()
            except SinkError as error:
                elapsed_ms = (time.monotonic() - begun) * 1000
                is_late = 0 <= self._errors.retry_timeout < elapsed_ms + delay_s * 1000
                if not error.is_retriable or is_late:
                    raise
                self._said(f"{error}; tried again in {delay_s:g} s")
            if self.stop.wait(delay_s):
                raise StoppedError("stopped while the sink was down")
            delay_s = min(delay_s * 2, longest_s)


def _outcome(
    batch_id: int, written: Written, dead_lettered: int, counted: Mapping[tuple[str, str], int]
) -> BatchOutcome:
    read = [count for (_, name), count in counted.items() if name == READ]
    return BatchOutcome(
        id=batch_id,
        written=written.rows,
        dead_lettered=dead_lettered + written.dead_letters,
        read=sum(read) if read else None,
        broken={at: count for at, count in counted.items() if at[1] != READ and count},
    )


class RawBatches:
    """Batches of a stream of raw records of one source; the whole plan runs within the batch."""

    def __init__(self, name: str, stream: Stream, plan: Plan, writer: BatchWriter, *, has_ranges: bool) -> None:
        self._name = name
        self._stream = stream
        self._plan = plan
        self._writer = writer
        self._has_ranges = has_ranges

    def __call__(self, raw: DataFrame, batch_id: int) -> BatchOutcome:
        ranges = offset_ranges(raw) if self._has_ranges else None
        decoded = self._stream.decoded(raw)
        # Rows and dead letters are of one read: what is decoded stays until both are written.
        kept = decoded.persist(StorageLevel.MEMORY_AND_DISK) if self._plan.has_dead_letters else None

        def make() -> Content:
            counts = Counts()
            parts = self._plan.parts(raw.sparkSession, {self._name: decoded}, counts.watch)
            return Content(parts.rows, union_dead_letters(parts), counts)

        try:
            return self._writer.write(make, batch_id, ranges)
        finally:
            if kept is not None:
                kept.unpersist()


class StreamBatches:
    """Batches of a stream that includes the plan: rows and dead letters come in one frame and are separated here."""

    def __init__(self, plan: Plan, writer: BatchWriter) -> None:
        self._plan = plan
        self._writer = writer
        self._is_both = False

    def frame(self, spark: SparkSession, decoded: Mapping[str, DataFrame]) -> DataFrame:
        """Return the stream, of the decoded frames of all sources; counts are in its progress."""
        parts = self._plan.parts(spark, decoded, lambda frame, name, counts: frame.observe(name, *counts))
        dead = union_dead_letters(parts)
        if dead is None:
            return parts.rows
        self._is_both = True
        row, letter = f.struct(*_columns(parts.rows)), f.struct(*_columns(dead))
        row_type, letter_type = parts.rows.schema, dead.schema
        rows = parts.rows.select(row.alias("row"), f.lit(None).cast(letter_type).alias("dead"))
        return rows.unionAll(dead.select(f.lit(None).cast(row_type).alias("row"), letter.alias("dead")))

    def __call__(self, frame: DataFrame, batch_id: int) -> BatchOutcome:
        # State is computed once, whatever the sink does with the rows.
        kept = frame.persist(StorageLevel.MEMORY_AND_DISK)
        rows, dead = kept, None
        if self._is_both:
            rows = kept.filter(f.col("row").isNotNull()).select("row.*")
            dead = kept.filter(f.col("dead").isNotNull()).select("dead.*")
        try:
            return self._writer.write(lambda: Content(rows, dead, Counts()), batch_id, None)
        finally:
            kept.unpersist()


def _columns(frame: DataFrame) -> list[Column]:
    return [column(name) for name in frame.columns]


class BatchFunction:
    """The function for foreachBatch. It keeps outcomes and failures for the runner.

    `begin` is called with the number of each batch before it.
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
                self.failure = bad_record(error) or error
                # Java sees only that it failed, not why with the whole stack.
                raise RuntimeError(f"batch {batch_id} is not done") from None

    def outcome(self, batch_id: int) -> BatchOutcome | None:
        """Return the outcome of a batch, once."""
        return self._outcomes.pop(batch_id, None)

    def wait_until_idle(self) -> None:
        """Wait for the batch in progress; when `stop` is set no other begins."""
        with self._lock:
            pass
