"""Metadata 0-13 and DescribeCluster 0-2: brokers, topics, and who leads what.

In version 0 no topics means all, later null does. Topics by id from 12 on (KIP-516). A topic that is not there is
created first where `auto.create.topics.enable` and the request allow it; up to version 3 every request does. Endpoints
are those of the listener that was asked. Authorized operations: KIP-430.
"""

from typing import TYPE_CHECKING, Any, Final

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.describe_cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeClusterResponseDescribeClusterBroker,
)
from odradek.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from odradek.protocol.types import ZERO_UUID
from odradek.replication.cluster_metadata import NO_CONTROLLER, PartitionMetadata, TopicMetadata
from odradek.replication.topic_names import check_topic_name, is_internal
from odradek.server.authorized_operations import CLUSTER_OPERATIONS, NOT_REQUESTED, TOPIC_OPERATIONS
from odradek.server.waits import carry_through

if TYPE_CHECKING:
    from odradek.replication.cluster_metadata import BrokerMetadata, ClusterMetadata, Endpoint
    from odradek.server.request import RequestContext
    from odradek.server.services import Services

TOPIC_IDS_ASKED_SINCE: Final = 12
LISTENER_NOT_FOUND_SINCE: Final = 6
BROKER_ENDPOINT: Final = 1
CONTROLLER_ENDPOINT: Final = 2


def metadata(services: "Services", context: "RequestContext", request: MetadataRequest) -> Any:
    """What is asked for, at once or after the topics that were missing are created."""
    _check_topics(request, context.api_version)
    if _asks_for_all(request, context.api_version):
        return _respond(services, context, request, list(services.metadata.topics), [])
    names, unknown_ids = _named_topics(services, request)
    if request.allow_auto_topic_creation and services.config.auto_create_topics_enable:
        missing = [name for name in names if name not in services.metadata.topics]
        if missing:
            creation = carry_through(services.topics.auto_create(missing))
            return creation.addCallback(
                lambda errors: _respond(services, context, request, names, unknown_ids, errors)
            )
    return _respond(services, context, request, names, unknown_ids)


def metadata_error(request: MetadataRequest, version: int, error: KafkaError) -> MetadataResponse:
    """The error at every topic, and at the top from version 13 on."""
    return MetadataResponse(
        topics=[
            MetadataResponseTopic(error_code=error.code, name=topic.name or "", topic_id=topic.topic_id)
            for topic in request.topics or []
        ],
        error_code=error.code,
    )


def _check_topics(request: MetadataRequest, version: int) -> None:
    for topic in request.topics or []:
        if version < TOPIC_IDS_ASKED_SINCE and (topic.name is None or topic.topic_id != ZERO_UUID):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"Version {version} asks for topics by name, and by nothing else."
            )


def _asks_for_all(request: MetadataRequest, version: int) -> bool:
    return request.topics is None or (version == 0 and not request.topics)


def _named_topics(services: "Services", request: MetadataRequest) -> tuple[list[str], list[bytes]]:
    """The names asked for, each once, and the ids that no topic has. If any ids are given, only they count."""
    asked = request.topics or []
    ids = dict.fromkeys(topic.topic_id for topic in asked if topic.topic_id != ZERO_UUID)
    if not ids:
        return list(dict.fromkeys(topic.name for topic in asked if topic.name is not None)), []
    by_id = services.metadata.topics_by_id
    return (
        [by_id[topic_id].name for topic_id in ids if topic_id in by_id],
        [topic_id for topic_id in ids if topic_id not in by_id],
    )


def _respond(
    services: "Services",
    context: "RequestContext",
    request: MetadataRequest,
    names: list[str],
    unknown_ids: list[bytes],
    creation_errors: dict[str, KafkaError | None] | None = None,
) -> MetadataResponse:
    image = services.metadata
    topics = [
        MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=topic_id)
        for topic_id in unknown_ids
    ]
    for name in names:
        topic = image.topics.get(name)
        if topic is None:
            topics.append(_missing(name, (creation_errors or {}).get(name)))
        else:
            topics.append(_present(services, context, topic))
    if request.include_topic_authorized_operations:
        for row in topics:
            row.topic_authorized_operations = TOPIC_OPERATIONS
    brokers = [
        MetadataResponseBroker(node_id=broker.broker_id, host=endpoint.host, port=endpoint.port, rack=broker.rack)
        for broker, endpoint in _reachable_brokers(image, context)
    ]
    return MetadataResponse(
        brokers=brokers,
        cluster_id=image.cluster_id,
        controller_id=image.controller_id,
        topics=topics,
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_REQUESTED
        ),
    )


def _reachable_brokers(
    image: "ClusterMetadata", context: "RequestContext"
) -> "list[tuple[BrokerMetadata, Endpoint]]":
    """The brokers that have an endpoint on the listener that was asked."""
    found = ((broker, broker.endpoint(context.listener_name)) for broker in image.brokers.values())
    return [(broker, endpoint) for broker, endpoint in found if endpoint is not None]


def missing_topic_error(name: str) -> ErrorCode:
    """What is said of a topic that does not exist: whether it could."""
    try:
        check_topic_name(name)
    except KafkaError as error:
        return error.code
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _missing(name: str, creation_error: KafkaError | None) -> MetadataResponseTopic:
    code = missing_topic_error(name) if creation_error is None else creation_error.code
    return MetadataResponseTopic(error_code=code, name=name, is_internal=is_internal(name))


def _present(services: "Services", context: "RequestContext", topic: TopicMetadata) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=[
            _partition(services, context, index, partition) for index, partition in enumerate(topic.partitions)
        ],
    )


def _partition(
    services: "Services", context: "RequestContext", index: int, partition: PartitionMetadata
) -> MetadataResponsePartition:
    image = services.metadata
    leader = image.brokers.get(partition.leader)
    error = ErrorCode.NONE
    if leader is None:
        error = ErrorCode.LEADER_NOT_AVAILABLE
    elif leader.endpoint(context.listener_name) is None:
        has_code = context.api_version >= LISTENER_NOT_FOUND_SINCE
        error = ErrorCode.LISTENER_NOT_FOUND if has_code else ErrorCode.LEADER_NOT_AVAILABLE
    return MetadataResponsePartition(
        error_code=error,
        partition_index=index,
        leader_id=partition.leader if error == ErrorCode.NONE else -1,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=list(partition.isr),
        offline_replicas=image.offline_replicas(partition),
    )


def describe_cluster(
    services: "Services", context: "RequestContext", request: DescribeClusterRequest
) -> DescribeClusterResponse:
    """The brokers, as one asks a broker for them; controllers have no endpoint of their own here (KIP-919)."""
    if request.endpoint_type != BROKER_ENDPOINT:
        code = ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        if request.endpoint_type == CONTROLLER_ENDPOINT:
            code = ErrorCode.MISMATCHED_ENDPOINT_TYPE
        raise KafkaError(
            ErrorCode.INVALID_REQUEST if context.api_version == 0 else code,
            f"This is a broker; endpoint type {request.endpoint_type} cannot be asked for here.",
        )
    image = services.metadata
    brokers = [
        DescribeClusterResponseDescribeClusterBroker(
            broker_id=broker.broker_id, host=endpoint.host, port=endpoint.port, rack=broker.rack
        )
        for broker, endpoint in _reachable_brokers(image, context)
    ]
    return DescribeClusterResponse(
        cluster_id=image.cluster_id,
        controller_id=image.controller_id,
        brokers=brokers,
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_REQUESTED
        ),
    )


def describe_cluster_error(
    request: DescribeClusterRequest, version: int, error: KafkaError
) -> DescribeClusterResponse:
    """The error and no brokers."""
    return DescribeClusterResponse(
        error_code=error.code, error_message=error.message, controller_id=NO_CONTROLLER
    )
