"""The first states of new partitions in a cluster, and the elections that a new topic causes."""

from typing import Any

import pytest

from odradek.replication.controller import context
from odradek.replication.controller.admin.topics import TopicAdmin
from odradek.replication.controller.states.partition_states import elect_leader, new_partition
from odradek.replication.controller.tests.test_replica_recovery import fail_directory, offline
from odradek.replication.controller.topics import changes
from odradek.replication.controller.topics.changes import NewTopic
from odradek.replication.metadata import znodes
from odradek.replication.metadata.image import TopicMetadata
from odradek.replication.metadata.store import Create, Delete, run_now
from odradek.replication.tests.cluster_requests import create, nodes, shut_down, states, topic_id
from odradek.replication.tests.cluster_support import World


@pytest.fixture
def world():
    return World()


def write_topic(world, name, *replicas):
    """Another broker creates a topic."""
    rows = tuple(new_partition(row, (), 0) for row in replicas)
    operations = [
        Create(znodes.topic_config_path(name), znodes.encode_config({})),
        Create(znodes.topic_path(name), znodes.encode_topic(topic_id(name), rows)),
    ]
    run_now(world.server.connect().transaction(operations))
    world.executor.finish()


def grow(world, name, *replicas):
    """Another tool adds partitions."""
    topic = world.active.controller.image.topics[name]
    grown = topic.partitions + tuple(new_partition(row, (), 0) for row in replicas)
    run_now(world.server.connect().set(znodes.topic_path(name), znodes.encode_topic(topic.topic_id, grown)))
    world.executor.finish()


def test_a_broker_that_shuts_down_leads_no_partition_that_others_create(world):
    """As in Kafka: the leadership would end with the broker, whose controlled shutdown has moved the others."""
    assert shut_down(world, 2) == (0, [])
    write_topic(world, "t", (2, 3), (3, 2), (2,))
    assert [nodes(world, znodes.partitions_path("t"))] == [["0", "1"]]
    assert states(world, "t") == [(3, 0, (3,)), (3, 0, (3,)), (-1, 0, ())]
    grow(world, "t", (2, 1))
    assert states(world, "t")[3] == (1, 0, (1,))
    world.crash(2)
    world.executor.finish()
    world.start(2)
    assert states(world, "t")[2] == (2, 0, (2,))


def test_a_broker_that_shuts_down_leads_no_partition_that_clients_create(world):
    assert shut_down(world, 2) == (0, [])
    controller = world.active.controller
    unused: Any = None
    partitions = TopicAdmin(controller, unused, unused, unused)._new_partitions([(2, 3), (2,)])
    assert [(p.leader, p.isr) for p in partitions] == [(3, (3,)), (-1, ())]
    topic = TopicMetadata("t", topic_id("t"), partitions)
    assert world.run(controller.create_topics([NewTopic(topic, {})])) == {}
    assert nodes(world, znodes.partitions_path("t")) == ["0"]
    world.crash(2)
    world.executor.finish()
    world.start(2)
    assert states(world, "t") == [(3, 0, (3,)), (2, 0, (2,))]
    assert world.fakes[2].roles["t", 1] == (2, 0, (2,), (2,))


def test_partitions_begin_although_another_has_a_state_already(world):
    """Only the state that existed was read again: the others had no leader until the next failure of a broker."""
    create(world, "t", (1, 2))
    fail_directory(world, 2, ("t", 0))
    state = new_partition((3,), (3,), 1)
    path = znodes.partition_path("t", 1)
    run_now(world.server.connect().transaction([Create(path), Create(f"{path}/state", znodes.encode_state(state))]))
    store = world.active.controller.store
    get_many = store.get_many

    async def miss_state(paths, watch=None):
        store.get_many = get_many
        return [None for _ in paths]

    store.get_many = miss_state
    grow(world, "t", (3,), (3, 1))
    assert states(world, "t") == [(1, 1, (1,)), (3, 0, (3,)), (3, 0, (3, 1))]
    assert offline(world) == [(2,), (), ()]


def test_partitions_begin_although_the_state_of_another_is_damaged(world):
    create(world, "t", (1, 2))
    path = znodes.partition_path("t", 1)
    run_now(world.server.connect().transaction([Create(path), Create(f"{path}/state", b"{")]))
    grow(world, "t", (3,), (3, 1), (2,))
    assert states(world, "t")[2:] == [(3, 0, (3, 1)), (2, 0, (2,))]
    assert world.fakes[2].roles["t", 3][0] == 2


def test_a_topic_whose_nodes_are_removed_does_not_prevent_elections(world, caplog):
    """The elections of all topics failed, so that no partition of a failed broker got another leader."""
    create(world, "t", (2, 3))
    write_topic(world, "gone", (9,))
    run_now(world.server.connect().transaction([Delete(znodes.topic_path("gone"))]))
    world.crash(2)
    world.executor.finish()
    world.start(9)
    assert states(world, "t") == [(3, 1, (3,))]
    assert "partitions cannot begin topic=gone" in caplog.text


def test_large_topics_are_created_in_several_transactions(world, monkeypatch):
    """A topic with more than some 3,000 partitions was refused: ZooKeeper accepts 1 MB."""
    monkeypatch.setattr(context, "MAX_TRANSACTION_BYTES", 2000)
    store, sizes = world.active.controller.store, []
    transaction = store.transaction

    async def recorded(operations):
        sizes.append(sum(len(one.path) + len(getattr(one, "data", None) or b"") + 64 for one in operations))
        return await transaction(operations)

    store.transaction = recorded
    create(world, "t", *[(1, 2)] * 30)
    grown = world.active.controller.image.topics["t"]
    world.run(world.active.controller.add_partitions(grown._replace(partitions=grown.partitions * 2), 30))
    write_topic(world, "u", *[(2, 1)] * 30)
    assert states(world, "t") == [(1, 0, (1, 2))] * 60
    assert states(world, "u") == [(2, 0, (2, 1))] * 30
    assert len(sizes) > 10
    assert max(sizes) < 2100


def test_a_topic_is_created_in_short_steps(world):
    """A transaction is encoded without a pause, in which other clients are not served."""
    store, counts = world.active.controller.store, []
    transaction = store.transaction

    async def recorded(operations):
        counts.append(len(operations))
        return await transaction(operations)

    store.transaction = recorded
    create(world, "t", *[(1, 2)] * 1000)
    assert sum(counts) == 2003 + len(counts)
    assert max(counts) <= 1001


def test_several_topics_are_created_together_or_not_at_all(world, monkeypatch):
    """Those that the first of two transactions had created were refused as existing topics."""
    monkeypatch.setattr(context, "MAX_TRANSACTION_BYTES", 2000)
    write_topic(world, "d", (1,))
    controller = world.active.controller
    controller.image.remove_topic("d")
    partitions = tuple(new_partition((1, 2), controller.image.brokers, controller.epoch) for _ in range(5))
    batch = [NewTopic(TopicMetadata(name, topic_id(name), partitions), {}) for name in "abcd"]
    errors = world.run(controller.create_topics(batch))
    assert errors.keys() == {"d"}


def test_a_creation_that_ends_with_its_controller_is_completed_by_the_next(world, monkeypatch):
    monkeypatch.setattr(context, "MAX_TRANSACTION_BYTES", 2000)
    store = world.active.controller.store
    transaction, written = store.transaction, []

    async def crash_after_the_first(operations):
        if written:
            world.crash(1)
        written.append(operations)
        return await transaction(operations)

    store.transaction = crash_after_the_first
    controller = world.active.controller
    partitions = tuple(new_partition((2, 3), controller.image.brokers, controller.epoch) for _ in range(30))
    world.executor.start(controller.create_topics([NewTopic(TopicMetadata("t", topic_id("t"), partitions), {})]))
    world.executor.finish()
    assert [leader for leader, _, _ in states(world, "t")] == [2] * 30
    assert {key[1] for key in world.fakes[3].roles} == set(range(30))


def test_a_new_topic_causes_no_elections_of_others(world, monkeypatch):
    """The time was proportional to the number of all partitions."""
    create(world, "t", *[(1, 2)] * 50)
    elected = []

    def counted(partition, *arguments, **keywords):
        elected.append(partition)
        return elect_leader(partition, *arguments, **keywords)

    monkeypatch.setattr(changes, "elect_leader", counted)
    write_topic(world, "u", (2, 3), (3, 2))
    grow(world, "u", (1,))
    assert states(world, "u") == [(2, 0, (2, 3)), (3, 0, (3, 2)), (1, 0, (1,))]
    assert len(elected) <= 5
