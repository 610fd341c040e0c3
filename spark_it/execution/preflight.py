"""Preflight of a run: decides from the existing state where sources begin, or refuses the run.

Nothing is read from sources yet, and nothing is written except the lock. A run that would lose records or write them
twice is refused, with the reset that helps.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from pathlib import Path

from odradek.spark_it.definition.guarantees import TransactionKind
from odradek.spark_it.definition.source_keys import TopicSource
from odradek.spark_it.definition.spec import Pipeline
from odradek.spark_it.exactly_once.markers import begun, why_forgotten
from odradek.spark_it.interfaces.kafka_types import Offsets, TopicPartition
from odradek.spark_it.interfaces.marker import batch_of, generation_of, marker_number
from odradek.spark_it.interfaces.sink import Claim
from odradek.spark_it.kafka.group import Group
from odradek.spark_it.state import checkpoint, reset
from odradek.spark_it.state.checkpoint import Checkpoint, CheckpointError
from odradek.spark_it.state.lock import (
    Lock,
    changes,
    checkpoint_folder,
    lock_of,
    new_generation,
    new_state,
    read_lock,
    resets_of,
    write_lock,
)

EARLIEST = -2
LATEST = -1
"""What Spark takes for an offset that it looks up itself."""


class RefusedError(Exception):
    """A refused run; `str()` has the reason and the remedy."""


@dataclass(frozen=True)
class Start:
    """The start of a run. `old` is the previous lock, `known` the marker of the newest batch in the checkpoint.

    `starts` has the topic sources that begin at certain offsets; a checkpoint takes precedence. With `is_new` there is
    no batch yet.
    """

    old: Lock | None
    lock: Lock
    folder: Path
    known: int
    starts: Mapping[str, Mapping[TopicPartition, int]] = field(default_factory=dict)
    is_new: bool = False


def check_topics(pipeline: Pipeline, group: Group) -> None:
    """Check that the topics exist. Raises RefusedError, ClusterError."""
    for name, source in pipeline.sources.items():
        if isinstance(source, TopicSource) and not group.partitions(source):
            raise RefusedError(f"source {name}: no topic is there that matches {source.topics_regex}")


def begin(pipeline: Pipeline, stateful: str | None, group: Group, now_ms: int) -> Start:
    """Read the state, and finish a pending reset. The caller holds the pid lock (`pid_lock.exclusively`).

    Raises RefusedError, ClusterError, LockError, OSError.
    """
    state = pipeline.state_folder
    old = read_lock(state)
    if old is None:
        lock = lock_of(pipeline, stateful, new_generation(now_ms, None), new_state())
        found = None
    else:
        old = reset.finish(pipeline, old, group)
        found = _checkpoint(pipeline, old)
        lock = replace(lock_of(pipeline, stateful, old.generation, old.state), takes_over=old.takes_over)
        if found is not None:
            _refuse_changes(pipeline, old, lock)
        lock = replace(lock, start={name: old.start[name] for name in old.start if _is_same_source(name, old, lock)})
    if found is not None and found.planned is None:
        found = None
    lock = replace(lock, topics=reset.topics_of(pipeline, group))
    if old is not None:
        _refuse_other_topics(pipeline, old, lock, found)
    newest = -1 if found is None or found.planned is None else found.planned.id
    by_offsets = lock.transaction_kind == TransactionKind.OFFSETS.name.lower()
    if by_offsets and found is not None:
        _refuse_forgotten_batch(pipeline, lock, found, group, now_ms)
    starts = {}
    for name, source in pipeline.sources.items():
        if isinstance(source, TopicSource):
            start = _start(pipeline, name, source, lock, found, group)
            if by_offsets and found is None:
                # The offsets are the first markers, and a run that follows before there is a checkpoint goes on there.
                start = _looked_up(source, dict(start or {}) | begun(checkpoint_folder(state, lock)), group)
            if start is not None:
                starts[name] = start
    newest_marker = marker_number(lock.generation, newest)
    return Start(old, lock, checkpoint_folder(state, lock), newest_marker, starts, is_new=found is None)


def take(pipeline: Pipeline, began: Start, written: int, owners: Set[str]) -> Claim:
    """Write the lock of the run and return the claim on the sink.

    The run is refused if the sink has `written`, the marker of a batch that the state does not have, or markers of
    other states (`owners`). Raises RefusedError, OSError.
    """
    lock = began.lock
    by_offsets = lock.transaction_kind == TransactionKind.OFFSETS.name.lower()
    others = owners - {lock.state}
    # What a reset has committed are the markers of offset transactions; those of others have come after it.
    is_of_another = bool(others) and (by_offsets or not lock.takes_over)
    if lock.takes_over and began.is_new and batch_of(written) >= 0 and generation_of(written) > lock.generation:
        # The refusal that follows names a reset, which must begin a generation after the sink's.
        write_lock(pipeline.state_folder, replace(lock, generation=generation_of(written)))
    _refuse_unknown_batches(pipeline, began, written, is_of_another=is_of_another)
    if lock != began.old:
        write_lock(pipeline.state_folder, lock)
    begins = {at: offset for offsets in began.starts.values() for at, offset in offsets.items()} if by_offsets else {}
    return Claim(lock.state, lock.generation, frozenset(others), began.is_new, begins)


def settle(pipeline: Pipeline, began: Start) -> None:
    """Record that the sink is claimed: a copy that takes it over later is not replaced again. Raises OSError."""
    if began.lock.takes_over:
        write_lock(pipeline.state_folder, replace(began.lock, takes_over=False))


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
    by_offsets = lock.transaction_kind == TransactionKind.OFFSETS.name.lower()
    if found is not None:
        _refuse_old_checkpoint(pipeline, lock, found, {} if by_offsets else committed)
        for reached in found.done.by_source() if found.done else ():
            _refuse_lost_records(pipeline, lock, source, reached, group)
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


def _looked_up(source: TopicSource, start: Mapping[TopicPartition, int], group: Group) -> Mapping[TopicPartition, int]:
    """Where a source begins, as offsets alone."""
    default = EARLIEST if source.auto_offset_reset == "earliest" else LATEST
    wanted = {at: start.get(at, default) for at in group.partitions(source)}
    # Spark's own end of a partition is before what a transaction has open.
    end = group.stable_ends if source.isolation_level == "read_committed" else group.latest
    for what, look_up in ((EARLIEST, group.earliest), (LATEST, end)):
        partitions = [at for at, offset in wanted.items() if offset == what]
        found = look_up(partitions) if partitions else {}
        wanted |= {at: found[at] for at in partitions}
    return wanted


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
        begins = [lock.start.get(name, {})] if planned is None else planned.by_source()
        read = {topic for offsets in begins for (topic, _), offset in offsets.items() if offset}
        for topic in sorted(read & lock.topics.keys() & old.topics.keys()):
            if lock.topics[topic] != old.topics[topic]:
                raise RefusedError(
                    f"source {name}: topic {topic} is not the one that the pipeline has read: it was made anew, or "
                    f"bootstrap.servers are those of another cluster; {_resets(pipeline, lock)}"
                )


def _refuse_unknown_batches(pipeline: Pipeline, began: Start, written: int, *, is_of_another: bool) -> None:
    """Batches that the sink has, and the checkpoint does not know: one of the same number would be taken for written
    although it may hold something else, and one of another number may hold the same rows. With `is_of_another` another
    copy of the pipeline has claimed the sink, and may write them yet."""
    is_unknown = written > began.known or bool(written and began.old is None)
    if is_unknown and batch_of(written) >= 0:
        raise RefusedError(
            f"the {pipeline.sink.connector} sink has batch {batch_of(written)} of pipeline {pipeline.name}, and "
            f"{began.folder} does not know of it: the checkpoint is lost or put back from a copy, or the name was used "
            f"before or is used elsewhere; {_resets(pipeline, began.lock)}"
        )
    if is_unknown or is_of_another:
        raise RefusedError(
            f"the {pipeline.sink.connector} sink belongs to another copy of pipeline {pipeline.name}, not to the state "
            f"in {pipeline.state_folder}: the state is lost, or the name was used before or is used elsewhere; run "
            f"that copy, or have this one take its place: {_resets(pipeline, began.lock)}"
        )


def _refuse_forgotten_batch(pipeline: Pipeline, lock: Lock, found: Checkpoint, group: Group, now_ms: int) -> None:
    """A batch that is begun and not done, with records of a partition that has no marker, although it may have been
    written: so long ago that the marker may have expired, or with no marker at all left of those that every run has."""
    if found.planned is None or not found.is_in_batch:
        return
    reached = begun(found.folder) | reset.reached_offsets(found)
    sources = (source for source in pipeline.sources.values() if isinstance(source, TopicSource))
    markers = group.committed(pipeline.name, [at for source in sources for at in group.partitions(source)])
    planned = found.planned.topic_offsets()
    unmarked = [at for at in sorted(planned) if planned[at] > reached.get(at, 0) and at not in markers]
    if not unmarked:
        return
    why = "the group has no offset at all, so they have expired or were deleted"
    if markers:
        forgotten = why_forgotten(found.planned.started_ms, now_ms, group.offsets_retention_ms())
        if forgotten is None:
            return
        why = forgotten
    (topic, partition), batch = unmarked[0], found.planned.id
    raise RefusedError(
        f"batch {batch} is begun and not done, and group {pipeline.name} has no offset of {topic}-{partition}, so "
        f"whether its rows are written is not known: {why}; {_resets(pipeline, lock)}"
    )


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
