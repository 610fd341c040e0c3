"""Coordinators whose follower lags and then leads with a shorter log: no response depends on a lost record.

Random requests go to the runtimes; the test moves the high watermark, and sometimes ends the leadership and truncates
the log anywhere above the high watermark. Each response is compared with the state that a coordinator loads from the
part of the log that was replicated when the response was sent.
"""

import random

import pytest
from twisted.internet.defer import Deferred

from odradek.coordinator.groups.classic.group import EMPTY, STABLE
from odradek.coordinator.groups.records import (
    GroupMetadataKey,
    OffsetCommitKey,
    read_group_metadata_value,
    read_key,
    read_offset_commit_value,
)
from odradek.coordinator.groups.settings import GroupSettings
from odradek.coordinator.groups.shard import GroupShard
from odradek.coordinator.groups.shard_state import ShardState
from odradek.coordinator.request_context import RequestContext
from odradek.coordinator.steps import run_to_end
from odradek.coordinator.transactions.settings import TransactionSettings
from odradek.coordinator.transactions.shard import TransactionShard
from odradek.coordinator.transactions.transaction import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    STATE_NAMES,
)
from odradek.log.tests.support import truncate
from odradek.protocol.batches.control_records import ControlType, parse_control_record
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from odradek.protocol.messages.delete_groups import DeleteGroupsRequest
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
from odradek.protocol.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchRequestTopics
from odradek.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from odradek.protocol.records import iter_batches, iter_records, read_header
from odradek.replication.metadata.image import PartitionMetadata
from odradek.server.coordinators import runtime as coordinator_runtime
from odradek.server.coordinators.context import CoordinatorContext
from odradek.server.coordinators.tests.test_writes import OFFSETS, OLD_ID, STATE, TIMEOUT_MS, World

SEEDS, STEPS = 20, 80
INSTANCES = ("i", "j")
PRODUCER_ID = 7


def read_log(partition, end_offset):
    """Yield header and records of each batch that ends at or before an offset."""
    if not end_offset:
        return
    log = partition.log
    region = log.read(0, 1 << 20, upper_offset=log.log_end_offset, at_least_one=True)
    for batch in iter_batches(region.read()) if region else ():
        header = read_header(batch)
        if header.next_offset <= end_offset:
            yield header, list(iter_records(batch))


class Follower:
    """The second replica of one partition; it has complete batches, and may become leader."""

    def __init__(self, world, topic):
        self.world = world
        self.partition = world.partitions[topic]
        self.runtime = world.groups if topic == OFFSETS else world.transactions
        self.epoch = self.partition.leader_epoch

    @property
    def high_watermark(self):
        return self.partition.log.high_watermark

    @property
    def log_end_offset(self):
        return self.partition.log.log_end_offset

    def ends(self):
        """Offsets at which the log may be truncated: the high watermark, and the ends of the batches above it."""
        ends = [header.next_offset for header, _ in read_log(self.partition, self.log_end_offset)]
        return [self.high_watermark, *[end for end in ends if end > self.high_watermark]]

    def fetch(self, end_offset):
        self.partition.update_follower(2, end_offset, 0, self.world.now_ms())

    def end_leadership(self, end_offset):
        """Lead again, with a truncated log, after another broker has led. The coordinators are not informed yet."""
        self.give(2)
        truncate(self.partition.log, end_offset, self.world.now_ms())
        self.give(1)
        self.fetch(end_offset)

    def give(self, leader):
        """Begin a leader epoch."""
        self.epoch += 1
        self.partition.apply(PartitionMetadata(leader, self.epoch, (1, 2), (1, 2)), self.partition.log)

    def inform(self):
        """Inform the coordinators of the roles."""
        self.runtime.lead_only([self.partition])
        for _ in range(3):
            self.world.clock.advance(0)


class Walk:
    """Random requests. Each response is checked when it is sent."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.world = World(self.rng.choice((1_000_000_000, TIMEOUT_MS)))
        self.offsets, self.states = Follower(self.world, OFFSETS), Follower(self.world, STATE)
        self.members = dict.fromkeys(INSTANCES, "")
        self.former = dict.fromkeys(INSTANCES, "")
        self.generation_id = -1
        self.epoch = -1
        self.asked = self.answered = 0
        self.failures = []

    def run(self):
        actions = [name for name in dir(self) if name.startswith("do_")]
        for _ in range(STEPS):
            getattr(self, self.rng.choice(actions))()
        self.world.follow()
        for follower in (self.offsets, self.states):
            follower.runtime.stop()
        assert self.answered == self.asked, "a request has no response"

    def ask(self, follower, name, request, version, check, **more):
        context = RequestContext(api_version=version, client_id="c", client_host="/h")
        end_offset = follower.log_end_offset
        self.asked += 1

        def answer(response):
            self.answered += 1
            check(request, response, end_offset)

        outcome = follower.runtime.run_on(
            0, lambda shard, token, now_ms: getattr(shard, name)(request, context, token, now_ms, **more)
        )
        if isinstance(outcome, Deferred):
            outcome.addCallback(answer)
            outcome.addErrback(self.failures.append)
        else:
            answer(outcome)
        self.raise_failure()

    def raise_failure(self):
        if self.failures:
            failure = self.failures.pop()
            self.failures.clear()
            failure.raiseException()

    # -- time and replication --------------------------------------------------------------------------------------

    def do_wait(self):
        self.world.clock.advance(self.rng.choice((0, 1, 3, 11)))
        self.raise_failure()

    def do_follow(self):
        for follower in (self.offsets, self.states):
            follower.fetch(self.rng.choice(follower.ends()))
        self.raise_failure()

    def do_follow_all(self):
        self.world.follow()
        self.raise_failure()

    def do_end_leadership(self):
        if self.rng.random() < 0.3:
            follower = self.rng.choice((self.offsets, self.states))
            follower.end_leadership(self.rng.choice(follower.ends()))
            if self.rng.random() < 0.7:
                follower.inform()
            self.raise_failure()

    def do_inform(self):
        for follower in (self.offsets, self.states):
            follower.inform()
        self.raise_failure()

    def do_begin_epoch_of_the_same_leader(self):
        follower = self.rng.choice((self.offsets, self.states))
        follower.give(1)
        follower.fetch(follower.high_watermark)
        if self.rng.random() < 0.5:
            follower.inform()
        self.raise_failure()

    # -- groups ------------------------------------------------------------------------------------------------------

    def replicated_group(self):
        return self.load_groups(self.offsets.high_watermark).get("g")

    def replicated_generation(self):
        group = self.replicated_group()
        assert group is not None and group.stored is not None, "the group may be lost"
        return group.stored

    def replicated_generations(self):
        """The replicated records of the group, all generations included."""
        return [
            read_group_metadata_value(record.value)
            for header, records in read_log(self.offsets.partition, self.offsets.high_watermark)
            for record in records
            if not header.is_control and record.value and isinstance(read_key(record.key), GroupMetadataKey)
        ]

    @property
    def live_group(self):
        return self.world.groups.shard(0)._state.groups.get("g")

    def load_groups(self, end_offset):
        return self.load_shard(end_offset)._state.groups

    def load_shard(self, end_offset):
        """Load a group coordinator from the log up to an offset."""
        shard = GroupShard(GroupSettings(), str, int)
        for header, records in read_log(self.offsets.partition, end_offset):
            for record in records:
                if header.is_control:
                    is_commit = parse_control_record(record).control_type is ControlType.COMMIT
                    shard.replay_end_of_transaction(header.producer_id, is_commit, record.offset)
                else:
                    shard.replay(record.key, record.value, record.offset)
        run_to_end(shard.finish_loading(0))
        return shard

    def do_join(self):
        instance_id = self.rng.choice(INSTANCES)
        request = JoinGroupRequest(
            group_id="g", session_timeout_ms=10_000, rebalance_timeout_ms=20_000,
            member_id=self.members[instance_id] if self.rng.random() < 0.5 else "", group_instance_id=instance_id,
            protocol_type="consumer", protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        )  # fmt: skip
        self.ask(self.offsets, "join_group", request, 9, self.joined)

    def joined(self, request, response, _):
        if response.error_code == ErrorCode.FENCED_INSTANCE_ID:
            self.fenced(request)
        if response.error_code:
            return
        instance_id = request.group_instance_id
        if self.members[instance_id] != response.member_id:
            self.former[instance_id] = self.members[instance_id]
        self.members[instance_id] = response.member_id
        self.generation_id = response.generation_id
        live = self.live_group
        if live is not None and live.state is STABLE:
            known = {member.member_id for value in self.replicated_generations() for member in value.members}
            assert response.member_id in known, "the member id may be lost"

    def do_join_all_and_sync(self):
        for _ in INSTANCES:
            self.do_join()
        self.world.clock.advance(4)
        for instance_id in INSTANCES:
            self.sync(instance_id)

    def do_sync(self):
        self.sync(self.rng.choice(INSTANCES))

    def sync(self, instance_id):
        assignments = [
            SyncGroupRequestAssignment(member_id=member_id, assignment=b"%d" % self.asked)
            for member_id in self.members.values()
        ]
        request = SyncGroupRequest(
            group_id="g", generation_id=self.generation_id, member_id=self.members[instance_id],
            group_instance_id=instance_id, protocol_type="consumer", protocol_name="range", assignments=assignments,
        )  # fmt: skip
        self.ask(self.offsets, "sync_group", request, 5, self.synced)

    def synced(self, request, response, _):
        if response.error_code == ErrorCode.FENCED_INSTANCE_ID:
            self.fenced(request)
        if not response.error_code:
            given = {
                (member.member_id, member.assignment)
                for value in self.replicated_generations()
                if value.generation == request.generation_id
                for member in value.members
            }
            assert (request.member_id, response.assignment) in given, "the assignment may be lost"

    def do_heartbeat(self):
        instance_id = self.rng.choice(INSTANCES)
        member_id = self.rng.choice((self.members, self.former))[instance_id]
        request = HeartbeatRequest(
            group_id="g", generation_id=self.generation_id, member_id=member_id, group_instance_id=instance_id
        )
        self.ask(self.offsets, "heartbeat", request, 4, self.heartbeat_answered)

    def heartbeat_answered(self, request, response, _):
        if response.error_code == ErrorCode.FENCED_INSTANCE_ID:
            self.fenced(request)

    def fenced(self, request):
        live = self.live_group
        if live is not None and live.state is STABLE:
            stored = self.replicated_generation()
            assert request.member_id not in {member.member_id for member in stored.members}, "fenced by a lost record"

    def do_return_and_heartbeat(self):
        """Restart a static member, and send a heartbeat of its former process."""
        instance_id = self.rng.choice(INSTANCES)
        former = self.members[instance_id]
        self.members[instance_id] = ""
        self.do_join()
        self.members[instance_id] = self.members[instance_id] or former
        request = HeartbeatRequest(
            group_id="g", generation_id=self.generation_id, member_id=former, group_instance_id=instance_id
        )
        self.ask(self.offsets, "heartbeat", request, 4, self.heartbeat_answered)

    def do_leave(self):
        members = [
            LeaveGroupRequestMemberIdentity(group_instance_id=instance_id)
            for instance_id in self.rng.choice((INSTANCES, INSTANCES[:1]))
        ]
        self.ask(self.offsets, "leave_group", LeaveGroupRequest(group_id="g", members=members), 5, self.left)

    def left(self, request, response, _):
        group = self.live_group
        if not response.error_code and not response.members[0].error_code and group and group.state is EMPTY:
            replicated = self.replicated_group()
            assert replicated is None or not replicated.members, "the members may reappear"

    def do_commit(self):
        item = OffsetCommitRequestPartition(partition_index=0, committed_offset=self.asked)
        topic = OffsetCommitRequestTopic(name="t", topic_id=OLD_ID, partitions=[item])
        request = OffsetCommitRequest(group_id="g", topics=[topic])
        self.ask(self.offsets, "commit_offsets", request, 9, self.committed)

    def committed(self, request, response, _):
        if not response.topics[0].partitions[0].error_code:
            replicated = [
                read_offset_commit_value(record.value).offset
                for header, records in read_log(self.offsets.partition, self.offsets.high_watermark)
                for record in records
                if not header.is_control and record.value and isinstance(read_key(record.key), OffsetCommitKey)
            ]
            assert request.topics[0].partitions[0].committed_offset in replicated, "the commit may be lost"

    def do_fetch_offsets(self):
        live, replicated = self.world.groups.shard(0), self.load_shard(self.offsets.high_watermark)
        for topics in (None, [OffsetFetchRequestTopics(name="t", partition_indexes=[0])]):
            request = OffsetFetchRequestGroup(group_id="g", topics=topics)
            context = RequestContext(api_version=9)
            fetched, expected = (
                shard.fetch_offsets(request, context, require_stable=False) for shard in (live, replicated)
            )
            assert fetched.error_code or fetched.topics == expected.topics

    def do_delete(self):
        for _ in range(self.rng.choice((1, 2))):
            self.ask_to_delete()

    def ask_to_delete(self):
        request = DeleteGroupsRequest(groups_names=["g"])
        end_offset = self.offsets.log_end_offset
        self.asked += 1

        def answer(response):
            self.answered += 1
            self.deleted(response.results[0].error_code, end_offset)

        context = RequestContext(api_version=2)
        outcome = self.world.groups.run_on(
            0, lambda shard, token, now_ms: shard.delete_groups(request.groups_names, context, token, now_ms)
        )
        if isinstance(outcome, Deferred):
            outcome.addCallback(answer)
            outcome.addErrback(self.failures.append)
        else:
            answer(outcome)
        self.raise_failure()

    def deleted(self, error, end_offset):
        high_watermark = self.offsets.high_watermark
        if error == ErrorCode.GROUP_ID_NOT_FOUND:
            assert "g" not in self.load_groups(min(high_watermark, end_offset)), "the group may reappear"
        elif not error:
            deletions = [
                record.offset
                for header, records in read_log(self.offsets.partition, high_watermark)
                for record in records
                if not header.is_control and record.value is None and isinstance(read_key(record.key), GroupMetadataKey)
            ]
            assert deletions and deletions[-1] >= end_offset, "the deletion may be lost"

    def do_describe_group(self):
        shard = self.world.groups.shard(0)
        [described] = shard.describe_groups(["g"], RequestContext(api_version=5))
        if not described.error_code:
            assert (described.group_state != "Dead") == (self.replicated_group() is not None)

    # -- transactions ------------------------------------------------------------------------------------------------

    def decided_transaction(self):
        transaction = self.replicated_transaction()
        assert transaction is not None, "the transactional id may be lost"
        return transaction

    def replicated_transaction(self):
        shard = TransactionShard(
            TransactionSettings(transaction_version=2), coordinator_epoch=0, take_producer_id=lambda: 0,
            monotonic_ms=lambda: 0,
        )  # fmt: skip
        for _, records in read_log(self.states.partition, self.states.high_watermark):
            for record in records:
                shard.replay(record.key, record.value, record.offset)
        return shard._state.transactions.get("x")

    def do_init(self):
        request = InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=60_000)
        self.ask(self.states, "init_producer_id", request, 5, self.initialized)

    def initialized(self, request, response, _):
        if not response.error_code:
            self.epoch = response.producer_epoch
            assert self.decided_transaction().producer_epoch == response.producer_epoch, "the epoch may be lost"

    def do_add(self):
        request = AddOffsetsToTxnRequest(
            transactional_id="x", producer_id=PRODUCER_ID, producer_epoch=self.epoch, group_id="g"
        )
        self.ask(self.states, "add_offsets", request, 4, self.added, offsets_partition=0)

    def added(self, request, response, _):
        transaction = self.replicated_transaction()
        if response.error_code == ErrorCode.PRODUCER_FENCED:
            assert transaction is None or transaction.producer_epoch != request.producer_epoch
        elif not response.error_code:
            transaction = self.decided_transaction()
            assert transaction.state is ONGOING
            assert (OFFSETS, 0) in transaction.partitions

    def do_end(self):
        request = EndTxnRequest(
            transactional_id="x", producer_id=PRODUCER_ID, producer_epoch=self.epoch, committed=self.rng.random() < 0.5
        )
        self.ask(self.states, "end_txn", request, 5, self.ended)

    def ended(self, request, response, _):
        transaction = self.replicated_transaction()
        if response.error_code == ErrorCode.PRODUCER_FENCED:
            assert transaction is None or transaction.producer_epoch != request.producer_epoch
        elif not response.error_code:
            self.epoch = response.producer_epoch
            expected = (PREPARE_COMMIT, COMPLETE_COMMIT) if request.committed else (PREPARE_ABORT, COMPLETE_ABORT)
            assert self.decided_transaction().state in expected, "the decision may be lost"

    def do_describe_transaction(self):
        [described] = self.world.transactions.shard(0).describe(["x"])
        transaction = self.replicated_transaction()
        if not described.error_code and transaction is not None:
            assert described.transaction_state == STATE_NAMES[transaction.state]
            assert described.producer_epoch == transaction.producer_epoch


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_response_depends_on_a_lost_record(seed):
    Walk(seed).run()


@pytest.mark.parametrize(
    ("part", "name", "instead"),
    [
        (coordinator_runtime, "is_replicated", lambda partition, offset: True),
        (CoordinatorContext, "leads", lambda context: True),
        (ShardState, "awaited_offset", lambda state, group_id: -1),
        (ShardState, "replicated_group", lambda state, group_id: state.groups.get(group_id)),
    ],
)
def test_a_response_that_is_sent_too_early_is_detected(monkeypatch, part, name, instead):
    monkeypatch.setattr(part, name, instead)
    with pytest.raises(AssertionError):
        for seed in range(10 * SEEDS):
            Walk(seed).run()
