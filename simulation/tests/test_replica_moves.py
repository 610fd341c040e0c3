"""Moves of replicas between the log directories of the brokers of a cluster."""

from random import Random

import pytest

from odradek.log.storage.filesystem import LogDirFailure
from odradek.simulation.clients.replica_mover import ReplicaMover
from odradek.simulation.cluster.directories import find_move, find_remains, has_lost_directory
from odradek.simulation.history import History
from odradek.simulation.tests.test_cluster import Cluster, log_of

ONE, TWO = "/data1", "/data2"


@pytest.fixture
def cluster():
    return Cluster(**{"log.dirs": f"{ONE},{TWO}"})


def move(process):
    """Begin to move the replica of a broker to its other directory; return that."""
    services = process.broker.services
    target = TWO if log_of(process).log_directory == ONE else ONE
    services.logs.move_log("t", 0, target, services.now_ms())
    return target


def test_a_mover_moves_replicas_of_all_brokers(cluster):
    world, history = cluster.world, History(cluster.world.now_ms)
    directories = {process.address: process.directories for process in world.brokers}
    places = {process.name: {log_of(process).directory} for process in world.brokers}
    world.start(ReplicaMover(world, history, Random(1), [("t", 0)], directories).run(), "mover")
    end_s = world.clock.seconds() + 10
    while world.clock.seconds() < end_s:
        cluster.ask(cluster.produce)
        for process in world.brokers:
            places[process.name].add(log_of(process).directory)
    world.is_ending = True
    cluster.wait(lambda: not find_move(world.brokers))
    cluster.settle()
    assert set(map(frozenset, places.values())) == {frozenset({f"{ONE}/t-0", f"{TWO}/t-0"})}
    assert list(find_remains(world.brokers)) == []
    assert history.odd == []


def test_an_unexpected_error_is_reported(cluster):
    world, history = cluster.world, History(cluster.world.now_ms)
    mover = ReplicaMover(world, history, Random(1), [("t", 0)], {world.broker.address: ["/other"]})
    cluster.ask(lambda: mover._move(world.broker.address))
    ((_, client, text),) = history.odd
    assert (client, text) == ("mover", "move t-0 of broker-1 to /other: LOG_DIR_NOT_FOUND")


def test_a_move_that_has_not_ended_is_found(cluster):
    process = cluster.leader
    assert find_move(cluster.world.brokers) == ""
    move(process)
    assert find_move(cluster.world.brokers) == f"{process.name} still moves t-0"
    cluster.wait(lambda: not find_move(cluster.world.brokers))


def test_what_a_move_leaves_is_found(cluster):
    process = cluster.leader
    target = move(process)
    (copy,) = find_remains([process])
    assert copy.startswith(f"{process.name} has the copy {target}/t-0.")
    cluster.wait(lambda: not find_move([process]))
    assert list(find_remains([process])) == []
    source = TWO if target == ONE else ONE
    process.disk.make_directory(f"{source}/t-0")
    assert list(find_remains([process])) == [f"{process.name} has both {ONE}/t-0 and {TWO}/t-0"]


def test_one_directory_fails_and_the_other_serves(cluster):
    process = cluster.leader
    process.disk.broken[log_of(process).log_directory] = None
    cluster.ask(cluster.produce)
    assert has_lost_directory(process) and cluster.leader is not process
    assert process.is_up
    cluster.faults._repair(process)
    cluster.wait(lambda: process.start_count == 2)
    cluster.settle()
    assert process.broker.services.logs.online_directories == [ONE, TWO]


def test_a_broker_that_loses_a_directory_after_the_last_fault_is_restarted(cluster):
    """The failure was reported late."""
    process = cluster.leader
    cluster.faults.end()
    cluster.world.run(lambda: False, 2)
    process.broker.services.logs.log_dirs.work_failed(ONE, LogDirFailure(ONE, "removing failed"))
    cluster.wait(lambda: process.start_count == 2)
    cluster.settle()
    assert process.broker.services.logs.online_directories == [ONE, TWO]
