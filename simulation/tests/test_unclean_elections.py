"""Unclean elections in a simulated cluster: the fault that leads to them, and the clients of such topics."""

import logging
from random import Random
from typing import Any

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.elect_leaders import (
    ElectLeadersResponse,
    ElectLeadersResponsePartitionResult,
    ElectLeadersResponseReplicaElectionResult,
)
from odradek.simulation.clients.consumers.scanner import Scanner
from odradek.simulation.clients.unclean_elector import UncleanElector
from odradek.simulation.history import History
from odradek.simulation.tests.test_clients import ScriptedWorld
from odradek.simulation.tests.test_cluster import Cluster, log_of
from odradek.simulation.world import LogWatch

T = ("t", 0)


@pytest.fixture
def cluster():
    cluster = Cluster(**{"unclean.leader.election.enable": "true"})
    assert cluster.world.cluster_invariants is not None
    cluster.world.cluster_invariants.unclean = ("t",)
    watch, package = LogWatch(cluster.world), logging.getLogger("odradek")
    package.addHandler(watch)
    yield cluster
    package.removeHandler(watch)


def leave_one_behind(cluster):
    """Produce while one broker is left behind, until it leads; return the offset at which it began."""
    epoch = cluster.state.leader_epoch
    cluster.faults.leave_one_behind()
    cluster.wait(lambda: len(cluster.state.isr) == 2 or cluster.state.leader_recovery_state == 1)
    for _ in range(3):
        cluster.ask(cluster.produce)
    elections = cluster.world.cluster_invariants.branches.elections
    cluster.wait(lambda: elections and elections[-1].leader_epoch > epoch and elections[-1].kept_end is not None)
    return elections[-1].kept_end


def test_the_last_broker_is_elected_and_what_it_lacks_is_lost(cluster):
    for _ in range(3):
        cluster.ask(cluster.produce)
    end = max(log_of(process).log_end_offset for process in cluster.world.brokers)
    kept_end = leave_one_behind(cluster)
    cluster.settle()
    assert end <= kept_end < end + 3
    (election,) = cluster.world.cluster_invariants.branches.elections
    assert election.settled is not None
    assert len({log_of(process).log_end_offset for process in cluster.world.brokers}) == 1


def test_the_scanner_reads_partitions_again_and_again(cluster):
    history = History(cluster.world.now_ms)
    cluster.world.start(Scanner(cluster.world, history, Random(1), [T]).run(), "scanner")
    for count in (1, 2):
        cluster.ask(cluster.produce)
        cluster.wait(lambda count=count: history.polls and len(history.polls[-1].records) == count)
    assert {record.leader_epoch for record in history.polls[-1].records} == {cluster.state.leader_epoch}
    assert len({poll.assignment for poll in history.polls}) == len(history.polls)


@pytest.mark.parametrize(
    ("code", "is_odd"), [(ErrorCode.ELECTION_NOT_NEEDED, False), (ErrorCode.UNKNOWN_SERVER_ERROR, True)]
)
def test_the_elector_reports_unexpected_errors(code, is_odd):
    world: Any = ScriptedWorld()
    history = History(world.now_ms)
    row = ElectLeadersResponsePartitionResult(partition_id=0, error_code=code)
    result = ElectLeadersResponseReplicaElectionResult(topic="t", partition_result=[row])
    world.scripts["ElectLeaders"] = [ElectLeadersResponse(replica_election_results=[result])]
    elector = UncleanElector(world, history, Random(1), [T])
    coroutine = elector._elect(T)
    with pytest.raises(StopIteration):
        coroutine.send(None)
    assert [text for _, _, text in history.odd] == ([f"elect a leader of t-0: NONE, {code.name}"] if is_odd else [])
