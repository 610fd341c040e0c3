"""Leaders that may have been replaced: no follower in sync has fetched lately."""

from odradek.protocol.errors import ErrorCode as E
from odradek.protocol.records import build_batch
from odradek.replication.replicas.leader_state import CONFIRMED_WITHIN_MS, DOUBTED_WITHIN_MS, PROVED_BY_FETCH_WAITS
from odradek.replication.replicas.tests.leading import Leader
from odradek.replication.replicas.tests.test_leader import fails


def test_a_gap_is_an_error_only_of_a_leader_whose_followers_fetch():
    """A leader that was replaced lacks the batches of the next one: its producer would write them a second time."""
    leader = Leader((1, 2, 3))

    def send(sequence):
        batch = build_batch([(0, b"k", b"v", ())], producer_id=7, producer_epoch=0, base_sequence=sequence)
        leader.partition.append_as_leader(memoryview(batch), required_acks=-1, now_ms=0)

    send(0)
    fails(E.NOT_LEADER_OR_FOLLOWER, send, 5)
    leader.fetch(2, 1)
    fails(E.OUT_OF_ORDER_SEQUENCE_NUMBER, send, 5)
    leader.now_ms += CONFIRMED_WITHIN_MS
    fails(E.OUT_OF_ORDER_SEQUENCE_NUMBER, send, 5)
    leader.now_ms += 1
    fails(E.NOT_LEADER_OR_FOLLOWER, send, 5)
    leader.apply(isr=(1,), partition_epoch=11)
    fails(E.OUT_OF_ORDER_SEQUENCE_NUMBER, send, 5)
    send(1)
    assert leader.log_end == 2


def test_a_leader_that_may_be_replaced_moves_no_consumer():
    """A consumer that has read from the next leader, and has forgotten its epoch, would otherwise be reset."""
    leader = Leader((1, 2, 3))
    leader.append(3)
    partition, epoch = leader.partition, leader.partition.leader_epoch

    def read(offset):
        # Followers serve consumers as well, since version 11 of Fetch.
        return partition.read(offset, 1000, leader_only=False)

    for follower in (2, 3):
        leader.fetch(follower, 3)
    assert partition.offset_for_leader_epoch(epoch + 1) == (-1, -1)
    fails(E.OFFSET_OUT_OF_RANGE, read, 4)
    leader.now_ms += CONFIRMED_WITHIN_MS + 1
    fails(E.UNKNOWN_LEADER_EPOCH, partition.offset_for_leader_epoch, epoch + 1)
    fails(E.NOT_LEADER_OR_FOLLOWER, read, 4)
    assert partition.offset_for_leader_epoch(epoch) == (epoch, 3)
    fails(E.OFFSET_OUT_OF_RANGE, read, -1)
    assert read(3) is None
    # A follower has the leader's epoch, and its fetch confirms the leader.
    fails(E.OFFSET_OUT_OF_RANGE, lambda: partition.read(4, 1000, isolation_level=None))
    leader.fetch(2, 3)
    assert partition.offset_for_leader_epoch(epoch + 1) == (-1, -1)
    fails(E.OFFSET_OUT_OF_RANGE, read, 4)
    # Followers that are alive and have the whole log are not removed: no consumer waits for their fetches for ever.
    leader.now_ms += DOUBTED_WITHIN_MS
    fails(E.NOT_LEADER_OR_FOLLOWER, read, 4)
    leader.now_ms += 1
    assert partition.offset_for_leader_epoch(epoch + 1) == (-1, -1)
    fails(E.OFFSET_OUT_OF_RANGE, read, 4)


def test_a_leader_whose_follower_may_have_been_added_may_be_replaced():
    """The controller added the follower, and elected it; the response was lost."""
    leader = Leader((1, 2), isr=(1,))
    leader.append(3)
    leader.fetch(2, 3)
    assert leader.partition._leader_state.maximal_isr == (1, 2)
    leader.now_ms += CONFIRMED_WITHIN_MS + 1
    epoch = leader.partition.leader_epoch + 1
    fails(E.UNKNOWN_LEADER_EPOCH, leader.partition.offset_for_leader_epoch, epoch)
    fails(E.NOT_LEADER_OR_FOLLOWER, leader.partition.read, 4, 1000)


def test_a_fetch_proves_the_leadership_at_the_time_of_the_fetch_before():
    """The last one may have waited in a socket while the leader was suspended, and replaced."""
    leader = Leader((1, 2, 3))
    leader.append(3)
    partition, within_ms = leader.partition, PROVED_BY_FETCH_WAITS * 500
    assert partition.is_leadership_proved
    leader.fetch(2, 3, after_ms=100)
    leader.fetch(2, 3, after_ms=400)
    leader.now_ms = 100 + within_ms
    assert partition.is_leadership_proved
    leader.now_ms += 1
    assert not partition.is_leadership_proved
    leader.fetch(2, 3, after_ms=800)
    assert not partition.is_leadership_proved
    leader.fetch(2, 3)
    assert not partition.is_leadership_proved
    leader.fetch(2, 3, after_ms=1)
    assert partition.is_leadership_proved


def test_a_leader_without_followers_in_sync_needs_no_proof():
    leader = Leader((1, 2))
    leader.append(1)
    leader.fetch(2, 1, after_ms=100)
    leader.now_ms += 10_000
    assert not leader.partition.is_leadership_proved
    leader.apply(isr=(1,), partition_epoch=11)
    assert leader.partition.is_leadership_proved


def test_after_a_long_time_without_fetches_the_followers_are_down():
    leader = Leader((1, 2))
    leader.append(1)
    leader.fetch(2, 1, after_ms=100)
    leader.now_ms += DOUBTED_WITHIN_MS
    assert not leader.partition.is_leadership_proved
    leader.now_ms += 1
    assert leader.partition.is_leadership_proved


def test_a_new_leader_needs_no_fetch_at_first():
    leader = Leader((1, 2))
    leader.now_ms += 60_000
    assert not leader.partition.is_leadership_proved
    leader.apply(leader_epoch=6, partition_epoch=12)
    assert leader.partition.is_leadership_proved
