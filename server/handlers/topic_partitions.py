"""DescribeTopicPartitions 0: topics and their partitions in pages (KIP-966).

Topics come sorted by name, partitions in order, at most as many partitions as asked for and as
`max.request.partition.size.limit` allows, but at least one. The cursor names the first partition of the page; it
must be among the topics asked for.
"""

from typing import TYPE_CHECKING, Final

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponseCursor,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from odradek.replication.cluster_metadata import PartitionMetadata
from odradek.replication.topic_names import is_internal
from odradek.server.authorized_operations import TOPIC_OPERATIONS
from odradek.server.handlers.metadata import missing_topic_error

if TYPE_CHECKING:
    from odradek.server.request import RequestContext
    from odradek.server.services import Services

NO_LEADER: Final = -1


def describe_topic_partitions(
    services: "Services", context: "RequestContext", request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    """One page."""
    names, first_index = _names_and_start(services, request)
    limit = max(min(services.config.max_request_partition_size_limit, request.response_partition_limit), 1)
    response = DescribeTopicPartitionsResponse()
    for number, name in enumerate(names):
        start = first_index if number == 0 else 0
        if limit == 0:
            response.next_cursor = DescribeTopicPartitionsResponseCursor(topic_name=name, partition_index=0)
            break
        topic = services.metadata.topics.get(name)
        if topic is None:
            if request.topics:
                response.topics.append(_missing(name))
            continue
        page = topic.partitions[start : start + limit]
        response.topics.append(
            DescribeTopicPartitionsResponseTopic(
                name=name,
                topic_id=topic.topic_id,
                is_internal=topic.is_internal,
                partitions=[
                    _partition(services, index, partition) for index, partition in enumerate(page, start)
                ],
                topic_authorized_operations=TOPIC_OPERATIONS,
            )
        )
        limit -= len(page)
        if start + len(page) < len(topic.partitions):
            response.next_cursor = DescribeTopicPartitionsResponseCursor(
                topic_name=name, partition_index=start + len(page)
            )
            break
    return response


def describe_topic_partitions_error(
    request: DescribeTopicPartitionsRequest, version: int, error: KafkaError
) -> DescribeTopicPartitionsResponse:
    """The error at every topic that was named."""
    return DescribeTopicPartitionsResponse(
        topics=[
            DescribeTopicPartitionsResponseTopic(error_code=error.code, name=topic.name) for topic in request.topics
        ]
    )


def _names_and_start(services: "Services", request: DescribeTopicPartitionsRequest) -> tuple[list[str], int]:
    """The topics from the cursor on, sorted, and the first partition of the first of them."""
    cursor = request.cursor
    after = "" if cursor is None else cursor.topic_name
    asked = {topic.name for topic in request.topics} if request.topics else services.metadata.topics
    names = sorted(name for name in asked if name >= after)
    if cursor is None:
        return names, 0
    if request.topics and after not in names:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"The cursor's topic {after} is not among the topics asked for.")
    if cursor.partition_index < 0:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"The cursor's partition {cursor.partition_index} is negative.")
    return names, cursor.partition_index if names and names[0] == after else 0


def _missing(name: str) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        error_code=missing_topic_error(name),
        name=name,
        is_internal=is_internal(name),
        topic_authorized_operations=TOPIC_OPERATIONS,
    )


def _partition(
    services: "Services", index: int, partition: PartitionMetadata
) -> DescribeTopicPartitionsResponsePartition:
    has_leader = partition.leader in services.metadata.brokers
    return DescribeTopicPartitionsResponsePartition(
        error_code=ErrorCode.NONE if has_leader else ErrorCode.LEADER_NOT_AVAILABLE,
        partition_index=index,
        leader_id=partition.leader if has_leader else NO_LEADER,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=list(partition.isr),
        eligible_leader_replicas=[],
        last_known_elr=[],
        offline_replicas=services.metadata.offline_replicas(partition),
    )
