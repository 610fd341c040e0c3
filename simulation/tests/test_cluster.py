"""Three brokers in one simulated world, and a client that follows their leaders."""

from collections.abc import Sequence
from typing import ClassVar

import pytest
from twisted.internet.defer import Deferred

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.create_topics import (
    CreateTopicsRequest,
    CreateTopicsRequestCreatableReplicaAssignment,
    CreateTopicsRequestCreatableTopic,
    CreateTopicsRequestCreatableTopicConfig,
)
from odradek.protocol.messages.delete_topics import DeleteTopicsRequest
from odradek.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from odradek.protocol.messages.produce import (
    ProduceRequest,
    ProduceRequestPartitionProduceData,
    ProduceRequestTopicProduceData,
)
from odradek.protocol.records import build_batch
from odradek.replication.metadata import znodes
from odradek.replication.metadata.image import NO_LEADER
from odradek.replication.replicas.broker_control import BrokerControl
from odradek.server.work.first_metadata import MAX_WAIT_S
from odradek.simulation.api import ConnectionLost
from odradek.simulation.clients.lasting_connection import LastingConnection
from odradek.simulation.cluster.faults import ClusterFaults
from odradek.simulation.cluster.logs import find_differences
from odradek.simulation.cluster.power import (
    IntactReplicas,
    _find_wrong_role,
    find_incomplete,
    find_silent_follower,
)
from odradek.simulation.cluster.tree import read_data, read_partitions
from odradek.simulation.history import History
from odradek.simulation.machine.zookeeper import ZOOKEEPER_HOST
from odradek.simulation.safeguards.cluster import _follow_any_controller
from odradek.simulation.scenario import FaultPlan
from odradek.simulation.tests.test_world import finish
from odradek.simulation.world import World

SESSION_S = 0.5
PROPERTIES = {
    "zookeeper.session.timeout.ms": str(int(SESSION_S * 1000)),
    "replica.lag.time.max.ms": "1000",
    "controller.socket.timeout.ms": "1000",
    "request.timeout.ms": "1000",
    "min.insync.replicas": "2",
}


class Cluster:
    """Three brokers that are up, with a topic of three replicas; stopped brokers are started again."""

    topic_configs: ClassVar[Sequence[CreateTopicsRequestCreatableTopicConfig]] = ()

    def __init__(self, **properties):
        self.world = World(3, {**PROPERTIES, **properties}, broker_count=3)
        self.world.quiet_s = float("inf")
        self.faults = ClusterFaults(
            self.world, History(self.world.now_ms), FaultPlan({}, 1.0), SESSION_S, self.world.new_random()
        )
        for process in self.world.brokers:
            process.start()
        self.wait(lambda: all(process.is_up for process in self.world.brokers))
        self.client = LastingConnection(self.world)
        self.ask(self.create)
        self.settle()

    def wait(self, until, limit_s=60):
        assert self.world.run(lambda: until() or bool(self.world.failures), limit_s), find_incomplete(self.world)
        assert self.world.failures == []

    def settle(self):
        self.wait(lambda: not find_incomplete(self.world))

    def ask(self, coroutine):
        return finish(self.world, coroutine())

    async def create(self):
        topic = CreateTopicsRequestCreatableTopic(
            name="t", num_partitions=1, replication_factor=3, configs=list(self.topic_configs)
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=1000)
        while True:
            (row,) = (await self.client.request(request, 7, client_id="test")).topics
            if row.error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                return
            await self.world.sleep(0.1)

    async def produce(self):
        batch = build_batch([(self.world.now_ms(), b"k", b"v", ())])
        data = ProduceRequestPartitionProduceData(index=0, records=batch)
        topic = ProduceRequestTopicProduceData(name="t", partition_data=[data])
        request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic])
        while True:
            answer = await self.client.request(request, 9, client_id="test")
            if answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE:
                return
            await self.world.sleep(0.1)

    def move_leadership_to_controller(self):
        """Kill leaders until the controller leads; return it."""
        while self.leader is not self.controller:
            self.leader.kill()
            self.settle()
        return self.leader

    @property
    def controller(self):
        zookeeper = self.world.zookeeper
        assert zookeeper is not None
        data = read_data(zookeeper, znodes.CONTROLLER)
        return None if not data else self.world.brokers[znodes.decode_controller(data) - 1]

    @property
    def leader(self):
        return self.world.brokers[self.state.leader - 1]

    @property
    def state(self):
        zookeeper = self.world.zookeeper
        assert zookeeper is not None
        return read_partitions(zookeeper)["t", 0].state


@pytest.fixture
def cluster():
    return Cluster()


def test_the_next_leader_has_what_was_acknowledged(cluster):
    cluster.ask(cluster.produce)
    first, epoch = cluster.leader, cluster.state.leader_epoch
    first.kill()
    cluster.wait(lambda: cluster.state.leader_epoch > epoch and cluster.leader is not first)
    cluster.ask(cluster.produce)
    cluster.settle()
    assert list(find_differences(cluster.world.brokers)) == []


def test_a_paused_leader_is_replaced(cluster):
    first = cluster.leader
    first.pause(4 * SESSION_S)
    assert first.is_paused
    cluster.wait(lambda: cluster.leader is not first)
    cluster.ask(cluster.produce)
    cluster.settle()


def test_a_leader_without_zookeeper_is_replaced(cluster):
    first = cluster.leader
    cluster.world.network.cut([(first.host, "zookeeper"), ("zookeeper", first.host)])
    cluster.wait(lambda: cluster.leader is not first)
    cluster.ask(cluster.produce)
    cluster.world.network.heal()
    cluster.settle()


@pytest.mark.parametrize("others_wait", [False, True])
def test_a_controller_that_lost_data_does_not_lead_until_it_has_caught_up(cluster, others_wait):
    """If the other brokers wait, it is the next controller as well, and the only one that can notice its restart."""
    first = cluster.move_leadership_to_controller()
    for _ in range(20):
        cluster.ask(cluster.produce)
    cluster.settle()
    epoch, end = cluster.state.leader_epoch, log_of(first).log_end_offset
    first.lose_power(lose_names=False)
    if others_wait:
        # ZooKeeper hears the others, whose sessions survive, but they do not hear it.
        others = [process.host for process in cluster.world.brokers if process is not first]
        cluster.world.network.cut([(ZOOKEEPER_HOST, host) for host in others])
        cluster.world.zookeeper.expire(first.host)
        first.start()
        cluster.wait(lambda: cluster.controller is first)
        cluster.world.network.heal()
    cluster.settle()
    assert cluster.state.leader_epoch > epoch
    assert [log_of(process).log_end_offset for process in cluster.world.brokers] == [end] * 3


def test_a_started_broker_answers_about_topics_when_it_has_the_metadata(cluster):
    """Producers fail the records of topics that do not exist."""
    process = next(one for one in cluster.world.brokers if one not in (cluster.leader, cluster.controller))
    process.kill()
    cluster.world.network.cut([(cluster.controller.host, process.host)])
    process.start()
    cluster.wait(lambda: process.is_up)

    async def ask():
        connection = await cluster.world.connect(process.address)
        request = MetadataRequest(topics=[MetadataRequestTopic(name="t")], allow_auto_topic_creation=False)
        answers.append(await connection.request(request, 9, client_id="test"))

    answers = []
    Deferred.fromCoroutine(ask())
    end_s = cluster.world.clock.seconds() + MAX_WAIT_S / 2
    cluster.wait(lambda: cluster.world.clock.seconds() > end_s)
    assert answers == []
    cluster.world.network.heal()
    cluster.wait(lambda: bool(answers))
    (topic,) = answers[0].topics
    assert (topic.error_code, len(topic.partitions), len(answers[0].brokers)) == (ErrorCode.NONE, 1, 3)


def test_a_started_broker_without_a_controller_lets_clients_retry(cluster):
    process = next(one for one in cluster.world.brokers if one not in (cluster.leader, cluster.controller))
    process.kill()
    cluster.world.network.cut([(cluster.controller.host, process.host)])
    process.start()
    cluster.wait(lambda: process.is_up)

    async def ask():
        connection = await cluster.world.connect(process.address)
        request = MetadataRequest(topics=[MetadataRequestTopic(name="t")], allow_auto_topic_creation=False)
        return await connection.request(request, 9, client_id="test")

    (topic,) = cluster.ask(ask).topics
    assert topic.error_code == ErrorCode.LEADER_NOT_AVAILABLE


@pytest.mark.parametrize("is_followed", [False, True])
def test_a_controller_that_resumes_after_its_change_is_not_followed(cluster, monkeypatch, is_followed):
    """It was paused between a change and its publication, and has been replaced."""
    if is_followed:
        monkeypatch.setattr(BrokerControl, "_refuse", _follow_any_controller(BrokerControl._refuse))
    first = cluster.controller
    cluster.faults._pauses[first.host] = 8 * SESSION_S
    next(one for one in cluster.world.brokers if one is not first).kill()
    cluster.wait(lambda: first.is_paused)
    cluster.wait(lambda: not first.is_paused)
    assert cluster.controller is not first
    cluster.world.run(lambda: not find_incomplete(cluster.world), 60)
    found = [what for what in cluster.world.failures if "follows the controller of epoch" in what]
    assert bool(found) == is_followed


def test_one_replica_in_sync_remains_intact(cluster):
    cluster.ask(cluster.produce)
    intact = IntactReplicas(cluster.world)
    first, second, third = cluster.world.brokers
    assert intact.may_lose(first)
    assert intact.may_disturb(["broker-1", "broker-2", "broker-3"])
    intact.lose_data(first)
    first.lose_power(lose_names=False)
    assert intact.may_lose(second)
    assert intact.may_disturb(["broker-2"])
    assert not intact.may_disturb(["broker-2", "broker-3"])
    second.pause(SESSION_S)
    assert not intact.may_disturb(["broker-3"])
    assert not intact.may_lose(third)
    cluster.settle()
    assert intact.may_disturb(["broker-2", "broker-3"])


def test_an_intact_replica_is_not_removed(cluster):
    partition = "t", 0
    cluster.ask(cluster.produce)
    intact, first = cluster.world.intact, cluster.world.brokers[0]
    assert intact.begin_reassignment(partition, [1])
    intact.end_reassignment(partition, [1])
    intact.lose_data(first)
    first.lose_power(lose_names=False)
    assert not intact.begin_reassignment(partition, [1])
    assert intact.may_disturb(["broker-2"])
    assert intact.begin_reassignment(partition, [1, 2])
    assert not intact.may_disturb(["broker-2"])
    assert intact.may_disturb(["broker-3"])
    assert not intact.begin_reassignment(partition, [1, 3])
    intact.end_reassignment(partition, [1, 2])
    assert intact.may_disturb(["broker-2"])


@pytest.mark.parametrize(("changes", "stays"), [({}, True), ({"adding": (3,)}, False), ({"removing": (3,)}, False)])
def test_a_replica_that_is_added_or_removed_may_not_stay(cluster, changes, stays):
    """A cancellation removes the replicas that are being added."""
    stored = read_partitions(cluster.world.zookeeper)["t", 0]
    stored = stored._replace(state=stored.state._replace(**changes))
    assert cluster.world.intact._stays(("t", 0), 3, stored) == stays


def test_a_broker_that_leads_by_mistake_is_reported(cluster):
    follower = next(process for process in cluster.world.brokers if process is not cluster.leader)
    replica = follower.broker.services.replicas.get("t", 0)
    assert find_incomplete(cluster.world) == ""
    replica.is_leader = True
    assert find_incomplete(cluster.world).startswith(f"{follower.name} leads ('t', 0) in epoch 0")


@pytest.mark.parametrize(
    ("changes", "is_leader"),
    [
        ({"replicas": (1, 2)}, False),
        ({"leader": NO_LEADER}, False),
        ({"leader_epoch": 7}, False),
        ({"isr": (1, 2)}, True),
    ],
)
def test_a_role_that_differs_from_zookeeper_is_reported(cluster, changes, is_leader):
    process = next(one for one in cluster.world.brokers if (one is cluster.leader) == is_leader)
    replica = process.broker.services.replicas.get("t", 0)
    assert find_incomplete(cluster.world) == ""
    for name, value in changes.items():
        setattr(replica, name, value)
    assert find_incomplete(cluster.world).startswith(f"{process.name} has the ")


@pytest.mark.parametrize("changes", [{"replicas": (1, 2)}, {"isr": (1, 2)}, {"offline": (1,)}, {"leader_epoch": 7}])
def test_metadata_that_differs_from_zookeeper_is_reported(cluster, changes):
    image = cluster.world.brokers[2].broker.services.metadata
    change_partition(image, **changes)
    assert find_incomplete(cluster.world).startswith("broker-3 has PartitionMetadata(")


@pytest.mark.parametrize("changes", [{"replicas": (1, 2)}, {"adding": (2,)}, {"removing": (2,)}])
def test_an_assignment_that_differs_from_zookeeper_is_reported(cluster, changes):
    change_partition(cluster.world.brokers[2].broker.services.replicas._image, **changes)
    assert find_incomplete(cluster.world).startswith("broker-3 has the assignment PartitionMetadata(")


def change_partition(image, **changes):
    """Change a partition in an image without its publication."""
    topic = image.topics["t"]
    image.put_topic(topic._replace(partitions=(topic.partitions[0]._replace(**changes),)))


def test_a_removed_replica_keeps_no_role(cluster):
    state = cluster.state._replace(replicas=(1, 2), isr=(1, 2))
    process = cluster.world.brokers[2]
    replica = process.broker.services.replicas.get("t", 0)
    assert _find_wrong_role(process, 3, ("t", 0), state).startswith("the role Partition(")
    replica.leader = NO_LEADER
    assert _find_wrong_role(process, 3, ("t", 0), state) == ""


def test_a_broker_that_leads_a_partition_of_a_deleted_topic_is_reported(cluster):
    follower = next(process for process in cluster.world.brokers if process is not cluster.leader)
    replica = follower.broker.services.replicas.get("t", 0)
    replica.topic_id = bytes(15) + b"1"
    assert find_incomplete(cluster.world) == ""
    replica.is_leader = True
    assert find_incomplete(cluster.world) .startswith(f"{follower.name} leads a partition of a deleted topic")


def test_a_broker_whose_metadata_still_has_a_deleted_topic_is_reported(cluster):
    metadata = cluster.world.brokers[2].broker.services.metadata
    assert find_incomplete(cluster.world) == ""
    metadata.put_topic(metadata.topics["t"]._replace(name="old", topic_id=bytes(15) + b"1"))
    assert find_incomplete(cluster.world) == "broker-3 has the deleted topic old in its metadata"


def test_a_broker_without_a_session_during_a_deletion_has_correct_metadata_afterwards(cluster):
    """It has no replica of the topic, so that the deletion ends without it."""
    away = next(one for one in cluster.world.brokers if one not in (cluster.leader, cluster.controller))
    others = [one.broker.config.node_id for one in cluster.world.brokers if one is not away]
    assignment = CreateTopicsRequestCreatableReplicaAssignment(partition_index=0, broker_ids=others)

    async def create():
        topic = CreateTopicsRequestCreatableTopic(
            name="u", num_partitions=-1, replication_factor=-1, assignments=[assignment]
        )
        return await cluster.client.request(CreateTopicsRequest(topics=[topic], timeout_ms=1000), 7, client_id="test")

    async def delete():
        request = DeleteTopicsRequest(topic_names=["u"], timeout_ms=1000)
        return await cluster.client.request(request, 5, client_id="test")

    cluster.ask(create)
    cluster.wait(lambda: "u" in away.broker.services.metadata.topics)
    cluster.settle()
    cluster.world.network.cut([(away.host, ZOOKEEPER_HOST), (ZOOKEEPER_HOST, away.host)])
    cluster.world.zookeeper.expire(away.host)
    cluster.wait(lambda: len(cluster.controller.broker.services.metadata.brokers) == 2)
    cluster.ask(delete)
    cluster.wait(lambda: ("u", 0) not in read_partitions(cluster.world.zookeeper))
    assert "u" in away.broker.services.metadata.topics
    cluster.world.network.heal()
    cluster.settle()
    assert "u" not in away.broker.services.metadata.topics


def test_differences_of_replicas_are_reported(cluster):
    cluster.ask(cluster.produce)
    cluster.wait(lambda: len({log_of(process).high_watermark for process in cluster.world.brokers}) == 1)
    log = log_of(cluster.world.brokers[0])
    segment = log.segments[-1]
    content = bytearray(segment.file.pread(0, segment.size_bytes))
    content[-1] ^= 1
    segment.file.write_pieces(0, [bytes(content)], len(content))
    assert any("differ" in what for what in find_differences(cluster.world.brokers))


def log_of(process):
    return next(replica.log for replica in process.broker.services.replicas if replica.topic == "t")


def test_a_client_connects_again_after_an_error_of_an_old_route(cluster):
    async def run():
        connection = await cluster.world.connect()
        request = MetadataRequest(topics=[MetadataRequestTopic(name="none")], allow_auto_topic_creation=False)
        answer = await connection.request(request, 9, client_id="test")
        assert answer.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert connection.is_lost
        with pytest.raises(ConnectionLost):
            await connection.request(request, 9, client_id="test")
        return True

    assert cluster.ask(run)


def test_a_follower_that_does_not_fetch_is_found(cluster):
    world = cluster.world
    begin_s = world.clock.seconds()
    assert "has not fetched" in find_silent_follower(world, begin_s)
    cluster.wait(lambda: not find_silent_follower(world, begin_s))
    follower = next(process for process in world.brokers if not process.broker.services.replicas.get("t", 0).is_leader)
    follower.pause(SESSION_S / 2)
    begin_s = world.clock.seconds() + SESSION_S / 5
    world.run(lambda: False, SESSION_S * 0.4)
    assert find_incomplete(world) == ""
    assert "has not fetched" in find_silent_follower(world, begin_s)


def test_a_leader_epoch_is_no_fetch_of_a_follower(cluster):
    world = cluster.world
    process = next(one for one in world.brokers if one.broker.services.replicas.get("t", 0).is_leader)
    leader = process.broker.services.replicas.get("t", 0)
    # The first fetch, which waits for records, begins the session.
    world.run(lambda: False, 2.0)
    next(one for one in world.brokers if one is not process).pause(SESSION_S / 2)
    begin_s = world.clock.seconds() + SESSION_S / 5
    world.run(lambda: False, SESSION_S * 0.4)
    for follower in leader.followers.values():
        follower.begin_epoch(leader.log.log_end_offset, process.broker.services.monotonic_ms(), is_in_sync=True)
    assert "has not fetched" in find_silent_follower(world, begin_s)
