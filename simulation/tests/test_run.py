"""A seed determines the run."""

import logging
import os
import subprocess
import sys

import pytest

from odradek.simulation import run
from odradek.simulation.run import run_seed
from odradek.simulation.tests.stub import stub_clients

pytestmark = pytest.mark.slow

_PROGRAM = """
from odradek.simulation.run import run_seed
from odradek.simulation.tests.stub import stub_clients
print(run_seed({seed}, stub_clients).trace_hash)
"""


@pytest.mark.parametrize("seed", range(5))
def test_a_seed_gives_the_same_run_again(seed):
    first, second = run_seed(seed, stub_clients), run_seed(seed, stub_clients, lambda line: None)
    assert first.failures == second.failures == []
    assert first == second


def test_log_lines_of_coroutines_that_the_collection_ends_do_not_fail_a_run(monkeypatch):
    """Their order depends on earlier runs: a seed failed among others, and not alone."""
    error = "a request failed; please report it"
    monkeypatch.setattr(run, "_collect", lambda: logging.getLogger("odradek.server").error(error))
    assert run_seed(1, stub_clients).failures == []


def test_another_seed_gives_another_run():
    assert run_seed(1, stub_clients).trace_hash != run_seed(2, stub_clients).trace_hash


def test_it_does_not_depend_on_how_python_hashes():
    seen = set()
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM.format(seed=3)],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        seen.add(done.stdout)
    assert len(seen) == 1
