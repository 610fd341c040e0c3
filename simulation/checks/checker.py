"""The checker: finds violations of Kafka's guarantees in a history.

`check` is a pure function of the clients' operations with their outcomes, and of the final reads. It uses no code of
the broker, so a defect of the broker cannot also be in the check for it. It is modelled on Jepsen's Kafka workload.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from odradek.simulation.checks.copies import check_copies
from odradek.simulation.checks.ends import check_ends
from odradek.simulation.checks.evidence import Evidence, Violation, ViolationKind
from odradek.simulation.checks.groups import check_groups
from odradek.simulation.checks.logs import check_logs
from odradek.simulation.checks.lookups import check_lookups
from odradek.simulation.checks.offsets import check_offsets
from odradek.simulation.checks.polls import check_polls
from odradek.simulation.checks.producers import check_producers
from odradek.simulation.checks.topics import check_topics
from odradek.simulation.checks.transactions import check_transactions
from odradek.simulation.checks.unclean import check_unclean
from odradek.simulation.history import FinalState, History

__all__ = ["Violation", "ViolationKind", "check"]

CHECKS: tuple[Callable[[Evidence], Iterator[Violation]], ...] = (
    check_logs,
    check_producers,
    check_transactions,
    check_polls,
    check_ends,
    check_lookups,
    check_offsets,
    check_groups,
    check_copies,
    check_topics,
    check_unclean,
)


def check(history: History, final: FinalState) -> list[Violation]:
    """Return all violations. The time is about linear in the number of records."""
    evidence = Evidence(history, final)
    violations = [
        Violation(ViolationKind.INVALID_RESPONSE, f"{client} at {moment.time_ms}: {text}")
        for moment, client, text in history.odd
    ]
    for find_violations in CHECKS:
        violations += find_violations(evidence)
    return violations
