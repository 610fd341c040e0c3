"""All safeguards, and runs without one of them."""

from typing import Final

from odradek.simulation.checks.checker import ViolationKind
from odradek.simulation.clients.workload import make_clients
from odradek.simulation.run import Report, run_seed
from odradek.simulation.safeguards.cluster import CLUSTER_SAFEGUARDS
from odradek.simulation.safeguards.definition import Safeguard
from odradek.simulation.safeguards.single_broker import SINGLE_BROKER_SAFEGUARDS

SAFEGUARDS: Final = SINGLE_BROKER_SAFEGUARDS + CLUSTER_SAFEGUARDS

BY_NAME: Final = {safeguard.name: safeguard for safeguard in SAFEGUARDS}


def run_without(safeguard: Safeguard, seed: int) -> Report:
    """Run a seed without a safeguard."""
    with safeguard.disabled():
        return run_with(safeguard, seed)


def run_with(safeguard: Safeguard, seed: int) -> Report:
    """Run a seed in the way in which it is run without a safeguard."""
    return run_seed(
        seed, make_clients, looks_inside=safeguard.looks_inside, broker_count=safeguard.broker_count
    )


def finding(safeguard: Safeguard, report: Report) -> str | None:
    """Return the first expected violation that the checker found; None if there is none."""
    texts = [f"s: {find.value}: " if isinstance(find, ViolationKind) else find for find in safeguard.finds]
    for failure in report.failures:
        if any(text in failure for text in texts):
            return failure
    return None
