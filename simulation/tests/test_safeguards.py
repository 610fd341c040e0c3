"""Without any single safeguard of the broker, the checker finds the violation that the safeguard prevents."""

from itertools import count, islice
from pathlib import Path

import pytest

from odradek.simulation.safeguards.catalogue import SAFEGUARDS, finding, run_with, run_without

pytestmark = pytest.mark.slow

MOST_SEEDS = 100
"""A change of the draws of the broker or of a client makes a seed another run; then one of the next seeds shows it."""


@pytest.mark.parametrize("safeguard", SAFEGUARDS, ids=lambda safeguard: safeguard.name)
def test_without_it_something_is_found(safeguard):
    for seed in islice(safeguard.seeds(count(safeguard.seed)), MOST_SEEDS):
        if finding(safeguard, run_without(safeguard, seed)) is not None:
            assert run_with(safeguard, seed).failures == []
            return
    pytest.fail(f"nothing found without {safeguard.name} in {MOST_SEEDS} seeds from {safeguard.seed} on")


def test_the_list_in_the_documentation_is_this_one():
    page = (Path(__file__).resolve().parents[2] / "docs" / "simulation.md").read_text()
    rows = [row.split("|")[1].strip(" `") for row in page.splitlines() if row.startswith("| `")]
    assert rows == [safeguard.name for safeguard in SAFEGUARDS]
    for safeguard in SAFEGUARDS:
        assert f"| `{safeguard.name}` | {safeguard.what} | {safeguard.seed} |" in page
