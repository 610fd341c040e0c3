"""Sixty seeds of a single broker, of those that `make simulate` runs, and some of clusters."""

import subprocess
import sys

import pytest


def test_forty_seeds_are_clean():
    done = subprocess.run(
        [sys.executable, "-m", "odradek.simulation", "--seeds", "40"],
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "40 seeds" in done.stdout


@pytest.mark.parametrize(("brokers", "seeds"), [(3, 6), (4, 1), (5, 1)])
def test_seeds_of_clusters_are_clean(brokers, seeds):
    command = [sys.executable, "-m", "odradek.simulation", "--brokers", str(brokers), "--seeds", str(seeds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{seeds} seeds" in done.stdout


@pytest.mark.parametrize("brokers", [1, 3])
def test_a_seed_can_be_replayed_with_its_trace(brokers):
    command = [sys.executable, "-m", "odradek.simulation", "--seed", "1", "--brokers", str(brokers)]
    first, second = (subprocess.run(command, capture_output=True, text=True, timeout=100) for _ in range(2))
    assert first.returncode == 0, first.stdout[-2000:] + first.stderr
    assert "ProduceRequest" in first.stdout
    assert first.stdout == second.stdout
