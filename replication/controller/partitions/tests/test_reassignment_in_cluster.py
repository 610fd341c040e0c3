"""Reassignments with the requests that brokers get for them. Section 9 of `zookeeper-mode.md`."""

import pytest

from odradek.replication.controller import context
from odradek.replication.controller.partitions import reassignment
from odradek.replication.controller.states.partition_states import elect_leader
from odradek.replication.controller.topics import changes
from odradek.replication.metadata import znodes
from odradek.replication.metadata.loader import load_topic
from odradek.replication.metadata.store import SetData, run_now
from odradek.replication.tests.cluster_requests import alter, create, delete, nodes, states
from odradek.replication.tests.cluster_support import World
from odradek.replication.tests.support import lose_next_response


@pytest.fixture
def world():
    world = World((1, 2, 3, 4))
    create(world, "t", (1, 2))
    world.take()
    return world


def begin(world, target):
    reassignments = world.active.controller.reassignments
    return world.run(world.active.controller.request("reassign", lambda: reassignments.begin("t", {0: target})))


def node(world):
    topic = znodes.decode_topic(run_now(world.server.connect().get(znodes.topic_path("t"))).data)
    return topic.replicas[0], topic.adding.get(0, ()), topic.removing.get(0, ())


def partition_epoch(world):
    return world.active.controller.image.topics["t"].partitions[0].partition_epoch


def test_a_reassignment(world):
    assert begin(world, [3, 4]) == {0: None}
    old, new = ("LAI", {"t-0": (1, 1, [1, 2])}), ("LAI", {"t-0": (1, 1, [1, 2], "new")})
    update = ("UM", [1, 2, 3, 4], {"t-0": (1, 1, [1, 2])})
    assert world.take() == {1: [old, update], 2: [old, update], 3: [new, update], 4: [new, update]}
    assert node(world) == ((3, 4, 1, 2), (3, 4), (1, 2))

    alter(world, "t", 0, [1, 2, 3, 4], leader_epoch=1, partition_epoch=partition_epoch(world))
    world.executor.finish()
    requests = world.take()
    roles, stop = ("LAI", {"t-0": (3, 2, [3, 4])}), ("SR", {"t-0": (2, True)})
    assert [request for request in requests[3] if request[0] != "UM"] == [roles]
    assert [request for request in requests[4] if request[0] != "UM"] == [roles]
    assert [request for request in requests[1] if request[0] != "UM"] == [stop]
    assert [request for request in requests[2] if request[0] != "UM"] == [stop]
    assert node(world) == ((3, 4), (), ())
    assert {broker_id for broker_id, fake in world.fakes.items() if ("t", 0) in fake.roles} == {3, 4}
    assert {fake.cache["t", 0] for fake in world.fakes.values()} == {(3, 2, (3, 4), (3, 4))}


def test_another_controller_continues(world):
    begin(world, [3, 4])
    alter(world, "t", 0, [1, 2, 3], leader_epoch=1, partition_epoch=partition_epoch(world))
    world.crash(world.active.fake.broker_id)
    world.executor.finish()
    [(leader, epoch, isr)] = states(world, "t")
    assert leader in (2, 3)
    assert world.active.controller.reassignments.is_in_progress("t", 0, (3, 4))
    alter(
        world, "t", 0, [*isr, 4], leader=leader, leader_epoch=epoch, partition_epoch=partition_epoch(world)
    )
    world.executor.finish()
    assert node(world) == ((3, 4), (), ())
    assert {broker_id for broker_id, fake in world.fakes.items() if ("t", 0) in fake.roles} - {1} == {3, 4}


def test_a_state_that_another_broker_wrote_is_read_again(world):
    store = world.server.connect()
    topic = run_now(load_topic(store, "t"))
    changed = elect_leader(topic.partitions[0], {2}, 1)
    run_now(store.transaction([SetData(znodes.state_path("t", 0), znodes.encode_state(changed))]))
    assert begin(world, [2, 3]) == {0: None}
    [(leader, epoch, isr)] = states(world, "t")
    assert (leader, epoch, isr) == (2, changed.leader_epoch + 1, (2,))
    assert node(world) == ((2, 3, 1), (3,), (1,))


def test_a_reassignment_whose_response_was_lost_is_published_and_completed(world):
    """The states that are read again are the wanted ones, so that the repetition changes nothing."""
    lose_next_response(world.active.store)
    assert begin(world, [3, 4]) == {0: None}
    assert ("LAI", {"t-0": (1, 1, [1, 2], "new")}) in world.take()[3]
    alter(world, "t", 0, [1, 2, 3, 4], leader_epoch=1, partition_epoch=partition_epoch(world))
    world.executor.finish()
    assert node(world) == ((3, 4), (), ())
    assert {broker_id for broker_id, fake in world.fakes.items() if ("t", 0) in fake.roles} == {3, 4}


def test_a_request_of_an_operator_that_is_too_large_ends_no_takeover(world, monkeypatch, caplog):
    """It stayed in its node, and each new controller failed with it and resigned."""
    create(world, "large", *[(1, 2)] * 300)
    requests, held = world.active.controller._operator_requests, []
    post, requests._post = requests._post, lambda *event: held.append(event)
    request = znodes.encode_reassignments({("large", index): (3, 4) for index in range(300)})
    run_now(world.server.connect().create(znodes.REASSIGN_PARTITIONS, request))
    monkeypatch.setattr(world.server, "max_transaction_bytes", 12_000)
    monkeypatch.setattr(reassignment, "_ROOM_BYTES", 1_000)
    for module in (context, changes):
        monkeypatch.setattr(module, "MAX_TRANSACTION_BYTES", 6_000)
    for event in held:
        post(*event)
    world.executor.finish()
    assert "refused reassignments topic=large partitions=300" in caplog.text
    assert run_now(world.server.connect().exists(znodes.REASSIGN_PARTITIONS)) is None
    world.crash(world.active.fake.broker_id)
    world.executor.finish()
    assert world.active.controller.is_active


def test_a_broker_that_shuts_down_is_not_elected(world):
    create(world, "t2", (1, 2, 3))
    controller = world.active.controller
    controller.context.shutting_down.add(2)
    world.run(controller.request("reassign", lambda: controller.reassignments.begin("t2", {0: [2, 3]})))
    assert states(world, "t2") == [(3, 1, (2, 3))]


@pytest.mark.parametrize("seed", range(60))
def test_random(seed):
    """Requests are lost and the brokers' work is interleaved; in the end replicas are where the target is."""
    world = World((1, 2, 3, 4, 5), seed)
    create(world, "t", (1, 2))
    target = (1, 2)
    for _ in range(4):
        target = tuple(world.chooser.sample([1, 2, 3, 4, 5], world.chooser.randrange(1, 4)))
        begin(world, target)
        world.executor.wake()
        world.executor.finish()
        if world.chooser.random() < 0.7:
            partition = world.active.controller.image.topics["t"].partitions[0]
            members = list(dict.fromkeys((*partition.isr, *partition.replicas)))
            alter(
                world, "t", 0, members,
                leader=partition.leader,
                leader_epoch=partition.leader_epoch,
                partition_epoch=partition.partition_epoch,
            )  # fmt: skip
    for _ in range(20):
        world.executor.finish()
        world.executor.wake()
        partition = world.active.controller.image.topics["t"].partitions[0]
        missing = [replica for replica in partition.replicas if replica not in partition.isr]
        if missing:
            alter(
                world, "t", 0, [*partition.isr, *missing],
                leader=partition.leader,
                leader_epoch=partition.leader_epoch,
                partition_epoch=partition.partition_epoch,
            )  # fmt: skip
    world.executor.finish()
    assert node(world) == (target, (), ())
    partition = world.active.controller.image.topics["t"].partitions[0]
    assert (partition.replicas, set(partition.isr)) == (target, set(target))
    assert {broker_id for broker_id, fake in world.fakes.items() if ("t", 0) in fake.roles} == set(target)


def test_a_topic_whose_deletion_has_begun_is_not_led_again_because_a_removed_replica_remains(world):
    """The next controller took it for a topic that is being reassigned, and its leader began with an empty log."""
    create(world, "u", (2, 3))
    world.fakes[3].is_up = False
    controller = world.active.controller
    world.run(controller.request("reassign", lambda: controller.reassignments.begin("u", {0: [2]})))
    assert list(controller.context.stopping.values()) == [(3,)]
    assert delete(world, "u") == {}
    assert ("u", 0) in world.fakes[2].deleted
    world.take()
    world.crash(1)
    world.executor.finish()
    assert not [request for request in world.take()[2] if request[0] == "LAI" and "u-0" in request[1]]
    world.crash(3)
    world.executor.finish()
    world.start(3)
    assert nodes(world, znodes.TOPICS) == ["t"]
