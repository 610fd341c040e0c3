"""Preflight of a run: it determines the start offsets of the sources from the existing state, or refuses the run.

It reads no records, and writes only the lock. A run that would lose records or write them twice is refused; the message
names the reset that permits it.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from pathlib import Path

from odradek.spark_it.definition.guarantees import TransactionKind
from odradek.spark_it.definition.source_keys import TopicSource
from odradek.spark_it.definition.spec import Pipeline
from odradek.spark_it.exactly_once.markers import find_expiry_reason, read_initial_offsets
from odradek.spark_it.interfaces.kafka_types import Offsets, TopicPartition
from odradek.spark_it.interfaces.marker import get_batch, get_generation, make_marker_number
from odradek.spark_it.interfaces.sink import Claim
from odradek.spark_it.kafka.requests import ClusterRequests
from odradek.spark_it.state import checkpoint, reset
from odradek.spark_it.state.checkpoint import Checkpoint, CheckpointError
from odradek.spark_it.state.lock import (
    Lock,
    find_changes,
    get_checkpoint_folder,
    list_resets,
    make_generation,
    make_lock,
    make_state,
    read_lock,
    write_lock,
)

EARLIEST = -2
LATEST = -1
"""Spark's values for the start or end of a partition."""


class RefusedError(Exception):
    """A run is refused; `str()` has the reason and the remedy."""


@dataclass(frozen=True)
class RunStart:
    """The start of a run. `old` is the previous lock, `newest_marker` the marker of the newest batch in the checkpoint.

    `starts` has the offsets at which topic sources start; a checkpoint takes precedence. With `is_new` there is no
    batch yet.
    """

    old: Lock | None
    lock: Lock
    folder: Path
    newest_marker: int
    starts: Mapping[str, Mapping[TopicPartition, int]] = field(default_factory=dict)
    is_new: bool = False


def check_topics(pipeline: Pipeline, cluster: ClusterRequests) -> None:
    """Check that the topics exist. Raises RefusedError, ClusterError."""
    for name, source in pipeline.sources.items():
        if isinstance(source, TopicSource) and not cluster.list_partitions(source):
            raise RefusedError(f"source {name}: no topic matches {source.topics_regex}")


def plan_start(pipeline: Pipeline, stateful: str | None, cluster: ClusterRequests, now_ms: int) -> RunStart:
    """Read the state, and finish a pending reset. The caller holds the pid lock (`pid_lock.hold_lock`).

    Raises RefusedError, ClusterError, LockError, OSError.
    """
    state = pipeline.state_folder
    old = read_lock(state)
    if old is None:
        lock = make_lock(pipeline, stateful, make_generation(now_ms, None), make_state())
        existing = None
    else:
        old = reset.finish_reset(pipeline, old, cluster)
        existing = _read_checkpoint(pipeline, old)
        lock = replace(make_lock(pipeline, stateful, old.generation, old.state), takes_over=old.takes_over)
        if existing is not None:
            _refuse_changes(pipeline, old, lock)
        lock = replace(lock, start={name: old.start[name] for name in old.start if _is_same_source(name, old, lock)})
    if existing is not None and existing.planned is None:
        existing = None
    lock = replace(lock, topics=reset.find_topic_ids(pipeline, cluster))
    if old is not None:
        _refuse_other_topics(pipeline, old, lock, existing)
    newest = -1 if existing is None or existing.planned is None else existing.planned.id
    by_offsets = lock.transaction_kind == TransactionKind.OFFSETS.name.lower()
    if by_offsets and existing is not None:
        _refuse_expired_batch(pipeline, lock, existing, cluster, now_ms)
    starts = {}
    for name, source in pipeline.sources.items():
        if isinstance(source, TopicSource):
            start = _find_start_offsets(pipeline, name, source, lock, existing, cluster)
            if by_offsets and existing is None:
                # These offsets become the first markers, and the next run starts at them if this one plans no batch.
                # So EARLIEST and LATEST, which Spark would resolve, are resolved here.
                start = _resolve_offsets(
                    source, dict(start or {}) | read_initial_offsets(get_checkpoint_folder(state, lock)), cluster
                )
            if start is not None:
                starts[name] = start
    newest_marker = make_marker_number(lock.generation, newest)
    return RunStart(old, lock, get_checkpoint_folder(state, lock), newest_marker, starts, is_new=existing is None)


def make_claim(pipeline: Pipeline, start: RunStart, written: int, owners: Set[str]) -> Claim:
    """Write the lock of the run and return the claim on the sink.

    `written` is the marker of the newest batch in the sink, `owners` are the owners of its markers. The run is refused
    if the state does not have this batch, or if other states own markers. Raises RefusedError, OSError.
    """
    lock = start.lock
    by_offsets = lock.transaction_kind == TransactionKind.OFFSETS.name.lower()
    others = owners - {lock.state}
    # A reset commits the markers of offset transactions, so another owner must have claimed them after the reset.
    is_of_another = bool(others) and (by_offsets or not lock.takes_over)
    if lock.takes_over and start.is_new and get_batch(written) >= 0 and get_generation(written) > lock.generation:
        # The refusal below recommends a reset. Its generation, which follows this one, must be newer than the sink's.
        write_lock(pipeline.state_folder, replace(lock, generation=get_generation(written)))
    _refuse_unknown_batches(pipeline, start, written, is_of_another=is_of_another)
    if lock != start.old:
        write_lock(pipeline.state_folder, lock)
    start_offsets = (
        {at: offset for offsets in start.starts.values() for at, offset in offsets.items()} if by_offsets else {}
    )
    return Claim(lock.state, lock.generation, frozenset(others), start.is_new, start_offsets)


def record_claim(pipeline: Pipeline, start: RunStart) -> None:
    """Record that the sink is claimed, so that this state does not replace a later owner again. Raises OSError."""
    if start.lock.takes_over:
        write_lock(pipeline.state_folder, replace(start.lock, takes_over=False))


def _read_checkpoint(pipeline: Pipeline, lock: Lock) -> Checkpoint | None:
    try:
        return checkpoint.read(get_checkpoint_folder(pipeline.state_folder, lock))
    except CheckpointError as error:
        raise RefusedError(f"{error}; restore it from a backup, or {_describe_resets(pipeline, lock)}") from None


def _refuse_changes(pipeline: Pipeline, old: Lock, lock: Lock) -> None:
    messages = [str(change) for change in find_changes(pipeline, old, lock)]
    if messages:
        raise RefusedError("; ".join(messages))


def _is_same_source(name: str, old: Lock, lock: Lock) -> bool:
    key = f"source.{name}"
    return old.hashes.get(key) == lock.hashes.get(key)


def _find_start_offsets(
    pipeline: Pipeline,
    name: str,
    source: TopicSource,
    lock: Lock,
    existing: Checkpoint | None,
    cluster: ClusterRequests,
) -> Mapping[TopicPartition, int] | None:
    """Return the start offsets of a source; None if Spark's default or the checkpoint applies."""
    partitions = cluster.list_partitions(source)
    committed = cluster.fetch_committed(pipeline.name, partitions)
    by_offsets = lock.transaction_kind == TransactionKind.OFFSETS.name.lower()
    if existing is not None:
        _refuse_old_checkpoint(pipeline, lock, existing, {} if by_offsets else committed)
        for reached in existing.done.parse_by_source() if existing.done else ():
            _refuse_lost_records(pipeline, lock, source, reached, cluster)
        return None
    offsets = lock.start.get(name)
    if offsets is not None:
        offsets = {at: offset for at, offset in offsets.items() if at in partitions}
    if by_offsets and committed:
        # The group's offsets were committed in the sink's transactions, so the source can continue without checkpoint.
        _refuse_lost_records(pipeline, lock, source, committed, cluster)
        return (
            dict.fromkeys(partitions, EARLIEST)
            | dict(offsets or _find_configured_offsets(source, partitions, cluster))
            | committed
        )
    if offsets is not None:
        ahead = [at for at, offset in committed.items() if offset > offsets.get(at, 0)]
        if ahead:
            raise RefusedError(_describe_lost_checkpoint(pipeline, lock, ahead[0], committed[ahead[0]]))
        _refuse_lost_records(pipeline, lock, source, offsets, cluster)
        return dict.fromkeys(partitions, EARLIEST) | offsets
    if any(committed.values()):
        at = next(at for at, offset in committed.items() if offset)
        raise RefusedError(_describe_lost_checkpoint(pipeline, lock, at, committed[at]))
    return _find_configured_offsets(source, partitions, cluster) or None


def _resolve_offsets(
    source: TopicSource, start: Mapping[TopicPartition, int], cluster: ClusterRequests
) -> Mapping[TopicPartition, int]:
    """Return the start offset of every partition, with EARLIEST and LATEST replaced by offsets."""
    default = EARLIEST if source.auto_offset_reset == "earliest" else LATEST
    specified = {at: start.get(at, default) for at in cluster.list_partitions(source)}
    # For Spark too, LATEST is the last stable offset with read_committed.
    end = cluster.fetch_stable_ends if source.isolation_level == "read_committed" else cluster.fetch_latest
    for what, look_up in ((EARLIEST, cluster.fetch_earliest), (LATEST, end)):
        partitions = [at for at, offset in specified.items() if offset == what]
        offsets = look_up(partitions) if partitions else {}
        specified |= {at: offsets[at] for at in partitions}
    return specified


def _find_configured_offsets(
    source: TopicSource, partitions: list[TopicPartition], cluster: ClusterRequests
) -> dict[TopicPartition, int]:
    """Return the start offsets that the file specifies; none if it specifies only auto.offset.reset."""
    default = EARLIEST if source.auto_offset_reset == "earliest" else LATEST
    if source.start_timestamp_ms is not None:
        offsets: Offsets = cluster.fetch_offsets_at(partitions, source.start_timestamp_ms)
    elif source.start_offsets_by_partition:
        unknown = [at for at in source.start_offsets_by_partition if at not in partitions]
        if unknown:
            topic, partition = unknown[0]
            raise RefusedError(f"start.offsets: the source has no partition {topic}-{partition}")
        offsets = {}
    else:
        return {}
    return dict.fromkeys(partitions, default) | offsets | source.start_offsets_by_partition


def _refuse_old_checkpoint(
    pipeline: Pipeline, lock: Lock, existing: Checkpoint, committed: Mapping[TopicPartition, int]
) -> None:
    """Refuse a checkpoint that is older than the committed offsets: batches would be written a second time."""
    assert existing.planned is not None
    planned = existing.planned.parse_topic_offsets()
    for (topic, partition), offset in sorted(committed.items()):
        if offset > planned.get((topic, partition), 0):
            checkpoint_offset = planned.get((topic, partition), 0)
            raise RefusedError(
                f"the checkpoint in {get_checkpoint_folder(pipeline.state_folder, lock)} is older than the offsets of "
                f"group {pipeline.name} ({topic}-{partition}: {checkpoint_offset} in the checkpoint, {offset} "
                f"committed), so records would be written a second time; {_describe_resets(pipeline, lock)}"
            )


def _refuse_other_topics(pipeline: Pipeline, old: Lock, lock: Lock, existing: Checkpoint | None) -> None:
    """Refuse a topic with the name of a topic that was read, but another topic id, because its offsets are
    unrelated."""
    for name, source in pipeline.sources.items():
        if not isinstance(source, TopicSource) or not source.fail_on_data_loss:
            continue
        planned = None if existing is None else existing.planned
        start_offsets = [lock.start.get(name, {})] if planned is None else planned.parse_by_source()
        read = {topic for offsets in start_offsets for (topic, _), offset in offsets.items() if offset}
        for topic in sorted(read & lock.topics.keys() & old.topics.keys()):
            if lock.topics[topic] != old.topics[topic]:
                raise RefusedError(
                    f"source {name}: topic {topic} has another topic id than the topic that the pipeline has read: it "
                    f"was deleted and created again, or bootstrap.servers name another cluster; "
                    f"{_describe_resets(pipeline, lock)}"
                )


def _refuse_unknown_batches(pipeline: Pipeline, start: RunStart, written: int, *, is_of_another: bool) -> None:
    """Refuse a sink with batches that the checkpoint does not have.

    A new batch with the number of such a batch would count as written although its rows may differ; a batch with
    another number may contain rows that are written already. With `is_of_another` another copy of the pipeline has
    claimed the sink, and may still write such batches.
    """
    is_unknown = written > start.newest_marker or bool(written and start.old is None)
    if is_unknown and get_batch(written) >= 0:
        raise RefusedError(
            f"the {pipeline.sink.connector} sink has batch {get_batch(written)} of pipeline {pipeline.name}, which the "
            f"checkpoint in {start.folder} does not have: the checkpoint was lost or restored from a backup, or the "
            f"name was used before or is used elsewhere; {_describe_resets(pipeline, start.lock)}"
        )
    if is_unknown or is_of_another:
        raise RefusedError(
            f"the {pipeline.sink.connector} sink belongs to another copy of pipeline {pipeline.name}, not to the state "
            f"in {pipeline.state_folder}: the state was lost, or the name was used before or is used elsewhere; run "
            f"that copy, or replace it by this one: {_describe_resets(pipeline, start.lock)}"
        )


def _refuse_expired_batch(
    pipeline: Pipeline, lock: Lock, existing: Checkpoint, cluster: ClusterRequests, now_ms: int
) -> None:
    """Refuse an incomplete batch with records of a partition whose marker may have expired.

    Normally, if a partition has no marker, its part of the batch is not written. But the marker may have expired if the
    batch is old, or if the group has none of the markers that every run commits.
    """
    if existing.planned is None or not existing.is_in_batch:
        return
    reached = read_initial_offsets(existing.folder) | reset.get_reached_offsets(existing)
    sources = (source for source in pipeline.sources.values() if isinstance(source, TopicSource))
    markers = cluster.fetch_committed(
        pipeline.name, [at for source in sources for at in cluster.list_partitions(source)]
    )
    planned = existing.planned.parse_topic_offsets()
    unmarked = [at for at in sorted(planned) if planned[at] > reached.get(at, 0) and at not in markers]
    if not unmarked:
        return
    reason = "the group has no offsets at all, so they expired or were deleted"
    if markers:
        expiry_reason = find_expiry_reason(existing.planned.started_ms, now_ms, cluster.fetch_offsets_retention_ms())
        if expiry_reason is None:
            return
        reason = expiry_reason
    (topic, partition), batch = unmarked[0], existing.planned.id
    raise RefusedError(
        f"batch {batch} is incomplete, and group {pipeline.name} has no offset for {topic}-{partition}, so its rows "
        f"may or may not be in the sink: {reason}; {_describe_resets(pipeline, lock)}"
    )


def _refuse_lost_records(
    pipeline: Pipeline, lock: Lock, source: TopicSource, reached: Mapping[TopicPartition, int], cluster: ClusterRequests
) -> None:
    """Refuse a source whose next records were deleted, or whose topic was deleted and created again."""
    if not source.fail_on_data_loss:
        return
    partitions = [at for at in cluster.list_partitions(source) if at in reached]
    first, end = cluster.fetch_earliest(partitions), cluster.fetch_latest(partitions)
    for at in partitions:
        name = f"{at[0]}-{at[1]}"
        if end[at] < reached[at]:
            raise RefusedError(
                f"{name} ends at offset {end[at]}, but the pipeline has read up to {reached[at]}: the topic was "
                f"deleted and created again; {_describe_resets(pipeline, lock)}"
            )
        if first[at] > reached[at]:
            raise RefusedError(
                f"records {reached[at]} to {first[at] - 1} of {name} were deleted before they were read; "
                "set fail.on.data.loss = false to continue without them"
            )


def _describe_lost_checkpoint(pipeline: Pipeline, lock: Lock, at: TopicPartition, offset: int) -> str:
    return (
        f"group {pipeline.name} has committed offset {offset} of {at[0]}-{at[1]}, but there is no checkpoint in "
        f"{get_checkpoint_folder(pipeline.state_folder, lock)}: it was lost, or the name was used before or "
        f"is used elsewhere; {_describe_resets(pipeline, lock)}"
    )


def _describe_resets(pipeline: Pipeline, lock: Lock) -> str:
    return " or ".join(f"reset --to {to}" for to in list_resets(pipeline, is_stateful=lock.is_stateful))
