"""Branches of a partition's history: what an unclean election keeps, and which replicas belong to which branch."""

from types import SimpleNamespace
from typing import Any

import pytest

from odradek.log.tests.support import append, config, open_log
from odradek.simulation.cluster.branches import Branch, Branches, find_replica
from odradek.simulation.cluster.committed import CommittedBatches
from odradek.simulation.history import Moment
from odradek.simulation.unclean_elections import UncleanElection

KEY = b"id", 0
FIRST, SECOND, THIRD = (Branch(*KEY, number) for number in range(3))


def log_of(*values):
    """A log with batches of three records, each a value with its leader epoch."""
    log = open_log(cfg=config())
    for value, epoch in values:
        append(log, [value] * 3, leader_epoch=epoch)
    return log


def election(leader_epoch):
    return UncleanElection(("t", 0), leader_epoch, Moment(1, 0))


@pytest.fixture
def committed():
    committed = CommittedBatches()
    leader = log_of((b"a", 0), (b"b", 0), (b"c", 1))
    committed.commit(FIRST, 9)
    assert list(committed.compare("broker-1", FIRST, leader, 9)) == []
    return committed


@pytest.mark.parametrize(
    ("log", "kept_end"),
    [
        (log_of((b"a", 0), (b"b", 0), (b"c", 1), (b"d", 1)), 9),
        (log_of((b"a", 0), (b"b", 0)), 6),
        (log_of((b"a", 0), (b"b", 0), (b"c", 2)), 6),
        (log_of((b"a", 0), (b"x", 0), (b"c", 1)), 3),
        (log_of(), 0),
    ],
)
def test_an_election_keeps_what_its_leader_has_in_common_with_the_last_branch(committed, log, kept_end):
    assert SECOND not in committed
    assert committed.begin(SECOND, log) == kept_end
    assert SECOND in committed
    assert (committed.end(FIRST), committed.end(SECOND)) == (9, kept_end)


def test_each_branch_has_its_own_batches(committed):
    leader = log_of((b"a", 0), (b"b", 0), (b"x", 2))
    committed.begin(SECOND, leader)
    committed.commit(SECOND, 9)
    assert list(committed.compare("broker-2", SECOND, leader, 9)) == []
    old = log_of((b"a", 0), (b"b", 0), (b"c", 1))
    assert list(committed.compare("broker-3", FIRST, old, 9)) == []
    assert any("the batch at 6 is" in what for what in committed.compare("broker-3", SECOND, old, 9))


def test_a_branch_without_a_leader_keeps_what_the_one_before_has(committed):
    assert committed.begin(THIRD, log_of((b"a", 0))) == 3


def test_a_leader_epoch_belongs_to_the_branch_of_the_last_election_before_it():
    branches = Branches()
    assert branches.of_epoch(KEY, 7) == FIRST
    elections = [election(3), election(6)]
    for one in elections:
        branches.begin(KEY, one)
    assert [branches.of_epoch(KEY, epoch).number for epoch in (-1, 2, 3, 5, 6, 9)] == [0, 0, 1, 1, 2, 2]
    assert branches.latest(KEY) == THIRD
    assert [branches.elections_of(branch) for branch in (FIRST, SECOND, THIRD)] == [[], elections[:1], elections]
    assert branches.latest((b"other", 0)) == Branch(b"other", 0)


class Broker:
    """A broker that is up, with a replica and its log."""

    def __init__(self):
        self.is_up = True
        self.replica = SimpleNamespace(topic_id=b"id", index=0, is_leader=True, leader_epoch=2)
        self.log = SimpleNamespace(latest_epoch=2, log_end_offset=9)
        self.table = SimpleNamespace(logs={("t", 0): self.log}, offline={})
        replicas = SimpleNamespace(partitions={("t", 0): self.replica})
        self.broker = SimpleNamespace(
            services=SimpleNamespace(replicas=replicas, logs=SimpleNamespace(table=self.table))
        )


@pytest.fixture
def broker() -> Any:
    return Broker()


NOW = Moment(2, 0)


def observed(broker, kept_end=6):
    """The moments of an election in epoch 3 that were noted: settled, truncated."""
    branches, one = Branches(), election(3)
    branches.begin(KEY, one)
    one.kept_end = kept_end
    branches.observe([broker], lambda: NOW)
    branches.observe([broker], lambda: Moment(3, 0))
    return one.settled, one.truncated


def test_an_election_is_settled_when_no_broker_has_a_role_of_an_earlier_epoch(broker):
    assert observed(broker) == (None, None)
    # A follower may still receive the delayed role of the leader of its epoch.
    broker.replica.is_leader = False
    assert observed(broker) == (None, None)
    broker.replica.leader_epoch = 3
    assert observed(broker) == (NOW, None)


@pytest.mark.parametrize("change", [{"latest_epoch": 3}, {"log_end_offset": 6}])
def test_lost_records_are_gone_when_all_brokers_have_truncated_their_logs(broker, change):
    broker.log.__dict__.update(change)
    # Its leader may still write more.
    assert observed(broker) == (None, None)
    broker.replica.leader_epoch = 3
    assert observed(broker) == (NOW, NOW)
    assert observed(broker, kept_end=None) == (NOW, None)
    broker.is_up = False
    assert observed(broker) == (NOW, None)


def test_a_log_in_an_offline_directory_may_have_lost_records(broker):
    broker.replica.leader_epoch = 3
    del broker.table.logs["t", 0]
    assert observed(broker) == (NOW, NOW)
    broker.table.offline["t", 0] = "/data1/t-0"
    assert observed(broker) == (NOW, None)


class Starting:
    """A broker that has not loaded its logs."""

    @property
    def services(self):
        raise RuntimeError("the broker has not been started")


@pytest.mark.parametrize("broker", [None, Starting()])
def test_a_broker_without_logs_has_no_replica(broker):
    process: Any = SimpleNamespace(broker=broker)
    assert find_replica(process, ("t", 0)) is None
