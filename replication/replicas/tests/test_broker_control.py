"""A controller's requests to a broker: roles, the metadata cache, and fencing by epochs (Kafka 3.9, ZooKeeper mode)."""

import errno
from functools import partial

import pytest

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.leader_and_isr import (
    LeaderAndIsrRequest,
    LeaderAndIsrRequestLeaderAndIsrPartitionState,
    LeaderAndIsrRequestLeaderAndIsrTopicState,
)
from odradek.protocol.messages.stop_replica import (
    StopReplicaRequest,
    StopReplicaRequestStopReplicaPartitionState,
    StopReplicaRequestStopReplicaTopicState,
)
from odradek.protocol.messages.update_metadata import (
    UpdateMetadataRequest,
    UpdateMetadataRequestUpdateMetadataBroker,
    UpdateMetadataRequestUpdateMetadataEndpoint,
    UpdateMetadataRequestUpdateMetadataPartitionState,
    UpdateMetadataRequestUpdateMetadataTopicState,
)
from odradek.protocol.records import build_batch
from odradek.protocol.types import ZERO_UUID
from odradek.replication.controller.events import EventKind, EventLoop, ImmediateExecutor
from odradek.replication.controller.registration import prepare_store
from odradek.replication.metadata import znodes
from odradek.replication.metadata.broker_configs import BrokerConfigs
from odradek.replication.metadata.config_follower import ConfigFollower
from odradek.replication.metadata.image import NO_LEADER, ClusterMetadata, PartitionMetadata
from odradek.replication.metadata.loader import count_partitions, list_topics
from odradek.replication.metadata.memory_store import MemoryMetadataServer
from odradek.replication.metadata.store import StoreUnavailableError, run_now
from odradek.replication.replicas.broker_control import BrokerControl
from odradek.replication.replicas.replica_manager import ReplicaManager
from odradek.replication.tests.support import SomeBrokerConfig, SteppedExecutor, memory_logs

ME, OTHER = 1, 2
ID, OTHER_ID = bytes([1]) * 16, bytes([2]) * 16
BROKER_EPOCH = 50


class Fetchers:
    """Records which partitions are fetched, and from whom."""

    def __init__(self):
        self.followed = {}

    def follow(self, partition):
        self.followed[partition.topic, partition.index] = (partition.leader, partition.leader_epoch)

    def unfollow(self, partition):
        self.followed.pop((partition.topic, partition.index), None)

    def list_fetched(self):
        return ()


class Member:
    """One broker of a cluster whose controller is the test."""

    def __init__(self, directories=("/data",)):
        self.broker_epoch = BROKER_EPOCH
        self.accepted_epochs = []
        self.delayed = []
        self.server = MemoryMetadataServer()
        self.store = self.server.connect()
        run_now(prepare_store(self.store, "a-cluster"))
        self.cache, self.assignments = ClusterMetadata(), ClusterMetadata()
        self.configs = BrokerConfigs(ME, SomeBrokerConfig({}), self.cache)
        self.logs = memory_logs(self.configs, directories)
        self.logs.topic_config = self.configs.topic
        self.replicas = ReplicaManager(ME, self.assignments, self.configs, self.logs, lambda: 1000, metadata=self.cache)
        self.fetchers = self.replicas.fetchers = Fetchers()
        self.logs.log_dirs.on_failure = self.replicas.directory_failed
        self.follower = ConfigFollower(self.store, self.cache, lambda description, work: run_now(work()))
        run_now(self.follower.start({}))
        self.control = BrokerControl(
            ME,
            self.cache,
            self.assignments,
            self.replicas,
            self.follower,
            EventLoop(ImmediateExecutor()),
            lambda: self.broker_epoch,
            partial(count_partitions, self.store),
            partial(list_topics, self.store),
            lambda delay_ms, task: self.delayed.append((delay_ms, task)),
            lambda: 0,
            self.accepted_epochs.append,
        )

    def lead_request(self, *states, topic="t", topic_id=ID, epoch=1, broker_epoch=BROKER_EPOCH):
        return LeaderAndIsrRequest(
            controller_id=OTHER,
            controller_epoch=epoch,
            broker_epoch=broker_epoch,
            topic_states=[
                LeaderAndIsrRequestLeaderAndIsrTopicState(
                    topic_name=topic, topic_id=topic_id, partition_states=list(states)
                )
            ],
        )

    def lead(self, *states, **arguments):
        request = self.lead_request(*states, **arguments)
        response = run_now(self.control.leader_and_isr(request))
        if response.error_code:
            return ErrorCode(response.error_code)
        [row] = response.topics
        assert row.topic_id == request.topic_states[0].topic_id
        return {one.partition_index: ErrorCode(one.error_code) for one in row.partition_errors}

    def stop(self, *states, topic="t", epoch=1, broker_epoch=BROKER_EPOCH):
        request = StopReplicaRequest(
            controller_id=OTHER,
            controller_epoch=epoch,
            broker_epoch=broker_epoch,
            topic_states=[StopReplicaRequestStopReplicaTopicState(topic_name=topic, partition_states=list(states))],
        )
        response = run_now(self.control.stop_replica(request))
        if response.error_code:
            return ErrorCode(response.error_code)
        return {one.partition_index: ErrorCode(one.error_code) for one in response.partition_errors}

    def update_request(self, *states, topic="t", topic_id=ID, epoch=1, live=(ME, OTHER), broker_epoch=BROKER_EPOCH):
        return UpdateMetadataRequest(
            controller_id=OTHER,
            controller_epoch=epoch,
            broker_epoch=broker_epoch,
            topic_states=[
                UpdateMetadataRequestUpdateMetadataTopicState(
                    topic_name=topic, topic_id=topic_id, partition_states=list(states)
                )
            ]
            if states
            else [],
            live_brokers=[
                UpdateMetadataRequestUpdateMetadataBroker(
                    id=number,
                    rack="r",
                    endpoints=[
                        UpdateMetadataRequestUpdateMetadataEndpoint(
                            port=9000 + number, host="host", listener="INSIDE", security_protocol=0
                        )
                    ],
                )
                for number in live
            ],
        )

    def update(self, *states, **arguments):
        request = self.update_request(*states, **arguments)
        return ErrorCode(run_now(self.control.update_metadata(request)).error_code)


def role(index=0, leader=ME, leader_epoch=0, replicas=(ME, OTHER), isr=(ME, OTHER), is_new=False):
    return LeaderAndIsrRequestLeaderAndIsrPartitionState(
        partition_index=index,
        controller_epoch=1,
        leader=leader,
        leader_epoch=leader_epoch,
        isr=list(isr),
        partition_epoch=leader_epoch,
        replicas=list(replicas),
        is_new=is_new,
    )


def cached(index=0, leader=ME, leader_epoch=0, replicas=(ME, OTHER)):
    return UpdateMetadataRequestUpdateMetadataPartitionState(
        partition_index=index, leader=leader, leader_epoch=leader_epoch, isr=list(replicas), replicas=list(replicas)
    )


def stopped(index=0, leader_epoch=0, delete=False):
    return StopReplicaRequestStopReplicaPartitionState(
        partition_index=index, leader_epoch=leader_epoch, delete_partition=delete
    )


@pytest.fixture
def member():
    return Member()


def test_a_broker_leads_one_partition_and_follows_another(member):
    assert member.lead(role(0), role(1, leader=OTHER)) == {0: ErrorCode.NONE, 1: ErrorCode.NONE}
    assert member.replicas.partitions["t", 0].is_leader
    assert not member.replicas.partitions["t", 1].is_leader
    assert member.fetchers.followed == {("t", 1): (OTHER, 0)}


def test_a_later_epoch_changes_the_roles_and_an_earlier_or_equal_one_does_not(member):
    member.lead(role(leader_epoch=3))
    for epoch in (2, 3):
        assert member.lead(role(leader=OTHER, leader_epoch=epoch)) == {0: ErrorCode.STALE_CONTROLLER_EPOCH}
        assert member.replicas.partitions["t", 0].is_leader
    assert member.lead(role(leader=OTHER, leader_epoch=4)) == {0: ErrorCode.NONE}
    assert member.fetchers.followed == {("t", 0): (OTHER, 4)}


class CountedPauses(ImmediateExecutor):
    def __init__(self):
        self.count = 0

    async def pause(self):
        self.count += 1


def test_many_partitions_of_a_topic_take_their_roles_and_stop_in_steps(member):
    executor = CountedPauses()
    member.control._events.executor = executor
    count = 2000
    replicas = {"replicas": (OTHER,), "isr": (OTHER,), "leader": OTHER}
    assert set(member.lead(*[role(index, **replicas) for index in range(count)]).values()) == {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    }
    assert executor.count >= 2 * count // 500
    executor.count = 0
    assert set(member.stop(*[stopped(index) for index in range(count)]).values()) == {ErrorCode.NONE}
    assert executor.count >= count // 500


def test_a_broker_that_is_no_replica_refuses_the_role(member):
    assert member.lead(role(replicas=(OTHER,), isr=(OTHER,))) == {0: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert not member.replicas.partitions


def test_another_topic_id_is_refused(member):
    member.lead(role(0))
    member.update(cached(0))
    assert member.lead(role(0, leader_epoch=9), role(1), topic_id=OTHER_ID) == {
        0: ErrorCode.INCONSISTENT_TOPIC_ID,
        1: ErrorCode.INCONSISTENT_TOPIC_ID,
    }
    assert member.replicas.partitions["t", 0].topic_id == ID
    member.update(cached(leader=-2))
    assert member.lead(role(0, leader_epoch=9), topic_id=ZERO_UUID) == {0: ErrorCode.INCONSISTENT_TOPIC_ID}


@pytest.mark.parametrize("is_notified", [True, False])
def test_a_topic_created_again_replaces_a_replica_that_was_removed_unnoticed(member, caplog, is_notified):
    """A reassignment removed the replica while its broker had no session: no StopReplica deletes it.

    Without `is_notified` it was without a session until the topic was created again. It refused the new topic until its
    next start, and a partition without another replica had no leader.
    """
    member.lead(role(leader_epoch=2), role(1, leader_epoch=2))
    member.update(cached(leader_epoch=2), cached(1, leader_epoch=2))
    batch = build_batch([(1000, b"k", b"v", ())])
    member.replicas.get("t", 0).append_as_leader(memoryview(batch), required_acks=1, now_ms=1)
    if is_notified:
        member.update(*[cached(index, leader_epoch=3, leader=3, replicas=(OTHER, 3)) for index in range(2)])
        member.update(*[cached(index, leader=-2, replicas=(OTHER, 3)) for index in range(2)])
    else:
        member.update(cached(leader_epoch=0), topic_id=OTHER_ID)
    assert member.lead(role(), topic_id=OTHER_ID) == {0: ErrorCode.NONE}
    partition = member.replicas.get("t", 0)
    assert (partition.is_leader, partition.topic_id, partition.log.log_end_offset) == (True, OTHER_ID, 0)
    assert ("t", 1) not in member.replicas.partitions
    assert "directory=/data/t-0 renamed=/data/t-0." in caplog.text


def test_a_role_that_precedes_the_metadata_of_a_topic_created_again_is_taken_when_it_is_repeated(member):
    """A new controller sends roles before metadata, and this broker had missed the deletion of the topic."""
    run_now(member.store.create(znodes.topic_path("t")))
    member.lead(role(leader_epoch=2))
    member.update(cached(leader_epoch=2))
    member.update(epoch=2)
    assert member.lead(role(), topic_id=OTHER_ID, epoch=2) == {0: ErrorCode.INCONSISTENT_TOPIC_ID}
    member.update(cached(leader_epoch=0), topic_id=OTHER_ID, epoch=2)
    assert member.lead(role(), topic_id=OTHER_ID, epoch=2) == {0: ErrorCode.NONE}
    assert member.replicas.get("t", 0).topic_id == OTHER_ID


def test_requests_of_an_earlier_controller_or_registration_change_nothing(member):
    assert member.lead(role(0), epoch=5) == {0: ErrorCode.NONE}
    for refused in (member.lead(role(1), epoch=4), member.stop(stopped(delete=True), epoch=4), member.update(epoch=4)):
        assert refused == ErrorCode.STALE_CONTROLLER_EPOCH
    stale = BROKER_EPOCH - 1
    for refused in (
        member.lead(role(1), epoch=9, broker_epoch=stale),
        member.stop(stopped(delete=True), epoch=9, broker_epoch=stale),
        member.update(epoch=9, broker_epoch=stale),
    ):
        assert refused == ErrorCode.STALE_BROKER_EPOCH
    assert member.accepted_epochs == [BROKER_EPOCH]
    # A refused request does not raise the controller's epoch either.
    assert member.lead(role(1), epoch=5) == {1: ErrorCode.NONE}
    assert member.lead(role(2), epoch=5, broker_epoch=-1) == {2: ErrorCode.NONE}
    assert member.lead(role(3), epoch=5, broker_epoch=BROKER_EPOCH + 1) == {3: ErrorCode.NONE}


def test_a_stopped_replica_keeps_its_log_and_does_not_fetch(member):
    member.lead(role(leader=OTHER, leader_epoch=2))
    assert member.stop(stopped(leader_epoch=1)) == {0: ErrorCode.FENCED_LEADER_EPOCH}
    assert member.fetchers.followed
    assert member.stop(stopped(leader_epoch=2)) == {0: ErrorCode.NONE}
    assert not member.fetchers.followed
    assert member.logs.get("t", 0) is not None
    assert member.lead(role(leader=OTHER, leader_epoch=3)) == {0: ErrorCode.NONE}
    assert member.fetchers.followed == {("t", 0): (OTHER, 3)}


@pytest.mark.parametrize("epoch", [-2, -1, 7])
def test_a_deleted_replica_loses_its_log(member, epoch):
    member.lead(role(0, leader_epoch=7), role(1, leader_epoch=7))
    assert member.stop(stopped(1, epoch, delete=True)) == {1: ErrorCode.NONE}
    assert member.logs.get("t", 1) is None
    assert member.logs.get("t", 0) is not None
    assert member.stop(stopped(0, epoch, delete=True)) == {0: ErrorCode.NONE}
    assert not member.logs.all_logs()
    assert not member.assignments.topics
    # The same request again, as after a lost response.
    assert member.stop(stopped(0, epoch, delete=True)) == {0: ErrorCode.NONE}


def test_a_log_that_was_assigned_before_the_start_only_is_deleted(member):
    member.logs.create_log("t", 0, ID, 0, is_new=True)
    assert member.stop(stopped(0, -2, delete=True)) == {0: ErrorCode.NONE}
    assert member.logs.get("t", 0) is None


def test_a_topic_created_again_begins_empty(member):
    member.lead(role(replicas=(ME,), isr=(ME,)))
    batch = build_batch([(1000, b"k", b"v", ())])
    member.replicas.get("t", 0).append_as_leader(memoryview(batch), required_acks=1, now_ms=1)
    member.stop(stopped(0, -2, delete=True))
    assert member.lead(role(replicas=(ME,), isr=(ME,)), topic_id=OTHER_ID) == {0: ErrorCode.NONE}
    log = member.replicas.partitions["t", 0].log
    assert log is not None
    assert log.log_end_offset == 0


def test_the_cache_has_the_brokers_and_partitions_of_the_controller(member):
    assert member.update(cached(0), cached(1, leader=OTHER, leader_epoch=4)) == ErrorCode.NONE
    assert (member.cache.controller_id, member.cache.controller_epoch) == (OTHER, 1)
    assert member.cache.brokers[OTHER].endpoint("INSIDE") == ("INSIDE", "PLAINTEXT", "host", 9002)
    assert [p.leader for p in member.cache.topics["t"].partitions] == [ME, OTHER]
    # A later update has only the changes of partitions, and all live brokers.
    assert member.update(cached(0, leader=OTHER, leader_epoch=1), live=(OTHER,)) == ErrorCode.NONE
    assert [p.leader_epoch for p in member.cache.topics["t"].partitions] == [1, 4]
    assert list(member.cache.brokers) == [OTHER]


@pytest.mark.parametrize("topic_id", [ID, ZERO_UUID])
def test_a_topic_without_partitions_leaves_the_cache(member, topic_id):
    member.update(cached(0), cached(1))
    member.update(cached(1, leader=-2), topic_id=topic_id)
    assert len(member.cache.topics["t"].partitions) == 1
    member.update(cached(0, leader=-2), topic_id=topic_id)
    assert not member.cache.topics
    assert not member.cache.topics_by_id


@pytest.mark.parametrize("has_failed", ["controller", "session"])
def test_a_topic_whose_deletion_was_not_delivered_leaves_the_cache(member, has_failed):
    """The deletion was complete without this broker, which had no replica. Nobody sent it again."""
    run_now(member.store.create(znodes.topic_path("t")))
    member.update(cached(0))
    member.update(cached(0), topic="gone", topic_id=OTHER_ID)
    assert list(member.cache.topics) == ["t", "gone"]
    epoch = 1
    if has_failed == "controller":
        epoch = 2
    else:
        member.broker_epoch += 1
    member.update(epoch=epoch, broker_epoch=member.broker_epoch)
    assert list(member.cache.topics) == ["t"]


def test_the_topics_of_the_store_are_read_once_in_the_epochs_of_controller_and_broker(member, monkeypatch):
    run_now(member.store.create(znodes.topic_path("t")))
    member.update(cached(0))
    member.update(cached(0), epoch=2)
    monkeypatch.setattr(member.store, "get_children", None)
    assert member.update(cached(0, leader=OTHER, leader_epoch=1), epoch=2) == ErrorCode.NONE


def test_an_internal_topic_has_all_partitions_from_the_beginning(member):
    """The coordinator of a group is the leader of its hash modulo the number of partitions."""
    partitions = (PartitionMetadata(NO_LEADER, 0, (ME, OTHER), ()),) * 5
    for topic in ("__consumer_offsets", "t"):
        run_now(member.store.create(znodes.topic_path(topic), znodes.encode_topic(ID, partitions)))
    member.update(cached(1), topic="__consumer_offsets")
    assert [p.leader for p in member.cache.topics["__consumer_offsets"].partitions] == [-1, ME, -1, -1, -1]
    member.update(cached(3, leader=OTHER), topic="__consumer_offsets")
    assert [p.leader for p in member.cache.topics["__consumer_offsets"].partitions] == [-1, ME, -1, OTHER, -1]
    member.update(cached(1, leader=-2), topic="__consumer_offsets")
    assert len(member.cache.topics["__consumer_offsets"].partitions) == 5
    member.update(cached(3, leader=-2), topic="__consumer_offsets")
    assert not member.cache.topics
    member.update(cached(1), topic="t")
    assert len(member.cache.topics["t"].partitions) == 2


def test_a_new_topic_has_its_configuration_from_the_first_record_on(member):
    data = znodes.encode_config({"retention.ms": "77"})
    run_now(member.store.create(znodes.topic_config_path("t"), data))
    member.lead(role())
    log = member.replicas.partitions["t", 0].log
    assert log is not None
    assert log.config.retention_ms == 77


def test_a_topic_has_its_own_configuration_after_a_start_during_the_deletion_of_its_predecessor(member):
    """The deletion waited for another broker. The configuration of the deleted topic was used until the next start."""
    path = znodes.topic_config_path("t")
    run_now(member.store.create(path, znodes.encode_config({"retention.ms": "77"})))
    run_now(member.follower.start({"t": ID}))
    run_now(member.store.set(path, znodes.encode_config({"retention.ms": "88"})))
    member.lead(role(), topic_id=OTHER_ID)
    log = member.replicas.partitions["t", 0].log
    assert log is not None
    assert log.config.retention_ms == 88


def test_a_topic_that_is_created_while_configurations_are_loaded_has_its_own(member, monkeypatch):
    """In a new session the controller sends roles while the broker reads the configurations of all topics."""
    read = member.store.get_children

    async def read_and_create(path, watch=None):
        names = await read(path, watch)
        if path == znodes.TOPIC_CONFIGS:
            monkeypatch.undo()
            await member.store.create(znodes.topic_config_path("t"), znodes.encode_config({"retention.ms": "77"}))
            member.lead(role())
        return names

    monkeypatch.setattr(member.store, "get_children", read_and_create)
    run_now(member.follower.start({}))
    log = member.replicas.partitions["t", 0].log
    assert log is not None
    assert log.config.retention_ms == 77


@pytest.mark.parametrize("is_role", [True, False])
def test_a_new_topic_has_its_configuration_although_the_server_of_the_session_is_behind(member, monkeypatch, is_role):
    """The read missed the configuration, and no notice followed."""
    transaction = member.store.transaction

    async def catch_up(operations):
        monkeypatch.undo()
        run_now(member.store.create(znodes.topic_config_path("t"), znodes.encode_config({"retention.ms": "77"})))
        return await transaction(operations)

    monkeypatch.setattr(member.store, "transaction", catch_up)
    if is_role:
        member.lead(role())
    else:
        member.update(cached(0))
    assert member.cache.topic_configs["t"] == {"retention.ms": "77"}


def test_the_configurations_of_topics_that_exist_at_the_start_are_read_once(member, monkeypatch):
    run_now(member.store.create(znodes.topic_config_path("t"), znodes.encode_config({"retention.ms": "77"})))
    run_now(member.follower.start({"t": ID}))
    monkeypatch.setattr(member.store, "get", None)
    assert member.lead(role()) == {0: ErrorCode.NONE}
    assert member.update(cached(0)) == ErrorCode.NONE
    assert member.cache.topic_configs["t"] == {"retention.ms": "77"}


def test_a_notice_changes_the_configuration_of_a_topic_in_use(member):
    run_now(member.store.create(znodes.topic_config_path("t"), znodes.encode_config({})))
    member.lead(role())
    other = member.server.connect()
    run_now(other.set(znodes.topic_config_path("t"), znodes.encode_config({"retention.ms": "77"})))
    notice = znodes.encode_config_change("topics/t")
    run_now(other.create(f"{znodes.CONFIG_CHANGES}/config_change_", notice, sequential=True))
    log = member.replicas.partitions["t", 0].log
    assert log is not None
    assert log.config.retention_ms == 77
    run_now(other.set(znodes.topic_config_path("t"), znodes.encode_config({})))
    run_now(other.create(f"{znodes.CONFIG_CHANGES}/config_change_", notice, sequential=True))
    assert log.config.retention_ms != 77


@pytest.mark.parametrize("read", ["get_children", "get", "get_many"])
def test_a_configuration_that_could_not_be_read_is_read_again(monkeypatch, read):
    """The notice was not read again, and without a watch neither were later ones."""
    server = MemoryMetadataServer()
    store, other = server.connect(), server.connect()
    run_now(prepare_store(store, "a-cluster"))
    failures = []
    events = EventLoop(ImmediateExecutor())
    events.on_failure = lambda: failures.append(read)
    cache = ClusterMetadata()
    follower = ConfigFollower(store, cache, partial(events.post, EventKind.CONFIGURATION))
    run_now(follower.start({}))

    async def fail(*arguments):
        raise StoreUnavailableError("access is denied")

    def change(data):
        run_now(other.set(znodes.topic_config_path("t"), znodes.encode_config({"retention.ms": data})))
        notice = znodes.encode_config_change("topics/t")
        run_now(other.create(f"{znodes.CONFIG_CHANGES}/config_change_", notice, sequential=True))

    run_now(other.create(znodes.topic_config_path("t")))
    with monkeypatch.context() as patch:
        patch.setattr(store, read, fail)
        change("1")
    assert failures == [read]
    run_now(follower.follow())
    assert cache.topic_configs["t"] == {"retention.ms": "1"}
    change("2")
    assert cache.topic_configs["t"] == {"retention.ms": "2"}


def test_a_failed_directory_is_reported_for_its_partitions(member):
    member.lead(role(leader=OTHER))
    member.replicas.directory_failed("/data")
    assert not member.fetchers.followed
    assert member.lead(role(leader=OTHER, leader_epoch=0)) == {0: ErrorCode.KAFKA_STORAGE_ERROR}
    assert member.stop(stopped()) == {0: ErrorCode.KAFKA_STORAGE_ERROR}


def test_a_log_that_is_created_late_has_the_latest_role(member):
    """Roles that were assigned while the disk was full were lost, and the replica fetched in an old epoch for ever."""
    fs = member.logs.fs
    fs.is_full = True
    assert member.lead(role(leader=OTHER, leader_epoch=0)) == {0: ErrorCode.NONE}
    assert member.replicas.partitions["t", 0].log is None
    assert member.lead(role(leader=OTHER, leader_epoch=2)) == {0: ErrorCode.NONE}
    fs.heal()
    member.replicas._retry_creation(member.assignments.topics["t"], 0)
    assert member.replicas.partitions["t", 0].log is not None
    assert member.fetchers.followed == {("t", 0): (OTHER, 2)}


def test_the_retry_for_a_deleted_topic_does_not_take_its_successor_offline(member):
    """Its deletion failed with KAFKA_STORAGE_ERROR then, and the controller waited for the broker's next start."""
    member.logs.fs.is_full = True
    member.lead(role(leader=OTHER, is_new=True))
    deleted = member.assignments.topics["t"]
    member.stop(stopped(delete=True))
    member.lead(role(leader=OTHER, is_new=True), topic_id=OTHER_ID)
    member.replicas._retry_creation(deleted, 0)
    assert not member.replicas.is_offline("t", 0)
    assert member.stop(stopped(delete=True)) == {0: ErrorCode.NONE}


def test_a_new_log_that_is_created_late_is_created_while_another_directory_is_offline():
    """The controller has declared the partition new, so its log cannot be in the directory that is offline."""
    member = Member(("/data", "/other"))
    member.replicas.directory_failed("/other")
    member.logs.fail_directory("/other", OSError("failed"))
    member.logs.fs.is_full = True
    assert member.lead(role(leader=OTHER, is_new=True)) == {0: ErrorCode.NONE}
    assert member.replicas.partitions["t", 0].log is None
    member.logs.fs.heal()
    member.replicas._retry_creation(member.assignments.topics["t"], 0)
    assert member.replicas.partitions["t", 0].log is not None


def test_a_replica_that_goes_offline_when_its_log_is_created_late_is_reported():
    """The notice of the failed directory came before, and the controller never elected another leader."""
    member = Member(("/data", "/other"))
    reported = []
    member.replicas.on_offline = lambda: reported.append(member.replicas.offline)
    member.logs.fs.is_full = True
    assert member.lead(role(leader=ME)) == {0: ErrorCode.NONE}
    member.logs.fail_directory("/other", OSError("failed"))
    assert member.lead(role(leader=ME)) == {0: ErrorCode.STALE_CONTROLLER_EPOCH}
    member.logs.fs.heal()
    member.replicas._retry_creation(member.assignments.topics["t"], 0)
    assert reported == [[("t", 0)]]
    assert member.lead(role(leader=ME)) == {0: ErrorCode.KAFKA_STORAGE_ERROR}


def exhaust(member, monkeypatch):
    """Let the machine have no memory to rename a directory."""

    def refuse(*arguments):
        raise OSError(errno.ENOMEM, "no memory")

    monkeypatch.setattr(type(member.logs.fs), "rename", refuse)


def run_due_after(member, delay_ms, monkeypatch):
    schedule = member.logs.schedule
    later_ms = schedule.monotonic_ms() + delay_ms
    monkeypatch.setattr(schedule, "monotonic_ms", lambda: later_ms)
    schedule.run_due(1000)


def test_a_log_that_could_not_be_deleted_is_deleted_later(member, monkeypatch):
    """It stayed on the disk until the next start, which kept it as a stray one."""
    member.lead(role(leader=ME, is_new=True))
    with monkeypatch.context() as shortage:
        exhaust(member, shortage)
        assert member.stop(stopped(delete=True)) == {0: ErrorCode.NONE}
    assert member.logs.get("t", 0) is not None
    run_due_after(member, 5_000, monkeypatch)
    assert member.logs.get("t", 0) is None


def test_the_retry_of_a_deletion_does_not_delete_the_log_of_a_later_topic(member, monkeypatch):
    """Nor does the later topic, or a later replica of the same topic, get the records of the deleted log."""
    member.lead(role(leader=ME, is_new=True))
    deleted = member.logs.get("t", 0)
    with monkeypatch.context() as shortage:
        exhaust(member, shortage)
        member.stop(stopped(delete=True))
        member.lead(role(leader=OTHER))
        assert member.replicas.partitions["t", 0].log is None
        member.stop(stopped(delete=True))
    member.lead(role(leader=ME, is_new=True), topic_id=OTHER_ID)
    log = member.logs.get("t", 0)
    assert log not in (None, deleted)
    run_due_after(member, 5_000, monkeypatch)
    assert member.logs.get("t", 0) is log is member.replicas.partitions["t", 0].log
    assert not [name for name in member.logs.fs.list_names("/data") if name.endswith("-stray")]


def test_a_partition_is_new_until_it_is_removed_only():
    member = Member(("/data", "/other"))
    member.logs.fs.is_full = True
    assert member.lead(role(leader=OTHER, is_new=True), role(1)) == {0: ErrorCode.NONE, 1: ErrorCode.NONE}
    member.stop(stopped(0, 0, delete=True))
    member.logs.fs.heal()
    member.logs.fail_directory("/other", OSError("failed"))
    assert member.lead(role(leader=OTHER, leader_epoch=1)) == {0: ErrorCode.KAFKA_STORAGE_ERROR}


def test_a_request_during_the_end_of_the_session_is_refused(member):
    """The controller sends everything again when the broker has registered again."""
    member.server.expire(member.store)
    with pytest.raises(KafkaError) as refused:
        member.lead(role())
    assert refused.value.code == ErrorCode.STALE_BROKER_EPOCH
    assert not member.replicas.partitions
    with pytest.raises(KafkaError):
        member.update(cached())
    assert not member.cache.topics


def test_roles_and_metadata_of_a_new_controller_do_not_wait_for_the_store(member):
    """The cache is compared with the store. Without ZooKeeper, new leaders waited for the end of the session."""
    run_now(member.store.create(znodes.topic_path("t")))
    member.lead(role())
    member.update(cached(0), cached(1))
    member.update(cached(0), topic="gone", topic_id=OTHER_ID)
    executor = member.control._events.executor = SteppedExecutor()
    reconnected = executor.waiter()

    async def list_later():
        await reconnected
        return await list_topics(member.store)

    member.control._list_topics = list_later
    update = executor.start(member.control.update_metadata(member.update_request(cached(0, OTHER, 1), epoch=2)))
    change = executor.start(member.control.leader_and_isr(member.lead_request(role(0, OTHER, 1), epoch=2)))
    executor.finish()
    assert (update.outcome().error_code, change.outcome().error_code) == (ErrorCode.NONE, ErrorCode.NONE)
    assert member.fetchers.followed == {("t", 0): (OTHER, 1)}
    assert list(member.cache.topics) == ["t", "gone"]
    published = []
    member.cache.listeners.append(lambda delta: published.extend(topic.name for topic in delta.deleted_topics))
    reconnected.callback(None)
    executor.finish()
    assert list(member.cache.topics) == ["t"]
    assert published == ["gone"]


def test_a_topic_that_the_controller_keeps_without_its_nodes_stays_in_the_cache(member):
    """The controller keeps topics whose nodes were deleted by hand, and sends them to each broker that registers."""
    member.update(cached(0))
    member.broker_epoch += 1
    member.update(cached(0, leader_epoch=1), broker_epoch=member.broker_epoch)
    assert list(member.cache.topics) == ["t"]


def test_the_cache_is_compared_with_the_store_again_after_the_store_failed(member, monkeypatch, caplog):
    """The failure refused the request, and the controller does not repeat it in the same session."""
    member.update(cached(0), topic="gone", topic_id=OTHER_ID)

    async def fail(path, watch=None):
        raise StoreUnavailableError("access is denied")

    with monkeypatch.context() as patch:
        patch.setattr(member.store, "get_children", fail)
        assert member.update(epoch=2) == ErrorCode.NONE
    assert "access is denied" in caplog.text
    assert list(member.cache.topics) == ["gone"]
    assert member.update(epoch=2) == ErrorCode.NONE
    assert not member.cache.topics


def test_the_comparison_with_a_store_that_failed_is_repeated_without_another_request(member, monkeypatch):
    """Nothing changed in the cluster, and clients got the deleted topic for hours."""
    member.update(cached(0), topic="gone", topic_id=OTHER_ID)

    async def fail(path, watch=None):
        raise StoreUnavailableError("access is denied")

    with monkeypatch.context() as patch:
        patch.setattr(member.store, "get_children", fail)
        member.update(epoch=2)
        for expected_ms in (1000, 2000):
            [(delay_ms, task)] = member.delayed
            assert delay_ms == expected_ms
            member.delayed.clear()
            run_now(task())
    [(_, task)] = member.delayed
    run_now(task())
    assert not member.cache.topics


def test_a_request_for_a_registration_that_is_not_confirmed_yet_removes_deleted_topics(member):
    """The controller's watch may be faster than the response to the registration. The next request may be rare."""
    member.update(cached(0))
    assert member.update(broker_epoch=BROKER_EPOCH + 1) == ErrorCode.NONE
    assert not member.cache.topics


def test_the_deletion_of_a_topic_that_is_not_in_the_cache_needs_no_configuration(member, monkeypatch):
    """The deletions that wait for another broker are repeated at each registration."""
    for name in ("get", "get_many", "transaction"):
        monkeypatch.setattr(member.store, name, None)
    for topic in ("t", "__consumer_offsets"):
        assert member.update(cached(0, leader=-2), cached(1, leader=-2), topic=topic) == ErrorCode.NONE
    assert not member.cache.topics


def test_the_configurations_of_many_new_topics_are_read_together(member, monkeypatch):
    """Each read waited for the response to the last one, and later roles waited for all."""
    names = [f"t{number}" for number in range(150)]
    for name in names:
        data = znodes.encode_config({"retention.ms": name.removeprefix("t")})
        run_now(member.store.create(znodes.topic_config_path(name), data))
    reads, get_many = [], member.store.get_many

    async def count(paths, watch=None):
        reads.append(len(paths))
        return await get_many(paths, watch)

    monkeypatch.setattr(member.store, "get_many", count)
    run_now(member.follower.load_topics((name, name.encode()) for name in names))
    assert reads == [100, 50]
    assert {name: configs["retention.ms"] for name, configs in member.cache.topic_configs.items()} == {
        name: name.removeprefix("t") for name in names
    }


def test_a_configuration_that_changes_before_all_are_loaded_is_not_the_old_one(member, monkeypatch):
    """The configuration of a new topic was read before the change, and the notice was one of those before the load."""
    path = znodes.topic_config_path("t")
    run_now(member.store.create(path, znodes.encode_config({"retention.ms": "77"})))
    store, cache = member.server.connect(), ClusterMetadata()
    follower = ConfigFollower(store, cache, lambda description, work: run_now(work()))
    read = store.get_children

    async def change_and_read(path_read, watch=None):
        monkeypatch.undo()
        await follower.load_topics([("t", ID)])
        await member.store.set(path, znodes.encode_config({"retention.ms": "88"}))
        notice = znodes.encode_config_change("topics/t")
        await member.store.create(f"{znodes.CONFIG_CHANGES}/config_change_", notice, sequential=True)
        return await read(path_read, watch)

    monkeypatch.setattr(store, "get_children", change_and_read)
    run_now(follower.start({}))
    assert cache.topic_configs["t"] == {"retention.ms": "88"}


@pytest.mark.parametrize("read", ["get_many", "transaction"])
def test_the_controller_repeats_a_request_whose_configurations_could_not_be_read(member, monkeypatch, read):
    """It does not repeat one with STALE_BROKER_EPOCH: the broker had no roles until its next registration."""

    async def fail(*arguments):
        raise StoreUnavailableError("access is denied")

    with monkeypatch.context() as patch:
        patch.setattr(member.store, read, fail)
        for request in (partial(member.lead, role()), partial(member.update, cached())):
            with pytest.raises(KafkaError, match="access is denied") as failed:
                request()
            assert failed.value.code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert member.lead(role()) == {0: ErrorCode.NONE}
