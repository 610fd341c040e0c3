"""Whether a pipeline may run on the state that is there, and where its sources begin. Nothing is read yet, and nothing
written but the lock; what would lose records or write them twice is refused, with the reset that helps."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from odradek.spark_it import checkpoint, reset
from odradek.spark_it.checkpoint import Checkpoint, CheckpointError, TopicPartition
from odradek.spark_it.group import Group, Offsets
from odradek.spark_it.guarantees import Units
from odradek.spark_it.lock import (
    Lock,
    batch_of,
    changes,
    checkpoint_folder,
    lock_of,
    marker,
    new_generation,
    read_lock,
    resets_of,
    write_lock,
)
from odradek.spark_it.markers import BATCHES_TOPIC
from odradek.spark_it.source_settings import TopicSource
from odradek.spark_it.spec import Pipeline

EARLIEST = -2
LATEST = -1
"""What Spark takes for an offset that it looks up itself."""


class RefusedError(Exception):
    """A pipeline that would go wrong if it ran; `str()` says why, and what to do."""


@dataclass(frozen=True)
class Begin:
    """How a run begins. `old` is the lock that was there, `known` the marker of the newest batch in the checkpoint.

    `starts` has the topic sources that begin at certain offsets; a checkpoint goes before it.
    """

    old: Lock | None
    lock: Lock
    folder: Path
    known: int
    starts: Mapping[str, Mapping[TopicPartition, int]]


def check_topics(pipeline: Pipeline, group: Group) -> None:
    """Makes sure that there is something to read. Raises RefusedError, ClusterError."""
    for name, source in pipeline.sources.items():
        if isinstance(source, TopicSource) and not group.partitions(source):
            raise RefusedError(f"source {name}: no topic is there that matches {source.topics_regex}")


def begin(pipeline: Pipeline, stateful: str | None, group: Group, now_ms: int) -> Begin:
    """Looks at the state, and ends a reset that is pending. The pipeline must be held (`running.exclusively`).

    Raises RefusedError, ClusterError, LockError, OSError.
    """
    state = pipeline.state_folder
    old = read_lock(state)
    if old is None:
        lock = lock_of(pipeline, stateful, new_generation(now_ms, None))
        found = None
    else:
        old = reset.finish(pipeline, old, group)
        found = _checkpoint(pipeline, old)
        lock = lock_of(pipeline, stateful, old.generation)
        if found is not None:
            _refuse_changes(pipeline, old, lock)
        lock = replace(lock, start={name: old.start[name] for name in old.start if _is_same_source(name, old, lock)})
    if found is not None and found.planned is None:
        found = None
    lock = replace(lock, topics=reset.topics_of(pipeline, group))
    if old is not None:
        _refuse_other_topics(pipeline, old, lock, found)
    newest = -1 if found is None or found.planned is None else found.planned.id
    began = Begin(old, lock, checkpoint_folder(state, lock), marker(lock.generation, newest), {})
    if lock.units == Units.BATCHES.name.lower():
        _refuse_unknown_batches(pipeline, began, max(_markers(pipeline, lock, group).values(), default=0))
    _refuse_forgotten_batch(pipeline, lock, found, group, now_ms)
    starts = {}
    for name, source in pipeline.sources.items():
        if isinstance(source, TopicSource):
            start = _start(pipeline, name, source, lock, found, group)
            if start is not None:
                starts[name] = start
    return replace(began, starts=starts)


def take(pipeline: Pipeline, began: Begin, written: int) -> None:
    """Writes the lock of the run, unless the sink has `written`, the marker of a batch that the state does not know of.

    Raises RefusedError, OSError.
    """
    _refuse_unknown_batches(pipeline, began, written)
    if began.lock != began.old:
        write_lock(pipeline.state_folder, began.lock)


def _checkpoint(pipeline: Pipeline, lock: Lock) -> Checkpoint | None:
    try:
        return checkpoint.read(checkpoint_folder(pipeline.state_folder, lock))
    except CheckpointError as error:
        raise RefusedError(f"{error}; put it back from a copy, or {_resets(pipeline, lock)}") from None


def _refuse_changes(pipeline: Pipeline, old: Lock, lock: Lock) -> None:
    changed = [str(change) for change in changes(pipeline, old, lock)]
    if changed:
        raise RefusedError("; ".join(changed))


def _is_same_source(name: str, old: Lock, lock: Lock) -> bool:
    key = f"source.{name}"
    return old.hashes.get(key) == lock.hashes.get(key)


def _start(
    pipeline: Pipeline, name: str, source: TopicSource, lock: Lock, found: Checkpoint | None, group: Group
) -> Mapping[TopicPartition, int] | None:
    """Where a source begins; None for where Spark or the checkpoint would begin."""
    partitions = group.partitions(source)
    committed = group.committed(pipeline.name, partitions)
    by_offsets = lock.units == Units.OFFSETS.name.lower()
    if found is not None:
        _refuse_old_checkpoint(pipeline, lock, found, {} if by_offsets else committed)
        _refuse_lost_records(pipeline, lock, source, reset.reached_offsets(found), group)
        return None
    begins = lock.start.get(name)
    if begins is not None:
        begins = {at: offset for at, offset in begins.items() if at in partitions}
    if by_offsets and committed:
        # What the group says is what the sink has: the checkpoint is not needed to go on after it.
        _refuse_lost_records(pipeline, lock, source, committed, group)
        return dict.fromkeys(partitions, EARLIEST) | dict(begins or _configured(source, partitions, group)) | committed
    if begins is not None:
        ahead = [at for at, offset in committed.items() if offset > begins.get(at, 0)]
        if ahead:
            raise RefusedError(_lost_checkpoint(pipeline, lock, ahead[0], committed[ahead[0]]))
        _refuse_lost_records(pipeline, lock, source, begins, group)
        return dict.fromkeys(partitions, EARLIEST) | begins
    if any(committed.values()):
        at = next(at for at, offset in committed.items() if offset)
        raise RefusedError(_lost_checkpoint(pipeline, lock, at, committed[at]))
    return _configured(source, partitions, group) or None


def _configured(source: TopicSource, partitions: list[TopicPartition], group: Group) -> dict[TopicPartition, int]:
    """Where the file says that a source begins; nothing if it is auto.offset.reset alone."""
    default = EARLIEST if source.auto_offset_reset == "earliest" else LATEST
    if source.start_timestamp_ms is not None:
        begins: Offsets = group.at_time(partitions, source.start_timestamp_ms)
    elif source.start_offsets_by_partition:
        unknown = [at for at in source.start_offsets_by_partition if at not in partitions]
        if unknown:
            topic, partition = unknown[0]
            raise RefusedError(f"start.offsets: there is no partition {partition} of topic {topic} in the source")
        begins = {}
    else:
        return {}
    return dict.fromkeys(partitions, default) | begins | source.start_offsets_by_partition


def _refuse_old_checkpoint(
    pipeline: Pipeline, lock: Lock, found: Checkpoint, committed: Mapping[TopicPartition, int]
) -> None:
    """A checkpoint that was put back from a copy would have batches written a second time."""
    assert found.planned is not None
    planned = found.planned.topic_offsets()
    for (topic, partition), offset in sorted(committed.items()):
        if offset > planned.get((topic, partition), 0):
            there = planned.get((topic, partition), 0)
            raise RefusedError(
                f"the checkpoint in {checkpoint_folder(pipeline.state_folder, lock)} is older than what group "
                f"{pipeline.name} has committed ({topic}-{partition}: {there}, and {offset}): records would be written "
                f"a second time; {_resets(pipeline, lock)}"
            )


def _refuse_other_topics(pipeline: Pipeline, old: Lock, lock: Lock, found: Checkpoint | None) -> None:
    """Topics that have only the name of those that were read, and offsets of their own."""
    for name, source in pipeline.sources.items():
        if not isinstance(source, TopicSource) or not source.fail_on_data_loss:
            continue
        planned = None if found is None else found.planned
        offsets = lock.start.get(name, {}) if planned is None else planned.topic_offsets()
        read = {topic for (topic, _), offset in offsets.items() if offset}
        for topic in sorted(read & lock.topics.keys() & old.topics.keys()):
            if lock.topics[topic] != old.topics[topic]:
                raise RefusedError(
                    f"source {name}: topic {topic} is not the one that the pipeline has read: it was made anew, or "
                    f"bootstrap.servers are those of another cluster; {_resets(pipeline, lock)}"
                )


def _refuse_unknown_batches(pipeline: Pipeline, began: Begin, written: int) -> None:
    """Batches that the sink has, and the checkpoint does not know: one of the same number would be taken for written
    although it may hold something else, and one of another number may hold the same rows."""
    if written > began.known or (written and began.old is None):
        raise RefusedError(
            f"the {pipeline.sink.connector} sink has batch {batch_of(written)} of pipeline {pipeline.name}, and "
            f"{began.folder} does not know of it: the checkpoint is lost or put back from a copy, or the name was used "
            f"before or is used elsewhere; {_resets(pipeline, began.lock)}"
        )


def _refuse_forgotten_batch(
    pipeline: Pipeline, lock: Lock, found: Checkpoint | None, group: Group, now_ms: int
) -> None:
    """A first batch that was begun so long ago that its markers may have expired: for later ones there must be some."""
    if lock.units is None or found is None or found.planned is None or not found.is_in_batch or found.planned.id:
        return
    if now_ms - found.planned.started_ms < _FORGOTTEN_AFTER_MS or _markers(pipeline, lock, group):
        return
    raise RefusedError(
        "batch 0 was begun more than 7 days ago and is not done, and by now Kafka may have forgotten that it is "
        f"written; {_resets(pipeline, lock)}"
    )


_FORGOTTEN_AFTER_MS = 7 * 24 * 3_600_000
"""Kafka's default of `offsets.retention.minutes`."""


def _markers(pipeline: Pipeline, lock: Lock, group: Group) -> Offsets:
    """The markers that a topic sink has."""
    if lock.units == Units.BATCHES.name.lower():
        return group.committed(pipeline.batches_group, [(BATCHES_TOPIC, part) for part in range(lock.tasks_max)])
    sources = (source for source in pipeline.sources.values() if isinstance(source, TopicSource))
    return group.committed(pipeline.name, [at for source in sources for at in group.partitions(source)])


def _refuse_lost_records(
    pipeline: Pipeline, lock: Lock, source: TopicSource, reached: Mapping[TopicPartition, int], group: Group
) -> None:
    """Records that are gone, and topics that were made anew."""
    if not source.fail_on_data_loss:
        return
    wanted = [at for at in group.partitions(source) if at in reached]
    first, end = group.earliest(wanted), group.latest(wanted)
    for at in wanted:
        name = f"{at[0]}-{at[1]}"
        if end[at] < reached[at]:
            raise RefusedError(
                f"{name} ends at {end[at]}, and the pipeline has read up to {reached[at]}: the topic was made anew; "
                f"{_resets(pipeline, lock)}"
            )
        if first[at] > reached[at]:
            raise RefusedError(
                f"records {reached[at]} to {first[at] - 1} of {name} were deleted before they were read; "
                "fail.on.data.loss = false goes on without them"
            )


def _lost_checkpoint(pipeline: Pipeline, lock: Lock, at: TopicPartition, offset: int) -> str:
    return (
        f"group {pipeline.name} has committed offset {offset} of {at[0]}-{at[1]}, and there is no checkpoint in "
        f"{checkpoint_folder(pipeline.state_folder, lock)}: it is lost, or the name was used before or "
        f"is used elsewhere; {_resets(pipeline, lock)}"
    )


def _resets(pipeline: Pipeline, lock: Lock) -> str:
    return " or ".join(f"reset --to {to}" for to in resets_of(pipeline, is_stateful=lock.is_stateful))
