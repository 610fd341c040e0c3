"""Many WriteTxnMarkers requests that wait for one another."""

import time

import pytest

from odradek.server.coordinators.tests.transactions.test_repeated_markers import LARGE, entry, send
from odradek.server.coordinators.tests.transactions.test_transaction_markers import World
from odradek.server.tests.background import run_iteration
from odradek.server.work.slices import Slices


@pytest.mark.parametrize("slice_s", [0.002, 0.02])
def test_many_requests_wait(slice_s):
    """Each began within the end of the one before, up to the recursion limit."""
    world = World()
    world.slices = Slices(world.clock, time.perf_counter, slice_s)
    world.add("small")
    names = [f"large{number}" for number in range(30000)]
    send(world, entry(LARGE, names))
    assert world.markers.requested.order.locked
    all_answers = [send(world, entry(1000 + number, ["small"]))[1] for number in range(300)]
    deadline = time.perf_counter() + 20
    while run_iteration(world.clock) and time.perf_counter() < deadline:
        pass
    assert not world.markers.requested.order.locked
    assert all(all_answers)
    assert not world.markers.requested.last
    assert all(hasattr(answers[0], "markers") for answers in all_answers)
