"""Markers and decisions of many transactions and partitions at once."""

import pytest

from odradek.coordinator.coordinator_state import CoordinatorState
from odradek.server.coordinators.tests.transactions.test_transaction_markers import (
    STATE,
    Client,
    World,
    follow,
    markers,
)
from odradek.server.coordinators.transactions import MAX_MARKERS_PER_STEP


@pytest.fixture
def world():
    return World()


def begin_large_transaction(world):
    topics = [f"t{number}" for number in range(2 * MAX_MARKERS_PER_STEP)]
    partitions = [world.add(name) for name in topics]
    client = Client(world)
    client.init()
    client.add(*topics)
    return client, partitions


def marked(partitions):
    return sum(len(markers(partition)) for partition in partitions)


def test_many_markers_are_sent_in_slices():
    world = World(slice_s=0)
    world.add(STATE)
    world.clock.advance(0)
    client, partitions = begin_large_transaction(world)
    assert client.end()[0].error_code == 0
    assert marked(partitions) < MAX_MARKERS_PER_STEP
    assert client.state == "PrepareCommit"
    world.clock.advance(0)
    assert marked(partitions) == 2 * MAX_MARKERS_PER_STEP
    assert client.state == "CompleteCommit"


def test_a_coordinator_that_resigns_sends_no_more_markers():
    """The next coordinator sends the missing markers; late ones could end the next transaction."""
    world = World(slice_s=0)
    state = world.add(STATE)
    world.clock.advance(0)
    client, partitions = begin_large_transaction(world)
    client.end()
    world.transactions.resign(0)
    before = marked(partitions)
    world.clock.advance(0)
    assert marked(partitions) == before < 2 * MAX_MARKERS_PER_STEP
    world.transactions.lead(state)
    world.clock.advance(0)
    assert client.state == "CompleteCommit"
    assert marked(partitions) == before + 2 * MAX_MARKERS_PER_STEP


def test_a_coordinator_that_resigns_before_its_markers_have_their_turn_sends_none():
    world = World(slice_s=0.002)
    world.add(STATE)
    world.clock.advance(0)
    client, partitions = begin_large_transaction(world)

    def work():
        world.clock.rightNow += 1
        yield

    world.slices.run(work())
    assert client.end()[0].error_code == 0
    world.transactions.resign(0)
    for _ in range(3):
        world.clock.advance(0)
    assert marked(partitions) == 0


def test_many_markers_are_sent_again_after_an_unexpected_failure_of_one(monkeypatch, caplog):
    """Without a new load the markers after it would have no result, and the transaction would never end."""
    world = World(slice_s=0)
    world.add(STATE)
    world.clock.advance(0)
    client, partitions = begin_large_transaction(world)

    def fail(*_, **__):
        raise RuntimeError("unexpected")

    with monkeypatch.context() as patch:
        patch.setattr(partitions[-1]._leader_log, "append_as_leader", fail)
        client.end()
        world.clock.advance(0)
    assert "unexpected" in caplog.text
    for _ in range(3):
        world.clock.advance(1)
    assert client.state == "CompleteCommit"
    assert all(markers(partition) for partition in partitions)


def test_markers_are_sent_after_a_load_only_when_the_decision_is_replicated(world):
    """The decision could still be lost, and then be made differently."""
    state = world.add(STATE, replicas=(1, 2))
    world.clock.advance(0)
    data = world.add("t")
    client = Client(world)
    for do in (client.init, lambda: client.add("t")):
        do()
        follow(state)
    client.end()
    world.transactions.resign(0)
    assert markers(data) == []
    world.transactions.lead(state)
    for _ in range(3):
        world.clock.advance(1)
    assert markers(data) == []
    assert world.transactions.shard(0).coordinator_state is CoordinatorState.LOADING
    follow(state)
    world.clock.advance(0)
    assert [kind for kind, *_ in markers(data)] == ["COMMIT"]
    follow(state)
    assert client.state == "CompleteCommit"


def test_many_transactions_end_whose_decisions_are_replicated_at_the_same_time(world, caplog):
    """Each decision's markers are written at once, and cause another record of the coordinator."""
    state = world.add(STATE, replicas=(1, 2))
    world.clock.advance(0)
    data = world.add("t")
    clients = [Client(world, f"x{number}") for number in range(300)]
    for name in ("init", "add", "end"):
        answers = [getattr(client, name)(*(["t"] if name == "add" else [])) for client in clients]
        follow(state)
        assert all(answers)
    follow(state)
    assert "please report" not in caplog.text
    assert {client.state for client in clients} == {"CompleteCommit"}
    assert len(markers(data)) == len(clients)
