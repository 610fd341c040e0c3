"""Transactions in the final reads: complete or absent, and no records of aborted ones."""

from __future__ import annotations

from collections.abc import Iterator

from odradek.simulation.checks.evidence import Evidence, Violation, ViolationKind, effective_outcome
from odradek.simulation.history import (
    TRANSACTIONS_TOPIC,
    Isolation,
    Outcome,
    Partition,
    Transaction,
    label_text,
    name_of,
)


def check_transactions(evidence: Evidence) -> Iterator[Violation]:
    """Check every transaction unless a crash may have lost a part of it, and the final READ_COMMITTED reads."""
    for transaction in evidence.history.transactions:
        if not evidence.is_excused(transaction):
            yield from _check(evidence, transaction)
    for partition in evidence.partitions:
        yield from _check_final_read(evidence, partition)


def is_committed(evidence: Evidence, transaction: Transaction) -> bool | None:
    """Return whether a transaction is committed according to the final reads; None if they do not show it."""
    outcome = effective_outcome(transaction)
    if outcome is not Outcome.UNKNOWN:
        return outcome is Outcome.OK
    sends = [send for send in transaction.sends if send.outcome is Outcome.OK]
    if not sends:
        return None
    values = [(send.partition, record.value) for send in sends for record in send.records]
    if any(evidence.is_visible(*value) for value in values):
        return True
    return None if all(evidence.is_out_of_reach(*value) for value in values) else False


def _check(evidence: Evidence, transaction: Transaction) -> Iterator[Violation]:
    outcome = effective_outcome(transaction)
    visible, hidden = [], []
    for send in transaction.sends:
        if evidence.final_log(send.partition, Isolation.READ_COMMITTED) is None:
            return
        for number, record in enumerate(send.records):
            place = f"{name_of(send.partition)} {label_text(record.value)}"
            if evidence.is_visible(send.partition, record.value):
                visible.append(place)
            elif evidence.superseding(send.partition).get(record.key, -1) > send.base_offset + number:
                continue
            elif send.outcome is Outcome.OK and not evidence.is_out_of_reach(send.partition, record.value):
                hidden.append(place)
    who = f"transaction of {transaction.transactional_id} by {transaction.client} at {transaction.invoked.time_ms}"
    if outcome is Outcome.FAILED:
        if visible:
            yield Violation(ViolationKind.ABORTED_READ, f"{who} was never committed, but has {_some(visible)}")
    elif visible and hidden:
        yield Violation(
            ViolationKind.TORN_TRANSACTION, f"{who} ({outcome.value}) has {_some(visible)} but not {_some(hidden)}"
        )
    elif hidden and outcome is Outcome.OK:
        yield Violation(ViolationKind.LOST_TRANSACTION, f"{who} was committed, but lacks {_some(hidden)}")


def _check_final_read(evidence: Evidence, partition: Partition) -> Iterator[Violation]:
    """A READ_COMMITTED read returns all records outside of transactions, and reaches the end of the log."""
    committed = evidence.final_log(partition, Isolation.READ_COMMITTED)
    everything = evidence.final_log(partition, Isolation.READ_UNCOMMITTED)
    if committed is None or everything is None:
        return
    crashed = len(evidence.crashes(partition[0])) or len(evidence.crashes(TRANSACTIONS_TOPIC))
    if committed.end_offset < everything.high_watermark and not crashed:
        yield Violation(
            ViolationKind.HANGING_TRANSACTION,
            f"{name_of(partition)}: last stable offset {committed.end_offset} is below the high watermark "
            f"{everything.high_watermark}",
        )
    visible = evidence.final_records(partition, Isolation.READ_COMMITTED)
    for record in everything.records:
        if record.offset >= committed.end_offset:
            break
        # This read is the second: retention may have moved the log start in between.
        is_gone = record.offset < committed.start_offset and evidence.may_be_gone(
            partition, record.offset, record.timestamp
        )
        if record.offset not in visible and not is_gone and evidence.transaction_of(record.value) is None:
            yield Violation(
                ViolationKind.SKIPPED,
                f"{name_of(partition)} offset {record.offset} {label_text(record.value)}: non-transactional, but not "
                "read by the final READ_COMMITTED read",
            )
    physical = evidence.final_records(partition, Isolation.READ_UNCOMMITTED)
    for offset in visible:
        if offset not in physical:
            yield Violation(
                ViolationKind.SKIPPED,
                f"{name_of(partition)} offset {offset} was read by the final READ_COMMITTED read alone",
            )


def _some(places: list[str]) -> str:
    return ", ".join(places[:3]) + (f" and {len(places) - 3} more" if len(places) > 3 else "")
