"""One group under random requests, the passage of time, held and refused writes, and restarts.

Invariants, checked after every step: no request gets two responses (the driver asserts it); the generation of a group
never decreases; a generation has one leader, which is a member; only the leader's response lists the members; every
member of a stable generation gets an assignment of its leader; every member has a deadline. The state is that of a
shard loaded from the whole log, and clients get the state of a shard loaded from the replicated part of the log. A
restart answers every parked request and may lose the unreplicated end of the log, but no acknowledged write.
"""

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from odradek.coordinator.groups.classic.group import COMPLETING_REBALANCE, EMPTY, PREPARING_REBALANCE, STABLE, Group
from odradek.coordinator.groups.offsets import OffsetStore
from odradek.coordinator.groups.records import OffsetCommitKey, read_key
from odradek.coordinator.groups.settings import GroupSettings
from odradek.coordinator.groups.shard import GroupShard
from odradek.coordinator.groups.shard_state import TOPIC_DELETION_KIND, DeletedTopic, ShardState
from odradek.coordinator.groups.topic_deletion import RETRY_PAUSE_MS
from odradek.coordinator.request_context import RequestContext
from odradek.coordinator.tests.driver import GroupDriver, Marker, run_at_once, subscription
from odradek.coordinator.tests.log_contents import GroupLogContents
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.heartbeat import HeartbeatRequest
from odradek.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
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
from odradek.protocol.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchRequestTopics
from odradek.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from odradek.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

CLIENTS = st.integers(0, 4)
PARTITIONS = range(3)
TOPIC_ID = b"t" * 16
RETENTION_MS = 100_000
CONTEXT = RequestContext(api_version=9)
WRITE_ERRORS = st.sampled_from(
    [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.MESSAGE_TOO_LARGE]
)
PROTOCOLS = st.sampled_from([("range",), ("range", "sticky"), ("sticky", "range")])


class Client:
    """The state of a consumer. Clients 3 and 4 are static."""

    def __init__(self, number):
        self.instance_id = f"i{number}" if number >= 3 else None
        self.member_id = ""
        self.generation_id = -1
        self.is_leader = False
        self.members = []


class GroupMachine(RuleBasedStateMachine):
    @initialize(max_size=st.sampled_from([2, 100]), delay_ms=st.sampled_from([0, 3000]))
    def begin(self, max_size, delay_ms):
        self.driver = GroupDriver(
            GroupSettings(
                max_group_size=max_size,
                initial_rebalance_delay_ms=delay_ms,
                offsets_retention_ms=RETENTION_MS,
                offsets_retention_check_interval_ms=50_000,
            )
        )
        self.driver.on_reply = self.note
        self.driver.load()
        self.clients = [Client(number) for number in range(5)]
        self.tokens = 0
        self.asked_by = {}
        self.leaders = {}
        self.given = {}
        self.generation_id = 0
        self.group = None
        self.loads = []
        self.log_contents = GroupLogContents()

    # -- clients -------------------------------------------------------------------------------------------------

    def token(self, number, *rest):
        self.tokens += 1
        self.asked_by[self.tokens] = (number, *rest)
        return self.tokens

    def note(self, token, response):
        number, *rest = self.asked_by[token]
        client = self.clients[number]
        if isinstance(response, JoinGroupResponse):
            if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                client.member_id = response.member_id
            elif response.error_code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
                client.member_id = ""
            elif not response.error_code:
                self.note_joined(client, response)
        elif isinstance(response, SyncGroupResponse) and not response.error_code:
            (member_id, generation_id) = rest
            expected = self.given.get(generation_id, {})
            if expected and member_id in expected:
                assert response.assignment in expected[member_id]

    def note_joined(self, client, response):
        client.member_id, client.generation_id = response.member_id, response.generation_id
        client.is_leader = response.leader == response.member_id and not response.skip_assignment
        members = [member.member_id for member in response.members]
        client.members = members
        assert not members or response.leader == response.member_id
        if members:
            assert response.member_id in members
            assert len(members) == len(set(members))

    @rule(
        number=CLIENTS,
        protocols=PROTOCOLS,
        version=st.sampled_from([0, 3, 8, 9]),
        rebalance_ms=st.sampled_from([0, 20_000]),
    )
    def join(self, number, protocols, version, rebalance_ms):
        client = self.clients[number]
        version = max(version, 5) if client.instance_id else version
        request = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=rebalance_ms,
            member_id=client.member_id,
            group_instance_id=client.instance_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name=name, metadata=subscription(["t"])) for name in protocols],
        )
        self.driver.call("join_group", self.token(number), request, version, f"c{number}")

    @rule(numbers=st.sets(CLIENTS, min_size=1), protocols=PROTOCOLS, is_synced=st.booleans())
    def settle(self, numbers, protocols, is_synced):
        """Some clients complete a rebalance: all join, the join phase ends, and all sync."""
        for _ in range(2):
            for number in numbers:
                if not self.is_waiting(number):
                    self.join(number, protocols, 9, 20_000)
        self.driver.wait(6_000)
        if is_synced:
            for number in numbers:
                if not self.is_waiting(number):
                    self.sync(number)

    def is_waiting(self, number):
        return any(self.asked_by[token][0] == number for token in self.driver.parked)

    @rule(number=CLIENTS)
    def crash(self, number):
        """The client loses its member id and generation."""
        self.clients[number].member_id = ""
        self.clients[number].generation_id = -1

    @rule(number=CLIENTS, protocols=PROTOCOLS)
    def return_without_id(self, number, protocols):
        """A client restarts; a static one replaces its former member id."""
        self.sync(number)
        self.crash(number)
        self.join(number, protocols, 9, 20_000)

    @rule(number=CLIENTS)
    def delete_while_joining(self, number):
        """All clients leave, the group is deleted, and a client joins before the deletion is replicated."""
        for other in range(5):
            self.leave(other)
        self.driver.wait(6_000)
        self.driver.is_holding = True
        self.delete()
        self.join(number, ("range",), 9, 20_000)
        self.join(number, ("range",), 9, 20_000)

    @rule(number=st.sampled_from([3, 4]), duration_ms=st.sampled_from([0, 9_999, 20_000]))
    def return_during_long_write(self, number, duration_ms):
        """A static client, alone in its group, restarts, and the record of its return takes long to be replicated."""
        for other in set(range(5)) - {number}:
            self.leave(other)
        self.release()
        self.settle({number}, ("range",), True)
        self.driver.is_holding = True
        self.crash(number)
        self.join(number, ("range",), 9, 20_000)
        self.driver.wait(duration_ms)
        self.release()

    @rule(number=CLIENTS)
    def sync(self, number):
        client = self.clients[number]
        assignments = {}
        if client.is_leader:
            assignments = {member: f"{self.tokens}:{member}".encode() for member in client.members}
            for member, assignment in assignments.items():
                by_member = self.given.setdefault(client.generation_id, {})
                by_member.setdefault(member, {b""}).add(assignment)
        request = SyncGroupRequest(
            group_id="g",
            generation_id=client.generation_id,
            member_id=client.member_id,
            group_instance_id=client.instance_id,
            assignments=[
                SyncGroupRequestAssignment(member_id=member, assignment=assignment)
                for member, assignment in assignments.items()
            ],
        )
        token = self.token(number, client.member_id, client.generation_id)
        self.driver.call("sync_group", token, request, 4)

    @rule(number=CLIENTS)
    def heartbeat(self, number):
        client = self.clients[number]
        request = HeartbeatRequest(
            group_id="g",
            generation_id=client.generation_id,
            member_id=client.member_id,
            group_instance_id=client.instance_id,
        )
        self.driver.call("heartbeat", self.token(number), request, 4)

    @rule(number=CLIENTS)
    def leave(self, number):
        client = self.clients[number]
        member = LeaveGroupRequestMemberIdentity(member_id=client.member_id, group_instance_id=client.instance_id)
        self.driver.call("leave_group", self.token(number), LeaveGroupRequest(group_id="g", members=[member]), 5)
        client.member_id = ""

    @rule(number=CLIENTS, partition=st.integers(0, 2), is_anonymous=st.booleans())
    def commit(self, number, partition, is_anonymous):
        client = self.clients[number]
        topic = OffsetCommitRequestTopic(
            name="t",
            topic_id=TOPIC_ID,
            partitions=[OffsetCommitRequestPartition(partition_index=partition, committed_offset=self.tokens)],
        )
        request = OffsetCommitRequest(group_id="g", topics=[topic])
        if not is_anonymous:
            request.member_id = client.member_id
            request.generation_id_or_member_epoch = client.generation_id
            request.group_instance_id = client.instance_id
        self.driver.call("commit_offsets", self.token(number), request, 9)

    @rule(
        number=CLIENTS,
        partition=st.integers(0, 2),
        is_anonymous=st.booleans(),
        producer_id=st.sampled_from([7, 8]),
    )
    def commit_in_transaction(self, number, partition, is_anonymous, producer_id):
        client = self.clients[number]
        item = TxnOffsetCommitRequestPartition(partition_index=partition, committed_offset=self.tokens)
        topic = TxnOffsetCommitRequestTopic(name="t", partitions=[item])
        request = TxnOffsetCommitRequest(group_id="g", producer_id=producer_id, producer_epoch=0, topics=[topic])
        if not is_anonymous:
            request.member_id = client.member_id
            request.generation_id = client.generation_id
            request.group_instance_id = client.instance_id
        self.driver.call(
            "commit_offsets_in_transaction", self.token(number), request, 5, topic_ids={"t": TOPIC_ID}
        )

    @rule(producer_id=st.sampled_from([7, 8]), is_commit=st.booleans())
    def end_transaction(self, producer_id, is_commit):
        self.driver.mark(producer_id, is_commit)
        assert producer_id not in self.driver.shard._state.offsets.pending

    @rule()
    def delete(self):
        self.driver.call("delete_groups", self.token(0), ["g"], 2)

    @rule(partition=st.sampled_from(PARTITIONS))
    def delete_offset(self, partition):
        topic = OffsetDeleteRequestTopic(
            name="t", partitions=[OffsetDeleteRequestPartition(partition_index=partition)]
        )
        self.driver.call("delete_offsets", self.token(0), OffsetDeleteRequest(group_id="g", topics=[topic]), 0)

    @rule()
    def delete_topic(self):
        driver = self.driver
        driver.take(driver.shard.topics_deleted([DeletedTopic("t", TOPIC_ID)], driver.now_ms))
        if any(key[0] == TOPIC_DELETION_KIND for key in driver.shard._state.timers._actions):
            driver.wait(RETRY_PAUSE_MS)
        assert not self.driver.shard._state.offsets.all_of_group("g")

    # -- time and the log ----------------------------------------------------------------------------------------

    @rule(duration_ms=st.sampled_from([0, 1, 2_999, 3_000, 9_999, 20_000, 60_000, 300_000]))
    def wait(self, duration_ms):
        driver = self.driver
        start, before = len(driver.log), self.loaded()._state
        driver.wait(duration_ms)
        if "g" not in before.groups or before.groups["g"].protocol_type is not None:
            return
        for entry in driver.log[start:]:
            key = None if isinstance(entry, Marker) or entry.value is not None else read_key(entry.key)
            if isinstance(key, OffsetCommitKey):
                expired = before.offsets.visible.get(key.group, key.topic, key.partition)
                age_ms = driver.now_ms - expired.value.commit_timestamp
                assert age_ms >= RETENTION_MS, "an offset was deleted before it expired"

    @rule()
    def hold(self):
        self.driver.is_holding = True

    @rule()
    def release(self):
        self.driver.is_holding = False
        while self.driver.held:
            self.driver.release()

    @precondition(lambda self: self.driver.held)
    @rule()
    def release_one(self):
        self.driver.release()

    @rule(error=WRITE_ERRORS)
    def refuse(self, error):
        """Let the next append fail."""
        self.driver.refused = error

    @rule(kept=st.integers(0, 5))
    def restart(self, kept):
        """Restart the coordinator; of the unreplicated writes the first `kept` stay in the log."""
        self.end(kept)
        self.driver.is_holding = False
        self.driver.refused = None
        self.driver.load()
        self.group = None

    # -- invariants ----------------------------------------------------------------------------------------------

    @property
    def live(self):
        return self.driver.shard._state.groups.get("g")

    @invariant()
    def group_is_consistent(self):
        group = self.live
        if group is not self.group:
            self.group, self.generation_id = group, 0
        if group is None:
            return
        assert group.generation_id >= self.generation_id
        self.generation_id = group.generation_id
        assert (group.leader_id is None) == (not group.members)
        assert group.leader_id is None or group.leader_id in group.members
        assert group.joins_parked == sum(member.parked_join is not None for member in group.members.values())
        assert {member.group_instance_id: key for key, member in group.members.items() if member.is_static} == (
            group.static_members
        )
        assert not group.pending_members.keys() & group.members.keys()
        assert group.pending_sync.keys() <= group.members.keys()
        if group.state is EMPTY:
            assert not group.members
        if group.state in (STABLE, COMPLETING_REBALANCE):
            assert group.members
            assert all(group.protocol_name in member.protocol_names() for member in group.members.values())
            if not self.driver.held:
                assert all(member.parked_join is None for member in group.members.values())
        if group.state in (STABLE, PREPARING_REBALANCE):
            assert all(member.parked_sync is None for member in group.members.values())

    @invariant()
    def each_parked_request_is_kept_once(self):
        group = self.live
        results = [held.result for held in self.driver.held if held.result is not None]
        held = {
            completion.token
            for result in results
            for completion in result.completions
            if hasattr(completion, "token")
        } | {reply.token for result in results for reply in result.replies}
        parked = set()
        for member in group.members.values() if group else ():
            for request in (member.parked_join, member.parked_sync):
                if request is not None:
                    assert request.token not in parked
                    parked.add(request.token)
        assert self.driver.parked == parked | held

    @invariant()
    def every_member_has_a_deadline(self):
        group = self.live
        for member_id in (*group.members, *group.pending_members) if group else ():
            member = group.members.get(member_id)
            needs_tombstone = member is not None and member.is_held_by_parked_request
            assert needs_tombstone or ("session", "g", member_id) in self.driver.shard._state.timers
        if group is not None and group.state is PREPARING_REBALANCE:
            assert ("join", "g") in self.driver.shard._state.timers

    def loaded(self, end_offset=None):
        """A shard that has loaded the log up to an offset; the one of an earlier call if nothing has changed."""
        driver = self.driver
        given = driver.log[:end_offset], dict(driver.producers), driver.now_ms
        for known, shard in self.loads:
            if known == given:
                return shard
        shard = GroupShard(driver.settings, str, int)
        driver.replay_into(shard, end_offset)
        run_at_once(shard.finish_loading(driver.now_ms))
        self.loads = [(given, shard), *self.loads[:1]]
        return shard

    @invariant()
    def live_state_is_that_of_the_log(self):
        """The live state, with unreplicated records, is the one that a coordinator loads from the whole log."""
        if not hasattr(self, "driver"):
            return
        live, loaded = self.driver.shard._state, self.loaded()._state
        assert sorted(live.offsets.visible.items()) == sorted(loaded.offsets.visible.items())
        assert self.pending(live.offsets) == self.pending(loaded.offsets)
        in_log = self.log_contents
        in_log.read(self.driver)
        for state in (live, loaded):
            assert {group_id: group.stored for group_id, group in state.groups.items()} == in_log.groups
            visible = {(group, topic, index): found for group, topic, index, found in state.offsets.visible.items()}
            assert visible == in_log.visible
            assert self.pending(state.offsets) == {
                producer_id: sorted((*partition, held) for partition, held in table.items())
                for producer_id, table in in_log.pending.items()
                if table
            }
        if (group := live.groups.get("g")) is None:
            return
        stored = loaded.groups["g"]
        # Static members may exceed the limit, as in Apache Kafka; a coordinator that loads such a group rebalances it.
        if group.state in (STABLE, EMPTY) and len(group.members) <= self.driver.settings.max_group_size:
            assert self.generation(stored) == self.generation(group)
        assert stored.generation_id <= group.generation_id

    @staticmethod
    def generation(group):
        members = {item.member_id: (item.group_instance_id, item.assignment) for item in group.members.values()}
        return group.state, group.generation_id, group.protocol_type, group.protocol_name, group.leader_id, members

    @invariant()
    def clients_get_the_replicated_state(self):
        if not hasattr(self, "driver"):
            return
        loaded = self.loaded(self.driver.high_watermark)
        assert self.fetched(self.driver.shard) == self.fetched(loaded)
        assert self.fetched(self.driver.shard, fetches_all=True) == self.fetched(loaded, fetches_all=True)
        expected = self.fetched(loaded, require_stable=True)
        for partition, found in self.fetched(self.driver.shard, require_stable=True).items():
            is_unstable = found == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
            assert found == expected[partition] or (is_unstable and self.driver.held)

    @staticmethod
    def fetched(shard, *, require_stable=False, fetches_all=False):
        """Partition -> offset and error."""
        topics = None if fetches_all else [OffsetFetchRequestTopics(name="t", partition_indexes=list(PARTITIONS))]
        request = OffsetFetchRequestGroup(group_id="g", topics=topics)
        response = shard.fetch_offsets(request, CONTEXT, require_stable=require_stable)
        return {
            item.partition_index: (item.committed_offset, item.error_code)
            for topic in response.topics
            for item in topic.partitions
        }

    def end(self, kept=0):
        """Resign: no request remains parked, and the offsets that clients got are in the log."""
        driver = self.driver
        offsets = self.fetched(driver.shard)
        ends = [*[held.base_offset for held in driver.held][1:], len(driver.log)]
        end_offset = ends[min(kept, len(ends)) - 1] if kept and driver.held else driver.high_watermark
        high_watermark = driver.high_watermark
        driver.resign()
        assert not driver.parked
        assert self.fetched(self.loaded(high_watermark)) == offsets
        driver.truncate(end_offset)

    @staticmethod
    def pending(store):
        """Pending offsets by producer id, without empty tables."""
        held = {producer_id: sorted(table.items()) for producer_id, table in store.pending.items()}
        return {producer_id: items for producer_id, items in held.items() if items}

    def teardown(self):
        if hasattr(self, "driver"):
            self.end()


GroupMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestGroup = GroupMachine.TestCase


# Hypothesis prefers short sequences of rules. These walks are long, and hold most of their writes.

SEEDS = 60
STEPS = 120
WEIGHTS = {
    "join": 6,
    "settle": 4,
    "crash": 1,
    "return_without_id": 2,
    "return_during_long_write": 1,
    "delete_while_joining": 1,
    "sync": 4,
    "heartbeat": 2,
    "leave": 2,
    "commit": 5,
    "commit_in_transaction": 4,
    "end_transaction": 3,
    "delete": 1,
    "delete_offset": 2,
    "delete_topic": 1,
    "wait": 4,
    "hold": 4,
    "release": 1,
    "release_one": 4,
    "time_out": 2,
    "refuse": 1,
    "restart": 1,
}


def step(machine, rng, name):
    number, partition = rng.randrange(5), rng.choice(PARTITIONS)
    protocols = rng.choice([("range",), ("range", "sticky"), ("sticky", "range")])
    match name:
        case "join":
            machine.join(number, protocols, rng.choice((0, 3, 8, 9)), rng.choice((0, 20_000)))
        case "settle":
            machine.settle(set(rng.sample(range(5), rng.randint(1, 5))), protocols, rng.random() < 0.8)
        case "crash" | "sync" | "heartbeat" | "leave" | "delete_while_joining":
            getattr(machine, name)(number)
        case "return_without_id":
            machine.return_without_id(number, protocols)
        case "return_during_long_write":
            machine.return_during_long_write(rng.choice((3, 4)), rng.choice((0, 9_999, 20_000)))
        case "commit":
            machine.commit(number, partition, rng.random() < 0.5)
        case "commit_in_transaction":
            machine.commit_in_transaction(number, partition, rng.random() < 0.5, rng.choice((7, 8)))
        case "end_transaction":
            machine.end_transaction(rng.choice((7, 8)), rng.random() < 0.5)
        case "delete_offset":
            machine.delete_offset(partition)
        case "wait":
            machine.wait(rng.choice((0, 1, 3_000, 9_999, 20_000, 60_000)))
        case "release" | "release_one" if not machine.driver.held:
            pass
        case "time_out":
            machine.driver.time_out(keeps_completions=False)
        case "refuse":
            machine.refuse(rng.choice((ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.KAFKA_STORAGE_ERROR)))
        case "restart":
            machine.restart(rng.randrange(6))
        case _:
            getattr(machine, name)()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_long_walks(seed):
    walk(seed)


@pytest.mark.parametrize(
    ("part", "name"),
    [
        (Group, "replay"),
        (ShardState, "_remove_group"),
        (ShardState, "replay_offset"),
        (OffsetStore, "replay_end_of_transaction"),
    ],
)
def test_a_broken_replay_is_noticed(monkeypatch, part, name):
    monkeypatch.setattr(part, name, lambda *args, **how: None)
    with pytest.raises(AssertionError):
        for seed in range(SEEDS):
            walk(seed)


def walk(seed):
    rng = random.Random(seed)
    machine = GroupMachine()
    machine.begin(max_size=rng.choice((2, 100)), delay_ms=rng.choice((0, 3000)))
    for _ in range(STEPS):
        step(machine, rng, rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0])
        machine.group_is_consistent()
        machine.each_parked_request_is_kept_once()
        machine.every_member_has_a_deadline()
        machine.live_state_is_that_of_the_log()
        machine.clients_get_the_replicated_state()
    machine.end()
