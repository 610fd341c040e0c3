"""The `status` command: lines about a running or stopped pipeline, from its state and its group."""

from collections.abc import Iterator
from datetime import UTC, datetime

from odradek.spark_it.definition.source_keys import TopicSource
from odradek.spark_it.definition.spec import Pipeline
from odradek.spark_it.interfaces.kafka_types import TopicPartition
from odradek.spark_it.kafka.requests import ClusterRequests
from odradek.spark_it.state import checkpoint
from odradek.spark_it.state.checkpoint import Checkpoint
from odradek.spark_it.state.lag import PartitionLag, lags
from odradek.spark_it.state.lock import Lock, changes, checkpoint_folder, lock_of
from odradek.spark_it.state.pid_lock import holder
from odradek.spark_it.state.progress import Progress, read_progress
from odradek.spark_it.state.reset import reached_offsets


def of_state(pipeline: Pipeline, stateful: str | None, lock: Lock | None) -> Iterator[str]:
    """Return lines about the state on this machine. Raises CheckpointError, OSError."""
    process = holder(pipeline.state_folder)
    running = "stopped" if process is None else f"running, process {process}" if process else "running"
    if lock is None:
        yield f"{pipeline.name}: {running}, has never run"
        return
    yield f"{pipeline.name}: {running}"
    existing = checkpoint.read(checkpoint_folder(pipeline.state_folder, lock))
    yield f"  {_batches(existing)}"
    for change in changes(pipeline, lock, lock_of(pipeline, stateful, lock.generation)):
        yield f"  will not run: {change}"
    if lock.is_pending:
        yield "  a reset was started and not finished; the next run or reset finishes it"
    progress = read_progress(pipeline.state_folder)
    if progress is not None:
        yield from (f"  {line}" for line in _progress(progress))


def _batches(existing: Checkpoint | None) -> str:
    if existing is None or existing.planned is None:
        return "no batch yet"
    started = f"batch {existing.planned.id}, started {_time(existing.planned.started_ms)}"
    if existing.is_in_batch:
        done = "none" if existing.done is None else f"batch {existing.done.id}"
        return f"{started}, is not completed; last completed: {done}"
    return f"{started}, is completed"


def _progress(progress: Progress) -> Iterator[str]:
    outcomes = (progress.written, progress.dead_lettered, progress.dropped)
    # In a stateful pipeline the number of rows read is not the sum of the outcomes.
    is_all, plus = (" = ", " + ") if progress.read == sum(outcomes) else (", ", ", ")
    counts = plus.join(
        f"{of:,} {what}" for of, what in zip(outcomes, ("written", "dead letters", "dropped"), strict=True)
    )
    yield (
        f"this run, up to {_time(progress.at_ms)}: {progress.read:,} read{is_all}{counts}; "
        f"{progress.rows_per_second:,.0f} rows/s"
    )
    if progress.last_error is not None:
        at = "" if progress.last_error_at_ms is None else f" at {_time(progress.last_error_at_ms)}"
        yield f"last error{at}: {progress.last_error}"


def of_group(pipeline: Pipeline, lock: Lock | None, group: ClusterRequests) -> Iterator[str]:
    """Return lines about topic sources and their lag. Raises ClusterError, CheckpointError."""
    existing = None if lock is None else checkpoint.read(checkpoint_folder(pipeline.state_folder, lock))
    reached: dict[TopicPartition, int] = {} if existing is None else reached_offsets(existing)
    for name, source in pipeline.sources.items():
        if isinstance(source, TopicSource):
            partitions = group.list_partitions(source)
            rows = lags(
                group.fetch_earliest(partitions),
                group.fetch_latest(partitions),
                group.fetch_committed(pipeline.name, partitions),
                reached,
            )
            yield f"  source {name}: lag {sum(row.lag for row in rows):,}"
            yield from _table(rows)


def _table(rows: list[PartitionLag]) -> Iterator[str]:
    titles = ("TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "CHECKPOINT")
    cells = [titles] + [
        (row.topic, str(row.partition), _number(row.committed), str(row.end), str(row.lag), _number(row.checkpoint))
        for row in rows
    ]
    widths = [max(len(line[column]) for line in cells) for column in range(len(titles))]
    for line, row in zip(cells, [None, *rows], strict=True):
        lost = "  records were deleted before the pipeline read them" if row is not None and row.is_lost else ""
        yield "    " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() + lost


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
