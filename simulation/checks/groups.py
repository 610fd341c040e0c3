"""Groups: a partition has one owner in a generation."""

from __future__ import annotations

from collections.abc import Iterator

from odradek.simulation.checks.evidence import Evidence, Violation, ViolationKind
from odradek.simulation.history import Assignment, Outcome, Partition, name_of


def check_groups(evidence: Evidence) -> Iterator[Violation]:
    """Check all assignments, unless groups without offsets expire: their generations restart."""
    if evidence.history.settings.groups_expire:
        return
    owners: dict[tuple[str, int, int, Partition], Assignment] = {}
    crashes = evidence.crashes("__consumer_offsets")
    for assignment in evidence.history.assignments:
        for partition in assignment.partitions:
            era = crashes.era(assignment.invoked)
            key = assignment.group, era, assignment.generation, partition
            first = owners.setdefault(key, assignment)
            if first.member != assignment.member and not _is_deleted(evidence, first, assignment):
                yield Violation(
                    ViolationKind.TWO_OWNERS,
                    f"group {assignment.group} generation {assignment.generation}: {name_of(partition)} belongs to "
                    f"{first.member} and to {assignment.member}",
                )


def _is_deleted(evidence: Evidence, first: Assignment, second: Assignment) -> bool:
    """Return whether the group may have been deleted between two assignments, so that its generations restarted."""
    return any(
        deletion.invoked.order < second.invoked.order
        and (
            deletion.outcome is not Outcome.OK
            or deletion.finished is None
            or deletion.finished.order > first.invoked.order
        )
        for deletion in evidence.history.group_deletions
        if deletion.group == first.group and deletion.outcome is not Outcome.FAILED
    )
