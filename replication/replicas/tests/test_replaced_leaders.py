"""Leaders that may have been replaced: no follower in sync has fetched lately."""

import pytest

from odradek.protocol.errors import ErrorCode as E
from odradek.protocol.records import build_batch
from odradek.replication.metadata.store import SessionEvent
from odradek.replication.replicas.leader_state import (
    CONFIRMED_WITHIN_MS,
    DOUBTED_WITHIN_MS,
    DOUBTFUL_AFTER_SESSION_MS,
    PROVED_BY_FETCH_WAITS,
    Replication,
)
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


WITHIN_MS = PROVED_BY_FETCH_WAITS * 500


def is_proved(leader):
    """Return whether the leadership is proved for a request that arrives now."""
    return leader.partition.leadership_proved_ms > leader.now_ms


def test_a_fetch_proves_the_leadership_at_the_time_of_the_fetch_before():
    """The last one may have waited in a socket while the leader was suspended, and replaced."""
    leader = Leader((1, 2, 3), min_insync_replicas="2")
    assert not is_proved(leader)
    leader.fetch(2, 0, after_ms=100)
    assert not is_proved(leader)
    leader.fetch(2, 0, after_ms=400)
    leader.now_ms = 99 + WITHIN_MS
    assert is_proved(leader)
    leader.now_ms += 1
    assert not is_proved(leader)
    leader.fetch(2, 0, after_ms=WITHIN_MS)
    assert not is_proved(leader)
    leader.fetch(2, 0, after_ms=1)
    assert is_proved(leader)


@pytest.mark.parametrize(
    ("replicas", "isr", "min_isr", "needed"),
    [(3, 3, 1, 2), (3, 3, 2, 1), (3, 2, 1, 1), (3, 1, 1, 0), (2, 2, 1, 1), (5, 5, 3, 2), (5, 5, 2, 3), (3, 3, 3, 1)],
)
def test_so_many_followers_are_needed_that_the_others_commit_nothing(replicas, isr, min_isr, needed):
    ids = tuple(range(1, replicas + 1))
    leader = Leader(ids, isr=ids[:isr], min_insync_replicas=str(min_isr))
    leader.now_ms += 10_000
    for count, follower in enumerate(ids[1:isr]):
        assert is_proved(leader) is (count >= needed)
        leader.fetch(follower, 0)
        leader.fetch(follower, 0, after_ms=1)
    assert is_proved(leader)


def test_a_leader_needs_no_proof_of_followers_that_the_controller_has_removed():
    leader = Leader((1, 2))
    leader.append(1)
    leader.fetch(2, 1, after_ms=100)
    leader.now_ms += 200_000
    assert not is_proved(leader)
    leader.apply(isr=(1,), partition_epoch=11)
    assert is_proved(leader)


def test_the_begin_of_an_epoch_proves_nothing():
    """Its notice, and the first fetch, may have waited in sockets."""
    leader = Leader((1, 2))
    leader.now_ms += 10_000
    leader.apply(leader_epoch=6, partition_epoch=12)
    assert not is_proved(leader)
    leader.fetch(2, 0, after_ms=1)
    assert not is_proved(leader)
    leader.fetch(2, 0, after_ms=1)
    assert is_proved(leader)


def test_the_fetch_before_the_last_one_is_that_of_the_same_connection():
    """A fetch of another connection, which waited in its socket as well, is no proof."""
    leader = Leader((1, 2))
    leader.now_ms += 10_000
    partition = leader.partition
    partition.update_follower(2, 0, 0, 10_000)
    partition.update_follower(2, 0, 0, 10_000)
    assert not is_proved(leader)
    partition.update_follower(2, 0, 0, 10_000, -1, 0)
    partition.update_follower(2, 0, 0, 10_001, -1, 1)
    assert not is_proved(leader)
    partition.update_follower(2, 0, 0, 10_002, -1, 9_000)
    assert is_proved(leader)


def test_after_the_loss_of_the_session_only_later_fetches_prove_something():
    """The controller may have elected another leader, although the followers have fetched lately."""
    leader = Leader((1, 2))
    for _ in range(2):
        leader.fetch(2, 0, after_ms=1)
    for event in (SessionEvent.DISCONNECTED, SessionEvent.CONNECTED):
        leader.cluster.on_session(event, 7)
        asked_ms = leader.now_ms
        leader.fetch(2, 0, after_ms=1)
        assert leader.partition.leadership_proved_ms <= asked_ms
        leader.fetch(2, 0, after_ms=1)
        assert leader.partition.leadership_proved_ms > asked_ms
    leader.now_ms += DOUBTFUL_AFTER_SESSION_MS
    leader.fetch(2, 0, after_ms=1)
    leader.fetch(2, 0, after_ms=1)
    assert is_proved(leader)


def test_after_the_end_of_the_session_leaderships_are_doubtful_until_the_controller_has_sent_a_request():
    """A controller that is suspended, or that is not elected yet, has sent no roles since the end of the session."""
    leader = Leader((1, 2))
    cluster = leader.cluster
    cluster.on_session(SessionEvent.EXPIRED, 7)
    for event in (SessionEvent.CONNECTED, SessionEvent.DISCONNECTED, SessionEvent.CONNECTED):
        cluster.on_session(event, 8)
        leader.now_ms += DOUBTFUL_AFTER_SESSION_MS
        assert cluster.is_doubtful()
    cluster.on_controller_request(7)
    leader.now_ms += DOUBTFUL_AFTER_SESSION_MS
    assert cluster.is_doubtful()
    cluster.on_controller_request(8)
    leader.now_ms += DOUBTFUL_AFTER_SESSION_MS - 1
    assert cluster.is_doubtful()
    leader.now_ms += 1
    assert not cluster.is_doubtful()


def test_a_request_of_the_controller_ends_no_doubt_while_the_next_session_is_disconnected():
    """The next controller, which finds that session expired, sends this broker nothing."""
    leader = Leader((1, 2))
    cluster = leader.cluster
    for event, epoch in ((SessionEvent.DISCONNECTED, 7), (SessionEvent.EXPIRED, 7), (SessionEvent.DISCONNECTED, 8)):
        cluster.on_session(event, epoch)
    cluster.on_controller_request(8)
    leader.now_ms += DOUBTFUL_AFTER_SESSION_MS
    assert cluster.is_doubtful()
    cluster.on_session(SessionEvent.CONNECTED, 8)
    leader.now_ms += DOUBTFUL_AFTER_SESSION_MS
    assert not cluster.is_doubtful()


def test_a_proof_ends_before_the_session_of_a_suspended_broker_can_expire():
    """ZooKeeper ends it as soon as two thirds of its timeout after the suspension."""
    leader = Leader((1, 2))
    leader.cluster = leader.partition._cluster = leader.partition._leader_state._cluster = Replication(
        leader.image, leader.queue, lambda: leader.now_ms, 30_000, fetch_wait_max_ms=4_000, session_timeout_ms=18_000
    )
    leader.fetch(2, 0, after_ms=1)
    leader.fetch(2, 0, after_ms=1)
    leader.now_ms = 9_000
    assert is_proved(leader)
    leader.now_ms += 1
    assert not is_proved(leader)
