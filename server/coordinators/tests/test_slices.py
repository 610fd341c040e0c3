"""Requests and deadlines of many groups or producers: handled in slices, with other requests between them."""

import pytest
from twisted.internet.defer import Deferred

from odradek.coordinator.coordinator_state import CoordinatorState
from odradek.coordinator.groups import topic_deletion
from odradek.coordinator.groups.records import group_metadata_tombstone
from odradek.coordinator.result import CoordinatorResult
from odradek.log.storage.filesystem import DiskFullError
from odradek.protocol import codec
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnRequestAddPartitionsToTxnTopic,
    AddPartitionsToTxnRequestAddPartitionsToTxnTransaction,
)
from odradek.protocol.messages.delete_groups import DeleteGroupsRequest
from odradek.protocol.messages.describe_groups import DescribeGroupsRequest
from odradek.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersRequestTopicRequest,
    DescribeProducersResponse,
)
from odradek.protocol.messages.list_groups import ListGroupsRequest
from odradek.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from odradek.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from odradek.replication.metadata.image import PartitionMetadata, TopicMetadata
from odradek.server.coordinators import runtime as coordinator_runtime
from odradek.server.coordinators.tests.test_writes import CHECK_MS, OFFSETS, OLD_ID, RETENTION_MS, SESSION_MS, World
from odradek.server.handlers.coordinators import (
    group_offsets,
    groups,
    producers,
    transaction_offsets,
    transactions,
)
from odradek.server.request import RequestContext
from odradek.server.work.slices import SMALL_REQUEST_STEPS

GROUPS = 50


class SlicedWorld(World):
    """A world in which each step of long work takes an iteration of its own."""

    def __init__(self):
        super().__init__(slice_s=0)

    def iterate(self):
        """Run one reactor iteration."""
        calls, self.clock.calls = self.clock.calls, []
        for call in calls:
            if call.getTime() <= self.clock.seconds():
                call.called = 1
                call.func(*call.args, **call.kw)
            else:
                self.clock.calls.append(call)
        self.clock._sortCalls()

    def iterate_until(self, is_over):
        for count in range(1_000):
            if is_over():
                return count
            self.iterate()
        raise AssertionError("the work does not end")

    def state(self, group="g"):
        answers = self.ask(groups.describe_groups, DescribeGroupsRequest(groups=[group]), 5)
        self.clock.advance(0)
        return answers[0].groups[0].group_state

    def commit_all(self):
        for number in range(GROUPS):
            self.commit(number, f"g{number}")
        self.follow()
        self.iterate_until(lambda: not self.groups._contexts[0].waiting)


@pytest.fixture
def world():
    return SlicedWorld()


NAMES = [f"g{number}" for number in range(GROUPS)]


def context(version):
    made = RequestContext("h", "PLAINTEXT")
    made.api_version = version
    return made


def committed(world):
    return sorted(world.groups.shard(0)._state.offsets.visible.groups, key=lambda name: int(name[1:]))


# -- DeleteGroups ------------------------------------------------------------------------------------------------------


def test_groups_are_deleted_in_slices_and_each_is_checked_in_its_slice(world):
    world.commit_all()
    answers = world.ask(groups.delete_groups, DeleteGroupsRequest(groups_names=[*NAMES, "none", *NAMES]), 2)
    before = world.offsets.log.log_end_offset
    world.iterate_until(lambda: world.offsets.log.log_end_offset > before)
    assert world.offsets.log.log_end_offset - before <= 64
    world.join(group_id="g49", version=3)
    for _ in range(50):
        world.iterate()
    assert not answers, "the tombstones are not replicated"
    world.follow()
    world.iterate()
    codes = {row.group_id: row.error_code for row in answers[0].results}
    assert len(codes) == GROUPS + 1
    assert codes.pop("none") == ErrorCode.GROUP_ID_NOT_FOUND
    assert codes.pop("g49") == ErrorCode.NON_EMPTY_GROUP
    assert set(codes.values()) == {0}
    assert committed(world) == ["g49"]


def test_groups_are_deleted_although_the_client_has_disconnected(world):
    world.commit_all()
    outcome = groups.delete_groups(world, context(2), DeleteGroupsRequest(groups_names=[*NAMES, "none"]))
    assert isinstance(outcome, Deferred)
    outcome.addErrback(lambda failure: None)
    outcome.cancel()
    for _ in range(50):
        world.iterate()
    world.follow()
    assert committed(world) == []


def test_groups_are_listed_and_described_in_slices(world):
    world.commit_all()
    listed = world.ask(groups.list_groups, ListGroupsRequest(), 5)
    described = world.ask(groups.describe_groups, DescribeGroupsRequest(groups=NAMES), 5)
    assert not described
    assert world.iterate_until(lambda: described and listed) >= GROUPS - 1
    assert sorted(group.group_id for group in listed[0].groups) == sorted(NAMES)
    assert [group.group_id for group in described[0].groups] == NAMES


def test_a_group_that_is_deleted_while_groups_are_listed_is_left_out(world, monkeypatch):
    world.commit_all()
    monkeypatch.setattr("odradek.coordinator.groups.admin.pieces", lambda items: iter([[group] for group in items]))
    listed = world.ask(groups.list_groups, ListGroupsRequest(), 5)
    world.delete_group("g49")
    world.iterate_until(lambda: world.follow() or listed)
    assert sorted(group.group_id for group in listed[0].groups) == sorted(set(NAMES) - {"g49"})


def test_a_listing_ends_where_its_shard_resigns(world, monkeypatch):
    world.commit_all()
    monkeypatch.setattr("odradek.coordinator.groups.admin.pieces", lambda items: iter([[group] for group in items]))
    listed = world.ask(groups.list_groups, ListGroupsRequest(), 5)
    world.groups.resign(0)
    world.iterate_until(lambda: listed)
    assert [group.group_id for group in listed[0].groups] == ["g0"]


# -- replicated records ------------------------------------------------------------------------------------------------


def commit_many(world):
    answers = [world.commit(number, "g") for number in range(GROUPS)]
    world.follow()
    assert all(answers[:SMALL_REQUEST_STEPS])
    assert not any(answers[SMALL_REQUEST_STEPS:])
    return answers


def commit_codes(answers):
    return [ErrorCode(answer.topics[0].partitions[0].error_code) for [answer] in answers]


def test_many_requests_whose_records_are_replicated_at_once_are_answered_in_slices_and_in_order(world):
    answers = commit_many(world)
    world.iterate()
    later = world.commit(GROUPS, "g")
    world.follow()
    counts = []

    def is_last_answered():
        counts.append(sum(map(bool, answers)))
        return later

    world.iterate_until(is_last_answered)
    assert counts == sorted(counts)
    assert len(set(counts)) > GROUPS // 2
    assert commit_codes([*answers, later]) == [ErrorCode.NONE] * (GROUPS + 1)
    assert world.stored("g") == GROUPS


def test_long_work_does_not_delay_the_answers_to_replicated_requests(world):
    def work():
        while True:
            yield

    for _ in range(10):
        world.slices.run(work())
    answers = commit_many(world)
    assert world.iterate_until(lambda: all(answers)) <= GROUPS


def test_a_leadership_that_ends_before_all_of_them_are_answered_rejects_the_others(world):
    answers = commit_many(world)
    world.groups.resign(0)
    world.iterate_until(lambda: all(answers))
    others = GROUPS - SMALL_REQUEST_STEPS
    assert commit_codes(answers) == [ErrorCode.NONE] * SMALL_REQUEST_STEPS + [ErrorCode.NOT_COORDINATOR] * others


# -- deadlines ---------------------------------------------------------------------------------------------------------


def test_a_heartbeat_that_arrived_during_a_long_iteration_keeps_the_member(world):
    member_id = world.join_alone()
    world.sync(member_id)
    world.follow()
    world.iterate()
    codes = []
    world.clock.callLater(SESSION_MS / 1000 + 1, lambda: codes.append(world.heartbeat(member_id, 1)))
    world.clock.rightNow += SESSION_MS / 1000 + 5
    world.iterate()
    world.clock.advance(0)
    assert codes == [ErrorCode.NONE]
    assert world.state() == "Stable"
    world.wait(SESSION_MS)
    assert world.state() != "Stable"


def test_a_failing_deadline_is_reported_and_others_take_effect(world, monkeypatch, caplog):
    member_id = world.join_alone()
    world.sync(member_id)
    world.follow()

    def fail(result, now_ms):
        raise RuntimeError("defect")

    world.groups.shard(0)._state.timers.schedule(("defect",), 1_000, fail)
    world.groups._set_alarm(world.groups._contexts[0])
    world.wait(2_000)
    assert "please report it" in caplog.text
    world.wait(SESSION_MS)
    assert world.state() == "Empty"


# -- large commits -----------------------------------------------------------------------------------------------------


LARGE = 2_000


def begin_large_commit(world, version=9):
    """Begin a large commit and run its first steps."""
    world.metadata.put_topic(TopicMetadata("t", OLD_ID, (PartitionMetadata(1, 0, (1,), (1,)),) * LARGE))
    items = [OffsetCommitRequestPartition(partition_index=index, committed_offset=index) for index in range(LARGE + 1)]
    topic = OffsetCommitRequestTopic(name="t", topic_id=OLD_ID, partitions=items)
    answers = world.ask(group_offsets.offset_commit, OffsetCommitRequest(group_id="g", topics=[topic]), version)
    world.iterate()
    assert not world.groups.shard(0).count_offsets("g"), "the commit is still being prepared"
    return answers


def finish(world, answers):
    """Complete a large commit. Return the error code of each partition."""
    for _ in range(LARGE // 100):
        world.iterate()
    world.follow()
    [answer] = answers
    [topic] = answer.topics
    return {row.partition_index: row.error_code for row in topic.partitions}


def test_a_large_commit_is_prepared_in_slices_and_written_at_once(world):
    answers = begin_large_commit(world)
    world.commit(5, "other")
    world.follow()
    assert world.stored("other") == 5
    errors = finish(world, answers)
    assert errors.pop(LARGE) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert list(errors.values()) == [ErrorCode.NONE] * LARGE
    assert world.groups.shard(0).count_offsets("g") == LARGE


def test_a_join_during_the_preparation_of_a_large_commit_refuses_the_commit(world):
    answers = begin_large_commit(world)
    world.join(version=3)
    world.follow()
    errors = finish(world, answers)
    assert set(errors.values()) == {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert world.groups.shard(0).count_offsets("g") == 0


def test_a_large_commit_stores_nothing_of_a_topic_deleted_during_its_preparation(world):
    answers = begin_large_commit(world, version=10)
    world.recreate_topic()
    errors = finish(world, answers)
    assert set(errors.values()) == {ErrorCode.UNKNOWN_TOPIC_ID}
    assert world.groups.shard(0).count_offsets("g") == 0


def test_a_large_commit_whose_coordinator_resigns_during_its_preparation_is_refused(world):
    answers = begin_large_commit(world)
    world.groups.resign(0)
    errors = finish(world, answers)
    assert set(errors.values()) == {ErrorCode.NOT_COORDINATOR, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


# -- records with long names -------------------------------------------------------------------------------------------


LONG_NAME = "L" * 1_300


def commit_partitions(world, group, count):
    partitions = (PartitionMetadata(1, 0, (1,), (1,)),) * count
    world.metadata.put_topic(TopicMetadata("t", OLD_ID, partitions))
    for start in range(0, count, 300):
        items = [
            OffsetCommitRequestPartition(partition_index=index, committed_offset=index)
            for index in range(start, min(start + 300, count))
        ]
        topic = OffsetCommitRequestTopic(name="t", partitions=items)
        answers = world.ask(group_offsets.offset_commit, OffsetCommitRequest(group_id=group, topics=[topic]), 9)
        world.follow()
        for _ in range(20):
            world.iterate()
        assert answers[0].topics[0].partitions[0].error_code == ErrorCode.NONE


@pytest.mark.parametrize("is_deleted", [True, False])
def test_the_tombstones_of_a_group_with_a_long_name_fit_into_their_batches(world, is_deleted):
    """1,000 tombstones exceed `max.message.bytes`; other groups of the same step must not be affected."""
    commit_partitions(world, "innocent", 5)
    commit_partitions(world, LONG_NAME, 900)
    shard = world.groups.shard(0)
    if is_deleted:
        world.recreate_topic()
        world.wait(3_000)
    else:
        world.wait(RETENTION_MS + CHECK_MS)
    world.follow()
    assert world.groups.shard(0) is shard, "the shard has not resigned"
    assert (shard.count_offsets("innocent"), shard.count_offsets(LONG_NAME)) == (0, 0)


# -- deletion of topics ------------------------------------------------------------------------------------------------


def test_a_deletion_in_progress_continues_after_the_shard_is_loaded_again(world, monkeypatch):
    """Another result, written in part, causes the load."""
    monkeypatch.setattr(topic_deletion, "OFFSETS_PER_STEP", 10)
    monkeypatch.setattr(coordinator_runtime, "_RECORDS_PER_BATCH", 1)
    world.commit_all()
    world.recreate_topic()
    assert [topic[:2] for topic in world.groups.shard(0).topics_being_deleted()] == [("t", OLD_ID)]
    append = world.offsets._leader_log.append_as_leader
    attempts = []

    def append_once(*args, **how):
        attempts.append(args)
        if len(attempts) > 1:
            raise DiskFullError("/d", "no room")
        return append(*args, **how)

    with monkeypatch.context() as patch:
        patch.setattr(world.offsets._leader_log, "append_as_leader", append_once)
        world.groups.run_on(0, lambda shard, token, now_ms: _two_records())
    assert world.groups.shard(0).coordinator_state is CoordinatorState.LOADING
    world.follow()
    world.iterate_until(lambda: world.groups.shard(0).coordinator_state is CoordinatorState.ACTIVE)
    world.iterate_until(lambda: not world.groups.shard(0).topics_being_deleted())
    world.follow()
    assert committed(world) == []


def _two_records():
    result = CoordinatorResult()
    result.is_atomic = False
    result.records += [group_metadata_tombstone("unknown")] * 2
    return result


@pytest.mark.parametrize("is_loaded_again", [True, False])
def test_a_late_deletion_keeps_the_successors_offset_without_a_topic_id(world, monkeypatch, is_loaded_again):
    """OffsetCommit 2 to 4 with a retention time: the version of the record has no field for the id."""

    def commit_without_id(offset, partition):
        item = OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)
        topic = OffsetCommitRequestTopic(name="t", partitions=[item])
        request = OffsetCommitRequest(group_id="g0", retention_time_ms=86_400_000, topics=[topic])
        answers = world.ask(group_offsets.offset_commit, request, 2)
        world.follow()
        world.clock.advance(0)
        assert answers[0].topics[0].partitions[0].error_code == ErrorCode.NONE

    def append(*args, **how):
        raise DiskFullError("/d", "no room")

    commit_without_id(5, 1)
    world.commit(5, "g1")
    world.follow()
    with monkeypatch.context() as patch:
        patch.setattr(world.offsets._leader_log, "append_as_leader", append)
        world.recreate_topic()
        world.clock.advance(0)
    commit_without_id(42, 0)
    if is_loaded_again:
        world.groups._reload(world.groups._contexts[0])
        for _ in range(20):
            world.clock.advance(0)
    world.wait(2_000)
    world.follow()
    offsets = world.groups.shard(0)._state.offsets.visible
    assert [(topic, partition) for _, topic, partition, _ in offsets.items()] == [("t", 0)]
    assert world.stored("g0") == 42


# -- DescribeProducers -------------------------------------------------------------------------------------------------


def test_producers_are_described_at_one_point_in_time_and_encoded_in_steps(world):
    state = world.offsets.log.producer_state
    for producer_id in range(2_000):
        state.add_data(producer_id, 1, 7, producer_id, producer_id, 50, is_transactional=True)
    topic = DescribeProducersRequestTopicRequest(name=OFFSETS, partition_indexes=[0, 0])
    answers = world.ask(producers.describe_producers, DescribeProducersRequest(topics=[topic]), 0)
    for producer_id in range(2_000):
        state.add_data(producer_id, 2, 8, producer_id, producer_id, 50, is_transactional=True)
    assert world.iterate_until(lambda: answers) >= 2
    out = bytearray()
    steps = sum(1 for _ in codec.step_encoder(DescribeProducersResponse, 0)(answers[0], out, []))
    assert steps > 10
    first, second = codec.decode(DescribeProducersResponse, 0, bytes(out)).topics[0].partitions
    assert first == second
    rows = first.active_producers
    assert [row.producer_id for row in rows] == list(range(2_000))
    assert {(row.producer_epoch, row.last_sequence, row.last_timestamp) for row in rows} == {(1, 7, 50)}
    assert [row.current_txn_start_offset for row in rows] == list(range(2_000))


# -- clients that have disconnected ------------------------------------------------------------------------------------


def test_a_transactional_commit_whose_client_disconnects_during_verification_leaves_nothing(world):
    world.clock.advance(0)
    world.init()
    item = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=5)
    request = TxnOffsetCommitRequest(
        transactional_id="x", group_id="g", producer_id=7, producer_epoch=0,
        topics=[TxnOffsetCommitRequestTopic(name="t", partitions=[item])],
    )  # fmt: skip
    outcome = transaction_offsets.txn_offset_commit(world, context(5), request)
    outcome.addErrback(lambda failure: None)
    outcome.cancel()
    world.follow()
    assert not world.groups.shard(0)._state.offsets.pending
    answers = world.commit_in_transaction(6)
    world.follow()
    assert answers[0].topics[0].partitions[0].error_code == 0
    world.end()
    world.clock.advance(0)
    world.follow()
    assert world.stored() == 6


def test_all_transactions_of_a_request_are_decided_although_its_client_has_disconnected(world):
    world.clock.advance(0)
    world.init()
    world.put_topic("u", OLD_ID)
    asked = [
        AddPartitionsToTxnRequestAddPartitionsToTxnTransaction(
            transactional_id=transactional_id, producer_id=7, producer_epoch=0,
            topics=[AddPartitionsToTxnRequestAddPartitionsToTxnTopic(name="u", partitions=[0])],
        )
        for transactional_id in ("none", "x")
    ]  # fmt: skip
    request = AddPartitionsToTxnRequest(transactions=asked)
    outcome = transactions.add_partitions_to_txn(world, context(5), request)
    outcome.addErrback(lambda failure: None)
    outcome.cancel()
    world.clock.advance(0)
    world.follow()
    [state] = world.transactions.shard(0).describe(["x"])
    assert state.transaction_state == "Ongoing"
    assert [topic.topic for topic in state.topics] == ["u"]


# -- resignation -------------------------------------------------------------------------------------------------------


def test_a_resignation_rejects_the_requests_of_many_groups_in_slices(world):
    joining = [world.join(version=3, group_id=name) for name in NAMES]
    world.follow()
    committing = [world.commit(1, name) for name in ("x", "y")]
    world.groups.resign(0)
    assert sum(map(bool, joining)) <= 1
    assert world.commit(2, "x")[0].topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR
    world.iterate_until(lambda: all(joining + committing))
    assert {answers[0].error_code for answers in joining} == {ErrorCode.NOT_COORDINATOR}
    for (answer,) in committing:
        assert answer.topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR


def test_a_resignation_rejects_the_requests_of_many_members_in_slices(world):
    joining = [world.join(version=3) for _ in NAMES]
    world.follow()
    world.groups.resign(0)
    assert sum(map(bool, joining)) < GROUPS
    world.iterate_until(lambda: all(joining))
    assert {answers[0].error_code for answers in joining} == {ErrorCode.NOT_COORDINATOR}


def test_a_broker_that_leads_again_during_its_resignation_rejects_the_former_requests(world):
    joining = [world.join(version=3, group_id=name) for name in NAMES]
    world.follow()
    committing = world.commit(1, "x")
    world.groups.resign(0)
    world.groups.lead(world.offsets)
    world.follow()
    shard = world.groups.shard(0)
    world.iterate_until(lambda: shard.coordinator_state is CoordinatorState.ACTIVE and all([*joining, committing]))
    assert {answers[0].error_code for answers in joining} == {ErrorCode.NOT_COORDINATOR}
    assert committing[0].topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR
    assert world.stored("x") == 1
    assert set(shard._state.groups) == {*NAMES, "x"}


def test_a_write_whose_timeout_expires_during_the_resignation_is_answered_once(world):
    world.join_alone(instance_id="i")
    member_id = world.groups.shard(0)._state.groups["g"].static_members["i"]
    syncing = world.sync(member_id, instance_id="i")
    others = [world.join(version=3, group_id=name) for name in NAMES]
    end_offset = world.offsets.log.log_end_offset
    world.groups.resign(0)
    world.clock.rightNow += world.groups._write_timeout_ms / 1000
    world.iterate_until(lambda: all([syncing, *others]))
    assert [answer.error_code for answer in syncing] == [ErrorCode.NOT_COORDINATOR]
    assert world.offsets.log.log_end_offset == end_offset, "a shard that has resigned writes nothing"
