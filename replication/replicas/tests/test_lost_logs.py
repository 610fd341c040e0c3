"""Replicas whose log was lost with a disk: they do not begin again with an empty log while they are in sync."""

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.protocol.types import ZERO_UUID
from odradek.replication.replicas.tests.test_broker_control import ID, ME, OTHER, OTHER_ID, Member, role


@pytest.fixture
def member():
    member = Member()
    member.replicas.lost_logs = {("t", 0): ID}
    return member


def is_empty(member, topic="t", index=0):
    log = member.replicas.partitions[topic, index].log
    return log is not None and log.log_end_offset == 0


@pytest.mark.parametrize("leader", [ME, OTHER])
def test_an_in_sync_replica_whose_log_was_lost_is_offline(member, leader):
    """As the leader it had the others truncate their logs to nothing."""
    assert member.lead(role(leader=leader), role(1)) == {0: ErrorCode.KAFKA_STORAGE_ERROR, 1: ErrorCode.NONE}
    assert member.logs.get("t", 0) is None
    assert member.fetchers.followed == {}
    assert member.replicas.offline == [("t", 0)]


def test_a_lost_log_is_created_again_once_the_replica_is_not_in_sync(member):
    assert member.lead(role(leader=ME)) == {0: ErrorCode.KAFKA_STORAGE_ERROR}
    assert member.lead(role(leader=OTHER, isr=(OTHER,), leader_epoch=1)) == {0: ErrorCode.NONE}
    assert is_empty(member)
    assert member.fetchers.followed == {("t", 0): (OTHER, 1)}
    assert member.lead(role(leader=ME, leader_epoch=2)) == {0: ErrorCode.NONE}


def test_a_replica_that_lost_its_log_and_is_not_in_sync_is_copied(member):
    assert member.lead(role(leader=OTHER, isr=(OTHER,))) == {0: ErrorCode.NONE}
    assert is_empty(member)


def test_a_partition_without_other_replicas_begins_empty(member):
    assert member.lead(role(replicas=(ME,), isr=(ME,))) == {0: ErrorCode.NONE}
    assert is_empty(member)


def test_a_later_topic_of_the_same_name_has_lost_no_log(member):
    assert member.lead(role(is_new=True), topic_id=OTHER_ID) == {0: ErrorCode.NONE}
    assert is_empty(member)


def test_a_directory_that_fails_after_a_lost_log_was_created_again_takes_it_offline(member):
    member.lead(role(leader=OTHER, isr=(OTHER,)))
    member.logs.fail_directory("/data", OSError("failed"))
    roles = role(leader=OTHER, isr=(OTHER,), leader_epoch=1)
    assert member.lead(roles) == {0: ErrorCode.KAFKA_STORAGE_ERROR}


def test_a_topic_that_gets_its_id_after_the_start_has_lost_its_log(member):
    """A topic of a broker before Kafka 2.8 had none in the metadata store."""
    member.replicas.lost_logs = {("t", 0): ZERO_UUID}
    assert member.lead(role()) == {0: ErrorCode.KAFKA_STORAGE_ERROR}


def test_a_partition_that_the_controller_begins_has_lost_no_log(member):
    """It was assigned before the start, but never had a leader."""
    assert member.lead(role(is_new=True)) == {0: ErrorCode.NONE}
    assert is_empty(member)


def test_no_files_are_made_for_a_log_that_was_lost(member):
    """They remained after a kill, and the next start found an empty log."""
    made = []

    def make_files(topic, partitions, *rest):
        made.extend(partitions)
        return False

    member.logs.make_files = make_files
    member.replicas.make_waiter = Waiter
    member.lead(*[role(index) for index in range(12)])
    assert made == list(range(1, 12))


def test_lost_logs_are_forgotten_with_the_last_one(member):
    forgotten = []
    member.logs.forget_lost_logs = lambda: forgotten.append(dict(member.replicas.lost_logs))
    member.lead(role(leader=OTHER), role(1))
    assert forgotten == []
    member.lead(role(leader=OTHER, isr=(OTHER,), leader_epoch=1))
    assert forgotten == [{}]


class Waiter:
    def callback(self, result):
        """Do nothing."""

    def __await__(self):
        yield
