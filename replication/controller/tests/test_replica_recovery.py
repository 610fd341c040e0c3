"""Replicas of a cluster that return: after a failed log directory, after a restart, after a removal."""

from functools import partial

import pytest

from odradek.replication.controller.events import EventKind
from odradek.replication.controller.partitions import reassignment
from odradek.replication.controller.partitions.tests.test_reassignment_in_cluster import begin, node, partition_epoch
from odradek.replication.metadata import znodes
from odradek.replication.metadata.store import run_now
from odradek.replication.tests.cluster_requests import alter_row, create, states
from odradek.replication.tests.cluster_support import World


@pytest.fixture
def world():
    return World()


def fail_directory(world, broker_id, *keys):
    world.fakes[broker_id].failed = set(keys)
    resend(world, broker_id)


def resend(world, broker_id):
    world.active.propagation.resend_roles(broker_id)
    world.executor.finish()


def offline(world, name="t"):
    return [partition.offline for partition in world.active.controller.image.topics[name].partitions]


def test_a_replica_is_online_again_when_its_broker_accepts_a_role(world):
    """It stayed offline until its broker started again, and no replica of its partition could lead."""
    create(world, "t", (2,), (1, 2))
    fail_directory(world, 2, ("t", 0), ("t", 1))
    assert states(world, "t") == [(-1, 1, (2,)), (1, 1, (1,))]
    assert offline(world) == [(2,), (2,)]
    fail_directory(world, 2, ("t", 1))
    assert offline(world) == [(), (2,)]
    assert states(world, "t") == [(2, 2, (2,)), (1, 1, (1,))]
    fail_directory(world, 2)
    assert offline(world) == [(), ()]
    assert alter_row(world, "t", 1, [1, 2], leader_epoch=1, partition_epoch=1).error_code == 0


def test_responses_of_brokers_without_offline_replicas_make_no_events(world):
    posted = []
    controller = world.active.controller
    controller._events.post = lambda kind, description, work: posted.append(description)
    create(world, "t", *[(1, 2)] * 5)
    assert not any("online" in description for description in posted)


def test_a_removed_replica_on_a_failed_directory_may_be_added_again(world):
    """It was still counted as offline, so that it got no role and the reassignment did not end."""
    create(world, "t", (1, 2))
    fail_directory(world, 2, ("t", 0))
    assert begin(world, [1]) == {0: None}
    world.fakes[2].failed = set()
    assert offline(world) == [()]
    assert begin(world, [1, 2]) == {0: None}
    [(leader, epoch, isr)] = states(world, "t")
    assert world.fakes[2].roles["t", 0][:2] == (leader, epoch)
    row = alter_row(world, "t", 0, [*isr, 2], leader_epoch=epoch, partition_epoch=partition_epoch(world))
    assert row.error_code == 0
    assert not world.active.controller.reassignments.is_in_progress("t", 0, (1, 2))


def complete_reassignment(world, target):
    begin(world, target)
    [(_, epoch, isr)] = states(world, "t")
    members = [*isr, *(replica for replica in target if replica not in isr)]
    row = alter_row(world, "t", 0, members, leader_epoch=epoch, partition_epoch=partition_epoch(world))
    assert row.error_code == 0


def test_a_broker_that_restarts_before_it_deletes_a_removed_replica_deletes_it(world):
    """Nothing asked it again: the replica stayed on its disk, and in the topic's node until the next controller."""
    create(world, "t", (1, 2))
    restarting = world.nodes[2]
    world.fakes[2].is_up = False
    complete_reassignment(world, [1, 3])
    assert node(world) == ((1, 3, 2), (), (2,))
    pause = world.executor.waiter()

    async def wait():
        await pause

    # The controller notices the restart when the broker has registered again.
    world.active.controller._events.post(EventKind.BROKERS, "other work", wait)
    world.server.expire(restarting.store)
    restarting.rejoin()
    world.executor.finish()
    world.fakes[2].is_up = True
    pause.callback(None)
    world.executor.finish()
    world.executor.wake()
    world.executor.finish()
    assert node(world) == ((1, 3), (), ())
    assert ("t", 0) in world.fakes[2].deleted


def test_a_removed_replica_is_not_forgotten_when_its_broker_refuses_the_epoch(world):
    """The broker has restarted, and the controller does not know its new epoch yet."""
    create(world, "t", (1, 2))
    world.fakes[2].epoch += 100
    complete_reassignment(world, [1, 3])
    assert node(world) == ((1, 3, 2), (), (2,))


def test_a_removed_replica_of_a_failed_broker_is_not_waited_for(world):
    create(world, "t", (1, 2))
    world.fakes[2].is_up = False
    complete_reassignment(world, [1, 3])
    world.crash(2)
    world.executor.finish()
    assert node(world) == ((1, 3), (), ())


def test_many_partitions_are_reassigned_in_several_transactions(world, monkeypatch):
    """A topic with more than some 4,000 partitions could not be reassigned: ZooKeeper accepts 1 MB."""
    monkeypatch.setattr(reassignment, "_MAX_STEPS", 3)
    create(world, "t", *[(1, 2)] * 10)
    controller = world.active.controller
    transaction, sizes = controller.store.transaction, []

    async def recorded(operations):
        sizes.append(len(operations))
        return await transaction(operations)

    controller.store.transaction = recorded
    targets = {index: [2] for index in range(10)}
    results = world.run(controller.request("reassign", lambda: controller.reassignments.begin("t", targets)))
    assert results == dict.fromkeys(range(10))
    assert states(world, "t") == [(2, 1, (2,))] * 10
    assert world.fakes[1].deleted == {("t", index) for index in range(10)}
    topic = znodes.decode_topic(run_now(world.server.connect().get(znodes.topic_path("t"))).data)
    assert (set(topic.replicas.values()), topic.removing) == ({(2,)}, {})
    assert max(sizes) <= 5


def test_a_topic_whose_nodes_are_removed_does_not_hold_up_others(world):
    """Its reassignment, and those of all topics that waited for the same broker, were in progress forever."""
    create(world, "t", (1, 2))
    create(world, "u", (1, 2))
    controller = world.active.controller
    world.fakes[2].is_up = False
    for name in ("u", "t"):
        world.run(controller.request("reassign", partial(controller.reassignments.begin, name, {0: [1]})))
    store = world.server.connect()
    for make_path in (partial(znodes.state_path, "u"), partial(znodes.partition_path, "u")):
        run_now(store.delete(make_path(0)))
    run_now(store.delete(znodes.partitions_path("u")))
    run_now(store.delete(znodes.topic_path("u")))
    world.crash(2)
    world.executor.finish()
    assert node(world) == ((1,), (), ())
    assert not controller.context.stopping


def test_a_topic_that_cannot_be_read_again_does_not_prevent_elections(world, caplog):
    create(world, "t", (2, 3))
    create(world, "u", (2, 3))
    store = world.server.connect()
    run_now(store.set(znodes.topic_path("t"), b"{"))
    run_now(store.set(znodes.state_path("t", 0), run_now(store.get(znodes.state_path("t", 0))).data))
    world.crash(2)
    world.executor.finish()
    assert states(world, "u") == [(3, 1, (3,))]
    assert "cannot be read again topic=t" in caplog.text


def test_a_failed_leader_leaves_the_isr_of_a_broker_that_shuts_down(world):
    """It may return without the last records, while the other member of the ISR, which does not lead, has them all."""
    create(world, "t", (2, 3))
    world.active.controller.context.shutting_down.add(3)
    world.crash(2)
    world.executor.finish()
    assert states(world, "t") == [(-1, 1, (3,))]
    world.start(2)
    assert states(world, "t") == [(-1, 1, (3,))]
    world.crash(3)
    world.start(3)
    assert states(world, "t") == [(3, 2, (3,))]
