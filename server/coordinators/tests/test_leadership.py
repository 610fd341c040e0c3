"""Coordinators whose partitions move between brokers: every request is answered, no state outlives the leadership.

The tests give a partition its roles with `Partition.apply`, and do not call the runtime until later, as a broker that
applies the roles of many partitions in steps.
"""

import pytest

from odradek.coordinator.coordinator_state import CoordinatorState
from odradek.coordinator.groups.records import OffsetCommitValue, offset_commit_record
from odradek.log.tests.support import truncate
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.end_txn import EndTxnRequest
from odradek.protocol.messages.init_producer_id import InitProducerIdRequest
from odradek.protocol.records import build_plain_batch
from odradek.replication.metadata.image import PartitionMetadata
from odradek.server.coordinators.tests.test_writes import OFFSETS, STATE, World, commit_code, fetched_offset

ME, OTHER = 1, 2
NOT_COORDINATOR = ErrorCode.NOT_COORDINATOR


class Member(World):
    """A broker that leads the internal partitions at times."""

    def give(self, leader, epoch, topic=OFFSETS):
        """Give a partition a role; the coordinators are not informed yet."""
        partition = self.partitions[topic]
        partition.apply(PartitionMetadata(leader, epoch, (ME, OTHER), (ME, OTHER)), partition.log)

    def inform(self):
        """Inform the coordinators of the partitions that this broker leads."""
        self.groups.lead_only([self.offsets] if self.offsets.is_leader else [])
        state = self.partitions[STATE]
        self.transactions.lead_only([state] if state.is_leader else [])
        for _ in range(3):
            self.clock.advance(0)

    def replicate(self, *records):
        """Append records of the other leader."""
        log = self.offsets.log
        batch = build_plain_batch(list(records), self.now_ms())
        self.give(ME, self.offsets.leader_epoch)
        self.offsets.append_as_leader(memoryview(batch), required_acks=1, now_ms=self.now_ms())
        self.offsets.update_follower(OTHER, log.log_end_offset, 0, self.now_ms())
        self.give(OTHER, self.offsets.leader_epoch)

    def init_transaction(self):
        request = InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=60_000)
        return self.collect(self.transact("init_producer_id", request))

    def end_transaction(self):
        request = EndTxnRequest(transactional_id="x", producer_id=7, producer_epoch=0, committed=True)
        return self.collect(self.transact("end_txn", request))

    def collect(self, outcome):
        answers = []
        if hasattr(outcome, "addCallback"):
            outcome.addCallback(answers.append)
        else:
            answers.append(outcome)
        return answers


@pytest.fixture
def member():
    return Member()


def code(answers):
    (answer,) = answers
    return ErrorCode(answer.error_code)


def offset_record(offset):
    return offset_commit_record("g", "t", 0, OffsetCommitValue(offset=offset))


def test_requests_get_not_coordinator_as_soon_as_the_partition_has_another_leader(member):
    member_id = member.join_alone(instance_id="i")
    member.commit(1)
    member.follow()
    member.give(OTHER, 6)
    assert commit_code(member.commit(2)) is NOT_COORDINATOR
    assert member.fetch_error() is NOT_COORDINATOR
    assert member.heartbeat(member_id, 1) == NOT_COORDINATOR
    assert code(member.join(instance_id="j")) is NOT_COORDINATOR
    assert code(member.sync(member_id)) is NOT_COORDINATOR
    assert code(member.leave(member_id)) is NOT_COORDINATOR
    assert member.offsets.log.log_end_offset == member.offsets.log.high_watermark


def test_transactional_requests_get_not_coordinator_as_soon_as_the_partition_has_another_leader(member):
    member.init()
    member.give(OTHER, 6, STATE)
    assert code(member.init_transaction()) is NOT_COORDINATOR
    assert code(member.end_transaction()) is NOT_COORDINATOR


def test_waiting_joins_and_syncs_get_not_coordinator(member):
    member.join(version=3, group_id="joining")
    first, second = member.join(instance_id="i"), member.join(instance_id="j")
    member.follow()
    member.wait(7_000)
    (one,), (two,) = first, second
    follower = two if two.leader != two.member_id else one
    syncing = member.sync(follower.member_id, instance_id="j" if follower is two else "i")
    # The first member of this group has to join again, and that of the next one waits for the initial delay.
    rejoining = member.join(version=3, group_id="joining")
    joining = member.join(version=3, group_id="new")
    waiting = (syncing, rejoining, joining)
    assert not any(waiting)
    member.give(OTHER, 6)
    assert [code(answers) for answers in waiting] == [NOT_COORDINATOR] * 3


def test_requests_whose_records_are_not_replicated_get_not_coordinator(member):
    (joined,) = [member.join_alone(instance_id="i")]
    syncing = member.sync(joined, instance_id="i")
    committing = member.commit(5, group="h")
    assert not syncing and not committing
    member.give(OTHER, 6)
    assert code(syncing) is NOT_COORDINATOR
    assert commit_code(committing) is NOT_COORDINATOR


def test_a_write_whose_error_cannot_be_handled_affects_no_other(member, caplog):
    def fail(error):
        raise RuntimeError("unexpected")

    before = member.commit(4, group="h")
    [context] = member.groups._contexts.values()
    member.groups.when_replicated(context, context.log_end_offset, fail)
    after = member.commit(5, group="h")
    member.give(OTHER, 6)
    assert [commit_code(answers) for answers in (before, after)] == [NOT_COORDINATOR] * 2
    assert "unexpected" in caplog.text


def test_a_transactional_write_that_is_not_replicated_gets_not_coordinator(member):
    waiting = member.init_transaction()
    assert not waiting
    member.give(OTHER, 6, STATE)
    assert code(waiting) is NOT_COORDINATOR


def test_a_broker_that_leads_again_loads_what_the_other_leader_wrote(member):
    member.commit(1)
    member.follow()
    member.give(OTHER, 6)
    member.replicate(offset_record(7))
    member.give(ME, 7)
    assert member.fetch_error() is NOT_COORDINATOR, "not loaded yet"
    assert commit_code(member.commit(2)) is NOT_COORDINATOR
    member.inform()
    assert member.fetch() == 7


def test_requests_wait_until_the_shard_is_loaded_or_get_load_in_progress(member):
    member.commit(1)
    member.follow()
    member.give(OTHER, 6)
    member.inform()
    member.give(ME, 7)
    member.groups.lead_only([member.offsets])
    assert code(member.join(instance_id="i")) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    fetching, committing = member.begin_fetch(), member.commit(2)
    assert (fetching, committing) == ([], [])
    member.clock.advance(0)
    member.clock.advance(0)
    assert fetched_offset(fetching) == member.fetch() == 1
    member.follow()
    assert commit_code(committing) is ErrorCode.NONE
    assert member.fetch() == 2


def test_a_new_leader_serves_no_offset_before_its_log_is_replicated(member):
    """A new leader's high watermark may be below a commit that the former leader acknowledged."""
    member_id = member.static_member()
    member.commit(1, "h")
    member.follow()
    member.commit(2, "h")
    member.give(OTHER, 6)
    member.give(ME, 7)
    member.inform()
    fetching = member.begin_fetch("h")
    for _ in range(3):
        member.clock.advance(1)
        assert fetching == []
        assert code(member.join(instance_id="i")) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    member.follow()
    member.clock.advance(0)
    assert fetched_offset(fetching) == member.fetch("h") == 2
    assert member.heartbeat(member_id, 1) == 0


def test_a_leadership_that_ends_before_the_loaded_records_are_replicated_ends_the_load(member):
    member.commit(1)
    member.follow()
    member.commit(2)
    member.give(OTHER, 6)
    member.give(ME, 7)
    member.inform()
    member.give(OTHER, 8)
    assert member.fetch_error() is NOT_COORDINATOR
    truncate(member.offsets.log, member.offsets.log.high_watermark, member.now_ms())
    member.give(ME, 9)
    member.inform()
    assert member.fetch() == 1


def test_a_leadership_that_ends_while_the_shard_loads_ends_the_load(member):
    member.commit(1)
    member.follow()
    member.give(OTHER, 6)
    member.give(ME, 7)
    member.groups.lead_only([member.offsets])
    shard = member.groups.shard(0)
    member.give(OTHER, 8)
    for _ in range(5):
        member.clock.advance(1)
    assert shard.coordinator_state is CoordinatorState.CLOSED
    assert member.fetch_error() is NOT_COORDINATOR
    member.give(ME, 9)
    member.inform()
    assert member.fetch() == 1


def test_a_log_that_is_truncated_while_its_shard_loads_is_loaded_again(member):
    member.commit(1)
    member.follow()
    member.commit(2)
    member.give(OTHER, 6)
    member.give(ME, 7)
    member.groups.lead_only([member.offsets])
    member.give(OTHER, 8)
    truncate(member.offsets.log, member.offsets.log.high_watermark, member.now_ms())
    member.give(ME, 9)
    member.inform()
    assert member.fetch() == 1


def test_an_epoch_of_the_same_leader_keeps_groups_and_waiting_requests(member):
    member_id = member.static_member()
    joining = member.join(version=3, group_id="joining")
    committing = member.commit(5, group="h")
    member.give(ME, 6)
    member.inform()
    assert member.heartbeat(member_id, 1) == 0
    assert not committing
    member.follow()
    assert commit_code(committing) is ErrorCode.NONE
    assert not joining
    assert member.fetch("h") == 5


def test_the_next_epoch_of_the_same_leader_keeps_its_transactions(member):
    """A follower has failed. A request that is repeated after NOT_COORDINATOR could fence its own producer."""
    waiting = member.init_transaction()
    for epoch in (6, 7):
        member.give(ME, epoch, STATE)
        member.inform()
    [context] = member.transactions._contexts.values()
    assert context.shard.coordinator_epoch == 5
    member.follow()
    assert code(waiting) is ErrorCode.NONE


def test_an_epoch_after_that_of_another_leader_begins_the_transactions_again(member):
    """A coordinator in between may have sent markers: with the old coordinator epoch later ones would be refused."""
    waiting = member.init_transaction()
    member.give(ME, 7, STATE)
    member.inform()
    assert code(waiting) is NOT_COORDINATOR
    member.follow()
    [context] = member.transactions._contexts.values()
    assert context.shard.coordinator_epoch == 7
    waiting = member.init_transaction()
    member.follow()
    assert code(waiting) is ErrorCode.NONE


def test_a_replica_that_moves_to_another_broker_ends_its_coordinators(member):
    committing = member.commit(5)
    member.offsets.retire()
    assert commit_code(committing) is NOT_COORDINATOR
    member.inform()
    assert commit_code(member.commit(6)) is NOT_COORDINATOR


def test_a_partition_that_is_created_again_begins_without_state(member):
    member.commit(1)
    member.follow()
    member.offsets.retire()
    member.partitions[OFFSETS] = member.add(OFFSETS)
    member.inform()
    assert member.fetch() == -1


def test_many_changes_of_the_leader_leave_no_timer_and_no_watcher(member):
    member.give(OTHER, 6, STATE)
    member.join(version=3)
    for epoch in range(6, 26):
        member.give(OTHER if epoch % 2 else ME, epoch)
        if epoch % 3:
            member.inform()
    member.give(OTHER, 30)
    member.inform()
    assert not member.offsets.watchers
    for _ in range(5):
        member.clock.advance(1)
    assert not [call for call in member.clock.getDelayedCalls() if "_on_alarm" in repr(call)]
