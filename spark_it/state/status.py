"""The `status` command, which describes a running or stopped pipeline from its state and its group."""

from collections.abc import Iterator
from datetime import UTC, datetime

from odradek.spark_it.definition.source_keys import TopicSource
from odradek.spark_it.definition.spec import Pipeline
from odradek.spark_it.interfaces.kafka_types import TopicPartition
from odradek.spark_it.kafka.requests import ClusterRequests
from odradek.spark_it.state import checkpoint
from odradek.spark_it.state.checkpoint import Checkpoint
from odradek.spark_it.state.lag import PartitionLag, compute_lags
from odradek.spark_it.state.lock import Lock, find_changes, get_checkpoint_folder, make_lock
from odradek.spark_it.state.pid_lock import find_holder
from odradek.spark_it.state.progress import Progress, read_progress
from odradek.spark_it.state.reset import get_reached_offsets


def describe_state(pipeline: Pipeline, stateful: str | None, lock: Lock | None) -> Iterator[str]:
    """Return lines about the state on this machine. Raises CheckpointError, OSError."""
    process = find_holder(pipeline.state_folder)
    running = "stopped" if process is None else f"running, process {process}" if process else "running"
    if lock is None:
        yield f"{pipeline.name}: {running}, has never run"
        return
    yield f"{pipeline.name}: {running}"
    existing = checkpoint.read(get_checkpoint_folder(pipeline.state_folder, lock))
    yield f"  {_describe_batches(existing)}"
    for change in find_changes(pipeline, lock, make_lock(pipeline, stateful, lock.generation)):
        yield f"  will not run: {change}"
    if lock.is_pending:
        yield "  a reset was started and not finished; the next run or reset finishes it"
    progress = read_progress(pipeline.state_folder)
    if progress is not None:
        yield from (f"  {line}" for line in _describe_progress(progress))


def _describe_batches(existing: Checkpoint | None) -> str:
    if existing is None or existing.planned is None:
        return "no batch yet"
    started = f"batch {existing.planned.id}, started {_format_time(existing.planned.started_ms)}"
    if existing.is_in_batch:
        done = "none" if existing.done is None else f"batch {existing.done.id}"
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


def describe_group(pipeline: Pipeline, lock: Lock | None, cluster: ClusterRequests) -> Iterator[str]:
    """Return lines about topic sources and their lag. Raises ClusterError, CheckpointError."""
    existing = None if lock is None else checkpoint.read(get_checkpoint_folder(pipeline.state_folder, lock))
    reached: dict[TopicPartition, int] = {} if existing is None else get_reached_offsets(existing)
    for name, source in pipeline.sources.items():
        if isinstance(source, TopicSource):
            partitions = cluster.list_partitions(source)
            rows = compute_lags(
                cluster.fetch_earliest(partitions),
                cluster.fetch_latest(partitions),
                cluster.fetch_committed(pipeline.name, partitions),
                reached,
            )
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
