"""Topics with unclean leader elections: a record is lost only if the leader that was elected so did not have it.

Everything else holds as for other topics: within a leader epoch an offset has one value, records are as they were sent,
and a producer's records are in the log once and in order.
"""

from __future__ import annotations

from collections.abc import Iterator

from odradek.simulation.checks.evidence import Evidence, Violation, ViolationKind
from odradek.simulation.checks.logs import check_contents
from odradek.simulation.checks.polls import check_bounds
from odradek.simulation.checks.producers import check_order
from odradek.simulation.history import (
    Guarantee,
    Isolation,
    Outcome,
    Partition,
    ReadRecord,
    Send,
    label_text,
    name_of,
)
from odradek.simulation.unclean_elections import UncleanElection

_SOMEWHERE = 1 << 62
"""The offset of a record whose acknowledgement has none."""


def check_unclean(evidence: Evidence) -> Iterator[Violation]:
    """Check every partition of these topics separately."""
    for partition in evidence.unclean_partitions:
        if evidence.final_log(partition, Isolation.READ_UNCOMMITTED) is None:
            yield Violation(ViolationKind.UNREADABLE, f"{name_of(partition)} was not read at the end")
            continue
        yield from _check_conflicts(evidence, partition)
        yield from _check_acknowledged(evidence, partition)
        yield from _check_polled(evidence, partition)
        yield from check_contents(evidence, partition)
        yield from _check_duplicates(evidence, partition)
        yield from check_order(evidence, partition, lambda send: _most_copies(evidence, send) > 1)
        for poll in evidence.polls.get(partition, ()):
            yield from check_bounds(poll)


def _elections(evidence: Evidence, partition: Partition) -> list[UncleanElection]:
    return [election for election in evidence.history.unclean_elections if election.partition == partition]


def _iter_reads(evidence: Evidence, partition: Partition) -> Iterator[tuple[str, ReadRecord]]:
    for poll in evidence.polls.get(partition, ()):
        for record in poll.records:
            yield poll.client, record
    for isolation in Isolation:
        for record in evidence.final_records(partition, isolation).values():
            yield f"the final {isolation.name} read", record


def _check_conflicts(evidence: Evidence, partition: Partition) -> Iterator[Violation]:
    """Within a leader epoch an offset has one value."""
    first: dict[tuple[int, int], tuple[str, ReadRecord]] = {}
    for client, record in _iter_reads(evidence, partition):
        reader, before = first.setdefault((record.leader_epoch, record.offset), (client, record))
        if before.value != record.value:
            yield Violation(
                ViolationKind.TWO_VALUES,
                f"{name_of(partition)} offset {record.offset} in leader epoch {record.leader_epoch} is "
                f"{label_text(before.value)} for {reader} and {label_text(record.value)} for {client}",
            )


def _check_acknowledged(evidence: Evidence, partition: Partition) -> Iterator[Violation]:
    final = evidence.final_records(partition, Isolation.READ_UNCOMMITTED)
    values = {record.value for record in final.values()}
    elections = _elections(evidence, partition)
    for send in evidence.sends.get(partition, ()):
        for number, record in enumerate(send.records if send.outcome is Outcome.OK else ()):
            offset = send.base_offset + number if send.base_offset >= 0 else _SOMEWHERE
            found = final.get(offset)
            is_present = record.value in values if offset == _SOMEWHERE else found and found.value == record.value
            if not is_present and not any(one.may_lose_write(offset, send.attempts[-1]) for one in elections):
                yield Violation(
                    ViolationKind.LOST_WRITE,
                    f"{name_of(partition)} {label_text(record.value)} of {send.client}, acknowledged at "
                    f"{send.base_offset + number}, is missing, and no unclean election lost it; the offset has "
                    f"{label_text(found.value) if found else 'nothing'}",
                )


def _check_polled(evidence: Evidence, partition: Partition) -> Iterator[Violation]:
    final = evidence.final_records(partition, Isolation.READ_UNCOMMITTED)
    elections = _elections(evidence, partition)
    for poll in evidence.polls.get(partition, ()):
        for record in poll.records:
            found = final.get(record.offset)
            if found is not None and (found.value, found.leader_epoch) == (record.value, record.leader_epoch):
                continue
            if not any(one.may_lose_read(record.offset, poll.invoked) for one in elections):
                yield Violation(
                    ViolationKind.LOST_WRITE,
                    f"{name_of(partition)} {label_text(record.value)} at {record.offset}, which {poll.client} got in "
                    f"leader epoch {record.leader_epoch}, is missing, and no unclean election lost it",
                )
                return


def _check_duplicates(evidence: Evidence, partition: Partition) -> Iterator[Violation]:
    places: dict[bytes | None, list[int]] = {}
    for offset, record in evidence.final_records(partition, Isolation.READ_UNCOMMITTED).items():
        places.setdefault(record.value, []).append(offset)
    for value, offsets in places.items():
        sender = evidence.senders.get(value) if value is not None else None
        if sender is not None and len(offsets) > _most_copies(evidence, sender[0]):
            yield Violation(
                ViolationKind.DUPLICATE,
                f"{name_of(partition)} {label_text(value)} of {sender[0].guarantee.value} producer "
                f"{sender[0].producer} is at {sorted(offsets)} after {len(sender[0].attempts)} attempts",
            )


def _most_copies(evidence: Evidence, send: Send) -> int:
    """Return the number of copies of a batch that may be in the log.

    After an unclean election an idempotent producer may have to begin a new epoch. If the next election is of a replica
    with records from before, the log can have the batch in both epochs, and later batches before its second copy.
    """
    is_repeatable = send.guarantee is Guarantee.PLAIN or len(_elections(evidence, send.partition)) > 1
    return len(send.attempts) if is_repeatable else 1
