"""Decisions of coordinators while a write is in flight, on partitions with a second replica that the test controls.

Requests go through the handlers; the partitions have logs in memory.
"""

from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from odradek.coordinator.groups.settings import GroupSettings
from odradek.coordinator.groups.shard import GroupShard
from odradek.coordinator.transactions.settings import TransactionSettings
from odradek.log.config import LogConfig
from odradek.log.recovery import open_partition_log
from odradek.log.storage.filesystem import DiskFullError
from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.delete_groups import DeleteGroupsRequest
from odradek.protocol.messages.describe_groups import DescribeGroupsRequest
from odradek.protocol.messages.end_txn import EndTxnRequest
from odradek.protocol.messages.heartbeat import HeartbeatRequest
from odradek.protocol.messages.init_producer_id import InitProducerIdRequest
from odradek.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from odradek.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupRequestMemberIdentity
from odradek.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from odradek.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from odradek.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from odradek.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from odradek.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from odradek.replication.metadata.image import BrokerMetadata, ClusterMetadata, PartitionMetadata, TopicMetadata
from odradek.replication.replicas.partition import Partition
from odradek.server.coordinators import runtime as coordinator_runtime
from odradek.server.coordinators.groups import GroupCoordinatorRuntime
from odradek.server.coordinators.marker_sender import MarkerSender, TransactionMarker
from odradek.server.coordinators.transaction_verification import TransactionVerifier
from odradek.server.coordinators.transactions import TransactionCoordinatorRuntime
from odradek.server.handlers.coordinators import group_offsets, groups, transaction_offsets
from odradek.server.request import RequestContext
from odradek.server.tests.background import background

OFFSETS, STATE = "__consumer_offsets", "__transaction_state"
START_MS, RETENTION_MS, CHECK_MS, SESSION_MS = 1_000_000, 100_000, 50_000, 10_000
NEVER_MS, TIMEOUT_MS = 1_000_000_000, 5_000
OLD_ID, NEW_ID = b"o" * 16, b"n" * 16


class World:
    """A broker's coordinators. Replica 2 of their partitions fetches only when `follow` is called."""

    def __init__(self, commit_timeout_ms=NEVER_MS, slice_s=1.0):
        self.reactor = self.clock = Clock()
        self.metadata = ClusterMetadata()
        self.metadata.put_broker(BrokerMetadata(1, ()))
        self.config = SimpleNamespace(
            transaction_partition_verification_enable=True,
            add_partitions_to_txn_retry_backoff_ms=20,
            add_partitions_to_txn_retry_backoff_max_ms=100,
            request_timeout_ms=30_000,
        )
        self.ids = 0
        shared = background(self.clock, slice_s)
        self.slices = shared["slices"]
        self.groups = GroupCoordinatorRuntime(
            GroupSettings(
                initial_rebalance_delay_ms=3_000,
                commit_timeout_ms=commit_timeout_ms,
                offsets_retention_ms=RETENTION_MS,
                offsets_retention_check_interval_ms=CHECK_MS,
            ),
            reactor=self.clock, now_ms=self.now_ms, monotonic_ms=self.monotonic_ms, random_uuid=self.next_id,
            partition_count=lambda: 1, load_buffer_bytes=1 << 20, **shared,
        )  # fmt: skip
        services: Any = self
        self.markers = MarkerSender(services)
        self.transactions = TransactionCoordinatorRuntime(
            TransactionSettings(transaction_version=2), reactor=self.clock, now_ms=self.now_ms,
            monotonic_ms=self.monotonic_ms, take_producer_id=lambda: 7,
            begin_producer_ids_at=lambda least_id: None, partition_count=lambda: 1, load_buffer_bytes=1 << 20,
            markers=self.markers, **shared,
        )  # fmt: skip
        self.verifier = TransactionVerifier(services)
        self.partitions = {name: self.add(name) for name in (OFFSETS, STATE)}
        self.replicas = SimpleNamespace(get=lambda topic, index: self.partitions[topic])
        self.put_topic("t", OLD_ID)
        self.groups.lead(self.offsets)
        self.transactions.lead(self.partitions[STATE])
        self.clock.advance(0)

    def add(self, name):
        log = open_partition_log(MemoryFileSystem(), f"/d/{name}-0", name, 0, LogConfig({}), now_ms=0, is_clean=True)
        partition = Partition(name, name[:16].encode(), 0, 1)
        metadata = PartitionMetadata(1, 5, (1, 2), (1, 2))
        partition.apply(metadata, log)
        self.metadata.put_topic(TopicMetadata(name, partition.topic_id, (metadata,)))
        return partition

    def put_topic(self, name, topic_id):
        partitions = (PartitionMetadata(1, 0, (1,), (1,)),) * 2
        self.metadata.put_topic(TopicMetadata(name, topic_id, partitions))

    def recreate_topic(self):
        """Delete and create a topic, with the reaction of `server.broker`."""
        self.put_topic("t", NEW_ID)
        self.groups.topics_deleted([("t", OLD_ID)])

    @property
    def offsets(self):
        return self.partitions[OFFSETS]

    def now_ms(self):
        return START_MS + self.monotonic_ms()

    def monotonic_ms(self):
        return int(self.clock.seconds() * 1000)

    def next_id(self):
        self.ids += 1
        return str(self.ids)

    def follow(self):
        """Let replica 2 fetch everything, also records that are appended in consequence."""
        logs = {partition: partition.log for partition in self.partitions.values()}
        while any(log.high_watermark < log.log_end_offset for log in logs.values()):
            for partition, log in logs.items():
                partition.update_follower(2, log.log_end_offset, 0, self.now_ms())

    def wait(self, duration_ms):
        for _ in range(duration_ms // 1_000):
            self.clock.advance(1)

    def restart(self):
        """Resign, lead again and load the log."""
        self.follow()
        self.groups.resign(0)
        self.groups.lead(self.offsets)
        self.clock.advance(0)
        self.clock.advance(0)

    # -- requests ------------------------------------------------------------------------------------------------

    def ask(self, handler, request, version, client_id=""):
        """Call a handler. Return the list of its response, empty until there is one."""
        context = RequestContext("h", "PLAINTEXT")
        context.client_id = client_id
        context.api_version = version
        outcome = handler(self, context, request)
        answers: list[Any] = []
        if isinstance(outcome, Deferred):
            outcome.addCallback(answers.append)
        else:
            answers.append(outcome)
        return answers

    def commit(self, offset, group="g"):
        item = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        request = OffsetCommitRequest(group_id=group, topics=[OffsetCommitRequestTopic(name="t", partitions=[item])])
        return self.ask(group_offsets.offset_commit, request, 9)

    def commit_in_transaction(self, offset, *, producer_id=7, epoch=0):
        item = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        request = TxnOffsetCommitRequest(
            transactional_id="x", group_id="g", producer_id=producer_id, producer_epoch=epoch,
            topics=[TxnOffsetCommitRequestTopic(name="t", partitions=[item])],
        )  # fmt: skip
        return self.ask(transaction_offsets.txn_offset_commit, request, 5)

    def transact(self, how, request):
        return self.transactions.run(
            "x",
            lambda shard, token, now_ms: getattr(shard, how)(request, SimpleNamespace(api_version=5), token, now_ms),
        )

    def init(self):
        self.transact("init_producer_id", InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=60_000))
        self.follow()

    def end(self, *, is_commit=True):
        self.transact(
            "end_txn", EndTxnRequest(transactional_id="x", producer_id=7, producer_epoch=0, committed=is_commit)
        )
        self.follow()

    def begin_fetch(self, group="g", *, require_stable=False):
        topic = OffsetFetchRequestTopics(name="t", partition_indexes=[0])
        request = OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(group_id=group, topics=[topic])], require_stable=require_stable
        )
        return self.ask(group_offsets.offset_fetch, request, 9)

    def fetch(self, group="g", *, require_stable=False):
        """The committed offset, or the error code."""
        return fetched_offset(self.begin_fetch(group, require_stable=require_stable))

    def fetch_error(self, group="g"):
        """The error of OffsetFetch for a group."""
        return fetch_code(self.begin_fetch(group))

    def stored(self, group="g"):
        """The replicated offset of the topic's name, with any topic id; -1 for none."""
        found = self.groups.shard(0)._state.offsets.replicated(group, "t", 0)
        return -1 if found is None else found.value.offset

    def delete_offset(self):
        topic = OffsetDeleteRequestTopic(name="t", partitions=[OffsetDeleteRequestPartition(partition_index=0)])
        return self.ask(group_offsets.offset_delete, OffsetDeleteRequest(group_id="g", topics=[topic]), 0)

    def delete_group(self, group="g"):
        return self.ask(groups.delete_groups, DeleteGroupsRequest(groups_names=[group]), 2)

    def state(self, group="g"):
        [answer] = self.ask(groups.describe_groups, DescribeGroupsRequest(groups=[group]), 5)
        return answer.groups[0].group_state

    def join(self, member_id="", instance_id=None, version=5, client_id="", group_id="g"):
        request = JoinGroupRequest(
            group_id=group_id, session_timeout_ms=SESSION_MS, rebalance_timeout_ms=60_000, member_id=member_id,
            group_instance_id=instance_id, protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        )  # fmt: skip
        return self.ask(groups.join_group, request, version, client_id)

    def join_alone(self, instance_id=None):
        """Join as a group's first member, and wait for the response. Return the member id."""
        answers = self.join(instance_id=instance_id, version=5 if instance_id else 3)
        self.follow()
        self.wait(4_000)
        [joined] = answers
        return joined.member_id

    def sync(self, member_id, generation_id=1, instance_id=None):
        request = SyncGroupRequest(
            group_id="g", generation_id=generation_id, member_id=member_id, group_instance_id=instance_id,
            protocol_type="consumer", protocol_name="range",
            assignments=[SyncGroupRequestAssignment(member_id=member_id, assignment=b"a")],
        )  # fmt: skip
        return self.ask(groups.sync_group, request, 5)

    def static_member(self):
        """Make a stable group of one static member. Return the member id."""
        member_id = self.join_alone(instance_id="i")
        answers = self.sync(member_id, instance_id="i")
        self.follow()
        assert [answer.error_code for answer in answers] == [0]
        return member_id

    def heartbeat(self, member_id, generation_id):
        request = HeartbeatRequest(group_id="g", member_id=member_id, generation_id=generation_id)
        [answer] = self.ask(groups.heartbeat, request, 4)
        return answer.error_code

    def leave(self, member_id):
        identity = LeaveGroupRequestMemberIdentity(member_id=member_id)
        return self.ask(groups.leave_group, LeaveGroupRequest(group_id="g", members=[identity]), 5)


def fetched_offset(answers):
    """The committed offset in the response of OffsetFetch, or the error code."""
    [answer] = answers
    item = answer.groups[0].topics[0].partitions[0]
    return ErrorCode(item.error_code) if item.error_code else item.committed_offset


def commit_code(answers):
    """The error of the partition in the response of OffsetCommit."""
    [answer] = answers
    return ErrorCode(answer.topics[0].partitions[0].error_code)


def fetch_code(answers):
    """The error of a group in the response of OffsetFetch."""
    [answer] = answers
    return ErrorCode(answer.groups[0].error_code)


def append_only_once(patch, world):
    """Let the disk be full after the next batch of the offsets; return the list of that append."""
    append, appended = world.offsets._leader_log.append_as_leader, []

    def append_once(*args, **how):
        if appended:
            raise DiskFullError("/d", "no room")
        appended.append(append(*args, **how))
        return appended[0]

    patch.setattr(world.offsets._leader_log, "append_as_leader", append_once)
    return appended


@pytest.fixture
def world():
    return World()


@pytest.fixture
def impatient():
    """A world with `offsets.commit.timeout.ms`."""
    return World(TIMEOUT_MS)


# -- expiry and deletion -----------------------------------------------------------------------------------------------


def test_expiry_keeps_an_offset_whose_commit_is_being_written(world):
    world.commit(1)
    world.follow()
    world.wait(RETENTION_MS - CHECK_MS // 2)
    answers = world.commit(2)
    world.wait(CHECK_MS)
    assert not answers
    world.follow()
    assert answers[0].topics[0].partitions[0].error_code == 0
    assert world.fetch() == 2
    world.restart()
    assert world.fetch() == 2


def test_expiry_keeps_a_group_whose_first_commit_is_being_written(world):
    world.join(version=5)
    world.follow()
    answers = world.commit(2)
    world.wait(CHECK_MS)
    world.follow()
    assert answers
    assert world.fetch() == 2
    world.restart()
    assert world.fetch() == 2


@pytest.mark.parametrize("delete", [World.delete_offset, World.delete_group])
def test_a_deletion_includes_a_commit_that_is_being_written(world, delete):
    world.commit(1)
    world.follow()
    committed, deleted = world.commit(2), delete(world)
    assert (world.fetch(), committed, deleted) == (1, [], [])
    world.follow()
    assert committed and deleted
    assert world.fetch() == -1
    world.restart()
    assert world.fetch() == -1


@pytest.mark.parametrize("delete", [World.delete_offset, World.delete_group])
def test_a_commit_during_the_write_of_a_deletion_stays(world, delete):
    world.commit(1)
    world.follow()
    delete(world)
    world.commit(2)
    world.follow()
    assert world.fetch() == 2
    world.restart()
    assert world.fetch() == 2


def test_a_second_deletion_is_not_answered_before_the_first_is_replicated(world):
    world.commit(1)
    world.follow()
    assert world.delete_offset() == world.delete_offset() == []
    assert world.fetch() == 1


def test_an_offset_is_unstable_until_the_marker_is_replicated(world):
    world.init()
    world.commit(1)
    answers = world.commit_in_transaction(5)
    world.follow()
    assert answers[0].topics[0].partitions[0].error_code == 0
    world.groups.end_transaction(
        0, TransactionMarker(7, 1, 0, True).encode(world.now_ms()), producer_id=7, is_commit=True,
        transaction_version=2,
        done=lambda error: None,
    )  # fmt: skip
    assert (world.fetch(), world.fetch(require_stable=True)) == (1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    world.follow()
    assert (world.fetch(), world.fetch(require_stable=True)) == (5, 5)


# -- writes that take too long -----------------------------------------------------------------------------------------


def test_a_commit_that_is_not_replicated_in_time_is_answered_and_stays(impatient, caplog):
    world = impatient
    answers = world.commit(1)
    world.wait(TIMEOUT_MS - 1_000)
    later = world.commit(2)
    assert not answers
    world.wait(1_000)
    assert [answer.topics[0].partitions[0].error_code for answer in answers] == [
        ErrorCode.COORDINATOR_NOT_AVAILABLE
    ]
    assert not later
    assert world.fetch() == -1
    world.follow()
    assert [answer.topics[0].partitions[0].error_code for answer in later] == [0]
    world.wait(2 * TIMEOUT_MS)
    assert (len(answers), len(later)) == (1, 1)
    assert world.fetch() == 2
    world.restart()
    assert world.fetch() == 2
    assert caplog.text.count("not replicated in time") == 1


def test_commits_that_wait_for_the_same_replica_are_reported_once(impatient, caplog):
    impatient.groups.end_transaction(
        0, TransactionMarker(7, 1, 0, True).encode(impatient.now_ms()), producer_id=7, is_commit=True,
        transaction_version=2,
        done=lambda error: None,
    )  # fmt: skip
    answers = [impatient.commit(offset) for offset in range(3)]
    impatient.wait(TIMEOUT_MS)
    assert all(answers)
    assert caplog.text.count("not replicated in time") == 1


def test_a_timeout_that_cannot_be_handled_affects_no_other_write(impatient, monkeypatch, caplog):
    def fail(*_):
        raise RuntimeError("unexpected")

    impatient.commit(1)
    answers = impatient.commit(2)
    with monkeypatch.context() as patch:
        patch.setattr(GroupShard, "on_write_timed_out", fail)
        impatient.wait(TIMEOUT_MS)
    assert "unexpected" in caplog.text
    assert [answer.topics[0].partitions[0].error_code for answer in answers] == [ErrorCode.NOT_COORDINATOR]
    impatient.follow()
    assert impatient.fetch() == 2


def test_a_coordinator_that_resigns_answers_each_commit_once(impatient):
    answers = impatient.commit(1)
    impatient.wait(TIMEOUT_MS)
    later = impatient.commit(2)
    impatient.groups.stop()
    impatient.transactions.stop()
    assert [answer.topics[0].partitions[0].error_code for answer in answers + later] == [
        ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR,
    ]  # fmt: skip
    assert not impatient.clock.getDelayedCalls()


def test_a_transactional_commit_that_is_not_replicated_in_time_is_answered_and_stays(impatient):
    world = impatient
    world.init()
    world.commit_in_transaction(1)
    world.follow()
    answers = world.commit_in_transaction(5)
    world.wait(TIMEOUT_MS)
    assert [answer.topics[0].partitions[0].error_code for answer in answers] == [
        ErrorCode.COORDINATOR_NOT_AVAILABLE
    ]
    world.follow()
    world.end()
    assert (world.fetch(), len(answers)) == (5, 1)


@pytest.mark.parametrize("delete", [World.delete_offset, World.delete_group])
def test_a_deletion_that_is_not_replicated_in_time_is_answered_and_stays(impatient, delete):
    impatient.commit(1)
    impatient.follow()
    answers = delete(impatient)
    impatient.wait(TIMEOUT_MS)
    assert "COORDINATOR_NOT_AVAILABLE" in str(answers)
    assert impatient.fetch() == 1
    impatient.follow()
    assert (impatient.fetch(), len(answers)) == (-1, 1)


def test_a_first_join_that_is_not_replicated_in_time_is_answered_once(impatient):
    answers = impatient.join()
    impatient.wait(TIMEOUT_MS)
    assert [answer.error_code for answer in answers] == [ErrorCode.MEMBER_ID_REQUIRED]
    impatient.follow()
    assert (len(answers), impatient.state()) == (1, "Empty")


def test_a_leave_that_is_not_replicated_in_time_is_answered_and_stays(impatient):
    member_id = impatient.static_member()
    answers = impatient.leave(member_id)
    impatient.wait(TIMEOUT_MS)
    assert [answer.error_code for answer in answers] == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    impatient.follow()
    assert (len(answers), impatient.state()) == (1, "Empty")


def test_an_assignment_that_is_not_replicated_in_time_is_replaced(impatient):
    world = impatient
    member_id = world.join_alone()
    answers = world.sync(member_id)
    world.wait(TIMEOUT_MS)
    assert [answer.error_code for answer in answers] == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    world.follow()
    assert world.state() == "PreparingRebalance"
    [joined] = world.join(member_id)
    assert (joined.error_code, joined.generation_id) == (0, 2)
    later = world.sync(member_id, 2)
    world.follow()
    assert [answer.error_code for answer in later] == [0]
    assert (len(answers), world.state()) == (1, "Stable")


def test_a_static_member_whose_return_is_not_replicated_in_time_may_return_again(impatient):
    world = impatient
    world.static_member()
    answers = world.join(instance_id="i")
    world.wait(TIMEOUT_MS)
    assert [answer.error_code for answer in answers] == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    again = world.join(instance_id="i")
    world.follow()
    [joined] = again
    assert (joined.error_code, joined.generation_id, len(answers)) == (0, 1, 1)
    world.restart()
    assert world.heartbeat(joined.member_id, 1) == 0
    world.wait(2 * SESSION_MS)
    world.follow()
    assert world.state() == "Empty", "a member without heartbeats is removed"


# -- members -----------------------------------------------------------------------------------------------------------


def test_a_static_member_that_returns_during_a_long_write_has_a_session(world):
    world.static_member()
    answers = world.join(instance_id="i")
    world.wait(2 * SESSION_MS)
    assert not answers
    world.follow()
    assert answers[0].error_code == 0
    assert world.state() == "Stable"
    world.wait(SESSION_MS)
    world.follow()
    assert world.state() == "Empty"


@pytest.mark.parametrize("version", [3, 5])
def test_a_join_during_the_deletion_of_a_group_starts_another_group(world, version):
    world.commit(1)
    world.follow()
    deleted = world.delete_group()
    joined = world.join(version=version)
    if version >= 4:
        world.follow()
        assert joined[0].error_code == ErrorCode.MEMBER_ID_REQUIRED
    world.follow()
    assert deleted[0].results[0].error_code == 0
    live = world.state()
    world.restart()
    assert live != "Dead"
    assert world.state() == "Empty", "the group in memory is in the log"
    assert world.fetch() == -1


def test_a_deadline_that_becomes_earlier_during_a_write_is_kept(world):
    """The coordinator's only other deadline is the search for expired offsets."""
    answers = world.join(version=3)
    assert not answers
    world.wait(4_000)
    assert [answer.error_code for answer in answers] == [0], "the initial delay of the rebalance is over"


@pytest.mark.parametrize("name", ["x" * 32767, "\N{SNOWMAN}" * 10922])
def test_a_member_with_the_longest_client_id_gets_its_assignment(world, name):
    answers = world.join(version=3, client_id=name)
    world.follow()
    world.wait(4_000)
    member_id = answers[0].member_id
    assert len(member_id.encode()) <= 32767
    answers = world.sync(member_id)
    world.follow()
    assert [answer.error_code for answer in answers] == [0]


# -- deleted topics ----------------------------------------------------------------------------------------------------


def test_an_offset_whose_topic_is_deleted_during_its_write_is_deleted(world):
    answers = world.commit(1)
    world.recreate_topic()
    world.follow()
    assert answers
    assert world.stored() == -1


def test_the_deletion_of_a_topic_keeps_a_commit_for_its_successor(world):
    world.put_topic("t", NEW_ID)
    world.commit(1)
    world.groups.topics_deleted([("t", OLD_ID)])
    world.follow()
    assert world.fetch() == 1


def test_an_offset_whose_deletion_is_being_written_is_not_returned_for_the_successor(world):
    world.commit(1)
    world.follow()
    world.recreate_topic()
    assert world.stored() == 1
    assert world.fetch() == -1
    world.follow()
    assert world.stored() == -1


def test_offsets_of_a_topic_that_is_deleted_during_a_load_are_deleted(world):
    world.commit(1)
    world.follow()
    world.groups.resign(0)
    world.groups.lead(world.offsets)
    world.recreate_topic()
    world.clock.advance(0)
    world.follow()
    assert world.stored() == -1
    world.restart()
    assert world.stored() == -1


def test_a_failed_deletion_of_a_topics_offsets_is_retried(world, monkeypatch):
    world.commit(1)
    world.follow()

    def append(*args, **how):
        raise DiskFullError("/d", "no room")

    with monkeypatch.context() as patch:
        patch.setattr(world.offsets._leader_log, "append_as_leader", append)
        world.recreate_topic()
        world.wait(3_000)
    assert world.stored() == 1
    world.wait(5_000)
    world.follow()
    assert world.stored() == -1


def test_a_partial_deletion_of_a_topics_offsets_is_completed(world, monkeypatch):
    """The disk is full after the first of two batches: the shard is loaded again, and deletes the rest."""
    for group in ("g", "h"):
        world.commit(1, group)
    world.follow()
    monkeypatch.setattr(coordinator_runtime, "_RECORDS_PER_BATCH", 1)
    with monkeypatch.context() as patch:
        append_only_once(patch, world)
        world.recreate_topic()
    world.clock.advance(0)
    world.follow()
    assert (world.stored("g"), world.stored("h")) == (-1, -1)


def test_a_deletion_of_a_topics_offsets_that_is_partial_at_its_second_attempt_is_completed(world, monkeypatch):
    for group in ("g", "h"):
        world.commit(1, group)
    world.follow()
    monkeypatch.setattr(coordinator_runtime, "_RECORDS_PER_BATCH", 1)
    append, attempts = world.offsets._leader_log.append_as_leader, []

    def append_the_second(*args, **how):
        attempts.append(args)
        if len(attempts) != 2:
            raise DiskFullError("/d", "no room")
        return append(*args, **how)

    with monkeypatch.context() as patch:
        patch.setattr(world.offsets._leader_log, "append_as_leader", append_the_second)
        world.recreate_topic()
        world.wait(1_000)
    world.wait(5_000)
    world.follow()
    assert len(attempts) >= 3, "the second batch of the second attempt was refused"
    assert (world.stored("g"), world.stored("h")) == (-1, -1)


@pytest.mark.parametrize("is_recreated", [True, False])
def test_a_commit_whose_topic_is_deleted_during_its_verification_is_refused(world, is_recreated):
    world.init()
    answers = world.commit_in_transaction(5)
    assert not answers, "the request to add the group's partition to the transaction is in progress"
    if is_recreated:
        world.recreate_topic()
    else:
        world.metadata.remove_topic("t")
        world.groups.topics_deleted([("t", OLD_ID)])
    world.follow()
    assert answers[0].topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    world.put_topic("t", NEW_ID)
    world.end()
    assert world.stored() == -1


def test_the_deletion_of_a_topic_keeps_its_successors_pending_offsets(world):
    world.init()
    world.put_topic("t", NEW_ID)
    answers = world.commit_in_transaction(5)
    world.follow()
    world.groups.topics_deleted([("t", OLD_ID)])
    world.end()
    assert answers[0].topics[0].partitions[0].error_code == 0
    assert world.fetch() == 5


@pytest.mark.parametrize("is_pending_of_successor", [True, False])
def test_a_late_deletion_of_a_topics_offsets_keeps_those_of_its_successor(world, monkeypatch, is_pending_of_successor):
    """The disk is full when the topic is deleted; one offset is committed, the other held by an open transaction."""
    world.init()
    if is_pending_of_successor:
        world.commit(1)
    else:
        world.commit_in_transaction(1)
    world.follow()

    def append(*args, **how):
        raise DiskFullError("/d", "no room")

    with monkeypatch.context() as patch:
        patch.setattr(world.offsets._leader_log, "append_as_leader", append)
        world.recreate_topic()
    answers = world.commit_in_transaction(5) if is_pending_of_successor else world.commit(5)
    world.follow()
    assert answers[0].topics[0].partitions[0].error_code == 0
    world.wait(2_000)
    world.follow()
    world.end()
    assert world.fetch() == 5
    world.restart()
    assert world.fetch() == 5


def test_offsets_of_a_topic_that_is_deleted_twice_during_a_load_are_deleted(world):
    world.commit(1)
    world.follow()
    world.groups.resign(0)
    world.groups.lead(world.offsets)
    world.recreate_topic()
    world.metadata.remove_topic("t")
    world.groups.topics_deleted([("t", NEW_ID)])
    world.clock.advance(0)
    world.follow()
    assert world.stored() == -1


def test_all_offsets_of_a_group_exclude_those_of_an_earlier_topic(world):
    world.commit(1)
    world.follow()
    world.recreate_topic()
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)])
    [answer] = world.ask(group_offsets.offset_fetch, request, 9)
    assert answer.groups[0].topics == []
