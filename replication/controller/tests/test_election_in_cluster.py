"""Election and succession of the controllers of a cluster."""

import pytest

from odradek.replication.controller.topics import changes
from odradek.replication.metadata import znodes
from odradek.replication.metadata.store import run_now
from odradek.replication.tests.cluster_requests import create, states
from odradek.replication.tests.cluster_support import World
from odradek.replication.tests.support import broker


@pytest.fixture
def world():
    return World()


def record_transaction_sizes(store):
    """Return the list of the numbers of operations in the transactions that the store makes from now on."""
    sizes, transaction = [], store.transaction

    async def recorded(operations):
        sizes.append(len(operations))
        return await transaction(operations)

    store.transaction = recorded
    return sizes


def test_a_broker_whose_session_ends_during_its_claim_does_not_become_the_controller(world):
    second, transaction = world.nodes[2], world.nodes[2].store.transaction

    async def transact(operations):
        results = await transaction(operations)
        if operations[0].path == znodes.CONTROLLER:
            world.server.expire(second.store)
        return results

    second.store.transaction = transact
    world.crash(1)
    world.executor.finish()
    assert not second.controller.is_active
    assert not second.propagation.is_active
    assert world.active is world.nodes[3]


def test_a_broker_starts_while_another_leaves(world):
    node = world.nodes[3]
    get_children = node.store.get_children

    async def children(path, watch=None):
        return [*await get_children(path, watch), *(["9"] if path == znodes.BROKER_IDS else [])]

    node.store.get_children = children
    world.run(node.controller._registration._check_endpoints(broker(3)))


def test_a_broker_has_the_epoch_of_its_last_registration(world):
    second = world.nodes[2]
    assert second.controller.broker_epoch == world.fakes[2].epoch == world.epoch_of(2)
    world.server.expire(second.store)
    second.rejoin()
    world.executor.finish()
    assert second.controller.broker_epoch == world.epoch_of(2)


def test_a_new_controller_that_cannot_take_over_resigns(world):
    """Section 3: a failed failover deletes /controller."""
    second = world.nodes[2]

    async def fail(path, watch=None):
        raise AssertionError("a bug")

    later = []
    second.controller.deletion.run_later = lambda delay_ms, task: later.append((delay_ms, task))
    exists = second.store.exists
    second.store.exists = lambda path, watch=None: (fail if path.startswith("/brokers/ids/") else exists)(path, watch)
    world.crash(1)
    world.executor.finish()
    assert not second.controller.is_active
    assert not second.propagation.is_active
    assert world.active is world.nodes[3]
    [(_, stop_abstaining), _] = later
    second.store.exists = exists
    world.run(stop_abstaining())
    world.crash(3)
    world.executor.finish()
    assert world.active is second


def test_many_states_are_written_in_several_transactions(world, monkeypatch):
    """ZooKeeper refuses more than 1 MB: no leader was elected after the failure of a broker with many partitions."""
    monkeypatch.setattr(changes, "MAX_TRANSACTION_BYTES", 500)
    create(world, "t", *[(3, 2)] * 20)
    sizes = record_transaction_sizes(world.active.store)
    world.crash(3)
    world.executor.finish()
    assert {leader for leader, _, _ in states(world, "t")} == {2}
    assert len([size for size in sizes if size > 1]) > 4
    assert max(sizes) < 10


def test_a_configuration_without_its_topic_does_not_prevent_the_creation(world):
    """A broker of Kafka that crashes between the two nodes leaves the first one."""
    path = znodes.topic_config_path("t")
    run_now(world.server.connect().create(path, znodes.encode_config({"flush.ms": "5"})))
    create(world, "t", (1, 2))
    assert states(world, "t") == [(1, 0, (1, 2))]
    assert znodes.decode_config(run_now(world.server.connect().get(path)).data) == {}


def test_a_controller_whose_epoch_was_changed_gives_its_node_up(world):
    """It resigned and kept the node, so that no broker was the controller until its session ended."""
    create(world, "t", (2, 3))
    first = world.active
    run_now(world.server.connect().set(znodes.CONTROLLER_EPOCH, b"9"))
    world.crash(2)
    world.executor.finish()
    assert world.active.controller.epoch == 10
    assert first.controller.epoch == 10 or not first.controller.is_active
    assert states(world, "t") == [(3, 1, (3,))] or states(world, "t")[0][0] == 3
