"""The end of a controller's term: by others whose connections its address refuses, and during its own work."""

from odradek.replication.controller import controller as controllers
from odradek.replication.controller.states.partition_states import new_partition
from odradek.replication.controller.topics.changes import NewTopic
from odradek.replication.metadata import znodes
from odradek.replication.metadata.image import TopicMetadata
from odradek.replication.metadata.store import Create, Delete, Operation, SetData
from odradek.replication.tests.cluster_requests import create, delete, states, topic_id
from odradek.replication.tests.cluster_support import Node, World


def refuse_each_other(world):
    """Every elected controller is refused by all others. Return the epoch, and delayed tasks."""
    later = []
    for node in world.nodes.values():
        node.controller.deletion.run_later = lambda delay_ms, task: later.append((delay_ms, task))
    for _ in range(10):
        elected = world.active.controller.broker_id
        for node in world.nodes.values():
            node.controller.on_controller_refused(elected)
        world.executor.finish()
    return world.active.controller.epoch, later


def test_brokers_that_cannot_reach_each_other_do_not_replace_controllers_all_the_time():
    """Connections that are rejected on the way look like those of a process that has ended."""
    world = World()
    epoch, later = refuse_each_other(world)
    assert epoch <= 1 + len(world.nodes)
    assert refuse_each_other(world) == (epoch, [])
    assert {delay_ms for delay_ms, _ in later} == {controllers.REMOVAL_INTERVAL_MS}
    for _, allow in later:
        world.run(allow())
    assert refuse_each_other(world)[0] > epoch


def test_a_refusal_of_an_earlier_process_does_not_end_the_term_of_a_later_one():
    """A broker without a connection to the store removed the controller that was elected meanwhile."""
    world = World()
    third = world.nodes[3].controller
    post, held = third._events.post, []
    third._events.post = lambda *event: held.append(event)
    third.on_controller_refused(1)
    world.crash(1)
    world.crash(2)
    world.executor.finish()
    world.start(1)
    assert world.active is world.nodes[1]
    epoch = world.active.controller.epoch
    third._events.post = post
    for event in held:
        post(*event)
    world.executor.finish()
    assert world.active is world.nodes[1]
    assert world.active.controller.epoch == epoch


def test_a_broker_whose_term_ends_while_it_starts_starts_nevertheless():
    """Its start failed, because it could not take over as the controller."""
    world = World()
    world.crash(1)
    world.crash(2)
    world.crash(3)
    first = world.nodes[1] = Node(world, world.fakes[1])
    transaction = first.store.transaction
    claim: list[Operation] = [
        Delete(znodes.CONTROLLER),
        Create(znodes.CONTROLLER, znodes.encode_controller(2, 0), ephemeral=True),
        SetData(znodes.CONTROLLER_EPOCH, b"99"),
    ]

    async def transact(operations):
        if any(operation.path == znodes.RESTARTS for operation in operations):
            first.store.transaction = transaction
            await world.server.connect().transaction(claim)
        return await transaction(operations)

    first.store.transaction = transact
    first.join()
    world.executor.finish()
    first.start.outcome()
    assert first.store.transaction is transaction
    assert not first.controller.is_active
    assert first.controller.image.controller_id == 2


def test_a_term_that_ends_while_deletions_are_resumed_is_no_error():
    """The start of a broker failed if its session expired meanwhile."""
    world = World()
    create(world, "t", (1, 2, 3))
    [first] = [node for node in world.nodes.values() if node.controller.is_active]
    get_children = first.store.get_children

    async def resign_after(path, watch=None):
        names = await get_children(path, watch)
        if path == znodes.DELETE_TOPICS and watch is None:
            first.controller.context.resign("the session expired")
            return ["t"]
        return names

    first.store.get_children = resign_after
    world.run(first.controller.finish_deletions())
    assert not first.controller.is_active
    assert "t" in first.controller.image.topics


def test_a_topic_that_was_created_again_is_not_deleted_by_the_next_controller():
    """Its image had the earlier topic, whose deletion removed the new one, and its offsets, from caches."""
    world = World((1, 2))
    create(world, "t", (1, 2))
    world.server.expire(world.nodes[1].store)
    world.executor.finish()
    world.nodes[1].rejoin()
    world.executor.finish()
    second = world.active.controller
    assert delete(world, "t") == {}
    again = TopicMetadata("t", topic_id("again"), (new_partition((1, 2), second.image.brokers, second.epoch),))
    assert world.run(second.create_topics([NewTopic(again, {})])) == {}
    world.take()
    world.crash(2)
    world.executor.finish()
    assert world.active.controller.broker_id == 1
    leaders = [rows["t-0"][0] for kind, *_, rows in world.take()[1] if kind == "UM" and rows]
    assert leaders == [1]
    assert states(world, "t") == [(1, 1, (1,))]
