"""Strategies of leader election."""

from odradek.replication.controller.states.partition_states import (
    elect_leader,
    elect_leader_for_shutdown,
    elect_preferred_leader,
    elect_target_leader,
)
from odradek.replication.metadata.image import NO_LEADER, PartitionMetadata

EPOCH = 7


def partition(leader, replicas, isr, **fields):
    return PartitionMetadata(leader, 3, tuple(replicas), tuple(isr), **fields)


def outcome(elected):
    return None if elected is None else (elected.leader, elected.isr, elected.leader_epoch, elected.controller_epoch)


def test_a_failed_leader_is_replaced_in_assignment_order_and_the_isr_keeps_its_order():
    assert outcome(elect_leader(partition(1, [1, 2, 3], [1, 3, 2]), {2, 3}, EPOCH)) == (2, (3, 2), 4, EPOCH)


def test_a_live_leader_stays():
    present = partition(2, [1, 2, 3], [2])
    assert elect_leader(present, {1, 2, 3}, EPOCH, allows_unclean=True) is present


def test_without_a_live_member_of_the_isr_there_is_no_leader():
    assert outcome(elect_leader(partition(1, [1, 2], [1]), {2}, EPOCH)) == (NO_LEADER, (1,), 4, EPOCH)


def test_an_unclean_election_begins_a_recovery():
    elected = elect_leader(partition(NO_LEADER, [1, 2, 3], [1]), {2, 3}, EPOCH, allows_unclean=True)
    assert outcome(elected) == (2, (2,), 4, EPOCH)
    assert elected.leader_recovery_state == 1


def test_an_election_is_clean_if_it_can_be():
    elected = elect_leader(partition(1, [1, 2, 3], [1, 3]), {2, 3}, EPOCH, allows_unclean=True)
    assert outcome(elected) == (3, (3,), 4, EPOCH)
    assert elected.leader_recovery_state == 0


def test_a_clean_election_keeps_the_recovery_state():
    recovering = partition(1, [1, 2], [1, 2], leader_recovery_state=1)
    assert elect_leader(recovering, {2}, EPOCH).leader_recovery_state == 1


def test_an_unclean_election_needs_a_live_replica_with_its_log_directory():
    broken = partition(NO_LEADER, [1, 2], [1], offline=(2,))
    assert elect_leader(broken, {2, 3}, EPOCH, allows_unclean=True) is broken


def test_the_preferred_leader_must_be_live_and_in_sync():
    assert outcome(elect_preferred_leader(partition(2, [1, 2], [2, 1]), {1, 2}, EPOCH)) == (1, (2, 1), 4, EPOCH)
    assert elect_preferred_leader(partition(2, [1, 2], [2]), {1, 2}, EPOCH) is None
    assert elect_preferred_leader(partition(2, [1, 2], [2, 1]), {2}, EPOCH) is None
    assert elect_preferred_leader(partition(2, [1, 2], [2, 1], offline=(1,)), {1, 2}, EPOCH) is None


def test_a_target_leader_is_the_first_of_the_target_that_is_live_and_in_sync():
    moving = partition(1, [4, 5, 1, 2], [1, 2, 5, 4])
    assert outcome(elect_target_leader(moving, (4, 5), {1, 2, 5}, EPOCH)) == (5, (1, 2, 5, 4), 4, EPOCH)
    assert elect_target_leader(moving, (4, 5), {1, 2}, EPOCH) is None


def test_a_shutdown_moves_leader_and_isr_to_other_brokers():
    led = partition(1, [1, 2, 3], [3, 1, 2])
    assert outcome(elect_leader_for_shutdown(led, {1, 2, 3}, {1, 2}, EPOCH)) == (3, (3,), 4, EPOCH)
    assert elect_leader_for_shutdown(partition(1, [1, 2], [1]), {1, 2}, {1}, EPOCH) is None
