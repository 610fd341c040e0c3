"""Duplicates and order: an idempotent producer's records exist once, in the order of sending (KIP-98).

A producer id belongs to one producer or one transactional id: the batches of a second one would count as duplicates.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

from odradek.simulation.checks.evidence import Evidence, Violation, ViolationKind
from odradek.simulation.checks.logs import iter_seen
from odradek.simulation.history import Guarantee, Isolation, Partition, Send, label_text, name_of


def check_producers(evidence: Evidence) -> Iterator[Violation]:
    """Check the producer ids, and every partition separately."""
    yield from _check_ids(evidence)
    for partition in evidence.partitions:
        yield from _check_duplicates(evidence, partition)
        yield from check_order(evidence, partition)


def _check_ids(evidence: Evidence) -> Iterator[Violation]:
    owners: dict[int, str] = {}
    for producer_id, owner in evidence.history.producer_ids:
        first = owners.setdefault(producer_id, owner)
        if owner != first:
            yield Violation(ViolationKind.SHARED_ID, f"{producer_id} is that of {first} and of {owner}")


def _check_duplicates(evidence: Evidence, partition: Partition) -> Iterator[Violation]:
    """Within an era a value has one offset; a plain producer's value has at most one offset per attempt."""
    places: dict[tuple[int, bytes], set[int]] = defaultdict(set)
    for seen in iter_seen(evidence, partition, evidence.crashes(partition[0])):
        if seen.value is not None:
            places[seen.era, seen.value].add(seen.offset)
    reported = set()
    for (_, value), offsets in places.items():
        sender = evidence.senders.get(value)
        if len(offsets) < 2 or sender is None or value in reported:
            continue
        send = sender[0]
        if send.guarantee is not Guarantee.PLAIN or len(offsets) > len(send.attempts):
            reported.add(value)
            yield Violation(
                ViolationKind.DUPLICATE,
                f"{name_of(partition)} {label_text(value)} of {send.guarantee.value} producer {send.producer} is at "
                f"{sorted(offsets)} after {len(send.attempts)} attempts",
            )


def check_order(
    evidence: Evidence, partition: Partition, is_repeated: Callable[[Send], bool] = lambda send: False
) -> Iterator[Violation]:
    """The records of each producer are in the order of sending, except that a repeated batch may follow later ones."""
    last: dict[str, tuple[tuple[int, int], bytes]] = {}
    records = evidence.final_records(partition, Isolation.READ_UNCOMMITTED)
    for offset in sorted(records):
        value = records[offset].value
        sender = evidence.senders.get(value) if value is not None else None
        if value is None or sender is None or sender[0].guarantee is Guarantee.PLAIN:
            continue
        send, number = sender
        place = send.invoked.order, number
        before = last.get(send.producer)
        if before is not None and before[0] > place and not is_repeated(send):
            yield Violation(
                ViolationKind.REORDERED,
                f"{name_of(partition)} offset {offset}: {label_text(value)} of {send.producer} follows "
                f"{label_text(before[1])}, which was sent later",
            )
        last[send.producer] = place, value
