"""A broker that is killed while a group is active: answered requests keep their effect, and the members continue."""

import threading

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.describe_groups import DescribeGroupsRequest
from odradek.protocol.messages.find_coordinator import FindCoordinatorRequest
from odradek.protocol.messages.heartbeat import HeartbeatRequest
from odradek.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from odradek.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupRequestMemberIdentity
from odradek.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from odradek.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from odradek.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from odradek.server.tests.wire import TIMEOUT_S, Wire, until
from odradek.testing import OdradekBroker

PROPERTIES = {"group.min.session.timeout.ms": "200", "num.partitions": "2"}
GROUP, TOPIC = "workers", "work"


@pytest.fixture
def broker():
    with OdradekBroker(PROPERTIES) as broker:
        with Wire(broker.port) as wire:
            wire.create_topic(TOPIC, partitions=2)
            await_coordinator(wire)
        yield broker


def await_coordinator(wire, group=GROUP):
    """Wait until the group's coordinator has loaded its groups."""
    request = FindCoordinatorRequest(key_type=0, coordinator_keys=[group])
    until(lambda: wire.ask(request, 4).coordinators[0].error_code == 0)
    loading = (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR)
    until(lambda: describe(wire, group).error_code not in loading)


def describe(wire, group=GROUP):
    return wire.ask(DescribeGroupsRequest(groups=[group]), 5).groups[0]


def committed(wire, group=GROUP):
    """Committed offset and metadata by partition, without partitions that have none."""
    topic = OffsetFetchRequestTopics(name=TOPIC, partition_indexes=[0, 1])
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=[topic])])
    (answer,) = wire.ask(request, 8).groups
    assert answer.error_code == 0
    partitions = answer.topics[0].partitions
    return {
        one.partition_index: (one.committed_offset, one.metadata)
        for one in partitions
        if one.committed_offset >= 0
    }


class Member:
    """A member of the classic protocol that sends one request at a time."""

    def __init__(self, port, group=GROUP, instance=None, session_ms=30_000):
        self.port, self.group, self.instance, self.session_ms = port, group, instance, session_ms
        self.id, self.generation, self.leader, self.members = "", -1, "", []
        self.wire = Wire(port)

    def reconnect(self):
        self.wire.socket.close()
        self.wire = Wire(self.port)

    def send_join(self):
        protocol = JoinGroupRequestProtocol(name="range", metadata=b"topics")
        self.join_request = JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=self.session_ms,
            rebalance_timeout_ms=self.session_ms,
            member_id=self.id,
            group_instance_id=self.instance,
            protocol_type="consumer",
            protocols=[protocol],
        )
        self.wire.send(self.join_request, 7)

    def joined(self):
        answer = self.wire.receive(self.join_request, 7)
        self.id = answer.member_id or self.id
        if answer.error_code == 0:
            self.generation, self.leader = answer.generation_id, answer.leader
            self.members = [member.member_id for member in answer.members]
        return answer.error_code

    def join(self):
        self.send_join()
        code = self.joined()
        if code == ErrorCode.MEMBER_ID_REQUIRED:
            self.send_join()
            code = self.joined()
        return code

    def sync(self):
        """Synchronize; the leader assigns each member its own id. Return error code and assignment."""
        assignments = [
            SyncGroupRequestAssignment(member_id=member, assignment=member.encode()) for member in self.members
        ]
        request = SyncGroupRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.id,
            group_instance_id=self.instance,
            protocol_type="consumer",
            protocol_name="range",
            assignments=assignments,
        )
        answer = self.wire.ask(request, 5)
        return answer.error_code, bytes(answer.assignment)

    def heartbeat(self):
        request = HeartbeatRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.id,
            group_instance_id=self.instance,
        )
        return self.wire.ask(request, 4).error_code

    def commit(self, offset, partition=0, metadata=""):
        one = OffsetCommitRequestPartition(
            partition_index=partition,
            committed_offset=offset,
            committed_leader_epoch=-1,
            committed_metadata=metadata,
        )
        request = OffsetCommitRequest(
            group_id=self.group,
            generation_id_or_member_epoch=self.generation,
            member_id=self.id,
            group_instance_id=self.instance,
            topics=[OffsetCommitRequestTopic(name=TOPIC, partitions=[one])],
        )
        return self.wire.ask(request, 8).topics[0].partitions[0].error_code

    def leave(self):
        identity = LeaveGroupRequestMemberIdentity(member_id=self.id, group_instance_id=self.instance)
        return self.wire.ask(LeaveGroupRequest(group_id=self.group, members=[identity]), 4).error_code


def kill(broker, *members):
    broker.restart(clean=False)
    with Wire(broker.port) as wire:
        await_coordinator(wire)
    for member in members:
        member.reconnect()


def two_members(broker, **options):
    """Make a stable group of two. Return the members, the leader first."""
    one, two = Member(broker.port, **options), Member(broker.port, **options)
    assert one.join() == 0
    assert one.sync()[0] == 0
    # The second member waits until the first has joined again.
    two.send_join()
    if (code := two.joined()) != 0:
        assert code == ErrorCode.MEMBER_ID_REQUIRED
        two.send_join()
        until(lambda: one.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS)
        one.send_join()
        assert two.joined() == 0
        assert one.joined() == 0
    assert one.generation == two.generation and sorted(one.members) == sorted([one.id, two.id])
    assert one.sync() == (0, one.id.encode())
    assert two.sync() == (0, two.id.encode())
    return one, two


def test_members_continue_after_a_crash(broker):
    one, two = two_members(broker)
    assert one.commit(17, 0, "so far") == 0 and two.commit(4, 1) == 0
    for _ in range(2):
        kill(broker, one, two)
        with Wire(broker.port) as wire:
            group = describe(wire)
            assert (group.group_state, group.protocol_type, group.protocol_data) == ("Stable", "consumer", "range")
            assert {member.member_id for member in group.members} == {one.id, two.id}
            assert {bytes(member.member_assignment) for member in group.members} == {one.id.encode(), two.id.encode()}
            assert committed(wire) == {0: (17, "so far"), 1: (4, "")}
        # No member has to join again; an unknown generation is still refused.
        assert one.heartbeat() == two.heartbeat() == 0
        assert one.sync() == (0, one.id.encode())
        one.generation += 1
        assert one.heartbeat() == ErrorCode.ILLEGAL_GENERATION
        one.generation -= 1
    assert one.commit(18) == 0
    # A rebalance increases the generation from before the crash.
    before = one.generation
    assert two.leave() == 0
    assert one.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    assert one.join() == 0 and one.generation == before + 1 and one.members == [one.id]
    assert one.sync()[0] == 0
    with Wire(broker.port) as wire:
        assert committed(wire) == {0: (18, ""), 1: (4, "")}


def test_a_member_that_does_not_return_is_removed(broker):
    # Long enough for the member that returns to send a heartbeat after the load, also on a busy machine.
    one, two = two_members(broker, session_ms=4000)
    kill(broker, one)
    until(lambda: one.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS, what="the other's session to end")
    assert one.join() == 0 and one.members == [one.id]
    two.reconnect()
    assert two.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_member_keeps_its_assignment_over_a_crash(broker):
    one = Member(broker.port, instance="i-1")
    assert one.join() == 0 and one.sync()[0] == 0
    kill(broker)
    again = Member(broker.port, instance="i-1")
    assert again.join() == 0
    assert again.generation == one.generation and again.id != one.id
    # The former process of the member is fenced.
    one.reconnect()
    assert one.heartbeat() == ErrorCode.FENCED_INSTANCE_ID
    assert again.heartbeat() == 0
    again.members = []
    assert again.sync()[0] == 0


def test_a_group_rebalances_again_after_a_crash_in_a_rebalance(broker):
    """Waiting members are disconnected; the group is in the state of its last response, and can rebalance again."""
    one, two = two_members(broker)
    three = Member(broker.port)
    three.send_join()
    if three.joined() == ErrorCode.MEMBER_ID_REQUIRED:
        three.send_join()
    until(lambda: one.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS)
    kill(broker, one, two, three)
    assert one.heartbeat() == 0
    assert one.commit(5) == 0
    three.id = ""
    assert_joined_together(one, two, three)


def assert_joined_together(*members):
    """Assert that all members, each in its own thread, reach one generation."""
    stable_in = {}
    together = threading.Event()

    def run(member):
        while not together.wait(0.01):
            if stable_in.get(member) == member.generation and member.heartbeat() == 0:
                continue
            if member.join() == ErrorCode.UNKNOWN_MEMBER_ID:
                member.id = ""
            elif member.sync()[0] == 0:
                stable_in[member] = member.generation

    threads = [threading.Thread(target=run, args=(member,), daemon=True) for member in members]
    for thread in threads:
        thread.start()
    until(lambda: len(stable_in) == len(members) and len(set(stable_in.values())) == 1)
    together.set()
    for thread in threads:
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()


class Committer(threading.Thread):
    """A simple consumer that commits increasing offsets until the broker disconnects."""

    def __init__(self, port, start):
        super().__init__(daemon=True)
        self.member = Member(port)
        self.start_offset = self.acknowledged = start
        self.has_worked = threading.Event()

    def run(self):
        try:
            while self.member.commit(self.acknowledged + 1) == 0:
                self.acknowledged += 1
                if self.acknowledged - self.start_offset > 50:
                    self.has_worked.set()
        except OSError:
            pass


def test_acknowledged_commits_outlive_crashes(broker):
    offset = 0
    for _ in range(3):
        committer = Committer(broker.port, offset)
        committer.start()
        assert committer.has_worked.wait(TIMEOUT_S)
        broker.restart(clean=False)
        committer.join(TIMEOUT_S)
        with Wire(broker.port) as wire:
            await_coordinator(wire)
            offset = committed(wire)[0][0]
        # The last commit may have been written without an acknowledgement.
        assert offset in (committer.acknowledged, committer.acknowledged + 1)
