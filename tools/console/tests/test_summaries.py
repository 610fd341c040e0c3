from typing import Any, cast

from odradek.protocol.messages.describe_log_dirs import (
    DescribeLogDirsResponse,
    DescribeLogDirsResponseDescribeLogDirsResult,
)
from odradek.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from odradek.tools.console.summaries import fetch_disks, fetch_summary
from odradek.tools.kafka.connection.connection_errors import NoResponseError


def make_partition(index, leader, isr):
    return MetadataResponsePartition(
        error_code=0,
        partition_index=index,
        leader_id=leader,
        replica_nodes=[1, 2],
        isr_nodes=isr,
        offline_replicas=[],
    )


class FakeCluster:
    """A cluster of which broker 2 is down, and that serves no DescribeCluster."""

    def fetch_metadata(self):
        partitions = [make_partition(0, 1, [1, 2]), make_partition(1, 1, [1]), make_partition(2, -1, [2])]
        return MetadataResponse(
            brokers=[MetadataResponseBroker(node_id=1, host="a", port=9092)],
            cluster_id="c",
            controller_id=1,
            topics=[MetadataResponseTopic(error_code=0, name="t", is_internal=False, partitions=partitions)],
        )

    def any_broker(self):
        return self

    def serves(self, request_type):
        return False


def test_a_broker_that_is_down_is_known_by_its_replicas():
    summary = fetch_summary(cast(Any, FakeCluster()))
    assert [(one.id, one.address, one.leaders, one.replicas) for one in summary.brokers] == [
        (1, "a:9092", 2, 3),
        (2, None, 0, 3),
    ]
    assert (summary.live, summary.controller) == (1, 1)
    assert (summary.partitions, summary.under_replicated, summary.offline) == (3, 2, 1)


class HalfCluster:
    """A cluster of which broker 2 is down."""

    def node_ids(self):
        return [1, 2]

    def ask_broker(self, node_id, request, response_type):
        if node_id == 2:
            raise NoResponseError("broker 2: refused")
        found = DescribeLogDirsResponseDescribeLogDirsResult(error_code=0, log_dir="/data", topics=[])
        return DescribeLogDirsResponse(error_code=0, results=[found])


def test_disks_without_those_of_a_broker_that_is_down():
    disks = fetch_disks(cast(Any, HalfCluster()))
    assert [log_dir.broker for log_dir in disks.log_dirs] == [1]
    assert disks.errors == {2: "broker 2: refused"}
