"""Topics whose nodes other tools have damaged, or have written without the topic's id."""

import pytest

from odradek.replication.controller.events import EventKind
from odradek.replication.metadata import znodes
from odradek.replication.metadata.image import ClusterMetadata
from odradek.replication.metadata.loader import load_topic, read_assignments
from odradek.replication.metadata.store import StoreUnavailableError, run_now
from odradek.replication.metadata.znodes import Restart
from odradek.replication.tests.cluster_requests import create, states, topic_id
from odradek.replication.tests.cluster_support import World

DAMAGED = b"{"


@pytest.fixture
def world():
    return World(broker_ids=(1, 2, 3, 4))


def read_topic(world, name="t"):
    return run_now(world.server.connect().get(znodes.topic_path(name))).data


def write_topic(world, data, name="t"):
    """Write the node of a topic, as another tool."""
    run_now(world.server.connect().set(znodes.topic_path(name), data))
    world.executor.finish()


def without_id(data):
    text = znodes.decode(data)
    del text["topic_id"]
    return znodes.encode(text)


def settle(world):
    """Process all events, also those that are repeated later."""
    for _ in range(20):
        world.executor.wake()
        world.executor.finish()


def damage_at_takeover(world):
    """Damage the node of the topic, and let another broker take over; return the node."""
    data = read_topic(world)
    write_topic(world, DAMAGED)
    world.crash(1)
    world.executor.finish()
    assert "t" not in world.active.controller.image.topics
    return data


def take_over_twice(world, between):
    """Let another broker take over, and after `between` the first one again."""
    first = world.active
    world.server.expire(first.store)
    world.executor.finish()
    second = world.active
    assert second is not first
    first.rejoin()
    world.executor.finish()
    between(first)
    for node in world.nodes.values():
        if node not in (first, second):
            node.controller._abstains = True
    world.server.expire(second.store)
    world.executor.finish()
    assert world.active is first


def record_deletions(world):
    """Return the list of the topics that caches of metadata remove from now on."""
    deleted = []
    for node in world.nodes.values():
        node.cache.listeners.append(lambda delta: deleted.extend(topic.name for topic in delta.deleted_topics))
    return deleted


def test_a_topic_is_led_after_several_attempts_to_correct_its_node(world):
    """The watch of its node was set again once only."""
    create(world, "t", (3, 4))
    data = damage_at_takeover(world)
    for attempt in (b"{{", b"{{{"):
        write_topic(world, attempt)
    write_topic(world, data)
    assert "t" in world.active.controller.image.topics


def test_a_topic_is_led_after_an_attempt_and_the_creation_of_another_topic(world):
    create(world, "t", (3, 4))
    data = damage_at_takeover(world)
    create(world, "u", (3, 4))
    write_topic(world, b"{{")
    write_topic(world, data)
    assert "t" in world.active.controller.image.topics


def test_partitions_are_added_to_a_topic_that_was_corrected(world):
    create(world, "t", (3, 4))
    data = damage_at_takeover(world)
    create(world, "u", (3, 4))
    write_topic(world, data)
    text = znodes.decode(data)
    text["partitions"]["1"] = [4, 3]
    write_topic(world, znodes.encode(text))
    assert len(states(world, "t")) == 2
    assert states(world, "t")[1] == (4, 0, (4, 3))


@pytest.mark.parametrize("restart", [Restart.LOSSY, Restart.LOST])
def test_a_leader_that_restarted_while_its_topic_could_not_be_read_does_not_lead_on(world, restart):
    """It may lack its last records, and has the others truncate theirs, in the same leader epoch."""
    create(world, "t", (3, 4))
    data = damage_at_takeover(world)
    world.crash(3)
    world.executor.finish()
    world.start(3, restart=restart)
    write_topic(world, data)
    settle(world)
    (state,) = states(world, "t")
    assert (state[0], state[2]) == (4, (4,))
    assert state[1] > 0


def test_a_former_controller_does_not_delete_a_topic_that_it_cannot_read(world):
    """Brokers remove deleted topics from their caches, and the committed offsets with them."""
    create(world, "t", (3, 4))
    deleted = record_deletions(world)
    take_over_twice(world, lambda _first: write_topic(world, DAMAGED))
    assert deleted == []
    assert ("t", 0) in world.fakes[4].cache


def put_config(world, configs):
    world.run(world.active.controller.put_topic_config("t", configs))


def test_a_new_controller_keeps_the_configuration_of_a_topic_without_an_id(world):
    create(world, "t", (3, 4))
    put_config(world, {"unclean.leader.election.enable": "false"})
    data = without_id(read_topic(world))
    for node in world.nodes.values():
        node.controller.find_topic_id = lambda name: topic_id("t")
        node.controller.context.is_unclean_default = True
    world.nodes[1].controller.stop()
    write_topic(world, data)
    world.crash(1)
    world.executor.finish()
    assert run_now(load_topic(world.server.connect(), "t")).topic_id == topic_id("t")
    controller = world.active.controller
    assert controller.image.topic_configs.get("t") == {"unclean.leader.election.enable": "false"}
    assert not controller.context.allows_unclean_election("t")


def test_no_replica_outside_the_isr_leads_a_topic_without_an_id_that_forbids_it(world):
    create(world, "t", (3, 4))
    put_config(world, {"unclean.leader.election.enable": "false"})
    world.crash(3)
    world.executor.finish()
    assert states(world, "t") == [(4, 1, (4,))]
    world.start(3)
    data = without_id(read_topic(world))
    for node in world.nodes.values():
        node.controller.find_topic_id = lambda name: topic_id("t")
        node.controller.context.is_unclean_default = True
    world.nodes[1].controller.stop()
    write_topic(world, data)
    world.crash(1)
    world.executor.finish()
    world.crash(4)
    world.executor.finish()
    assert states(world, "t")[0][0] == -1


def test_an_id_that_a_tool_removes_twice_is_restored(world):
    """The second time between the reads of the node's version and of its data."""
    create(world, "t", (3, 4))
    store = world.active.store
    data = without_id(read_topic(world))
    exists, again = store.exists, [True]

    async def exists_before(path, watch=None):
        stat = await exists(path, watch)
        if path == znodes.topic_path("t") and again:
            again.clear()
            run_now(world.server.connect().set(path, data))
        return stat

    store.exists = exists_before
    write_topic(world, data)
    assert not again
    assert run_now(load_topic(world.server.connect(), "t")).topic_id == topic_id("t")


def finish_within(world, steps):
    for _ in range(steps):
        world.executor.step()


def count_writes(context, most=50):
    """Record the paths of the controller's writes; after `most` of them fail."""
    write, paths = context.write, []

    async def recorded(operations):
        if len(paths) >= most:
            raise StoreUnavailableError("too many writes")
        paths.extend(operation.path for operation in operations)
        return await write(operations)

    context.write = recorded
    return paths


def test_a_topic_whose_states_are_read_again_keeps_its_id(world):
    """It was deleted, and created without an id; the controller wrote its node for ever."""
    create(world, "t", (3, 4))
    put_config(world, {"flush.ms": "5"})
    controller = world.active.controller
    changes = controller._store_changes
    post, held = changes._post, []
    changes._post = lambda kind, *event: held.append((kind, *event)) if kind is EventKind.TOPICS else post(kind, *event)
    store = world.server.connect()
    run_now(store.set(znodes.topic_path("t"), without_id(read_topic(world))))
    # A broker of an old version changes the ISR.
    state = run_now(store.get(znodes.state_path("t", 0))).data
    text = znodes.decode(state)
    text["isr"] = [3]
    run_now(store.set(znodes.state_path("t", 0), znodes.encode(text)))
    notice = znodes.encode({"version": 1, "partitions": [{"topic": "t", "partition": 0}]})
    run_now(store.create(f"{znodes.ISR_CHANGES}/isr_change_", notice, sequential=True))
    deleted = record_deletions(world)
    world.executor.finish()
    changes._post = post
    writes = count_writes(controller.context)
    for event in held:
        post(*event)
    finish_within(world, 2_000)
    assert writes.count(znodes.topic_path("t")) == 1
    assert deleted == []
    assert controller.image.topics["t"].topic_id == topic_id("t")
    assert controller.image.topic_configs.get("t") == {"flush.ms": "5"}
    assert run_now(load_topic(store, "t")).topic_id == topic_id("t")


def test_the_configuration_of_a_topic_that_cannot_be_read_is_loaded():
    """With the default retention its logs lost records."""
    world = World(broker_ids=(1, 2, 3))
    create(world, "t", (1, 2))
    put_config(world, {"retention.ms": "-1", "cleanup.policy": "compact"})
    run_now(world.server.connect().set(znodes.topic_path("t"), DAMAGED))
    image = ClusterMetadata()
    assert run_now(read_assignments(world.server.connect(), image)) == {"t": [0]}
    assert image.topic_configs.get("t") == {"retention.ms": "-1", "cleanup.policy": "compact"}
