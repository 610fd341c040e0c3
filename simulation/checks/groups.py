"""Groups: in one generation a partition has one owner."""

from __future__ import annotations

from collections.abc import Iterator

from odradek.simulation.checks.evidence import Evidence, Violation, ViolationKind
from odradek.simulation.history import Partition, name_of


def check_groups(evidence: Evidence) -> Iterator[Violation]:
    """All assignments that members learnt."""
    owners: dict[tuple[str, int, int, Partition], str] = {}
    crashes = evidence.crashes("__consumer_offsets")
    for assignment in evidence.history.assignments:
        for partition in assignment.partitions:
            era = crashes.era(assignment.invoked)
            key = assignment.group, era, assignment.generation, partition
            owner = owners.setdefault(key, assignment.member)
            if owner != assignment.member:
                yield Violation(
                    ViolationKind.TWO_OWNERS,
                    f"group {assignment.group} generation {assignment.generation}: {name_of(partition)} belongs to "
                    f"{owner} and to {assignment.member}",
                )
