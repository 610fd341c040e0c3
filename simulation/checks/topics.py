"""Deleted topics, also if they are created again, and deleted records do not reappear."""

from __future__ import annotations

from collections.abc import Iterator

from odradek.simulation.checks.evidence import Evidence, Violation, ViolationKind
from odradek.simulation.history import CrashKind, Isolation, Moment, Outcome, Partition, name_of
from odradek.simulation.topic_lives import RecordDeletion, TopicLife

_START, _END = Moment(-1, 0), Moment(1 << 62, 0)


def check_topics(evidence: Evidence) -> Iterator[Violation]:
    """Check topic ids, listings of topics, and log start offsets."""
    yield from _check_ids(evidence)
    yield from _check_listings(evidence)
    for deletion in evidence.history.topics.record_deletions:
        if deletion.outcome is Outcome.OK:
            yield from _check_deletion(evidence, deletion)


def _check_ids(evidence: Evidence) -> Iterator[Violation]:
    """Report topics that got the id of an earlier one."""
    first: dict[bytes, TopicLife] = {}
    for life in evidence.history.topics.lives:
        other = first.setdefault(life.topic_id, life)
        if other is not life:
            text = f"{life.name} has the id {life.topic_id.hex()} of {other.name}"
            yield Violation(ViolationKind.REUSED_ID, text)


def _check_listings(evidence: Evidence) -> Iterator[Violation]:
    """Report listings of topics that do not exist."""
    topics = evidence.history.topics
    by_id = {life.topic_id: life for life in topics.lives}
    for listing in topics.listings:
        if listing.topic_id is None or not _is_current(evidence, listing.invoked):
            continue
        life = by_id.get(listing.topic_id)
        if life is None:
            text = f"{listing.client} got {listing.topic}, which was never created"
            yield Violation(ViolationKind.FOREIGN_TOPIC, text)
        elif life.deleted is not None and _is_certain(evidence, life.deleted, listing.invoked):
            text = f"{listing.client} got {life.name}, which had been deleted"
            yield Violation(ViolationKind.RESURRECTED, text)


def _is_current(evidence: Evidence, invoked: Moment, change: Moment = _START) -> bool:
    """Return whether the response to a request must show a change: a broker of a cluster may lag behind.

    After the faults, leaders do not. A change of topics reaches the other brokers after the controller's response, with
    UpdateMetadata, so that it is certain only when they have had the same state since the change.
    """
    if not evidence.history.settings.is_cluster:
        return True
    return any(change.order < moment.order < invoked.order for moment in evidence.history.settlements)


def _is_certain(evidence: Evidence, deleted: Moment, listed: Moment) -> bool:
    """Return whether a listing must show a deletion. The loss of the metadata store may lose deletions."""
    if deleted.order > listed.order or any(loss.order > deleted.order for loss in evidence.history.store_losses):
        return False
    return _is_current(evidence, listed, deleted)


def _check_deletion(evidence: Evidence, deletion: RecordDeletion) -> Iterator[Violation]:
    """Report a read, requested after the acknowledged deletion, that begins before its offset."""
    partition = deletion.partition
    done = deletion.finished
    assert done is not None
    starts = [(poll.invoked, poll.fetch_offset, poll.client) for poll in evidence.polls.get(partition, ())]
    starts += _final_start(evidence, partition)
    for invoked, start, client in starts:
        is_later = invoked.order > done.order and not _may_undo(evidence, done, invoked)
        is_later = is_later and _is_current(evidence, invoked)
        if is_later and start < deletion.low_watermark:
            yield Violation(
                ViolationKind.DELETION_UNDONE,
                f"{name_of(partition)} begins at {start} for {client}, after the records before "
                f"{deletion.low_watermark} had been deleted",
            )
            return


def _final_start(evidence: Evidence, partition: Partition) -> list[tuple[Moment, int, str]]:
    log = evidence.final_log(partition, Isolation.READ_UNCOMMITTED)
    is_alive = any(life.name == partition[0] for life in evidence.history.topics.living())
    return [(_END, log.start_offset, "the final read")] if log is not None and is_alive else []


def _may_undo(evidence: Evidence, since: Moment, until: Moment) -> bool:
    """Return whether crashes in between may have undone a deletion of records.

    One crash of a broker of a cluster does not: a leader has recorded the deletion, or other replicas have. A replica
    that follows records it later, so that several crashes may.
    """
    crashes = [crash for crash in evidence.history.crashes if since.order < crash.moment.order < until.order]
    if evidence.history.settings.is_cluster:
        return len(crashes) > 1
    return any(crash.kind is not CrashKind.PROCESS_KILL for crash in crashes)
