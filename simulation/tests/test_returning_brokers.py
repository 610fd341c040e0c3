"""All brokers of a simulated cluster end at the same time, or lose their sessions; they return one after the other."""

import pytest

from odradek.simulation.tests.test_cluster import SESSION_S, Cluster, log_of

RECORDS = 20


@pytest.fixture
def cluster():
    """A cluster with records, whose brokers stay down."""
    cluster = Cluster()
    for process in cluster.world.brokers:
        process.on_end = lambda how: None
    for _ in range(RECORDS):
        cluster.ask(cluster.produce)
    cluster.settle()
    return cluster


def end_all(cluster):
    for process in cluster.world.brokers:
        process.kill()
    cluster.world.run(lambda: False, 3 * SESSION_S)


def start(cluster, process):
    process.start()
    cluster.wait(lambda: process.is_up)
    cluster.world.run(lambda: False, 3 * SESSION_S)


def ends(cluster):
    return [log_of(process).log_end_offset for process in cluster.world.brokers]


@pytest.mark.parametrize("position", range(3))
def test_a_broker_that_lost_its_disk_does_not_lead_when_it_returns(cluster, position):
    """Elected with an empty log, it had the others truncate theirs to nothing."""
    end_all(cluster)
    cluster.world.brokers[position].disk.replace_disk()
    for process in cluster.world.brokers:
        start(cluster, process)
    cluster.settle()
    cluster.ask(cluster.produce)
    cluster.settle()
    assert ends(cluster) == [RECORDS + 1] * 3


def test_a_broker_that_lost_its_disk_waits_for_the_others_at_each_start(cluster):
    """It is the only member of the ISR."""
    lost, *others = cluster.world.brokers
    for process in others:
        process.kill()
    cluster.wait(lambda: len(cluster.state.isr) == 1 and cluster.leader is lost)
    lost.kill()
    lost.disk.replace_disk()
    cluster.world.run(lambda: False, 3 * SESSION_S)
    for _ in range(2):
        start(cluster, lost)
        assert (cluster.state.leader, cluster.state.isr) == (-1, (1,))
        lost.stop()
        cluster.wait(lambda: not lost.is_alive)
    for process in (*others, lost):
        start(cluster, process)
    assert (cluster.state.leader, cluster.state.isr) == (-1, (1,))
    assert {log_of(process).log_end_offset for process in others} == {RECORDS}
    # What the documentation advises for the case that no other replica has its records.
    lost.stop()
    cluster.wait(lambda: not lost.is_alive)
    lost.disk.come_up()
    lost.disk.remove("/data/odradek-missing-logs")
    start(cluster, lost)
    assert cluster.leader is lost
    assert log_of(lost).log_end_offset == 0


def test_the_end_of_all_sessions_changes_no_leader(cluster):
    world = cluster.world
    before = cluster.state
    hosts = [process.host for process in world.brokers]
    for host in hosts:
        world.zookeeper.expire(host)
    cluster.settle()
    assert cluster.state.leader_epoch <= before.leader_epoch + 2
    assert ends(cluster) == [RECORDS] * 3
