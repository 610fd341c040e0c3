"""Changes of topics whose nodes, or the transactions that write them, are larger than ZooKeeper accepts."""

import pytest

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller import context
from odradek.replication.controller.partitions import reassignment
from odradek.replication.controller.states.partition_states import new_partition
from odradek.replication.controller.topics import changes
from odradek.replication.controller.topics.changes import NewTopic
from odradek.replication.metadata import znodes
from odradek.replication.metadata.image import TopicMetadata
from odradek.replication.metadata.store import run_now
from odradek.replication.tests.cluster_requests import create, nodes, states, topic_id
from odradek.replication.tests.cluster_support import World

LIMIT = 12_000
"""Limit of a transaction: about that of the node of a topic with 1,000 partitions of two replicas."""


@pytest.fixture
def world(monkeypatch):
    for module in (context, changes):
        monkeypatch.setattr(module, "MAX_TRANSACTION_BYTES", LIMIT // 2)
    monkeypatch.setattr(reassignment, "_ROOM_BYTES", LIMIT // 10)
    world = World((1, 2, 3, 4))
    world.server.max_transaction_bytes = LIMIT
    return world


def new_topic(world, name, count, configs=None):
    controller = world.active.controller
    partition = new_partition((1, 2), controller.image.brokers, controller.epoch)
    return NewTopic(TopicMetadata(name, topic_id(name), (partition,) * count), configs or {})


def reassign(world, targets):
    """Reassign partitions of the topic; return the error of each."""
    controller = world.active.controller
    return world.run(controller.request("reassign", lambda: controller.reassignments.begin("t", targets)))


def node(world):
    return znodes.decode_topic(run_now(world.server.connect().get(znodes.topic_path("t"))).data)


def partitions(world):
    return world.active.controller.image.topics["t"].partitions


def test_a_topic_that_is_too_large_is_refused_and_leaves_no_nodes(world):
    session_id = world.active.store.session_id
    errors = world.run(world.active.controller.create_topics([new_topic(world, "t", 1100)]))
    assert errors["t"].code is ErrorCode.POLICY_VIOLATION
    assert "use fewer partitions or replicas" in errors["t"].message
    assert nodes(world, znodes.TOPICS) == nodes(world, znodes.TOPIC_CONFIGS) == []
    create(world, "t", *[(1, 2)] * 900)
    assert states(world, "t") == [(1, 0, (1, 2))] * 900
    assert world.active.store.session_id == session_id


def test_topics_that_are_too_large_for_one_transaction_are_created_in_several(world):
    """Each of them is small: all were refused."""
    topics = [new_topic(world, f"t{number}", 2, {"a": "x" * 1000}) for number in range(20)]
    topics.append(new_topic(world, "large", 1100))
    errors = world.run(world.active.controller.create_topics(topics))
    assert {name: error.code for name, error in errors.items()} == {"large": ErrorCode.POLICY_VIOLATION}
    assert nodes(world, znodes.TOPICS) == nodes(world, znodes.TOPIC_CONFIGS) == sorted(f"t{n}" for n in range(20))


def test_partitions_that_make_a_topic_too_large_are_refused(world):
    create(world, "t", *[(1, 2)] * 900)
    controller = world.active.controller
    grown = controller.image.topics["t"]
    grown = grown._replace(partitions=grown.partitions + grown.partitions[:200])
    with pytest.raises(KafkaError) as raised:
        world.run(controller.add_partitions(grown, 900))
    assert raised.value.code is ErrorCode.POLICY_VIOLATION
    assert len(partitions(world)) == len(node(world).replicas) == len(states(world, "t")) == 900


def test_a_reassignment_that_is_too_large_changes_nothing(world):
    """Its first partitions were reassigned, and the client got an error for all."""
    create(world, "t", *[(1, 2)] * 900)
    before, stored = partitions(world), states(world, "t")
    for name in ("a request", "the same request again"):
        with pytest.raises(KafkaError) as raised:
            reassign(world, {index: [3, 4] for index in range(900)})
        assert raised.value.code is ErrorCode.POLICY_VIOLATION, name
        assert (partitions(world), states(world, "t")) == (before, stored)
    assert reassign(world, {0: [3, 4]}) == {0: None}
    assert (node(world).adding, node(world).removing) == ({0: (3, 4)}, {0: (1, 2)})


def test_a_large_topic_is_reassigned_in_small_transactions(world):
    """Its node leaves room for a few states only."""
    create(world, "t", *[(1, 2)] * 200)
    assert reassign(world, {index: [3, 4] for index in range(200)}) == dict.fromkeys(range(200))
    assert len(node(world).adding) == 200
    assert {partition.replicas for partition in partitions(world)} == {(3, 4, 1, 2)}
    # The next controller completes all partitions at once.
    caught_up = znodes.encode_state(partitions(world)[0]._replace(isr=(1, 2, 3, 4)))
    for index in range(200):
        run_now(world.server.connect().set(znodes.state_path("t", index), caught_up))
    failed_id = world.active.fake.broker_id
    world.crash(failed_id)
    world.executor.finish()
    world.start(failed_id)
    assert {partition.replicas for partition in partitions(world)} == {(3, 4)}
    assert (set(node(world).replicas.values()), node(world).adding, node(world).removing) == ({(3, 4)}, {}, {})


def test_a_large_reassignment_can_be_cancelled(world):
    create(world, "t", *[(1, 2)] * 200)
    targets = {index: [3, 4] for index in range(200)}
    assert reassign(world, targets) == dict.fromkeys(range(200))
    assert reassign(world, dict.fromkeys(range(200))) == dict.fromkeys(range(200))
    assert (set(node(world).replicas.values()), node(world).adding, node(world).removing) == ({(1, 2)}, {}, {})


def test_a_configuration_that_is_too_large_is_refused(world):
    """A control character has six bytes in a node: the limit of a configuration's bytes does not prevent it."""
    controller = world.active.controller
    with pytest.raises(KafkaError) as raised:
        world.run(controller.put_broker_config(None, {"metric.reporters": "\x01" * (LIMIT // 5)}))
    assert raised.value.code is ErrorCode.POLICY_VIOLATION
    assert not controller.image.broker_configs.get(None)
    world.run(controller.put_broker_config(None, {"metric.reporters": "x" * (LIMIT // 5)}))
    assert controller.image.broker_configs[None].keys() == {"metric.reporters"}


@pytest.mark.slow
def test_ten_thousand_partitions_with_a_long_name():
    """The limit is ZooKeeper's. If broker ids are long, too, such a topic is just small enough for a reassignment."""
    world = World((1001,))
    world.server.max_transaction_bytes = 1_000_000
    name = "t" * 249
    create(world, name, *[(1001, 1002, 1003)] * 10_000)
    controller = world.active.controller

    def begin(targets):
        return world.run(controller.request("reassign", lambda: controller.reassignments.begin(name, targets)))

    assert begin({index: [1004, 1005, 1006] for index in range(10_000)}) == dict.fromkeys(range(10_000))
    assert begin(dict.fromkeys(range(10_000))) == dict.fromkeys(range(10_000))
    topic = controller.image.topics[name]
    grown = topic._replace(partitions=topic.partitions + topic.partitions[:3000])
    world.run(controller.add_partitions(grown, 10_000))
    with pytest.raises(KafkaError) as raised:
        begin({index: [1004, 1005, 1006] for index in range(13_000)})
    assert raised.value.code is ErrorCode.POLICY_VIOLATION
    assert not any(partition.adding for partition in controller.image.topics[name].partitions)
