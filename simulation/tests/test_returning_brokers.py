"""All brokers of a simulated cluster end at the same time, or lose their sessions; they return one after the other."""

import pytest

from odradek.replication.metadata import znodes
from odradek.replication.metadata.store import run_now
from odradek.simulation.cluster.tree import read_data
from odradek.simulation.run import draw_scenario
from odradek.simulation.tests.test_cluster import SESSION_S, Cluster, log_of

RECORDS = 20


def fill(cluster):
    """Produce the records, and let brokers that end stay down; return the cluster."""
    for process in cluster.world.brokers:
        process.on_end = lambda how: None
    for _ in range(RECORDS):
        cluster.ask(cluster.produce)
    cluster.settle()
    return cluster


@pytest.fixture
def cluster():
    """A cluster with records, whose brokers stay down."""
    return fill(Cluster())


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


def write_topic(cluster, data):
    """Write the node of the topic, as another tool. The invariants do not permit that."""
    cluster.world.check_invariants = lambda process: None
    cluster.world.zookeeper.on_change = lambda: None
    store = cluster.world.zookeeper.tree.connect()
    run_now(store.set(znodes.topic_path("t"), data))
    run_now(store.close())


def test_a_topic_that_cannot_be_read_at_the_start_keeps_its_logs(cluster):
    """They were renamed as stray, and the topic began empty when it was corrected."""
    end_all(cluster)
    data = read_data(cluster.world.zookeeper, znodes.topic_path("t"))
    write_topic(cluster, b"{")
    for process in cluster.world.brokers:
        start(cluster, process)
    logs = [process.broker.services.logs.get("t", 0) for process in cluster.world.brokers]
    assert [log.log_end_offset for log in logs] == [RECORDS] * 3
    write_topic(cluster, data)
    cluster.ask(cluster.produce)
    cluster.settle()
    assert ends(cluster) == [RECORDS + 1] * 3


def test_a_disk_that_is_lost_while_its_topic_cannot_be_read_is_not_elected(cluster):
    """It led with an empty log when the topic was corrected."""
    lost = cluster.leader
    end_all(cluster)
    data = read_data(cluster.world.zookeeper, znodes.topic_path("t"))
    write_topic(cluster, b"{")
    lost.disk.replace_disk()
    for process in (lost, *(process for process in cluster.world.brokers if process is not lost)):
        start(cluster, process)
    write_topic(cluster, data)
    cluster.ask(cluster.produce)
    cluster.settle()
    assert ends(cluster) == [RECORDS + 1] * 3


def test_a_topic_whose_id_a_tool_removed_keeps_its_logs(cluster):
    """KAFKA-14190. The next controller gave it another id, with which all brokers began empty."""
    end_all(cluster)
    data = read_data(cluster.world.zookeeper, znodes.topic_path("t"))
    write_topic(cluster, data.replace(b'"topic_id"', b'"not_the_id"'))
    for process in cluster.world.brokers:
        start(cluster, process)
    cluster.ask(cluster.produce)
    cluster.settle()
    assert ends(cluster) == [RECORDS + 1] * 3
    assert znodes.decode_topic(read_data(cluster.world.zookeeper, znodes.topic_path("t"))) == znodes.decode_topic(data)


def test_the_end_of_all_sessions_changes_no_leader(cluster):
    world = cluster.world
    before = cluster.state
    hosts = [process.host for process in world.brokers]
    for host in hosts:
        world.zookeeper.expire(host)
    cluster.settle()
    assert cluster.state.leader_epoch <= before.leader_epoch + 2
    assert ends(cluster) == [RECORDS] * 3


@pytest.mark.parametrize("spared", [None, 0])
def test_a_common_power_loss_loses_no_record_that_was_synced_before_its_acknowledgement(spared):
    cluster = fill(Cluster(**{"flush.before.acks": "true"}))
    brokers = cluster.world.brokers
    cluster.faults.stop_zookeeper = lambda: None
    cluster.faults._power_off(None if spared is None else brokers[spared])
    assert [process.is_alive for process in brokers] == [number == spared for number in range(3)]
    cluster.world.run(lambda: False, 3 * SESSION_S)
    for process in brokers:
        if not process.is_alive:
            start(cluster, process)
    cluster.settle()
    assert ends(cluster) == [RECORDS] * 3


def test_a_common_power_loss_during_a_write():
    cluster = Cluster(**{"flush.before.acks": "true"})
    cluster.ask(cluster.produce)
    cluster.settle()
    brokers = cluster.world.brokers
    cluster.faults._power_off_while_writing(cluster.leader)
    cluster.world.start(cluster.produce(), "producer")
    cluster.wait(lambda: not any(process.is_alive for process in brokers))
    cluster.settle()
    cluster.ask(cluster.produce)
    assert all(process.start_count >= 2 for process in brokers)


def test_there_is_no_common_power_loss_while_a_replica_may_lack_records(cluster):
    first = cluster.world.brokers[0]
    first.disk.broken["/data"] = None
    cluster.world.intact.lose_data(first)
    cluster.faults.lose_all_power()
    assert all(process.is_alive for process in cluster.world.brokers)


def test_all_topics_of_a_scenario_with_common_power_losses_are_synced_before_acknowledgements():
    drawn = [draw_scenario(seed, 3) for seed in range(100)]
    with_losses = [one for one in drawn if "lose_all_power" in one.faults.weights]
    assert 5 < len(with_losses) < 40
    for one in with_losses:
        assert one.properties["flush.before.acks"] == "true"
        assert all(topic.flush_before_acks for topic in (*one.topics, *one.owned))
        assert all(topic.configs.get("flush.before.acks", "true") == "true" for topic in (*one.topics, *one.owned))
