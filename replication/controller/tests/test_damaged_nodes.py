"""Nodes that another tool damaged in a store that brokers share: each is named in the log, and the others are used."""

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.elect_leaders import ElectLeadersRequest
from odradek.protocol.messages.elect_leaders import ElectLeadersRequestTopicPartitions as TopicPartitions
from odradek.replication.controller.admin.elections import UNCLEAN, ElectionAdmin
from odradek.replication.metadata import znodes
from odradek.replication.metadata.config_follower import ConfigFollower
from odradek.replication.metadata.image import ClusterMetadata
from odradek.replication.metadata.store import run_now
from odradek.replication.tests.cluster_requests import create, states
from odradek.replication.tests.cluster_support import World
from odradek.replication.tests.support import broker

DAMAGED = b"{"


@pytest.fixture
def world():
    return World()


def damage(world, path):
    """Another tool writes a node that cannot be decoded."""
    store = world.server.connect()
    run_now(store.ensure_path(path))
    run_now(store.set(path, DAMAGED))


def notify(world, *entity_paths):
    store = world.server.connect()
    for entity_path in entity_paths:
        notice = znodes.encode_config_change(entity_path)
        run_now(store.create(f"{znodes.CONFIG_CHANGES}/config_change_", notice, sequential=True))
    world.executor.finish()


def test_notices_of_other_configurations_are_followed(world, caplog):
    """The controller read no further configuration, and did not allow an unclean election that was enabled."""
    create(world, "t", (2,), (3,))
    store = world.server.connect()
    damage(world, "/config/topics/a")
    run_now(store.create("/config/brokers/x", b"{}"))
    run_now(store.set("/config/topics/t", znodes.encode_config({"flush.ms": "5"})))
    notify(world, "topics/a", "brokers/x", "topics/t")
    for node in world.nodes.values():
        assert node.controller.image.topic_configs == {"t": {"flush.ms": "5"}}
    assert "/config/topics/a" in caplog.text
    assert "config_change_0000000001 cannot be decoded" in caplog.text


def test_another_controller_takes_over(world, caplog):
    """No broker could take over as the controller, so that partitions of the failed broker had no leader."""
    create(world, "t", (1, 2), (2, 1))
    create(world, "u", (1, 3))
    damage(world, "/config/topics/a")
    damage(world, "/config/brokers/7")
    damage(world, "/config/brokers/x")
    damage(world, "/brokers/ids/9")
    damage(world, "/brokers/topics/damaged")
    damage(world, znodes.state_path("t", 1))
    world.crash(1)
    world.executor.finish()
    assert world.active
    run_now(world.server.connect().set(znodes.state_path("t", 1), znodes.encode_state(partition(world, "t", 1))))
    assert states(world, "t")[0][:2] == (2, 2)
    assert states(world, "u") == [(3, 2, (3,))]
    for path in ("config/topics/a", "config/brokers/7", "brokers/ids/9", "brokers/topics/damaged", "t/partitions/1"):
        assert path in caplog.text


def test_an_unclean_election_of_a_partition_with_a_damaged_state_ends(world):
    """It was repeated for ever, and the controller processed no other event."""
    create(world, "t", (2, 3))
    damage(world, znodes.state_path("t", 0))
    world.crash(1)
    world.executor.finish()
    controller = world.active.controller
    put_partitions, attempts = controller.changes.put_partitions, []

    async def put(topics):
        attempts.append(topics)
        assert len(attempts) < 10
        await put_partitions(topics)

    controller.changes.put_partitions = put
    request = ElectLeadersRequest(
        election_type=UNCLEAN, topic_partitions=[TopicPartitions(topic="t", partitions=[0])], timeout_ms=1_000
    )
    response = world.run(ElectionAdmin(controller, world.executor.pause).elect(request))
    [row] = response.replica_election_results[0].partition_result
    assert row.error_code == ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE


def partition(world, name, index):
    return world.active.controller.image.topics[name].partitions[index]


def test_the_failure_of_a_broker_is_handled(world, caplog):
    """Registrations were not read any further, so that no leader was elected."""
    create(world, "t", (2, 3))
    damage(world, "/brokers/ids/9")
    world.crash(2)
    world.executor.finish()
    assert states(world, "t") == [(3, 1, (3,))]
    assert "/brokers/ids/9" in caplog.text


def test_a_member_starts(world, caplog):
    damage(world, "/config/topics/a")
    damage(world, "/config/brokers/x")
    run_now(world.server.connect().create("/config/topics/t", znodes.encode_config({"flush.ms": "5"})))
    cache = ClusterMetadata()
    run_now(ConfigFollower(world.server.connect(), cache, lambda description, work: None).start({}))
    assert cache.topic_configs == {"t": {"flush.ms": "5"}}
    world.start(4)
    assert 4 in world.active.controller.image.brokers
    assert "/config/topics/a" in caplog.text
    assert "/config/brokers/x" in caplog.text


def test_a_registration_with_an_unknown_security_protocol(world, caplog):
    """No broker got any further metadata: UpdateMetadata, which has all brokers, could not be built."""
    registration = znodes.encode_broker(broker(9), 0).replace(b'"PLAINTEXT"}', b'"QUIC"}')
    run_now(world.server.connect().create(znodes.broker_path(9), registration))
    world.executor.finish()
    create(world, "t", (1, 2))
    assert world.fakes[3].cache["t", 0][0] == 1
    assert "/brokers/ids/9 cannot be decoded" in caplog.text
