import pytest

from odradek.spark_it.kafka.cluster import KafkaCluster
from odradek.spark_it.kafka.requests import ClusterError
from odradek.spark_it.state.lag import compute_lags
from spark_it.tests.data import Topics
from spark_it.tests.unit.support import CONSOLE, SOURCE, pipeline

A, B = ("orders", 0), ("orders", 1)


def test_lag():
    first, second, third = compute_lags({A: 5}, {B: 9, A: 50, ("x", 0): 4}, {A: 15, B: 10}, {A: 15, ("x", 0): 1})
    assert (first.topic, first.partition, first.committed, first.checkpoint, first.lag) == ("orders", 0, 15, 15, 35)
    assert (second.lag, second.checkpoint) == (0, None)
    assert (third.committed, third.position, third.lag) == (None, 1, 3)
    assert compute_lags({A: 5}, {A: 50}, {}, {})[0].lag == 45
    assert not first.is_lost and compute_lags({A: 5}, {A: 50}, {A: 4}, {})[0].is_lost


@pytest.fixture
def one(odradek_broker):
    topics = Topics(odradek_broker.bootstrap_servers)
    topics.create("orders", 2)
    topics.create("orders-2")
    return pipeline(f'bootstrap.servers = "{odradek_broker.bootstrap_servers}"\n{SOURCE}{CONSOLE}')


@pytest.fixture
def cluster(one):
    return KafkaCluster(one.settings)


def produce(one, count, timestamp_ms):
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": ",".join(one.settings.bootstrap_servers)})
    for n in range(count):
        producer.produce("orders", b"x", partition=0, timestamp=timestamp_ms + n)
    assert producer.flush(10) == 0


def test_a_cluster(one, cluster):
    produce(one, 10, 1_700_000_000_000)
    both = cluster.list_partitions(one.sources["orders"])
    assert both == [A, B]
    assert cluster.fetch_earliest(both) == {A: 0, B: 0}
    assert cluster.fetch_latest(both) == {A: 10, B: 0}
    assert cluster.fetch_offsets_at(both, 1_700_000_000_004) == {A: 4, B: 0}
    assert cluster.fetch_offsets_at(both, 1_800_000_000_000) == {A: 10, B: 0}
    assert cluster.fetch_committed("orders", both) == {}
    cluster.commit("orders", {A: 7})
    assert cluster.fetch_committed("orders", both) == {A: 7}
    cluster.commit("orders", {A: 3, B: 0})
    assert cluster.fetch_committed("orders", both) == {A: 3, B: 0}
    assert cluster.fetch_latest([]) == cluster.fetch_committed("orders", []) == {}


def test_topics_by_pattern(one, cluster):
    matching = pipeline(SOURCE.replace('topics = "orders"', 'topics.regex = "orders.*"') + CONSOLE)
    assert cluster.list_partitions(matching.sources["orders"]) == [A, B, ("orders-2", 0)]


def test_a_missing_topic(cluster):
    other = pipeline(SOURCE.replace('topics = "orders"', 'topics = "none"') + CONSOLE)
    with pytest.raises(ClusterError, match="topic none does not exist"):
        cluster.list_partitions(other.sources["orders"])


def test_wrong_configuration():
    with pytest.raises(ClusterError, match=r'admin.override: No such configuration property: "x.y"'):
        KafkaCluster(pipeline(f"admin.override.x.y = 1\n{SOURCE}{CONSOLE}").settings)
