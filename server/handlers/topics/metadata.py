"""Metadata 0-13 and DescribeCluster 0-2: brokers, topics, and the leader of each partition.

An empty list of topics (version 0) or null (later versions) means all topics. Topics by id from 12 on (KIP-516). A
missing topic is created first if `auto.create.topics.enable` and the request allow it; up to version 3 every request
does. Endpoints are those of the listener of the connection. Authorized operations: KIP-430.
"""

from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from odradek.protocol.codec import step_encoder
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
from odradek.protocol.schema import rows
from odradek.protocol.types import ZERO_UUID
from odradek.replication.metadata.image import NO_CONTROLLER, PartitionMetadata, TopicMetadata, offline_replicas
from odradek.replication.metadata.topic_names import check_topic_name, is_internal
from odradek.server.authorized_operations import NOT_REQUESTED, list_cluster_operations, list_topic_operations
from odradek.server.request import EncodedBody
from odradek.server.security.authorization.operations import Operation, ResourceType
from odradek.server.work.slices import ROWS_PER_STEP, SMALL_REQUEST_STEPS
from odradek.server.work.waits import carry_through

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from odradek.replication.controller.admin.auto_creation import AutoCreation
    from odradek.replication.metadata.image import BrokerMetadata, ClusterMetadata, Endpoint
    from odradek.server.config import BrokerConfig
    from odradek.server.image_cache import ImageCache
    from odradek.server.request import Reply, RequestContext
    from odradek.server.work.first_metadata import FirstMetadata
    from odradek.server.work.slices import Slices

THROTTLE_TIME_SINCE: Final = 3
TOPIC_IDS_ASKED_SINCE: Final = 12
LISTENER_NOT_FOUND_SINCE: Final = 6
BROKER_ENDPOINT: Final = 1
CONTROLLER_ENDPOINT: Final = 2

_NO_LEADER_YET: Final = ErrorCode.LEADER_NOT_AVAILABLE


class MetadataServices(Protocol):
    """The parts of a broker that Metadata and DescribeCluster need."""

    config: "BrokerConfig"
    metadata: "ClusterMetadata"
    slices: "Slices"

    @property
    def first_metadata(self) -> "FirstMetadata | None": ...

    @property
    def metadata_bodies(self) -> "ImageCache[EncodedBody]": ...

    @property
    def auto_creation(self) -> "AutoCreation": ...


def metadata(
    services: MetadataServices, context: "RequestContext", request: MetadataRequest
) -> "Deferred[MetadataResponse] | Deferred[EncodedBody]":
    """Return brokers and topics; create missing topics first if that is allowed.

    Each topic has its own error. Raises KafkaError INVALID_REQUEST for topic ids before version 12, and
    LEADER_NOT_AVAILABLE if the broker has no metadata yet.
    """
    first = services.first_metadata
    if first is not None:
        return first.wait().addCallback(lambda _: metadata(services, context, request))
    if _is_for_all_topics(request, context.api_version):
        return _respond_with_all(services, context, request)

    def create_missing(found: "_RequestedTopics") -> "Reply[MetadataResponse]":
        if not found.missing:
            return _make_response(services.metadata, context, request, found, {})
        creation = carry_through(services.auto_creation.auto_create(found.missing))

        def respond(errors: dict[str, KafkaError | None]) -> MetadataResponse:
            if context.charge is not None:
                # In a cluster a topic that was created has no leader yet.
                created = [error for error in errors.values() if error is None or error.code == _NO_LEADER_YET]
                context.charge.spend_mutations(len(created) * services.config.num_partitions)
            return _make_response(services.metadata, context, request, found, errors)

        return creation.addCallback(respond)

    found = services.slices.run(_find_requested(services, context, request), SMALL_REQUEST_STEPS)
    response: Deferred[MetadataResponse] = found.addCallback(create_missing)
    return response


def metadata_error(request: MetadataRequest, version: int, error: KafkaError) -> MetadataResponse:
    """Return `error` for every topic; from version 13 on also for the whole request."""
    return MetadataResponse(
        topics=rows(
            lambda topic: MetadataResponseTopic(
                error_code=error.code, name=topic.name or "", topic_id=topic.topic_id
            ),
            request.topics or [],
        ),
        error_code=error.code,
    )


def _is_for_all_topics(request: MetadataRequest, version: int) -> bool:
    return request.topics is None or (version == 0 and not request.topics)


def _respond_with_all(
    services: MetadataServices, context: "RequestContext", request: MetadataRequest
) -> "Deferred[EncodedBody]":
    """Return all topics that the client may describe.

    Clients repeat this request, so its encoded response is kept until the image changes, or the rights of clients.
    """
    key = (
        context.api_version,
        context.listener_name,
        request.include_topic_authorized_operations,
        request.include_cluster_authorized_operations,
        None if context.rights is None else context.rights.key,
    )
    return services.metadata_bodies.get(key, lambda: _encode_all(services.metadata, context, request))


def _encode_all(
    image: "ClusterMetadata", context: "RequestContext", request: MetadataRequest
) -> Generator[None, None, EncodedBody]:
    version, rights = context.api_version, context.rights
    topics = list(image.topics.values())
    if rights is not None:
        topics, _ = yield from rights.divide(ResourceType.TOPIC, topics, lambda topic: topic.name, audits_denial=False)
    response = _make_response(image, context, request, _RequestedTopics(topics), {})
    out = bytearray()
    yield from step_encoder(MetadataResponse, version)(response, out, [])
    return EncodedBody(bytes(out), begins_with_throttle_time=version >= THROTTLE_TIME_SINCE)


class _RequestedTopics(NamedTuple):
    """The topics of a request.

    topics: the topics to describe, each once, by name or by metadata
    missing: those of them that are created first
    unknown_ids: requested ids that no topic has
    uncreatable: names of missing topics that the client may not create
    hidden: names of topics that the client may not describe
    is_by_id: the request has ids
    """

    topics: "Sequence[str | TopicMetadata]"
    missing: Sequence[str] = ()
    unknown_ids: Sequence[bytes] = ()
    uncreatable: Sequence[str] = ()
    hidden: Sequence[str] = ()
    is_by_id: bool = False


def _find_requested(
    services: MetadataServices, context: "RequestContext", request: MetadataRequest
) -> Generator[None, None, _RequestedTopics]:
    """Find the topics of a request. If it has any ids, its names are ignored. Raises KafkaError INVALID_REQUEST."""
    image, version = services.metadata, context.api_version
    names: dict[str, None] = {}
    ids: dict[bytes, None] = {}
    for number, topic in enumerate(request.topics or []):
        if version < TOPIC_IDS_ASKED_SINCE and (topic.name is None or topic.topic_id != ZERO_UUID):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"Version {version} of Metadata requests topics by name only."
            )
        if topic.topic_id != ZERO_UUID:
            ids[topic.topic_id] = None
        elif topic.name is not None:
            names[topic.name] = None
        if number % ROWS_PER_STEP == ROWS_PER_STEP - 1:
            yield
    unknown_ids: list[bytes] = []
    if ids:
        names.clear()
        for number, topic_id in enumerate(ids):
            found = image.topics_by_id.get(topic_id)
            if found is None:
                unknown_ids.append(topic_id)
            else:
                names[found.name] = None
            if number % ROWS_PER_STEP == ROWS_PER_STEP - 1:
                yield
    rights = context.rights
    topics: list[str] = list(names)
    hidden: list[str] = []
    if rights is not None:
        topics, hidden = yield from rights.divide(ResourceType.TOPIC, names, str)
    missing: list[str] = []
    uncreatable: list[str] = []
    if request.allow_auto_topic_creation and services.config.auto_create_topics_enable:
        for number, name in enumerate(topics):
            if name not in image.topics:
                missing.append(name)
            if number % ROWS_PER_STEP == ROWS_PER_STEP - 1:
                yield
    if rights is not None and missing and not rights.allows_cluster(Operation.CREATE, audits_denial=False):
        missing, uncreatable = yield from rights.divide(ResourceType.TOPIC, missing, str, Operation.CREATE)
        topics = yield from _remove(topics, uncreatable)
    return _RequestedTopics(topics, missing, unknown_ids, uncreatable, hidden, bool(ids))


def _remove(names: Sequence[str], removed: Sequence[str]) -> Generator[None, None, list[str]]:
    """Return the names without some of them, which are in the same order."""
    kept: list[str] = []
    next_removed = iter(removed)
    one = next(next_removed, None)
    for number, name in enumerate(names, 1):
        if name == one:
            one = next(next_removed, None)
        else:
            kept.append(name)
        if number % ROWS_PER_STEP == 0:
            yield
    return kept


def _make_unknown_row(topic_id: bytes) -> MetadataResponseTopic:
    return MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=topic_id)


def _make_hidden_row(image: "ClusterMetadata", name: str, *, by_id: bool) -> MetadataResponseTopic:
    """Return the row of a topic that the client may not describe, whether it exists or not.

    The row has only the name or the id that the request has.
    """
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if not by_id:
        return MetadataResponseTopic(error_code=code, name=name)
    topic = image.topics.get(name)
    return MetadataResponseTopic(error_code=code, name=None, topic_id=ZERO_UUID if topic is None else topic.topic_id)


def _make_uncreatable_row(name: str) -> MetadataResponseTopic:
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return MetadataResponseTopic(error_code=code, name=name, is_internal=is_internal(name))


def _make_response(
    image: "ClusterMetadata",
    context: "RequestContext",
    request: MetadataRequest,
    found: _RequestedTopics,
    creation_errors: dict[str, KafkaError | None],
) -> MetadataResponse:
    """Return a response with a row for each unknown id, each topic and each refused topic.

    The rows are made while they are encoded: at once they would take 0.7 us each.
    """
    view, rights = _ListenerView(image, context), context.rights

    def describe(requested: str | TopicMetadata) -> MetadataResponseTopic:
        topic = image.topics.get(requested) if isinstance(requested, str) else requested
        if topic is None:
            row = _make_missing_row(str(requested), creation_errors.get(str(requested)))
        else:
            row = view.describe_topic(topic)
        if request.include_topic_authorized_operations:
            row.topic_authorized_operations = list_topic_operations(rights, row.name or "")
        return row

    parts: tuple[tuple[Sequence[Any], Callable[[Any], MetadataResponseTopic]], ...] = (
        (found.unknown_ids, _make_unknown_row),
        (found.topics, describe),
        (found.uncreatable, _make_uncreatable_row),
        (found.hidden, lambda name: _make_hidden_row(image, name, by_id=found.is_by_id)),
    )

    def make_row(number: int) -> MetadataResponseTopic:
        for items, make in parts:
            if number < len(items):
                return make(items[number])
            number -= len(items)
        raise AssertionError("the number of a row is below the sum of the parts")

    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=broker.broker_id, host=endpoint.host, port=endpoint.port, rack=broker.rack)
            for broker, endpoint in _find_reachable_brokers(image, context)
        ],
        cluster_id=image.cluster_id,
        controller_id=image.controller_id,
        topics=rows(make_row, range(sum(len(items) for items, _ in parts))),
        cluster_authorized_operations=(
            list_cluster_operations(context.rights)
            if request.include_cluster_authorized_operations
            else NOT_REQUESTED
        ),
    )


def _find_reachable_brokers(
    image: "ClusterMetadata", context: "RequestContext"
) -> "list[tuple[BrokerMetadata, Endpoint]]":
    """Return the brokers that have an endpoint on the listener of the connection."""
    found = ((broker, broker.endpoint(context.listener_name)) for broker in image.brokers.values())
    return [(broker, endpoint) for broker, endpoint in found if endpoint is not None]


def find_missing_topic_error(name: str) -> ErrorCode:
    """Return the error for a missing topic: INVALID_TOPIC_EXCEPTION if its name is invalid."""
    try:
        check_topic_name(name)
    except KafkaError as error:
        return error.code
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _make_missing_row(name: str, creation_error: KafkaError | None) -> MetadataResponseTopic:
    code = find_missing_topic_error(name) if creation_error is None else creation_error.code
    return MetadataResponseTopic(error_code=code, name=name, is_internal=is_internal(name))


class _ListenerView:
    """Rows of the response for clients of one listener. The brokers are those at the time of its construction."""

    def __init__(self, image: "ClusterMetadata", context: "RequestContext") -> None:
        self._brokers = dict(image.brokers)
        self._reachable = {broker.broker_id for broker, _ in _find_reachable_brokers(image, context)}
        has_code = context.api_version >= LISTENER_NOT_FOUND_SINCE
        self._unreachable_error = ErrorCode.LISTENER_NOT_FOUND if has_code else ErrorCode.LEADER_NOT_AVAILABLE

    def describe_topic(self, topic: TopicMetadata) -> MetadataResponseTopic:
        return MetadataResponseTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            is_internal=topic.is_internal,
            partitions=rows(self._describe_partition, list(enumerate(topic.partitions))),
        )

    def _describe_partition(self, numbered: tuple[int, PartitionMetadata]) -> MetadataResponsePartition:
        index, partition = numbered
        error = ErrorCode.NONE
        if partition.leader not in self._reachable:
            is_live = partition.leader in self._brokers
            error = self._unreachable_error if is_live else ErrorCode.LEADER_NOT_AVAILABLE
        return MetadataResponsePartition(
            error_code=error,
            partition_index=index,
            leader_id=partition.leader if error == ErrorCode.NONE else -1,
            leader_epoch=partition.leader_epoch,
            replica_nodes=list(partition.replicas),
            isr_nodes=list(partition.isr),
            offline_replicas=offline_replicas(partition, self._brokers),
        )


def describe_cluster(
    services: MetadataServices, context: "RequestContext", request: DescribeClusterRequest
) -> "Reply[DescribeClusterResponse]":
    """Return the brokers of the cluster. Controllers have no endpoints of their own (KIP-919).

    Raises KafkaError MISMATCHED_ENDPOINT_TYPE for controllers, UNSUPPORTED_ENDPOINT_TYPE for unknown types; in version
    0 INVALID_REQUEST. LEADER_NOT_AVAILABLE if the broker has no metadata yet.
    """
    first = services.first_metadata
    if first is not None:
        return first.wait().addCallback(lambda _: describe_cluster(services, context, request))
    if request.endpoint_type != BROKER_ENDPOINT:
        code = ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        if request.endpoint_type == CONTROLLER_ENDPOINT:
            code = ErrorCode.MISMATCHED_ENDPOINT_TYPE
        raise KafkaError(
            ErrorCode.INVALID_REQUEST if context.api_version == 0 else code,
            f"Endpoint type {request.endpoint_type} is not supported; request type {BROKER_ENDPOINT} (brokers).",
        )
    image = services.metadata
    brokers = [
        DescribeClusterResponseDescribeClusterBroker(
            broker_id=broker.broker_id, host=endpoint.host, port=endpoint.port, rack=broker.rack
        )
        for broker, endpoint in _find_reachable_brokers(image, context)
    ]
    return DescribeClusterResponse(
        cluster_id=image.cluster_id,
        controller_id=image.controller_id,
        brokers=brokers,
        cluster_authorized_operations=(
            list_cluster_operations(context.rights)
            if request.include_cluster_authorized_operations
            else NOT_REQUESTED
        ),
    )


def describe_cluster_error(
    request: DescribeClusterRequest, version: int, error: KafkaError
) -> DescribeClusterResponse:
    """Return `error` and no brokers."""
    return DescribeClusterResponse(
        error_code=error.code, error_message=error.message, controller_id=NO_CONTROLLER
    )
