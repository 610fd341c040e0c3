"""ListOffsets: the end of a partition never decreases, and is above all acknowledged offsets."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator

from odradek.simulation.checks.evidence import Evidence, Violation, ViolationKind
from odradek.simulation.history import EndOffset, Isolation, Outcome, Partition, name_of


def check_ends(evidence: Evidence) -> Iterator[Violation]:
    """Check every partition, isolation level and era separately.

    In a cluster a leader that has been replaced without its notice still lists the end that it has.
    """
    if evidence.history.settings.is_cluster:
        return
    found: dict[tuple[Partition, Isolation, int], list[EndOffset]] = defaultdict(list)
    for end in evidence.history.end_offsets:
        era = evidence.crashes(end.partition[0]).era(end.invoked)
        found[end.partition, end.isolation, era].append(end)
    for (partition, isolation, era), ends in found.items():
        known = [(end.finished.order, end.offset, "listed before") for end in ends if end.finished is not None]
        if isolation is Isolation.READ_UNCOMMITTED:
            known += _list_acknowledged(evidence, partition, era)
        yield from _check_falls(partition, isolation, ends, sorted(known))


def _list_acknowledged(evidence: Evidence, partition: Partition, era: int) -> list[tuple[int, int, str]]:
    crashes = evidence.crashes(partition[0])
    return [
        (send.finished.order, send.base_offset + len(send.records), f"acknowledged to {send.client}")
        for send in evidence.sends.get(partition, ())
        if send.outcome is Outcome.OK and send.base_offset >= 0 and send.acks == -1 and send.finished is not None
        if evidence.is_trusted(send) and crashes.era(send.attempts[-1]) == era
    ]


def _check_falls(
    partition: Partition, isolation: Isolation, ends: list[EndOffset], known: list[tuple[int, int, str]]
) -> Iterator[Violation]:
    orders = [order for order, _, _ in known]
    highest: list[tuple[int, str]] = [(0, "")]
    for _, offset, source in known:
        highest.append(max(highest[-1], (offset, source)))
    for end in ends:
        least, source = highest[bisect_left(orders, end.invoked.order)]
        if end.offset < least:
            yield Violation(
                ViolationKind.END_FELL,
                f"{name_of(partition)} ({isolation.name}) ended at {end.offset} for {end.client}; "
                f"{least} had been {source}",
            )
