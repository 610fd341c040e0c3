"""The leader's side of replication: high watermark, ISR, AlterPartition. Sections are those of zookeeper-mode.md."""

import pytest

from odradek.log.tests.support import truncate
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.replicas.isr import IsrChange, IsrPhase
from odradek.replication.replicas.isr_changes import MAX_CHANGES_PER_REQUEST, shrink_isrs
from odradek.replication.replicas.leader_state import Follower
from odradek.replication.replicas.tests.leading import LAG_MS, Leader, open_log

E = ErrorCode


class Waiting:
    def __init__(self, partition):
        self.woken = 0
        partition.watchers[self] = None

    def wake(self):
        self.woken += 1


def fails(code, call, *arguments):
    with pytest.raises(KafkaError) as error:
        call(*arguments)
    assert error.value.code == code


# Section 10: high watermark


def test_the_high_watermark_is_the_smallest_log_end_of_leader_and_isr():
    leader = Leader()
    leader.append(3)
    leader.fetch(2, 3)
    assert leader.high_watermark == 0
    leader.fetch(3, 1)
    assert leader.high_watermark == 1
    leader.fetch(3, 3)
    assert leader.high_watermark == 3


def test_the_high_watermark_never_falls():
    leader = Leader((1, 2))
    leader.append(3)
    leader.fetch(2, 3)
    leader.fetch(2, 1)
    assert leader.high_watermark == 3


def test_a_live_replica_that_was_caught_up_lately_holds_the_high_watermark_back():
    leader = Leader((1, 2, 3), (1, 2))
    leader.image.remove_broker(3)
    leader.append()
    leader.fetch(3, 1)
    leader.append(4)
    leader.fetch(2, 5)
    assert leader.high_watermark == 5, "broker 3 is not alive"
    leader = Leader((1, 2, 3), (1, 2))
    leader.append()
    leader.image.remove_broker(3)
    leader.fetch(3, 1)
    leader.image.put_broker(leader.image.brokers[2]._replace(broker_id=3))
    leader.append(4)
    leader.fetch(2, 5)
    assert leader.high_watermark == 1
    leader.now_ms += LAG_MS + 1
    leader.fetch(2, 5)
    assert leader.high_watermark == 5, "broker 3 was caught up too long ago"


def test_a_replica_that_stops_holds_the_high_watermark_back_for_a_limited_time_without_other_events():
    """A coordinator that loads appends nothing: it would wait for the high watermark for ever."""
    leader = Leader((1, 2, 3), (1, 2))
    leader.append()
    leader.image.remove_broker(3)
    leader.fetch(3, 1)
    leader.image.put_broker(leader.image.brokers[2]._replace(broker_id=3))
    leader.append(4)
    leader.fetch(2, 5)
    waiting = Waiting(leader.partition)
    for _ in range(2):
        leader.now_ms += LAG_MS // 2
        leader.partition.shrink_isr()
        assert (leader.high_watermark, waiting.woken) == (1, 0)
    leader.now_ms += 1
    leader.partition.shrink_isr()
    assert (leader.high_watermark, waiting.woken) == (5, 1)
    assert leader.controller.requests == []


def test_the_high_watermark_is_frozen_below_min_isr():
    """Acks 1 appends, and consumers do not see the records."""
    leader = Leader((1, 2, 3), (1,), min_insync_replicas="2")
    leader.append()
    assert (leader.log_end, leader.high_watermark) == (1, 0)


def test_the_effective_min_isr_is_at_most_the_number_of_replicas():
    leader = Leader((1, 2), min_insync_replicas="3")
    leader.append(acks=-1)
    leader.fetch(2, 1)
    assert leader.high_watermark == 1


def test_with_flush_before_acks_the_leader_counts_up_to_its_sync():
    leader = Leader((1, 2), flush_before_acks="true")
    leader.append(2)
    leader.fetch(2, 2)
    assert leader.high_watermark == 0
    leader.partition.log.flush(0)
    leader.partition.synced()
    assert leader.high_watermark == 2


# Section 10: expansion


def joining(**changes):
    """Return a leader whose follower 3 is not in the ISR."""
    return Leader(isr=(1, 2), **changes)


def test_a_follower_joins_when_it_reaches_the_high_watermark():
    leader = joining()
    leader.append(4)
    leader.fetch(2, 3)
    leader.fetch(3, 2)
    assert leader.controller.requests == []
    leader.fetch(3, 3)
    [request] = leader.controller.requests
    [topic] = request.topics
    [data] = topic.partitions
    assert (request.broker_id, request.broker_epoch, topic.topic_id) == (1, 77, b"i" * 16)
    assert (data.partition_index, data.leader_epoch, data.partition_epoch) == (0, 5, 10)
    assert data.new_isr == [1, 2, 3]
    assert [(one.broker_id, one.broker_epoch) for one in data.new_isr_with_epochs] == [(1, -1), (2, -1), (3, -1)]
    assert data.leader_recovery_state == 0


def test_a_proposal_has_the_broker_epochs_of_the_fetches_before_it():
    """KIP-903: the request is repeated for any time, in which a member may restart and lose records."""
    leader = joining()
    leader.fetch(2, 0, epoch=8)
    leader.fetch(3, 0, epoch=9)
    leader.fetch(3, 0, epoch=19)
    leader.controller.fail()
    leader.controller.end_delay()
    for request in leader.controller.requests:
        [data] = request.topics[0].partitions
        assert [(one.broker_id, one.broker_epoch) for one in data.new_isr_with_epochs] == [(1, -1), (2, 8), (3, 9)]
    assert len(leader.controller.requests) == 2


def test_a_member_that_lost_committed_records_leaves_the_isr():
    """It joined while it restarted. A controller of Kafka does not notice that, and would elect it."""
    leader = Leader((1, 2, 3))
    leader.append(4)
    leader.fetch(2, 4)
    leader.fetch(3, 4)
    assert leader.high_watermark == 4
    leader.fetch(3, 3)
    [request] = leader.controller.requests
    assert request.topics[0].partitions[0].new_isr == [1, 2]
    leader.fetch(3, 2)
    assert len(leader.controller.requests) == 1


def test_a_member_that_lost_committed_records_before_it_joined_leaves_the_isr_afterwards():
    leader = joining()
    leader.append(4)
    leader.fetch(2, 4)
    leader.fetch(3, 4)
    leader.fetch(2, 4)
    assert leader.high_watermark == 4
    leader.fetch(3, 2)
    leader.controller.accept()
    leader.fetch(3, 3)
    assert [request.topics[0].partitions[0].new_isr for request in leader.controller.requests] == [[1, 2, 3], [1, 2]]


def test_a_follower_below_the_start_of_the_leader_epoch_does_not_join():
    log = open_log()
    old = Leader((1, 2), log=log)
    old.append(4)
    leader = joining(epoch=6, log=log)
    leader.fetch(3, 3)
    assert leader.controller.requests == []
    leader.fetch(3, 4)
    assert len(leader.controller.requests) == 1


def test_a_follower_that_is_not_alive_does_not_join():
    leader = joining()
    leader.image.remove_broker(3)
    leader.fetch(3, 0)
    assert leader.controller.requests == []


def test_an_expansion_counts_at_once():
    """Section 10: maximal ISR. The new member holds the high watermark back before the controller confirms it."""
    leader = joining()
    leader.fetch(3, 0)
    assert (leader.partition.isr, leader.partition.maximal_isr) == ((1, 2), (1, 2, 3))
    leader.append()
    leader.fetch(2, 1, after_ms=10 * LAG_MS)
    assert leader.high_watermark == 0
    leader.controller.accept()
    assert (leader.partition.isr, leader.partition.partition_epoch) == ((1, 2, 3), 11)
    leader.fetch(3, 1)
    assert leader.high_watermark == 1


def test_while_a_change_is_pending_there_is_no_other():
    leader = Leader((1, 2, 3, 4), (1, 2))
    leader.fetch(3, 0)
    leader.fetch(4, 0)
    leader.append()
    leader.now_ms += 2 * LAG_MS
    leader.partition.shrink_isr()
    assert len(leader.controller.requests) == 1
    leader.controller.accept()
    leader.fetch(4, 1)
    assert [one.broker_id for one in leader.controller.requests[-1].topics[0].partitions[0].new_isr_with_epochs] == [
        1, 2, 3, 4,
    ]  # fmt: skip


# Section 10: shrink


def lagging():
    """Return a leader whose follower 3 has stopped to fetch, and a time at which it is out of sync."""
    leader = Leader()
    leader.append()
    leader.fetch(2, 1)
    leader.fetch(3, 1)
    leader.append()
    leader.now_ms += LAG_MS
    leader.fetch(2, 2)
    return leader


def test_a_follower_leaves_that_was_not_caught_up_for_the_lag_time():
    leader = lagging()
    leader.partition.shrink_isr()
    assert leader.controller.requests == []
    leader.now_ms += 1
    for _ in shrink_isrs([leader.partition]):
        pass
    assert leader.controller.requests[0].topics[0].partitions[0].new_isr == [1, 2]
    assert (leader.partition.isr, leader.high_watermark) == ((1, 2, 3), 1), "a shrink counts after its confirmation"
    waiting = Waiting(leader.partition)
    leader.controller.accept()
    assert (leader.partition.isr, leader.high_watermark, waiting.woken) == ((1, 2), 2, 1)


def test_a_follower_with_the_whole_log_stays():
    leader = Leader((1, 2))
    leader.append()
    leader.fetch(2, 1)
    leader.now_ms += 10 * LAG_MS
    leader.partition.shrink_isr()
    assert leader.controller.requests == []


def test_members_have_the_lag_time_after_an_election():
    leader = Leader((1, 2))
    leader.append()
    leader.now_ms = LAG_MS
    leader.partition.shrink_isr()
    assert leader.controller.requests == []
    leader.now_ms += 1
    leader.partition.shrink_isr()
    assert len(leader.controller.requests) == 1


def test_a_member_without_a_replica_leaves_at_once():
    leader = Leader((1, 2), (1, 2, 9))
    leader.partition.shrink_isr()
    assert leader.controller.requests[0].topics[0].partitions[0].new_isr == [1, 2]


def test_caught_up_at_the_time_of_the_previous_fetch():
    """Section 10: LEO now, or LEO at the previous fetch, then that time."""
    follower = Follower()
    follower.record_fetch(0, 0, 5, 100)
    assert follower.caught_up_ms < 0
    follower.record_fetch(5, 0, 9, 200)
    assert follower.caught_up_ms == 100
    follower.record_fetch(8, 0, 12, 300)
    assert follower.caught_up_ms == 100
    follower.record_fetch(12, 0, 12, 400)
    assert follower.caught_up_ms == 400


# Section 10: acks


def test_acks_all_counts_the_committed_isr_before_the_append_and_the_replicas_that_were_in_sync_after_it():
    leader = joining(min_insync_replicas="3")
    leader.fetch(3, 0)
    assert leader.partition.maximal_isr == (1, 2, 3)
    with pytest.raises(KafkaError, match="in-sync replicas: 2") as error:
        leader.append(acks=-1)
    assert (error.value.code, leader.log_end) == (E.NOT_ENOUGH_REPLICAS, 0)
    leader.controller.accept()
    info = leader.append(acks=-1)
    leader.fetch(2, 1)
    leader.fetch(3, 1)
    assert leader.partition.has_reached(info.last_offset + 1)
    leader.apply(isr=(1, 2), partition_epoch=12)
    assert leader.partition.has_reached(1), "the record has been replicated to three replicas"
    with pytest.raises(KafkaError, match="in-sync replicas: 2"):
        leader.append(acks=-1)


def test_lost_leadership_ends_the_wait_for_replicas():
    leader = Leader()
    leader.append(acks=-1)
    waiting = Waiting(leader.partition)
    leader.apply(leader=2, leader_epoch=6)
    assert waiting.woken == 1
    fails(E.NOT_LEADER_OR_FOLLOWER, leader.partition.has_reached, 1)


# Section 7: errors of AlterPartition


@pytest.mark.parametrize("code", [E.INELIGIBLE_REPLICA, E.OPERATION_NOT_ATTEMPTED])
def test_a_change_that_was_not_made_is_reverted(code):
    leader = joining()
    leader.fetch(3, 0)
    leader.controller.refuse(code)
    assert leader.partition.maximal_isr == (1, 2)
    assert (len(leader.queue), leader.controller.delays) == (0, [])
    leader.fetch(3, 0)
    assert len(leader.controller.requests) == 2, "the next fetch proposes it again"


@pytest.mark.parametrize(
    "code",
    [
        E.UNKNOWN_TOPIC_OR_PARTITION, E.UNKNOWN_TOPIC_ID, E.FENCED_LEADER_EPOCH, E.INVALID_UPDATE_VERSION,
        E.INVALID_REQUEST, E.NEW_LEADER_ELECTED,
    ],
)  # fmt: skip
def test_after_an_error_of_unknown_effect_the_change_stays_pending_until_metadata_arrives(code):
    leader = joining()
    leader.fetch(3, 0)
    leader.controller.refuse(code)
    leader.fetch(3, 0)
    assert (len(leader.queue), len(leader.controller.requests)) == (0, 1)
    assert leader.partition.maximal_isr == (1, 2, 3)
    leader.apply(leader_epoch=6, partition_epoch=11)
    assert leader.partition.maximal_isr == (1, 2)
    leader.fetch(3, 0)
    assert len(leader.controller.requests) == 2


@pytest.mark.parametrize("code", [E.NOT_CONTROLLER, E.UNKNOWN_SERVER_ERROR, 32_000])
def test_other_errors_are_retried(code):
    leader = joining()
    leader.fetch(3, 0)
    leader.controller.refuse(code)
    assert leader.controller.delays == [50]
    leader.controller.end_delay()
    assert leader.controller.requests[0] == leader.controller.requests[1]
    leader.controller.accept()
    assert leader.partition.isr == (1, 2, 3)


@pytest.mark.parametrize("code", [E.STALE_BROKER_EPOCH, E.NOT_CONTROLLER, E.CLUSTER_AUTHORIZATION_FAILED])
def test_an_error_of_the_request_is_retried_every_50_ms(code):
    leader = joining()
    leader.fetch(3, 0)
    for count in range(1, 4):
        leader.controller.answer(error_code=code)
        assert leader.controller.delays == [50] * count
        leader.controller.end_delay()
    assert leader.controller.is_waiting
    leader.controller.accept()
    assert leader.partition.isr == (1, 2, 3)


def test_a_repeated_failure_is_logged_once(caplog):
    leader = joining()
    leader.fetch(3, 0)
    for code in (E.STALE_BROKER_EPOCH, E.STALE_BROKER_EPOCH, E.STALE_BROKER_EPOCH, E.NOT_CONTROLLER):
        leader.controller.answer(error_code=code)
        leader.controller.end_delay()
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [text.rpartition(" ")[2] for text in warnings] == ["STALE_BROKER_EPOCH", "NOT_CONTROLLER"]


def test_changes_of_the_isr_are_logged(caplog):
    caplog.set_level("INFO")
    leader = joining()
    leader.fetch(3, 0)
    leader.apply(leader_epoch=6)
    leader.apply(leader_epoch=7)
    assert [record.getMessage() for record in caplog.records] == [
        "ISR partition=t-0 leader_epoch=5 old=[1,2] new=[1,2] (pending expand to [1,2,3]) reason=a follower is in sync",
        "ISR partition=t-0 leader_epoch=6 old=[1,2] (pending expand to [1,2,3]) new=[1,2] reason=new metadata",
    ]


def test_a_lost_request_is_retried():
    leader = joining()
    leader.fetch(3, 0)
    leader.controller.fail()
    assert leader.controller.delays == [50]
    leader.controller.end_delay()
    leader.controller.accept()
    assert leader.partition.isr == (1, 2, 3)


def test_a_change_without_a_row_in_the_response_is_retried():
    leader = joining()
    leader.fetch(3, 0)
    leader.controller.answer((b"x" * 16, 0, {}), (b"i" * 16, 1, {}))
    leader.controller.end_delay()
    assert len(leader.controller.requests) == 2


def test_success_may_return_the_state_that_was_there_already():
    """Section 7: equal state is success. The partition epoch stays."""
    leader = joining()
    leader.fetch(3, 0)
    fields = {"leader_id": 1, "leader_epoch": 5, "isr": [1, 2, 3], "partition_epoch": 10}
    leader.controller.answer((b"i" * 16, 0, fields))
    assert (leader.partition.isr, leader.partition.partition_epoch) == ((1, 2, 3), 10)
    assert leader.partition.maximal_isr == (1, 2, 3)


@pytest.mark.parametrize(("leader_epoch", "partition_epoch"), [(4, 11), (6, 11), (5, 9)])
def test_a_response_of_other_epochs_changes_nothing(leader_epoch, partition_epoch):
    leader = joining()
    leader.fetch(3, 0)
    fields = {"leader_epoch": leader_epoch, "isr": [1, 3], "partition_epoch": partition_epoch}
    leader.controller.answer((b"i" * 16, 0, fields))
    assert (leader.partition.isr, leader.partition.maximal_isr) == ((1, 2), (1, 2, 3))
    assert leader.partition.partition_epoch == 10


# Section 13, invariant 8: stale state changes nothing


def test_a_response_that_comes_after_a_new_leader_epoch_is_ignored():
    leader = joining()
    leader.fetch(3, 0)
    leader.apply(leader_epoch=6, partition_epoch=11, isr=(1,))
    leader.controller.accept()
    assert (leader.partition.isr, leader.partition.partition_epoch) == ((1,), 11)


def test_metadata_of_the_same_epochs_does_not_end_a_pending_change():
    """Invariant 7: the maximal ISR contains the ISR in the store, which the controller may have changed already."""
    leader = joining()
    leader.fetch(3, 0)
    leader.apply()
    assert leader.partition.maximal_isr == (1, 2, 3)
    leader.controller.accept()
    assert leader.partition.isr == (1, 2, 3)


def test_metadata_of_an_older_partition_epoch_does_not_set_the_isr_back():
    leader = joining()
    leader.fetch(3, 0)
    leader.controller.accept()
    leader.apply()
    assert (leader.partition.isr, leader.partition.partition_epoch) == ((1, 2, 3), 11)


def test_metadata_of_a_later_partition_epoch_ends_a_pending_change():
    leader = joining()
    leader.fetch(3, 0)
    leader.apply(partition_epoch=11, isr=(1, 3))
    assert leader.partition.isr == leader.partition.maximal_isr == (1, 3)
    leader.controller.refuse(E.INELIGIBLE_REPLICA)
    assert leader.partition.isr == leader.partition.maximal_isr == (1, 3)


def test_a_failed_log_directory_ends_a_pending_change():
    leader = joining()
    leader.fetch(3, 0)
    leader.partition.take_offline()
    leader.controller.accept()
    assert leader.partition.isr == (1, 2)


# The queue


def test_changes_that_are_submitted_meanwhile_share_the_next_request():
    leader = joining()
    leader.fetch(3, 0)
    others = [Other(index) for index in (1, 2)]
    for other in others:
        leader.queue.submit(other, CHANGE)
    assert len(leader.controller.requests) == 1
    leader.controller.accept()
    [topic] = leader.controller.requests[1].topics
    assert [data.partition_index for data in topic.partitions] == [1, 2]
    leader.controller.accept()
    assert [other.calls for other in others] == [["finish"], ["finish"]]
    assert len(leader.queue) == 0


def test_a_partition_that_fails_affects_no_other(caplog):
    class Broken(Other):
        def finish_isr_change(self, change, *state):
            raise RuntimeError("a defect")

    leader = joining()
    leader.fetch(3, 0)
    other = Other(2)
    leader.queue.submit(Broken(1), CHANGE)
    leader.queue.submit(other, CHANGE)
    leader.controller.accept()
    leader.controller.accept()
    assert (other.calls, len(leader.queue)) == (["finish"], 0)
    assert "please report it" in caplog.text


def test_a_request_has_a_limited_number_of_changes():
    leader = joining()
    leader.fetch(3, 0)
    for index in range(1, MAX_CHANGES_PER_REQUEST + 3):
        leader.queue.submit(Other(index), CHANGE)
    sizes = []
    while leader.controller.is_waiting:
        sizes.append(sum(len(topic.partitions) for topic in leader.controller.requests[-1].topics))
        leader.controller.accept()
    assert sizes == [1, MAX_CHANGES_PER_REQUEST, 2]


def test_a_second_change_of_a_partition_in_flight_is_reverted():
    leader = joining()
    leader.fetch(3, 0)
    other = Other(0)
    leader.queue.submit(other, CHANGE)
    assert other.calls == ["revert"]


def test_a_withdrawn_change_is_not_sent_again():
    leader = joining()
    leader.fetch(3, 0)
    leader.controller.fail()
    leader.apply(leader=2, leader_epoch=6)
    leader.controller.end_delay()
    assert (len(leader.controller.requests), len(leader.queue)) == (1, 0)


def test_a_stopped_queue_sends_nothing():
    leader = joining()
    leader.fetch(3, 0)
    leader.queue.stop()
    leader.controller.fail()
    leader.controller.end_delay()
    other = Other(1)
    leader.queue.submit(other, CHANGE)
    assert (len(leader.controller.requests), other.calls) == (1, ["revert"])


CHANGE = IsrChange((1, 2), 0, 0, (-1, -1))


class Other:
    """Another partition."""

    topic, topic_id = "t", b"i" * 16

    def __init__(self, index):
        self.index, self.calls = index, []

    def is_pending(self, change):
        return True

    def finish_isr_change(self, change, *state):
        self.calls.append("finish")

    def revert_isr_change(self, change):
        self.calls.append("revert")


# Followers


def test_a_broker_without_a_replica_is_refused():
    leader = Leader((1, 2))
    fails(E.UNKNOWN_LEADER_EPOCH, leader.fetch, 3, 0)
    fails(E.UNKNOWN_LEADER_EPOCH, leader.partition.check_follower, 3, 5)
    fails(E.NOT_LEADER_OR_FOLLOWER, leader.partition.check_follower, 3)
    fails(E.FENCED_LEADER_EPOCH, leader.partition.check_follower, 2, 4)
    leader.partition.check_follower(2, 5)


def test_a_fetch_of_an_older_broker_epoch_is_refused():
    """KIP-903: the broker may have lost records when it registered again."""
    leader = Leader((1, 2))
    leader.append(2)
    leader.fetch(2, 1, epoch=30)
    fails(E.NOT_LEADER_OR_FOLLOWER, lambda: leader.fetch(2, 2, epoch=29))
    assert leader.high_watermark == 1
    leader.fetch(2, 2, epoch=31)
    leader.image.put_broker(leader.image.brokers[2]._replace(epoch=32))
    fails(E.NOT_LEADER_OR_FOLLOWER, lambda: leader.fetch(2, 2, epoch=31))
    leader.fetch(2, 2)


def test_a_reelected_leader_keeps_the_progress_of_its_followers():
    leader = Leader((1, 2, 3))
    leader.append(2)
    leader.fetch(2, 2)
    leader.fetch(3, 1)
    leader.apply(leader_epoch=6, partition_epoch=11, isr=(1, 2))
    assert leader.high_watermark == 2, "broker 3 left the ISR and does not hold the high watermark back"
    assert leader.partition.followers[2].log_end_offset == 2


def test_a_leader_that_was_a_follower_begins_with_unknown_followers():
    leader = Leader((1, 2))
    leader.append(2)
    leader.fetch(2, 2)
    leader.apply(leader=2, leader_epoch=6, partition_epoch=11)
    leader.apply(leader=1, leader_epoch=7, partition_epoch=12)
    assert leader.partition.followers[2].log_end_offset == -1


def test_a_leader_that_missed_an_epoch_begins_with_unknown_followers():
    """Another broker may have led in that epoch, and follower 2 may have truncated its log to that leader's end."""
    leader = Leader((1, 2, 3))
    leader.append(10)
    leader.fetch(2, 10)
    leader.fetch(3, 8)
    leader.apply(leader_epoch=7, partition_epoch=12)
    leader.fetch(3, 10)
    assert leader.high_watermark == 8
    assert not leader.partition.has_reached(10, 5)
    leader.fetch(2, 8)
    leader.fetch(2, 10)
    assert leader.high_watermark == 10
    assert leader.partition.has_reached(10, 5), "the leader has not truncated its own records"


def test_the_low_watermark_is_that_of_the_live_replicas():
    """Kafka: DeleteRecords does not wait for brokers that are not alive."""
    leader = Leader((1, 2, 3))
    leader.append(2)
    leader.fetch(2, 2)
    leader.fetch(3, 2)
    waiting = Waiting(leader.partition)
    assert leader.partition.delete_records(2) == 0
    leader.fetch(2, 2, start=2)
    assert leader.partition.low_watermark == 0
    leader.fetch(3, 2, start=1)
    assert (leader.partition.low_watermark, waiting.woken) == (1, 2)
    leader.image.remove_broker(3)
    assert leader.partition.low_watermark == 2


def test_a_partition_with_one_replica_has_no_state_of_followers():
    leader = Leader((1,))
    assert dict(leader.partition.followers) == {}
    assert leader.partition._leader_state is None
    leader.partition.shrink_isr()
    leader.append(acks=-1)
    assert (leader.high_watermark, leader.controller.requests) == (1, [])


def test_phases_of_the_isr():
    leader = joining()
    phases = []

    def note():
        phases.append(leader.partition._leader_state.isr.phase)

    note()
    leader.fetch(3, 0)
    note()
    leader.controller.accept()
    leader.append()
    leader.now_ms += 2 * LAG_MS
    note()
    leader.partition.shrink_isr()
    note()
    assert phases == [IsrPhase.COMMITTED, IsrPhase.PENDING_EXPAND, IsrPhase.COMMITTED, IsrPhase.PENDING_SHRINK]


def test_an_append_of_an_earlier_leadership_is_not_acknowledged():
    """The record was truncated, and another one is at its offset; the wait for it began after both changes."""
    leader = Leader((1, 2))
    leader.append(3)
    leader.fetch(2, 3)
    epoch = leader.partition.leader_epoch
    leader.append(1)
    leader.apply(leader=2, leader_epoch=epoch + 1, partition_epoch=11)
    log = leader.partition.log
    assert log is not None
    truncate(log, 3, 0)
    leader.apply(leader=1, leader_epoch=epoch + 2, partition_epoch=12)
    leader.append(1)
    leader.fetch(2, 4)
    assert leader.high_watermark == 4
    with pytest.raises(KafkaError) as refused:
        leader.partition.has_reached(4, epoch)
    assert refused.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert leader.partition.has_reached(4, epoch + 2)


def test_an_append_that_was_replicated_before_the_leadership_was_lost_is_acknowledged():
    """The response may have waited for its turn. The batch after it was not replicated."""
    leader = Leader((1, 2))
    epoch = leader.partition.leader_epoch
    leader.append(1)
    leader.apply(leader=1, leader_epoch=epoch + 1, partition_epoch=11)
    leader.append(1)
    leader.append(1)
    leader.fetch(2, 2)
    leader.apply(leader=2, leader_epoch=epoch + 2, partition_epoch=12)
    for _ in range(2):
        assert leader.partition.has_reached(1, epoch)
        assert leader.partition.has_reached(2, epoch + 1)
        fails(E.NOT_LEADER_OR_FOLLOWER, leader.partition.has_reached, 3, epoch + 1)
        fails(E.NOT_LEADER_OR_FOLLOWER, leader.partition.has_reached, 1, epoch - 1)
        leader.apply(leader=1, leader_epoch=epoch + 3, partition_epoch=13)
    leader.partition.take_offline()
    assert leader.partition.has_reached(2, epoch + 1)
    fails(E.KAFKA_STORAGE_ERROR, leader.partition.has_reached, 3, epoch + 1)
    fails(E.KAFKA_STORAGE_ERROR, leader.partition.has_reached, 1)


def test_the_number_of_remembered_leaderships_is_limited():
    leader = Leader((1, 2))
    leader.append(1)
    leader.fetch(2, 1)
    first = leader.partition.leader_epoch
    for epoch in range(first + 1, first + 20):
        leader.apply(leader=1 + epoch % 2, leader_epoch=epoch, partition_epoch=10 + epoch)
    assert len(leader.partition._ended_leaderships) == 4
    fails(E.NOT_LEADER_OR_FOLLOWER, leader.partition.has_reached, 1, first)


def test_an_append_outlives_a_new_epoch_of_the_same_leader():
    leader = Leader((1, 2))
    epoch = leader.partition.leader_epoch
    leader.append(1)
    leader.apply(leader=1, leader_epoch=epoch + 1, partition_epoch=11)
    leader.fetch(2, 1)
    assert leader.partition.has_reached(1, epoch)
