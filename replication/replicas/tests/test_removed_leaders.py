"""A leader that is removed, or whose topic is deleted, while its broker is not registered."""

import logging

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.replication.replicas.tests.test_broker_control import OTHER, OTHER_ID, Member, cached, role, stopped


@pytest.fixture
def member():
    return Member()


def test_a_leader_that_was_removed_while_its_broker_was_not_live_stops(member):
    member.lead(role(leader_epoch=2), role(index=1, leader_epoch=2))
    first, second = member.replicas.get("t", 0), member.replicas.get("t", 1)
    assert member.update(cached(leader_epoch=1, leader=3, replicas=(OTHER, 3)), cached(index=1, leader_epoch=3)) == 0
    assert first.is_leader
    assert member.update(cached(leader_epoch=3, leader=3, replicas=(OTHER, 3)), cached(index=1, leader_epoch=3)) == 0
    assert not first.is_leader
    assert second.is_leader
    assert member.logs.get("t", 0) is not None
    assert member.lead(role(leader=OTHER, leader_epoch=4)) == {0: ErrorCode.NONE}
    assert member.fetchers.followed == {("t", 0): (OTHER, 4)}


def test_the_removal_of_a_replica_is_no_warning(member, caplog):
    """UpdateMetadata has it before StopReplica, also if the broker is registered."""
    member.lead(role(leader_epoch=2))
    caplog.clear()
    assert member.update(cached(leader_epoch=3, leader=3, replicas=(OTHER, 3))) == 0
    assert member.stop(stopped(leader_epoch=3)) == {0: ErrorCode.NONE}
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.parametrize("is_request", [True, False])
def test_a_leader_stops_also_after_a_change_of_its_isr(member, is_request):
    """The assignments have the partition epoch of the last LeaderAndIsr, the leader that of the last change."""
    member.lead(role(leader_epoch=2))
    leader = member.replicas.get("t", 0)
    leader.partition_epoch += 1
    if is_request:
        assert member.stop(stopped(leader_epoch=2)) == {0: ErrorCode.NONE}
    else:
        assert member.update(cached(leader_epoch=3, leader=3, replicas=(OTHER, 3))) == 0
    assert not leader.is_leader


@pytest.mark.parametrize("how", ["deletion", "another topic", "comparison with the store"])
def test_a_removed_leader_stops_if_its_topic_is_deleted_while_its_broker_was_not_live(member, how):
    """The removal was not delivered, and the deletion has no later leader epoch."""
    member.lead(role(leader_epoch=2))
    member.update(cached(leader_epoch=2))
    leader = member.replicas.get("t", 0)
    match how:
        case "deletion":
            member.update(cached(leader=-2, leader_epoch=0, replicas=(OTHER, 3)))
        case "another topic":
            member.update(cached(leader=3, leader_epoch=0, replicas=(OTHER, 3)), topic_id=OTHER_ID)
        case _:
            member.update(epoch=2)
    assert not leader.is_leader
    assert member.logs.get("t", 0) is not None


def test_a_leader_whose_deletion_begins_waits_for_its_stop(member):
    member.lead(role(leader_epoch=2))
    member.update(cached(leader=-2, leader_epoch=0))
    assert member.replicas.get("t", 0).is_leader
