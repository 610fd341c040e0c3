"""Topics that can be read again: what happened meanwhile is followed."""

import pytest

from odradek.replication.controller.events import EventKind
from odradek.replication.controller.tests.test_restarts import HeldEvents
from odradek.replication.controller.topics.tests.test_damaged_topics import (
    DAMAGED,
    damage_at_takeover,
    read_topic,
    record_deletions,
    settle,
    take_over_twice,
    without_id,
    write_topic,
)
from odradek.replication.metadata import znodes
from odradek.replication.metadata.store import StoreUnavailableError, run_now
from odradek.replication.tests.cluster_requests import alter_row, create, states
from odradek.replication.tests.cluster_support import World


@pytest.fixture
def world():
    return World(broker_ids=(1, 2, 3, 4))


def restart(world, broker_id, *, is_fast):
    """Restart a broker; the controller notices its end and its start in one event if it is fast."""
    events = HeldEvents(world.active.controller) if is_fast else None
    world.crash(broker_id)
    world.executor.finish()
    world.start(broker_id)
    if events is not None:
        events.release()
    world.executor.finish()


@pytest.mark.parametrize("damaged", [False, True])
@pytest.mark.parametrize("is_fast", [False, True])
@pytest.mark.parametrize("other", [False, True])
def test_a_broker_that_restarts_after_it_has_continued_does_not_lead_on(world, damaged, is_fast, other):
    create(world, "t", (3, 4))
    data = read_topic(world)
    if damaged:
        write_topic(world, DAMAGED)
    world.nodes[1].controller.stop()
    world.server.expire(world.nodes[3].store)
    world.nodes[3].rejoin()
    world.executor.finish()
    world.crash(1)
    world.executor.finish()
    assert 3 in world.active.controller.context.first_epochs
    assert world.active.fake.broker_id == 2
    if other:
        world.crash(4)
        world.executor.finish()
    restart(world, 3, is_fast=is_fast)
    if damaged:
        write_topic(world, data)
    settle(world)
    (state,) = states(world, "t")
    if not other:
        assert (state[0], state[2]) == (4, (4,))
    elif damaged:
        assert state[0] != 3


@pytest.mark.parametrize("fails", [False, True])
def test_a_failed_event_forgets_no_restart(world, fails):
    create(world, "t", (3, 4))
    create(world, "u", (3, 4))
    data, other = read_topic(world), read_topic(world, "u")
    write_topic(world, DAMAGED, "t")
    write_topic(world, DAMAGED, "u")
    world.crash(1)
    world.executor.finish()
    world.crash(3)
    world.executor.finish()
    world.start(3)
    store = world.active.store
    get_many = store.get_many
    left = [1] if fails else []

    async def failing(paths, watch=None):
        if left and znodes.topic_config_path("u") in paths:
            left.clear()
            raise StoreUnavailableError("x")
        return await get_many(paths, watch)

    store.get_many = failing
    tool, events = world.server.connect(), HeldEvents(world.active.controller)
    run_now(tool.set(znodes.topic_path("u"), other))
    run_now(tool.set(znodes.topic_path("t"), data))
    later, events.held = events.held[1:], events.held[:1]
    events.release()
    world.executor.finish()
    assert not left
    events.held = later
    events.release()
    run = world.active.controller
    world.run(run._events.submit(EventKind.CONTROLLER, "x", run._catch_up))
    settle(world)
    assert states(world, "t")[0][::2] == (4, (4,))
    assert states(world, "u")[0][::2] == (4, (4,))


def reassign(world, target):
    controller = world.active.controller
    return world.run(controller.request("x", lambda: controller.reassignments.begin("t", {0: target})))


def alter_isr(world, isr, *, is_id_removed):
    """A broker of an old version changes the ISR; a tool may remove the id before the notice."""
    events = HeldEvents(world.active.controller, EventKind.TOPICS)
    store = world.server.connect()
    if is_id_removed:
        run_now(store.set(znodes.topic_path("t"), without_id(read_topic(world))))
    text = znodes.decode(run_now(store.get(znodes.state_path("t", 0))).data)
    text["isr"] = isr
    run_now(store.set(znodes.state_path("t", 0), znodes.encode(text)))
    notice = znodes.encode({"version": 1, "partitions": [{"topic": "t", "partition": 0}]})
    run_now(store.create(f"{znodes.ISR_CHANGES}/isr_change_", notice, sequential=True))
    world.executor.finish()
    events.release()
    world.executor.finish()


@pytest.mark.parametrize("is_id_removed", [False, True])
def test_replicas_that_are_being_stopped_are_not_assigned_again(world, is_id_removed):
    create(world, "t", (3, 4))
    world.fakes[3].is_up = False
    reassign(world, (4,))
    controller = world.active.controller
    assert controller.context.stopping
    alter_isr(world, [4], is_id_removed=is_id_removed)
    (partition,) = controller.image.topics["t"].partitions
    world.fakes[3].is_up = True
    settle(world)
    (partition,) = controller.image.topics["t"].partitions
    assert (partition.replicas, partition.removing) == ((4,), ())
    text = znodes.decode(read_topic(world))
    assert text["partitions"] == {"0": [4]}


@pytest.mark.parametrize("damaged", [False, True])
def test_a_reassignment_continues_when_its_topic_can_be_read_again(world, damaged):
    create(world, "t", (3, 4))
    reassign(world, (4, 2))
    data = read_topic(world)
    if damaged:
        write_topic(world, DAMAGED)
    world.crash(1)
    world.executor.finish()
    if damaged:
        write_topic(world, data)
    settle(world)
    controller = world.active.controller
    (p,) = controller.image.topics["t"].partitions
    alter_row(world, "t", 0, [3, 4, 2], leader=p.leader, leader_epoch=p.leader_epoch, partition_epoch=p.partition_epoch)
    settle(world)
    (p,) = controller.image.topics["t"].partitions
    assert (p.replicas, p.adding, p.removing) == ((4, 2), (), ())


def test_a_topic_that_can_be_read_again_begins_a_leader_epoch(world):
    create(world, "t", (3, 4))
    data = damage_at_takeover(world)
    before = world.fakes[3].roles["t", 0]
    write_topic(world, data)
    settle(world)
    assert world.fakes[3].roles["t", 0][1] > before[1]


def test_a_topic_whose_mark_is_refused_stays_at_a_takeover(world):
    create(world, "t", (3, 4))
    deleted = record_deletions(world)

    def mark_during_load(first):
        changes = first.controller._store_changes
        load = changes.load_image

        async def load_image(writes):
            run_now(world.server.connect().create(znodes.deletion_path("t")))
            await load(writes)

        changes.load_image = load_image

    for node in world.nodes.values():
        node.controller.deletion.is_enabled = lambda: False
    first = world.active
    take_over_twice(world, mark_during_load)
    settle(world)
    assert world.active is first
    assert "t" in first.controller.image.topics
    assert deleted == []


@pytest.mark.parametrize("is_fast", [False, True])
def test_of_restarted_brokers_the_one_that_restarted_again_does_not_lead(world, is_fast):
    create(world, "t", (3, 4))
    data = read_topic(world)
    world.nodes[1].controller.stop()
    write_topic(world, DAMAGED)
    for broker_id in (3, 4):
        world.crash(broker_id)
        world.start(broker_id)
    world.crash(1)
    world.executor.finish()
    assert world.active.fake.broker_id in (2, 4)
    restart(world, 3, is_fast=is_fast)
    write_topic(world, data)
    settle(world)
    assert states(world, "t")[0][::2] == (4, (4,))
