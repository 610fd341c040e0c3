"""Two hundred seeds, as `make simulate` runs them."""

import subprocess
import sys


def test_two_hundred_seeds_are_clean():
    done = subprocess.run(
        [sys.executable, "-m", "odradek.simulation", "--seeds", "200"],
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "200 seeds" in done.stdout


def test_a_seed_can_be_replayed_with_its_trace():
    command = [sys.executable, "-m", "odradek.simulation", "--seed", "1"]
    first, second = (subprocess.run(command, capture_output=True, text=True, timeout=100) for _ in range(2))
    assert first.returncode == 0, first.stdout[-2000:] + first.stderr
    assert "ProduceRequest" in first.stdout
    assert first.stdout == second.stdout
