"""DescribeQuorum of a lone broker: a quorum of one, as Apache Kafka describes it."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from compat_tests.apache_kafka import tools
from odradek.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
)
from odradek.server.tests.wire import Wire, until

pytestmark = [pytest.mark.side_by_side, pytest.mark.timeout(120)]

METADATA = "__cluster_metadata"
UNKNOWN_TOPIC_OR_PARTITION = 3
NOT_HOSTED = "This server does not host this topic-partition."


@pytest.fixture
def wire(broker: Any) -> Iterator[Wire]:
    with Wire(broker.port) as made:
        yield made


def describe(wire: Wire, topics: Any, version: int = 2) -> Any:
    rows = [
        DescribeQuorumRequestTopicData(
            topic_name=name, partitions=[DescribeQuorumRequestPartitionData(partition_index=index) for index in indexes]
        )
        for name, indexes in topics
    ]
    response = wire.ask(DescribeQuorumRequest(topics=rows), version)
    assert (response.error_code, response.error_message) == (0, "")
    return response


def metadata_partition(wire: Wire, version: int = 2) -> Any:
    [topic] = describe(wire, [(METADATA, [0])], version).topics
    [partition] = topic.partitions
    assert (topic.topic_name, partition.partition_index, partition.error_code) == (METADATA, 0, 0)
    return partition


@pytest.mark.parametrize("version", [0, 1, 2])
def test_the_leader_is_the_only_voter(wire, version):
    [me] = [broker.node_id for broker in wire.metadata().brokers]
    partition = metadata_partition(wire, version)
    [voter] = partition.current_voters
    assert (partition.leader_id, partition.observers, voter.replica_id) == (me, [], me)
    assert partition.leader_epoch > 0
    assert voter.log_end_offset >= partition.high_watermark > 0
    assert voter.replica_directory_id == bytes(16)
    assert (voter.last_fetch_timestamp > 0) == (version > 0)
    assert voter.last_caught_up_timestamp == voter.last_fetch_timestamp
    nodes = describe(wire, [(METADATA, [0])], version).nodes
    assert [node.node_id for node in nodes] == ([me] if version == 2 else [])
    assert all(listener.host == "127.0.0.1" and listener.port for node in nodes for listener in node.listeners)


def test_changes_advance_the_offset(wire, unique):
    before = metadata_partition(wire).high_watermark
    wire.create_topic(unique)
    until(lambda: metadata_partition(wire).high_watermark > before)


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize(
    "topics",
    [[], [(METADATA, [])], [(METADATA, [1])], [(METADATA, [0, 1])], [("t", [0])], [(METADATA, [0]), ("t", [0])]],
    ids=str,
)
def test_other_partitions(wire, topics, version):
    response = describe(wire, topics, version)
    message = NOT_HOSTED if version == 2 else ""
    assert response.nodes == []
    assert [
        (topic.topic_name, [(row.partition_index, row.error_code, row.error_message) for row in topic.partitions])
        for topic in response.topics
    ] == [(name, [(index, UNKNOWN_TOPIC_OR_PARTITION, message) for index in indexes]) for name, indexes in topics]


def test_the_tool(broker, wire):
    [me] = [one.node_id for one in wire.metadata().brokers]
    server = ("--bootstrap-server", broker.bootstrap_servers, "describe")
    status = tools.run(tools.METADATA_QUORUM, *server, "--status").stdout
    for expected in (
        rf"LeaderId:\s+{me}",
        r"LeaderEpoch:\s+\d+",
        r"HighWatermark:\s+\d+",
        r"MaxFollowerLag:\s+0",
        rf'CurrentVoters:\s+\[{{"id": {me}, "endpoints": \[".*://127.0.0.1:\d+"\]}}\]',
        r"CurrentObservers:\s+\[\]",
    ):
        assert re.search(expected, status), status
    table = tools.run(tools.METADATA_QUORUM, *server, "--replication").lines
    assert re.match(rf"{me}\s+A+\s+\d+\s+0\s+\d+\s+\d+\s+Leader", table[1]), table


def test_kafka_python(broker):
    from kafka import KafkaAdminClient

    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    try:
        [topic] = admin.describe_metadata_quorum()["topics"]
        assert [len(row["current_voters"]) for row in topic["partitions"]] == [1]
    finally:
        admin.close()
