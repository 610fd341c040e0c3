"""Contents of partitions: lost writes, wrong offsets, one offset with two values, altered and unknown records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from odradek.simulation.checks.evidence import Evidence, Violation, ViolationKind
from odradek.simulation.history import (
    Isolation,
    LossyCrashes,
    Outcome,
    Partition,
    ReadRecord,
    Send,
    label_text,
    name_of,
)


class Seen(NamedTuple):
    """An observation, in an era, of a value at an offset."""

    era: int
    offset: int
    value: bytes | None
    by: str


def check_logs(evidence: Evidence) -> Iterator[Violation]:
    """Check every partition separately."""
    for partition in evidence.partitions:
        crashes = evidence.crashes(partition[0])
        if evidence.final_log(partition, Isolation.READ_UNCOMMITTED) is None:
            if not evidence.is_deleted(partition[0]):
                yield Violation(ViolationKind.UNREADABLE, f"{name_of(partition)} was not read at the end")
            continue
        yield from _check_conflicts(evidence, partition, crashes)
        yield from _check_acknowledged(evidence, partition, crashes)
        yield from check_contents(evidence, partition)


def iter_seen(evidence: Evidence, partition: Partition, crashes: LossyCrashes) -> Iterator[Seen]:
    """Iterate over all observations of a partition: acknowledgements, polls, final reads."""
    for send in evidence.sends.get(partition, ()):
        if send.outcome is Outcome.OK and send.base_offset >= 0 and evidence.is_trusted(send):
            era = crashes.era(send.attempts[-1])
            for number, record in enumerate(send.records):
                yield Seen(era, send.base_offset + number, record.value, f"acknowledged to {send.client}")
    for poll in evidence.polls.get(partition, ()):
        era = crashes.era(poll.invoked)
        for read in poll.records:
            yield Seen(era, read.offset, read.value, f"read by {poll.client}")
    for isolation in Isolation:
        for read in evidence.final_records(partition, isolation).values():
            yield Seen(crashes.last_era, read.offset, read.value, "read at the end")


def _check_conflicts(evidence: Evidence, partition: Partition, crashes: LossyCrashes) -> Iterator[Violation]:
    """Within an era an offset has one value; after the crash at its end the tail may be rewritten."""
    first: dict[tuple[int, int], Seen] = {}
    for seen in iter_seen(evidence, partition, crashes):
        before = first.setdefault((seen.era, seen.offset), seen)
        if before.value != seen.value:
            yield Violation(
                ViolationKind.TWO_VALUES,
                f"{name_of(partition)} offset {seen.offset} is {label_text(before.value)} ({before.by}) and "
                f"{label_text(seen.value)} ({seen.by})",
            )


def _check_acknowledged(evidence: Evidence, partition: Partition, crashes: LossyCrashes) -> Iterator[Violation]:
    """Acknowledged records are at the acknowledged offsets at the end; a crash may remove the tail only."""
    final = evidence.final_records(partition, Isolation.READ_UNCOMMITTED)
    places: dict[bytes | None, int] = {record.value: offset for offset, record in final.items()}
    superseded = evidence.superseding(partition)
    is_compacted = partition[0] in evidence.history.settings.compacted
    kept: list[tuple[int, int, Send, int]] = []
    lost: list[tuple[int, int]] = []
    for send in evidence.sends.get(partition, ()):
        if send.outcome is not Outcome.OK or not evidence.is_trusted(send):
            continue
        if is_compacted and send.transaction is not None:
            # Compaction removes aborted records; committed records are checked with their transaction.
            continue
        era = crashes.era(send.attempts[-1])
        for number, record in enumerate(send.records):
            offset = send.base_offset + number if send.base_offset >= 0 else places.get(record.value, -1)
            found = final.get(offset)
            if found is not None and found.value == record.value:
                kept.append((era, offset, send, number))
            elif superseded.get(record.key, -1) > offset or evidence.may_be_gone(partition, offset, record.timestamp):
                continue
            elif era < crashes.last_era:
                if send.base_offset >= 0 and superseded.get(record.key, -1) <= offset:
                    lost.append((era, offset))
            elif record.value in places:
                yield Violation(
                    ViolationKind.WRONG_OFFSET,
                    f"{name_of(partition)} {label_text(record.value)} of {send.client} was acknowledged at {offset} "
                    f"but is at {places[record.value]}",
                )
            else:
                yield Violation(
                    ViolationKind.LOST_WRITE,
                    f"{name_of(partition)} {label_text(record.value)} of {send.client}, acknowledged at {offset} with "
                    f"acks={send.acks}, is missing; the offset has {label_text(found.value) if found else 'nothing'}",
                )
    if not is_compacted:
        # In a compacted log a gap from a power loss cannot be distinguished from one of compaction.
        yield from _check_gaps(partition, crashes, kept, lost)


def _check_gaps(
    partition: Partition, crashes: LossyCrashes, kept: list[tuple[int, int, Send, int]], lost: list[tuple[int, int]]
) -> Iterator[Violation]:
    """A crash that lost a record lost all records after it."""
    if not lost:
        return
    lowest_since = [1 << 62] * (crashes.last_era + 2)
    for era, offset in lost:
        lowest_since[era] = min(lowest_since[era], offset)
    for era in range(crashes.last_era, -1, -1):
        lowest_since[era] = min(lowest_since[era], lowest_since[era + 1])
    for era, offset, send, number in kept:
        if era < crashes.last_era and lowest_since[era] < offset:
            yield Violation(
                ViolationKind.HOLE,
                f"{name_of(partition)} {label_text(send.records[number].value)} at {offset} survived a crash that lost "
                f"the record acknowledged at {lowest_since[era]}",
            )
            return


def check_contents(evidence: Evidence, partition: Partition) -> Iterator[Violation]:
    """All records that were read were sent to this partition with the same contents."""
    reported: set[tuple[int, bytes | None]] = set()
    crashes = evidence.crashes(partition[0])
    reads: list[tuple[str, tuple[ReadRecord, ...], int]] = [
        (poll.client, poll.records, crashes.era(poll.invoked)) for poll in evidence.polls.get(partition, ())
    ]
    for isolation in Isolation:
        log = evidence.final_log(partition, isolation)
        reads.append((f"the final {isolation.name} read", log.records if log else (), crashes.last_era))
    for client, records, era in reads:
        for read in records:
            violation = _check_content(evidence, partition, client, read, era)
            if violation is not None and (read.offset, read.value) not in reported:
                reported.add((read.offset, read.value))
                yield violation


def _check_content(
    evidence: Evidence, partition: Partition, client: str, read: ReadRecord, era: int
) -> Violation | None:
    """Return the violation of a record that was read in an era, if any."""
    sender = evidence.senders.get(read.value) if read.value is not None else None
    where = f"{name_of(partition)} offset {read.offset} {label_text(read.value)} as read by {client}"
    if sender is None:
        return Violation(ViolationKind.UNKNOWN_VALUE, f"{where} was never sent")
    send, number = sender
    sent = send.records[number]
    if send.partition != partition:
        return Violation(ViolationKind.ALTERED_RECORD, f"{where} was sent to {name_of(send.partition)}")
    if send.outcome is Outcome.FAILED:
        return Violation(ViolationKind.REFUSED_WRITE, f"{where} had been rejected: {send.error}")
    timestamp = sent.timestamp
    if partition[0] in evidence.history.settings.log_append_time:
        # A record written by an attempt without a response has another timestamp. It may have the same offset as the
        # acknowledged one, if it was read before a crash that removed it.
        is_answered = send.log_append_time >= 0 and read.offset == send.base_offset + number
        is_answered = is_answered and era >= evidence.crashes(partition[0]).era(send.attempts[-1])
        timestamp = send.log_append_time if is_answered else read.timestamp
    if (read.key, read.headers, read.timestamp) != (sent.key, sent.headers, timestamp):
        return Violation(
            ViolationKind.ALTERED_RECORD,
            f"{where}: key {read.key!r} headers {read.headers} timestamp {read.timestamp}, sent with {sent.key!r} "
            f"{sent.headers} {timestamp}",
        )
    return None
