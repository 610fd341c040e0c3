"""Simulated brokers start, or lose records, while the node of a topic cannot be decoded."""

import contextlib

import pytest

from odradek.protocol.messages.create_topics import CreateTopicsRequestCreatableTopicConfig
from odradek.replication.metadata import znodes
from odradek.simulation.cluster.tree import read_data
from odradek.simulation.tests.test_cluster import Cluster, log_of
from odradek.simulation.tests.test_returning_brokers import RECORDS, end_all, ends, fill, start, write_topic


class KeptForever(Cluster):
    """The topic keeps its records, other topics do not."""

    topic_configs = (CreateTopicsRequestCreatableTopicConfig(name="retention.ms", value="-1"),)

    def __init__(self):
        super().__init__(**{"log.retention.ms": "1000", "log.retention.check.interval.ms": "1000"})


@contextlib.contextmanager
def node(cluster, *, is_damaged):
    """Replace the node of the topic for a while, if `is_damaged`."""
    if is_damaged:
        data = read_data(cluster.world.zookeeper, znodes.topic_path("t"))
        write_topic(cluster, b"{")
        yield
        write_topic(cluster, data)
    else:
        yield


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_topic_that_cannot_be_read_keeps_its_records(is_damaged):
    """They were deleted by the default retention, on all brokers."""
    cluster = fill(KeptForever())
    # The high watermarks are written every 5 s.
    cluster.world.run(lambda: False, 12)
    end_all(cluster)
    with node(cluster, is_damaged=is_damaged):
        for process in cluster.world.brokers:
            start(cluster, process)
        cluster.world.run(lambda: False, 120)
        logs = [process.broker.services.logs.get("t", 0) for process in cluster.world.brokers]
        assert [(log.log_start_offset, log.log_end_offset) for log in logs] == [(0, RECORDS)] * 3
    cluster.settle()
    assert [log_of(process).log_start_offset for process in cluster.world.brokers] == [0] * 3


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_leader_that_lost_records_while_its_topic_cannot_be_read_does_not_lead(is_damaged):
    """It led on in the same epoch, and the others truncated their logs."""
    cluster = fill(Cluster())
    lost = cluster.leader
    end_all(cluster)
    with node(cluster, is_damaged=is_damaged):
        others = [process for process in cluster.world.brokers if process is not lost]
        for process in (*others, lost):
            start(cluster, process)
        lost.lose_power(lose_names=False)
        cluster.world.run(lambda: False, 3)
        start(cluster, lost)
    cluster.ask(cluster.produce)
    cluster.settle()
    assert ends(cluster) == [RECORDS + 1] * 3


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_leader_that_lost_records_after_a_takeover_without_its_topic_does_not_lead(is_damaged):
    """No other broker restarts."""
    cluster = fill(Cluster())
    # The leader is not the controller, nor the next one.
    cluster.world.zookeeper.expire(cluster.controller.host)
    cluster.settle()
    lost = cluster.leader
    with node(cluster, is_damaged=is_damaged):
        cluster.world.run(lambda: False, 3)
        for _ in range(3):
            cluster.world.zookeeper.expire(cluster.controller.host)
            cluster.world.run(lambda: False, 5)
            if cluster.controller is not lost:
                break
        lost.lose_power(lose_names=False)
        cluster.world.run(lambda: False, 3)
        start(cluster, lost)
    cluster.ask(cluster.produce)
    cluster.settle()
    assert ends(cluster) == [RECORDS + 1] * 3
