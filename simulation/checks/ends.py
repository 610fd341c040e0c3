"""ListOffsets: the end of a partition never decreases, and is above all acknowledged offsets."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from odradek.simulation.checks.evidence import Evidence, Violation, ViolationKind
from odradek.simulation.history import EndOffset, Isolation, Moment, Outcome, Partition, name_of

_AT_THE_END = Moment(1 << 62, 0)


class _Known(NamedTuple):
    """An offset that the end has reached by the time `order`."""

    order: int
    offset: int
    source: str


def check_ends(evidence: Evidence) -> Iterator[Violation]:
    """Check every partition, isolation level and era separately."""
    if evidence.history.settings.is_cluster:
        yield from _check_leader_epochs(evidence)
        yield from _check_after_faults(evidence)
        return
    found: dict[tuple[Partition, Isolation, int], list[EndOffset]] = defaultdict(list)
    for end in evidence.history.end_offsets:
        era = evidence.crashes(end.partition[0]).era(end.invoked)
        found[end.partition, end.isolation, era].append(end)
    for (partition, isolation, era), ends in found.items():
        known = [*_list_known(ends, "listed before")]
        if isolation is Isolation.READ_UNCOMMITTED:
            known += _list_acknowledged(evidence, partition, era)
        yield from _check_falls(partition, isolation, ends, known)


def _check_leader_epochs(evidence: Evidence) -> Iterator[Violation]:
    """Compare the ends that the leaders of a cluster have listed, in the order of their epochs.

    A leader that has been replaced without its notice still lists the end that it has, at any time. A later leader
    lists no end until its high watermark has reached the start of its epoch, which no earlier leader's passes
    (KIP-207). Fetches return its high watermark before that. After an unclean election this holds for the epochs from
    its own on. Of the last stable offsets only those that were listed count for later epochs (`_is_lasting`).
    """
    elected: dict[Partition, list[int]] = defaultdict(list)
    for election in evidence.history.unclean_elections:
        elected[election.partition].append(election.leader_epoch)
    found: dict[tuple[Partition, Isolation, int], dict[int, list[EndOffset]]] = defaultdict(lambda: defaultdict(list))
    for end in evidence.history.end_offsets:
        if end.leader_epoch >= 0:
            branch = sum(epoch <= end.leader_epoch for epoch in elected[end.partition])
            found[end.partition, end.isolation, branch][end.leader_epoch].append(end)
    for (partition, isolation, _), by_epoch in found.items():
        earlier = _Known(-1, 0, "")
        for epoch in sorted(by_epoch):
            ends = by_epoch[epoch]
            known = [*_list_known(ends, f"returned before in leader epoch {epoch}")]
            listed = [end for end in ends if not end.is_fetched]
            yield from _check_falls(partition, isolation, listed, [earlier, *known], f" in leader epoch {epoch}")
            latest = max((end.offset for end in ends if _is_lasting(end)), default=-1)
            if latest > earlier.offset:
                earlier = _Known(-1, latest, f"returned in leader epoch {epoch}")


def _check_after_faults(evidence: Evidence) -> Iterator[Violation]:
    """After the faults no other broker leads: no end is below an earlier one, or below acknowledged records.

    The final reads are compared with acknowledged records elsewhere (`logs`).
    """
    history = evidence.history
    settled = min((moment.order for moment in history.settlements), default=_AT_THE_END.order)
    found: dict[tuple[Partition, Isolation], list[EndOffset]] = defaultdict(list)
    for end in history.end_offsets:
        found[end.partition, end.isolation].append(end)
    for partition in evidence.partitions:
        for isolation in Isolation:
            ends = found[partition, isolation]
            known = [*_list_known(filter(_is_lasting, ends), "listed before")]
            log = evidence.final_log(partition, isolation)
            if log is not None and not evidence.is_deleted(partition[0]):
                final = EndOffset("the final read", _AT_THE_END, partition, isolation, log.end_offset)
                yield from _check_falls(partition, isolation, [final], known)
            if isolation is Isolation.READ_UNCOMMITTED:
                known += _list_acknowledged(evidence, partition, 0)
            later = [end for end in ends if end.invoked.order > settled and not end.is_fetched]
            yield from _check_falls(partition, isolation, later, known)


def _is_lasting(end: EndOffset) -> bool:
    """Return whether no later leader may return an end below this one.

    A replica that loads its producers from a snapshot (in Kafka's format) does not find transactions there whose
    markers are above the high watermark. Until this reaches the start of its epoch, its fetches return a last stable
    offset above their first offsets. A leader without these markers gets them from the coordinators again.
    """
    return not end.is_fetched or end.isolation is Isolation.READ_UNCOMMITTED


def _list_known(ends: Iterable[EndOffset], source: str) -> Iterator[_Known]:
    return (_Known(end.finished.order, end.offset, source) for end in ends if end.finished is not None)


def _list_acknowledged(evidence: Evidence, partition: Partition, era: int) -> list[_Known]:
    crashes = evidence.crashes(partition[0])
    return [
        _Known(send.finished.order, send.base_offset + len(send.records), f"acknowledged to {send.client}")
        for send in evidence.sends.get(partition, ())
        if send.outcome is Outcome.OK and send.base_offset >= 0 and send.acks == -1 and send.finished is not None
        if evidence.is_trusted(send) and crashes.era(send.attempts[-1]) == era
    ]


def _check_falls(
    partition: Partition, isolation: Isolation, ends: Iterable[EndOffset], known: Iterable[_Known], where: str = ""
) -> Iterator[Violation]:
    in_order = sorted(known)
    orders = [one.order for one in in_order]
    highest: list[tuple[int, str]] = [(0, "")]
    for one in in_order:
        highest.append(max(highest[-1], (one.offset, one.source)))
    for end in ends:
        least, source = highest[bisect_left(orders, end.invoked.order)]
        if end.offset < least:
            yield Violation(
                ViolationKind.END_FELL,
                f"{name_of(partition)} ({isolation.name}) ended at {end.offset} for {end.client}{where}; "
                f"{least} had been {source}",
            )
