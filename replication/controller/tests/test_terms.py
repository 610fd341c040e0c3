"""The end of a controller's term: by others whose connections its address refuses, and during its own work."""

from contextlib import suppress
from functools import partial

import pytest

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller import controller as controllers
from odradek.replication.controller.states.partition_states import new_partition
from odradek.replication.controller.topics.changes import NewTopic
from odradek.replication.metadata import znodes
from odradek.replication.metadata.image import TopicMetadata
from odradek.replication.metadata.store import (
    Create,
    Delete,
    Operation,
    SessionExpiredError,
    SetData,
    StoreUnavailableError,
    run_now,
)
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


def claim_of_another() -> list[Operation]:
    """The election of broker 2, after the node of the present controller was removed."""
    return [
        Delete(znodes.CONTROLLER),
        Create(znodes.CONTROLLER, znodes.encode_controller(2, 0), ephemeral=True),
        SetData(znodes.CONTROLLER_EPOCH, b"99"),
    ]


def before_write(store, is_awaited, act):
    """Await `act` once, before the first transaction with an operation on a path that `is_awaited`.

    Return the method of the store that is in place again afterwards.
    """
    transaction = store.transaction

    async def transact(operations):
        if any(is_awaited(operation.path) for operation in operations):
            store.transaction = transaction
            await act()
        return await transaction(operations)

    store.transaction = transact
    return transaction


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
    # Otherwise the claim changes this node, and the takeover does not.
    run_now(world.observer.set(znodes.RESTARTS, b"0"))
    first = world.nodes[1] = Node(world, world.fakes[1])
    elected = partial(world.server.connect().transaction, claim_of_another())
    transaction = before_write(first.store, lambda path: path == znodes.RESTARTS, elected)
    first.join()
    world.executor.finish()
    first.start.outcome()
    assert first.store.transaction is transaction
    assert not first.controller.is_active
    assert first.controller.image.controller_id == 2


def test_a_broker_whose_term_ends_while_it_drops_old_notices_starts_nevertheless():
    """Its start failed, because the error was expected only from its take-over."""
    world = World()
    for broker_id in (1, 2, 3):
        world.crash(broker_id)
    notice = Create(f"{znodes.LOG_DIR_EVENTS}/log_dir_event_", znodes.encode_log_dir_event(3), sequential=True)
    run_now(world.observer.transaction([notice]))
    first = world.nodes[1] = Node(world, world.fakes[1])
    elected = partial(world.server.connect().transaction, claim_of_another())
    transaction = before_write(first.store, lambda path: path.startswith(znodes.LOG_DIR_EVENTS), elected)
    first.join()
    world.executor.finish()
    first.start.outcome()
    assert first.store.transaction is transaction
    assert not first.controller.is_active
    assert first.controller.image.controller_id == 2


def test_a_broker_whose_session_expires_while_it_takes_over_starts_nevertheless():
    """It had registered, and its process ended, although it could begin a new session."""
    world = World()
    for broker_id in (1, 2, 3):
        world.crash(broker_id)
    first = world.nodes[1] = Node(world, world.fakes[1])

    async def expire():
        world.server.expire(first.store)

    before_write(first.store, lambda path: path == znodes.RESTARTS, expire)
    first.join()
    world.executor.finish()
    first.start.outcome()
    assert not first.controller.is_active
    first.rejoin()
    world.executor.finish()
    assert world.active is first
    assert world.observer.session_id != first.store.session_id


def test_a_controller_that_rejoins_again_does_not_take_over_twice():
    """It forgot the failed replicas of other brokers, which are part of no later request in its term."""
    world = World((1, 2))
    create(world, "t", (2, 1))
    world.fakes[2].failed.add(("t", 0))
    world.run(world.nodes[2].controller.take_offline([("t", 0)]))
    assert states(world, "t") == [(1, 1, (1,))]
    world.server.expire(world.nodes[1].store)
    world.server.expire(world.nodes[2].store)
    world.run(world.nodes[1].controller.rejoin())
    world.run(world.nodes[2].controller.rejoin())
    first = world.active.controller
    epoch = first.epoch
    assert first.broker_id == 1
    world.executor.finish()
    before = states(world, "t"), first.image.partition("t", 0)
    world.take()
    # The server repeats it: what followed the first time has failed.
    world.run(first.rejoin())
    assert first.epoch == epoch
    assert (states(world, "t"), first.image.partition("t", 0)) == before
    assert world.take() == {}


def test_the_end_of_abstention_is_repeated_when_it_fails():
    """A cluster had no controller: nothing repeated the claim that this broker had not made while it abstained."""
    world = World((1,))
    controller, store = world.nodes[1].controller, world.nodes[1].store
    later = []
    controller.deletion.run_later = lambda delay_ms, task: later.append(task)
    load_image, exists = controller._store_changes.load_image, store.exists

    async def fail(*arguments):
        raise StoreUnavailableError("access is denied")

    def run_next():
        with suppress(StoreUnavailableError):
            world.run(later.pop(0)())

    # Another event has failed, and the repetition of both events comes first.
    controller._repeat_events()
    controller._store_changes.load_image = fail
    run_now(world.observer.delete(znodes.CONTROLLER))
    world.executor.finish()
    controller._store_changes.load_image = load_image
    run_next()
    assert not controller.is_active
    store.exists = fail
    run_next()
    store.exists = exists
    while later:
        run_next()
    assert controller.is_active


def test_a_broker_does_not_remove_the_node_of_a_later_controller():
    """The node that it had from a claim of unknown outcome was replaced while it read the epoch."""
    world = World((1,))
    first = world.nodes[1]
    first.controller.context.resign("a claim had an unknown outcome")
    get, later = first.store.get, world.server.connect()

    async def get_late(path, watch=None):
        node = await get(path, watch)
        if path == znodes.CONTROLLER_EPOCH:
            first.store.get = get
            await later.transaction(claim_of_another())
        return node

    first.store.get = get_late
    first.controller._on_resigned()
    world.executor.finish()
    assert first.store.get is get
    assert run_now(later.exists(znodes.CONTROLLER)).ephemeral_owner == later.session_id
    assert first.controller.image.controller_id == 2


def test_a_session_that_expires_while_deletions_are_finished_is_no_error():
    """The start of a broker failed: the removal of a topic was dropped from the queue."""
    world = World()
    create(world, "t", (1, 2, 3))
    first = world.active
    controller = first.controller
    resume = controller.deletion.resume

    async def resume_and_expire():
        await resume()
        controller.deletion._unfinished["t"] = None
        submit = controller._events.submit

        async def dropped(kind, description, work):
            controller._events.submit = submit
            world.server.expire(first.store)
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "the session with the metadata store expired")

        controller._events.submit = dropped

    controller.deletion.resume = resume_and_expire
    world.run(controller.finish_deletions())
    assert not controller.is_active


def test_a_session_that_expires_while_marks_of_deletions_are_read_is_no_error():
    """The start of a broker failed, although it could begin a new session."""
    world = World()
    first = world.active
    get_children = first.store.get_children

    async def expire_before(path, watch=None):
        first.store.get_children = get_children
        world.server.expire(first.store)
        return await get_children(path, watch)

    first.store.get_children = expire_before
    world.run(first.controller.finish_deletions())
    assert not first.controller.is_active


def test_a_broker_that_is_stopped_while_it_starts_does_not_start():
    """The store is closed, which is not the expiry of a session."""
    world = World((1,))
    world.crash(1)
    first = world.nodes[1] = Node(world, world.fakes[1])
    transaction = first.store.transaction

    async def transact(operations):
        if any(operation.path == znodes.RESTARTS for operation in operations):
            first.controller.stop()
            await first.store.close()
        return await transaction(operations)

    first.store.transaction = transact
    first.join()
    world.executor.finish()
    with pytest.raises(SessionExpiredError):
        first.start.outcome()


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
