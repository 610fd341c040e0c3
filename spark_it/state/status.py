"""The state of a running or stopped pipeline and its lag, as the `status` command and the console show them."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from odradek.spark_it.definition.source_keys import TopicSource
from odradek.spark_it.definition.spec import Pipeline
from odradek.spark_it.interfaces.kafka_types import TopicPartition
from odradek.spark_it.kafka.requests import ClusterRequests
from odradek.spark_it.state import checkpoint
from odradek.spark_it.state.checkpoint import Checkpoint
from odradek.spark_it.state.lag import PartitionLag, compute_lags
from odradek.spark_it.state.lock import Lock, find_changes, find_stateful_reason, get_checkpoint_folder, make_lock
from odradek.spark_it.state.pid_lock import find_holder
from odradek.spark_it.state.progress import Progress, read_progress
from odradek.spark_it.state.reset import get_reached_offsets

SourceLags = Mapping[str, list[PartitionLag]]
"""The lag of each topic source by partition."""


@dataclass(frozen=True)
class PipelineState:
    """The state of a pipeline on this machine.

    process: the process that runs it; 0 if its id is unknown, None if the pipeline is stopped
    has_run: false before the first run
    batch: the newest batch; None before the first
    batch_started_ms: its start; None before the first batch
    completed: the newest batch that is completed; None before the first
    changes: changes of the file since the checkpoint was started that the next run refuses
    is_reset_pending: a reset was started and not finished
    progress: counts of the current or last run; None before its first batch
    """

    name: str
    process: int | None
    has_run: bool
    batch: int | None = None
    batch_started_ms: int | None = None
    completed: int | None = None
    changes: tuple[str, ...] = ()
    is_reset_pending: bool = False
    progress: Progress | None = None

    @property
    def is_running(self) -> bool:
        """True while a process runs the pipeline."""
        return self.process is not None

    @property
    def is_in_batch(self) -> bool:
        """True if the newest batch is not completed."""
        return self.batch != self.completed


def read_state(pipeline: Pipeline, lock: Lock | None) -> PipelineState:
    """Return the state on this machine. Raises CheckpointError, OSError."""
    process = find_holder(pipeline.state_folder)
    if lock is None:
        return PipelineState(pipeline.name, process, has_run=False)
    existing = checkpoint.read(get_checkpoint_folder(pipeline.state_folder, lock))
    planned = None if existing is None else existing.planned
    done = None if existing is None else existing.done
    new = make_lock(pipeline, find_stateful_reason(pipeline, lock), lock.generation)
    return PipelineState(
        pipeline.name,
        process,
        has_run=True,
        batch=None if planned is None else planned.id,
        batch_started_ms=None if planned is None else planned.started_ms,
        completed=None if done is None else done.id,
        changes=tuple(map(str, find_changes(pipeline, lock, new))),
        is_reset_pending=lock.is_pending,
        progress=read_progress(pipeline.state_folder),
    )


def fetch_lags(pipeline: Pipeline, lock: Lock | None, cluster: ClusterRequests) -> SourceLags:
    """Return the lag of the topic sources. Raises ClusterError, CheckpointError."""
    existing: Checkpoint | None = None
    if lock is not None:
        existing = checkpoint.read(get_checkpoint_folder(pipeline.state_folder, lock))
    reached: dict[TopicPartition, int] = {} if existing is None else get_reached_offsets(existing)
    lags = {}
    for name, source in pipeline.sources.items():
        if isinstance(source, TopicSource):
            partitions = cluster.list_partitions(source)
            lags[name] = compute_lags(
                cluster.fetch_earliest(partitions),
                cluster.fetch_latest(partitions),
                cluster.fetch_committed(pipeline.name, partitions),
                reached,
            )
    return lags


def make_json(state: PipelineState, lags: SourceLags | None) -> dict[str, Any]:
    """Return the object that `status --json` prints; `lags` is None if they cannot be determined."""
    sources = None
    if lags is not None:
        sources = {
            name: {"lag": sum(row.lag for row in rows), "partitions": [_make_lag_json(row) for row in rows]}
            for name, rows in lags.items()
        }
    return {**asdict(state), "is_running": state.is_running, "is_in_batch": state.is_in_batch, "sources": sources}


def _make_lag_json(row: PartitionLag) -> dict[str, Any]:
    return {**row._asdict(), "lag": row.lag, "is_lost": row.is_lost}


def describe_state(state: PipelineState) -> Iterator[str]:
    """Return lines about the state on this machine."""
    running = "stopped" if not state.is_running else f"running, process {state.process}" if state.process else "running"
    if not state.has_run:
        yield f"{state.name}: {running}, has never run"
        return
    yield f"{state.name}: {running}"
    yield f"  {_describe_batches(state)}"
    for change in state.changes:
        yield f"  will not run: {change}"
    if state.is_reset_pending:
        yield "  a reset was started and not finished; the next run or reset finishes it"
    if state.progress is not None:
        yield from (f"  {line}" for line in _describe_progress(state.progress))


def _describe_batches(state: PipelineState) -> str:
    if state.batch is None or state.batch_started_ms is None:
        return "no batch yet"
    started = f"batch {state.batch}, started {_format_time(state.batch_started_ms)}"
    if state.is_in_batch:
        done = "none" if state.completed is None else f"batch {state.completed}"
        return f"{started}, is not completed; last completed: {done}"
    return f"{started}, is completed"


def _describe_progress(progress: Progress) -> Iterator[str]:
    outcomes = (progress.written, progress.dead_lettered, progress.dropped)
    # In a stateful pipeline the number of rows read is not the sum of the outcomes.
    is_all, plus = (" = ", " + ") if progress.read == sum(outcomes) else (", ", ", ")
    counts = plus.join(
        f"{of:,} {what}" for of, what in zip(outcomes, ("written", "dead letters", "dropped"), strict=True)
    )
    yield (
        f"this run, up to {_format_time(progress.at_ms)}: {progress.read:,} read{is_all}{counts}; "
        f"{progress.rows_per_second:,.0f} rows/s"
    )
    if progress.last_error is not None:
        at = "" if progress.last_error_at_ms is None else f" at {_format_time(progress.last_error_at_ms)}"
        yield f"last error{at}: {progress.last_error}"


def describe_lags(lags: SourceLags) -> Iterator[str]:
    """Return lines about topic sources and their lag."""
    for name, rows in lags.items():
        yield f"  source {name}: lag {sum(row.lag for row in rows):,}"
        yield from _format_table(rows)


def _format_table(rows: list[PartitionLag]) -> Iterator[str]:
    titles = ("TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "CHECKPOINT")
    cells = [titles] + [
        (
            row.topic,
            str(row.partition),
            _format_number(row.committed),
            str(row.end),
            str(row.lag),
            _format_number(row.checkpoint),
        )
        for row in rows
    ]
    widths = [max(len(line[column]) for line in cells) for column in range(len(titles))]
    for line, row in zip(cells, [None, *rows], strict=True):
        lost = "  records were deleted before the pipeline read them" if row is not None and row.is_lost else ""
        yield "    " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() + lost


def _format_number(value: int | None) -> str:
    return "-" if value is None else str(value)


def _format_time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
