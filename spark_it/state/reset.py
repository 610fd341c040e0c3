"""The `reset` command, which replaces the state by a new one that starts at other offsets. `plan` first reports which
records are repeated.

A reset is a single write of the lock, with a new generation and identity, the start offsets of the sources, and
`is_pending`. From then on the old checkpoint is not read. `finish_reset` commits the group's offsets and removes the
old folder; a process that reads a pending lock calls it before anything else.
"""

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from odradek.spark_it.definition.guarantees import TransactionKind
from odradek.spark_it.definition.sink_keys import JdbcSink
from odradek.spark_it.definition.source_keys import TopicSource
from odradek.spark_it.definition.spec import Pipeline
from odradek.spark_it.interfaces.kafka_types import Offsets, Partitions, TopicPartition
from odradek.spark_it.interfaces.marker import BatchMarker
from odradek.spark_it.kafka.requests import ClusterRequests
from odradek.spark_it.state import checkpoint
from odradek.spark_it.state.checkpoint import Checkpoint, CheckpointError
from odradek.spark_it.state.lock import (
    Lock,
    get_checkpoint_folder,
    list_resets,
    make_generation,
    make_lock,
    make_state,
    write_lock,
)

ResetTarget = Literal["earliest", "committed"] | int
"""Start of the new state: the first record, the group's committed offsets, or a timestamp in milliseconds."""


class ResetError(Exception):
    """A reset is not possible; `str()` has the reason and the alternatives."""


@dataclass(frozen=True)
class ResetPlan:
    """The effects of a reset. `again` is the number of records that each topic source reads again; if negative, the
    number of records that it skips.
    """

    lock: Lock
    again: Mapping[str, int]
    sentences: tuple[str, ...]


def plan(
    pipeline: Pipeline, stateful: str | None, old: Lock | None, to: ResetTarget, cluster: ClusterRequests, now_ms: int
) -> ResetPlan:
    """Look up the start offsets of the sources; change nothing. Raises ResetError, ClusterError, OSError."""
    is_stateful = stateful is not None or (old is not None and old.is_stateful)
    if to != "earliest" and "committed" not in list_resets(pipeline, is_stateful=is_stateful):
        others = [name for name, source in pipeline.sources.items() if not isinstance(source, TopicSource)]
        raise ResetError(
            f"{', '.join(others)} cannot be reset to {_describe_target(to)}, only topics can; use reset --to earliest"
        )
    existing, damage = _read_checkpoint(pipeline, old)
    if existing is not None:
        reached = get_reached_offsets(existing)
    else:
        reached = {at: offset for offsets in (old.start if old else {}).values() for at, offset in offsets.items()}
    topics = find_topic_ids(pipeline, cluster)
    if old is not None:
        # A topic with a different id has been recreated; none of its records have been read.
        reached = {at: offset for at, offset in reached.items() if old.topics.get(at[0]) in (None, topics.get(at[0]))}
    if to == "committed" and existing is not None:
        _refuse_different_offsets(pipeline, existing, reached, cluster)
    start, again, committed_partitions = _find_starts(pipeline, cluster, reached, to)
    # A lost state or another copy, whose batches are replaced, may have been created in the current minute.
    current = make_generation(now_ms, None)
    generation = make_generation(now_ms, current if old is None else max(current, old.generation))
    lock = make_lock(pipeline, stateful, generation, make_state())
    lock = replace(lock, start=start, is_pending=True, topics=topics, takes_over=True)
    sentences = [*_describe_effects(pipeline, is_stateful, to, again)]
    by_offsets = lock.transaction_kind == TransactionKind.OFFSETS.name.lower()
    # With offset transactions the group's offsets show for each partition whether its part of the batch is written.
    if (
        existing is not None
        and existing.is_in_batch
        and not (by_offsets and _find_incomplete_partitions(existing, reached) <= committed_partitions)
    ):
        sentences.append(
            "a batch is incomplete and may or may not be in the sink, so its rows may be written a second time; "
            "a run before the reset completes it"
        )
    if damage is not None and to != "earliest" and not by_offsets:
        sentences.append(
            f"{damage}: the position is taken from group {pipeline.name} alone; rows of the last batch may be "
            "written a second time"
        )
    return ResetPlan(lock, again, tuple(sentences))


def find_topic_ids(pipeline: Pipeline, cluster: ClusterRequests) -> dict[str, str]:
    """Return the ids of all topics that the pipeline reads. Raises ClusterError."""
    sources = (source for source in pipeline.sources.values() if isinstance(source, TopicSource))
    return cluster.fetch_topic_ids(topic for source in sources for topic, _ in cluster.list_partitions(source))


def _find_starts(
    pipeline: Pipeline, cluster: ClusterRequests, reached: Offsets, to: ResetTarget
) -> tuple[dict[str, Offsets], dict[str, int], set[TopicPartition]]:
    """Return the start offsets of topic sources, the number of records that each would read again, and the partitions
    for which the group has an offset."""
    start: dict[str, Offsets] = {}
    again: dict[str, int] = {}
    committed_partitions: set[TopicPartition] = set()
    for name, source in pipeline.sources.items():
        if not isinstance(source, TopicSource):
            continue
        partitions = cluster.list_partitions(source)
        committed = cluster.fetch_committed(pipeline.name, partitions)
        committed_partitions |= committed.keys()
        position = _find_position(cluster, partitions, committed, reached)
        match to:
            case "earliest":
                start[name] = cluster.fetch_earliest(partitions)
            case "committed":
                start[name] = position
            case _:
                start[name] = cluster.fetch_offsets_at(partitions, to)
        again[name] = sum(position[at] - offset for at, offset in start[name].items())
    return start, again, committed_partitions


def _refuse_different_offsets(
    pipeline: Pipeline, existing: Checkpoint, reached: Offsets, cluster: ClusterRequests
) -> None:
    """Raise ResetError if several sources read one partition and have reached different offsets in it. Each would have
    to start at its own offset, but the checkpoint does not name its sources."""
    sources = [source for source in pipeline.sources.values() if isinstance(source, TopicSource)]
    for at in sorted({at for source in sources for at in cluster.list_partitions(source)} & reached.keys()):
        offsets = (
            {offsets[at] for offsets in existing.done.parse_by_source() if at in offsets} if existing.done else set()
        )
        if len(offsets) > 1:
            raise ResetError(
                f"sources of {at[0]}-{at[1]} have reached different offsets "
                f"({', '.join(map(str, sorted(offsets)))}), and the checkpoint does not record which source reached "
                "which; use run --available-now with the unchanged file, so that all of them reach the end, and then "
                "reset --to committed; or reset --to earliest or to a time"
            )


def _find_incomplete_partitions(existing: Checkpoint, reached: Offsets) -> set[TopicPartition]:
    """Return the partitions from which the incomplete batch has records."""
    planned = {} if existing.planned is None else existing.planned.parse_topic_offsets()
    return {at for at, offset in planned.items() if offset > reached.get(at, 0)}


def _read_checkpoint(pipeline: Pipeline, old: Lock | None) -> tuple[Checkpoint | None, str | None]:
    """Return the checkpoint that a reset replaces, or the error if it is damaged: a reset is the remedy."""
    try:
        return None if old is None else checkpoint.read(get_checkpoint_folder(pipeline.state_folder, old)), None
    except CheckpointError as error:
        return None, str(error)


def _find_position(cluster: ClusterRequests, partitions: Partitions, committed: Offsets, reached: Offsets) -> Offsets:
    """Return the pipeline's position: the larger of the group's and the checkpoint's offset.

    The group's offset is ahead with offset transactions, otherwise the checkpoint's. An offset beyond the end belongs
    to an earlier topic of the same name, and is ignored.
    """
    ends = cluster.fetch_latest(partitions)
    return {
        at: max([first, *(known[at] for known in (committed, reached) if at in known and known[at] <= ends[at])])
        for at, first in cluster.fetch_earliest(partitions).items()
    }


def _describe_target(to: ResetTarget) -> str:
    return to if isinstance(to, str) else "a time"


def get_reached_offsets(found: Checkpoint) -> dict[TopicPartition, int]:
    """Return the end offsets of the newest completed batch; the lowest if several sources read a partition."""
    return {} if found.done is None else found.done.parse_topic_offsets()


def _describe_effects(
    pipeline: Pipeline, is_stateful: bool, to: ResetTarget, again: Mapping[str, int]
) -> Iterator[str]:
    if to == "earliest":
        for name, source in pipeline.sources.items():
            if not isinstance(source, TopicSource):
                yield f"source {name} is read again from the beginning"
    for name, records in again.items():
        if records > 0:
            yield f"source {name} reads {records:,} records again"
        elif records < 0:
            yield f"source {name} skips {-records:,} records, which will not be read"
        else:
            yield f"source {name} continues at its current position"
    repeats = any(records > 0 for records in again.values()) or len(again) < len(pipeline.sources)
    if repeats:
        sink = pipeline.sink
        if isinstance(sink, JdbcSink) and sink.insert_mode == "upsert":
            yield f"rows of {sink.table_name_format} are replaced by rows with the same {', '.join(sink.pk_fields)}"
        else:
            yield "their rows are written a second time; existing rows stay in the sink"
        if pipeline.errors.deadletterqueue_topic_name is not None:
            yield "dead letters among them are written a second time"
    if is_stateful:
        yield "Spark's state (windows, aggregates, joins) is discarded"


def execute_plan(pipeline: Pipeline, planned: ResetPlan, cluster: ClusterRequests) -> Lock:
    """Execute a plan and return the lock in force. The caller holds the pid lock (`pid_lock.hold_lock`).

    Raises ClusterError and OSError; after either, the same reset or `finish_reset` continues.
    """
    write_lock(pipeline.state_folder, planned.lock)
    return finish_reset(pipeline, planned.lock, cluster)


def finish_reset(pipeline: Pipeline, lock: Lock, cluster: ClusterRequests) -> Lock:
    """Commit the offsets of a pending lock and remove older checkpoints; return the lock in force.

    The metadata makes the offsets markers of offset transactions, which exclude another copy of the pipeline.
    """
    if not lock.is_pending:
        return lock
    metadata = BatchMarker(0, lock.generation, state=lock.state).metadata
    for offsets in lock.start.values():
        cluster.commit(pipeline.name, offsets, metadata)
    done = replace(lock, is_pending=False)
    write_lock(pipeline.state_folder, done)
    _remove_old_checkpoints(pipeline.state_folder, done)
    return done


def _remove_old_checkpoints(state_folder: Path, lock: Lock) -> None:
    current = get_checkpoint_folder(state_folder, lock)
    if current.parent.is_dir():
        for folder in current.parent.iterdir():
            if folder != current and folder.name.isdigit():
                shutil.rmtree(folder)
