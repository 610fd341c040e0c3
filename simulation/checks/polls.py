"""Fetched records: in order, without gaps, within bounds, none of undecided or aborted transactions (KIP-98)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import pairwise

from odradek.simulation.checks.evidence import Evidence, Violation, ViolationKind, effective_outcome
from odradek.simulation.history import (
    TRANSACTIONS_TOPIC,
    Isolation,
    Outcome,
    Partition,
    Poll,
    ReadRecord,
    label_text,
    name_of,
)

_NEVER = 1 << 62


def check_polls(evidence: Evidence) -> Iterator[Violation]:
    """Check every partition separately."""
    for partition in evidence.partitions:
        polls = evidence.polls.get(partition, [])
        yield from _check_sequence(partition, polls)
        final = FinalOrder(evidence, partition)
        undecided = UndecidedTransactions(evidence, partition)
        for poll in polls:
            yield from check_bounds(poll)
            yield from final.check_skipped(poll)
            if poll.isolation is Isolation.READ_COMMITTED:
                yield from _check_isolation(evidence, poll)
                yield from undecided.check_passed(poll)


def _where(poll: Poll) -> str:
    return f"{name_of(poll.partition)} poll of {poll.client} ({poll.isolation.name}) from {poll.fetch_offset}"


def _check_sequence(partition: Partition, polls: list[Poll]) -> Iterator[Violation]:
    """A poll begins at the end of the previous poll of the same assignment."""
    next_offsets: dict[str, int] = {}
    for poll in polls:
        expected = next_offsets.get(poll.assignment, poll.fetch_offset)
        if poll.fetch_offset != expected:
            kind = ViolationKind.POLL_ORDER if poll.fetch_offset < expected else ViolationKind.SKIPPED
            yield Violation(kind, f"{_where(poll)} follows a poll that ended at {expected}")
        next_offsets[poll.assignment] = poll.next_offset


def check_bounds(poll: Poll) -> Iterator[Violation]:
    """Check the order of a poll's offsets, and that it ends below the high watermark or last stable offset."""
    offsets = [record.offset for record in poll.records]
    if any(later <= earlier for earlier, later in pairwise(offsets)):
        yield Violation(ViolationKind.POLL_ORDER, f"{_where(poll)} returned offsets {offsets}")
    if poll.next_offset < poll.fetch_offset or (offsets and not poll.fetch_offset <= offsets[0]):
        yield Violation(ViolationKind.POLL_ORDER, f"{_where(poll)} went back to {min([poll.next_offset, *offsets])}")
    if offsets and offsets[-1] >= poll.next_offset:
        text = f"{_where(poll)} returned {offsets[-1]}, but continues at {poll.next_offset}"
        yield Violation(ViolationKind.POLL_ORDER, text)
    bound = poll.high_watermark
    if poll.isolation is Isolation.READ_COMMITTED:
        bound = poll.last_stable_offset
        if bound > poll.high_watermark:
            yield Violation(
                ViolationKind.BEYOND_BOUND, f"{_where(poll)}: stable up to {bound}, beyond {poll.high_watermark}"
            )
    if offsets and offsets[-1] >= bound:
        yield Violation(ViolationKind.BEYOND_BOUND, f"{_where(poll)} returned {offsets[-1]}, but the bound is {bound}")


def _check_isolation(evidence: Evidence, poll: Poll) -> Iterator[Violation]:
    """No record of a transaction that is not committed, or whose commit was not requested before the read."""
    for record in poll.records:
        transaction = evidence.transaction_of(record.value)
        if transaction is None or evidence.is_excused(transaction):
            continue
        text = f"{_where(poll)} got {label_text(record.value)} at {record.offset} of {transaction.transactional_id}"
        if effective_outcome(transaction) is Outcome.FAILED:
            yield Violation(ViolationKind.ABORTED_READ, f"{text}, whose transaction was never committed")
            return
        assert transaction.commit_invoked is not None and poll.finished is not None
        if transaction.commit_invoked.order > poll.finished.order:
            yield Violation(ViolationKind.DIRTY_READ, f"{text} before the commit of its transaction was requested")
            return


class FinalOrder:
    """The final records of a partition, with which polls are compared: a poll returns all records in its range."""

    def __init__(self, evidence: Evidence, partition: Partition) -> None:
        self._evidence = evidence
        self._crashes = evidence.crashes(partition[0])
        self._records = {isolation: evidence.final_records(partition, isolation) for isolation in Isolation}
        self._offsets = {isolation: sorted(records) for isolation, records in self._records.items()}
        self._is_compacted = partition[0] in evidence.history.settings.compacted
        # The owner of a topic that it deletes reads each isolation level apart; one of the two may fail.
        self._is_read = all(evidence.final_log(partition, isolation) is not None for isolation in Isolation)
        self._crashed = len(self._crashes) or len(evidence.crashes(TRANSACTIONS_TOPIC))

    def check_skipped(self, poll: Poll) -> Iterator[Violation]:
        """Report records in the poll's range that it did not return. `logs` reports the opposite case."""
        isolation = poll.isolation
        end = min(poll.next_offset, self._trusted_end(poll))
        if not self._is_read or end <= poll.fetch_offset:
            return
        offsets = self._offsets[isolation]
        given = {record.offset for record in poll.records}
        for position in range(bisect_left(offsets, poll.fetch_offset), bisect_left(offsets, end)):
            offset = offsets[position]
            record = self._records[isolation][offset]
            if offset not in given and not self._is_late_comer(poll, offset) and not self._may_be_back(poll, record):
                yield Violation(
                    ViolationKind.SKIPPED,
                    f"{_where(poll)} to {poll.next_offset} omitted {label_text(record.value)} at {offset}",
                )
                return
        if not self._is_compacted and not self._crashed:
            yield from self._check_extra(poll)

    def _check_extra(self, poll: Poll) -> Iterator[Violation]:
        records = self._records[poll.isolation]
        for record in poll.records:
            if record.offset not in records and not self._evidence.may_be_gone(
                poll.partition, record.offset, record.timestamp
            ):
                yield Violation(
                    ViolationKind.LOST_WRITE,
                    f"{_where(poll)} returned {label_text(record.value)} at {record.offset}, which the final "
                    f"{poll.isolation.name} read did not return",
                )
                return

    def _trusted_end(self, poll: Poll) -> int:
        """Return the offset up to which the final log is the polled log: its end, unless a crash truncated it."""
        if not self._crashed:
            return _NEVER
        era = self._crashes.era(poll.invoked)
        physical = self._records[Isolation.READ_UNCOMMITTED]
        for record in reversed(poll.records):
            if self._survived(record, physical, era):
                return record.offset + 1
        return 0

    def _survived(self, record: ReadRecord, physical: dict[int, ReadRecord], era: int) -> bool:
        found = physical.get(record.offset)
        sender = self._evidence.senders.get(record.value) if record.value is not None else None
        if found is None or sender is None or found.value != record.value:
            return False
        return self._crashes.era(sender[0].attempts[-1]) <= era

    def _may_be_back(self, poll: Poll, record: ReadRecord) -> bool:
        """Return whether compaction may have removed a record before the poll, and a later crash restored it.

        A power loss restores replaced segments whose names were not synced. A kill restores replaced segments after
        the last batch of their replacement, because its files do not contain its end offset (as in Apache Kafka). The
        replicas of a cluster are compacted at different times.
        """
        history = self._evidence.history
        may_differ = history.settings.is_cluster or history.has_crashed_since(poll.invoked)
        if not self._is_compacted or not may_differ:
            return False
        return self._evidence.superseding(poll.partition).get(record.key, -1) > record.offset

    def _is_late_comer(self, poll: Poll, offset: int) -> bool:
        """Return whether a record is of a transaction that a crash may have reopened."""
        if poll.isolation is Isolation.READ_UNCOMMITTED:
            return False
        transaction = self._evidence.transaction_of(self._records[poll.isolation][offset].value)
        return transaction is not None and self._evidence.is_excused(transaction)


class UndecidedTransactions:
    """Detects polls that passed a transaction while it was certainly open.

    A committed transaction was open from its first record until its commit was requested. Until then no READ_COMMITTED
    consumer may pass its first record.
    """

    def __init__(self, evidence: Evidence, partition: Partition) -> None:
        spans = []
        self._crashes = evidence.crashes(partition[0])
        for transaction in evidence.history.transactions:
            if effective_outcome(transaction) is not Outcome.OK or evidence.is_excused(transaction):
                continue
            offsets = [
                send.base_offset
                for send in transaction.sends
                if send.partition == partition and send.outcome is Outcome.OK and send.base_offset >= 0
            ]
            if offsets and transaction.commit_invoked is not None:
                spans.append((transaction.commit_invoked.order, min(offsets), transaction.transactional_id))
        spans.sort()
        self._commits = [span[0] for span in spans]
        self._lowest: list[tuple[int, str]] = [(_NEVER, "")]
        for _, offset, transactional_id in reversed(spans):
            self._lowest.append(min(self._lowest[-1], (offset, transactional_id)))
        self._lowest.reverse()

    def check_passed(self, poll: Poll) -> Iterator[Violation]:
        """Report a poll that ended after the first record of a transaction that was open at the response."""
        assert poll.finished is not None
        if self._crashes.era(poll.invoked) < self._crashes.last_era:
            # The passed records were truncated, and their offsets reused.
            return
        offset, transactional_id = self._lowest[bisect_right(self._commits, poll.finished.order)]
        if offset < poll.next_offset and poll.next_offset > poll.fetch_offset:
            yield Violation(
                ViolationKind.DIRTY_READ,
                f"{_where(poll)} to {poll.next_offset} passed {offset}, where a transaction of {transactional_id} "
                "was open",
            )
