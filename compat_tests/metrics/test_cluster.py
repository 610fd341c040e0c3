"""Metrics of a cluster: replication, and the session with ZooKeeper."""

from collections.abc import Iterator
from typing import Any

import pytest

from compat_tests import limits
from compat_tests.metrics_samples import Scrape, scrape
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsRequestReassignablePartition,
    AlterPartitionReassignmentsRequestReassignableTopic,
)
from odradek.protocol.messages.create_topics import (
    CreateTopicsRequest,
    CreateTopicsRequestCreatableReplicaAssignment,
    CreateTopicsRequestCreatableTopic,
)
from odradek.protocol.messages.metadata import MetadataRequest
from odradek.protocol.messages.produce import (
    ProduceRequest,
    ProduceRequestPartitionProduceData,
    ProduceRequestTopicProduceData,
)
from odradek.protocol.records import build_batch
from odradek.server.tests.wire import Wire, until
from odradek.testing import OdradekBroker
from odradek.testing_cluster import OdradekCluster

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def pair(kafka_jars: Any) -> Iterator[OdradekCluster]:
    """Two brokers and ZooKeeper."""
    properties = {"metrics.listener": "127.0.0.1:0", "replica.lag.time.max.ms": "60000", "min.insync.replicas": "1"}
    # The session of a busy broker, or of one that is paused, does not expire.
    with OdradekCluster(properties, size=2, session_timeout_ms=10_000) as cluster:
        yield cluster


def metrics(broker: OdradekBroker) -> Scrape:
    return scrape(f"{broker.metrics_url}/metrics")


def test_the_session_with_zookeeper(pair):
    found = metrics(pair.brokers[1])
    prefix = "kafka_server_sessionexpirelistener_zookeeper"
    assert found.value(f"{prefix}syncconnects_total") == 1
    assert found.value(f"{prefix}disconnects_total") == found.value(f"{prefix}expires_total") == 0
    latency = "kafka_server_zookeeperclientmetrics_zookeeperrequestlatencyms"
    controller = find_controller(pair)
    before = metrics(controller).value(f"{latency}_count")
    create_on(pair, "a-topic", 1)
    found = metrics(controller)
    assert found.value(f"{latency}_count") > before
    assert 0 < found.value(latency, quantile="0.50") < 10_000


def test_replication_to_a_new_replica_and_batches_that_are_not_replicated(pair, unique):
    leader, follower = pair.brokers[1], pair.brokers[2]
    moved = "kafka_server_brokertopicmetrics_reassignmentbytes"
    expired = "kafka_server_delayedproducemetrics_expires_total"
    create_on(pair, unique, 1)
    with Wire(leader.port) as wire:
        until(lambda: wire.produce(unique, b"x" * 10_000).error_code == 0)
    assert metrics(leader).value(f"{moved}out_total") == 0
    reassign(pair, unique, [1, 2])
    in_sync = "kafka_cluster_partition_insyncreplicascount"
    until(lambda: metrics(leader).value(in_sync, topic=unique, partition="0") == 2, limits.CONDITION_S)
    until(lambda: metrics(leader).value("kafka_server_replicamanager_reassigningpartitions") == 0, limits.CONDITION_S)
    size = metrics(leader).value("kafka_log_log_size", topic=unique, partition="0")
    assert metrics(leader).value(f"{moved}out_total") == metrics(follower).value(f"{moved}in_total") == size
    with Wire(leader.port) as wire:
        assert wire.produce(unique, b"y").error_code == 0
        assert metrics(leader).value(f"{moved}out_total") == size
        assert metrics(leader).value(expired) == 0
        pair.pause(2)
        try:
            for _ in range(2):
                row = wire.ask(produce_request(unique, timeout_ms=100), 9).responses[0].partition_responses[0]
                assert row.error_code == ErrorCode.REQUEST_TIMED_OUT
            found = metrics(leader)
        finally:
            pair.resume(2)
    assert found.value(expired) == found.value(expired, topic=unique, partition="0") == 2


def create_on(cluster: OdradekCluster, topic: str, broker_id: int) -> None:
    """Create a topic with one partition on a broker."""
    assignment = CreateTopicsRequestCreatableReplicaAssignment(partition_index=0, broker_ids=[broker_id])
    wanted = CreateTopicsRequestCreatableTopic(
        name=topic, num_partitions=-1, replication_factor=-1, assignments=[assignment]
    )
    with Wire(find_controller(cluster).port) as wire:
        (answer,) = wire.ask(CreateTopicsRequest(topics=[wanted], timeout_ms=10_000)).topics
        assert answer.error_code == 0, answer.error_message


def reassign(cluster: OdradekCluster, topic: str, replicas: list[int]) -> None:
    partition = AlterPartitionReassignmentsRequestReassignablePartition(partition_index=0, replicas=replicas)
    topics = [AlterPartitionReassignmentsRequestReassignableTopic(name=topic, partitions=[partition])]
    with Wire(find_controller(cluster).port) as wire:
        answer = wire.ask(AlterPartitionReassignmentsRequest(timeout_ms=10_000, topics=topics), 0)
        assert answer.error_code == answer.responses[0].partitions[0].error_code == 0


def find_controller(cluster: OdradekCluster) -> OdradekBroker:
    with Wire(cluster.brokers[1].port) as wire:
        return cluster.brokers[wire.ask(MetadataRequest(topics=[]), 9).controller_id]


def produce_request(topic: str, timeout_ms: int) -> ProduceRequest:
    """Return a request for one record with acks=all."""
    data = ProduceRequestPartitionProduceData(index=0, records=build_batch([(1, b"k", b"v", ())]))
    topics = [ProduceRequestTopicProduceData(name=topic, partition_data=[data])]
    return ProduceRequest(acks=-1, timeout_ms=timeout_ms, topic_data=topics)
