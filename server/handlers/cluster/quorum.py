"""DescribeQuorum 0-2 (KIP-595, KIP-836, KIP-853): the embedded metadata store as a quorum of one.

The offset is the number of the store's last transaction, and the leader epoch that of the controller. Only partition 0
of `__cluster_metadata` exists. A broker of a cluster does not serve this API.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeQuorumResponseListener,
    DescribeQuorumResponseNode,
    DescribeQuorumResponsePartitionData,
    DescribeQuorumResponseReplicaState,
    DescribeQuorumResponseTopicData,
)
from odradek.replication.metadata.topic_names import CLUSTER_METADATA_TOPIC

if TYPE_CHECKING:
    from odradek.replication.controller.controller import Controller
    from odradek.replication.metadata.image import ClusterMetadata
    from odradek.server.config import BrokerConfig
    from odradek.server.request import RequestContext

_NOT_HOSTED: Final = "This server does not host this topic-partition."


class QuorumServices(Protocol):
    """The parts of a broker that DescribeQuorum needs."""

    config: "BrokerConfig"
    controller: "Controller"
    metadata: "ClusterMetadata"
    now_ms: Callable[[], int]


def describe_quorum(
    services: QuorumServices, context: "RequestContext", request: DescribeQuorumRequest
) -> DescribeQuorumResponse:
    """Return the state of the metadata partition if only that is requested, else an error for each partition."""
    requested = [
        (topic.topic_name, [partition.partition_index for partition in topic.partitions]) for topic in request.topics
    ]
    if requested != [(CLUSTER_METADATA_TOPIC, [0])]:
        return DescribeQuorumResponse(topics=[_make_missing_topic(name, indexes) for name, indexes in requested])
    partition = _describe_partition(services)
    node_id = services.config.node_id
    listeners = [
        DescribeQuorumResponseListener(name=endpoint.listener, host=endpoint.host, port=endpoint.port)
        for endpoint in services.metadata.brokers[node_id].endpoints
    ]
    return DescribeQuorumResponse(
        topics=[DescribeQuorumResponseTopicData(topic_name=CLUSTER_METADATA_TOPIC, partitions=[partition])],
        nodes=[DescribeQuorumResponseNode(node_id=node_id, listeners=listeners)],
    )


def describe_quorum_error(
    request: DescribeQuorumRequest, version: int, error: KafkaError
) -> DescribeQuorumResponse:
    """Return `error` for the whole request."""
    return DescribeQuorumResponse(error_code=error.code, error_message=error.message or "")


def _describe_partition(services: QuorumServices) -> DescribeQuorumResponsePartitionData:
    now_ms, end_offset = services.now_ms(), services.controller.store.last_transaction_id
    voter = DescribeQuorumResponseReplicaState(
        replica_id=services.config.node_id,
        log_end_offset=end_offset,
        last_fetch_timestamp=now_ms,
        last_caught_up_timestamp=now_ms,
    )
    return DescribeQuorumResponsePartitionData(
        leader_id=services.config.node_id,
        leader_epoch=services.controller.epoch,
        high_watermark=end_offset,
        current_voters=[voter],
    )


def _make_missing_topic(name: str, indexes: list[int]) -> DescribeQuorumResponseTopicData:
    rows = [
        DescribeQuorumResponsePartitionData(
            partition_index=index, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, error_message=_NOT_HOSTED
        )
        for index in indexes
    ]
    return DescribeQuorumResponseTopicData(topic_name=name, partitions=rows)
