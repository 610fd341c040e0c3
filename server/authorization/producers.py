"""InitProducerId and DescribeProducers."""

from typing import TYPE_CHECKING

from odradek.protocol.errors import KafkaError
from odradek.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersRequestTopicRequest,
    DescribeProducersResponse,
    DescribeProducersResponseTopicResponse,
)
from odradek.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from odradek.protocol.schema import rows
from odradek.replication.metadata.topic_names import check_topic_name
from odradek.server.authorization.guarding import GuardServices, Proceed, divide
from odradek.server.handlers.coordinators.producers import describe_producers_error
from odradek.server.security.authorization.operations import ResourceType
from odradek.server.security.authorization.rights import Rights, make_authorization_error
from odradek.server.work.waits import map_reply

if TYPE_CHECKING:
    from odradek.server.request import Reply, RequestContext

_Topic = DescribeProducersRequestTopicRequest


def init_producer_id(
    rights: Rights,
    services: GuardServices,
    context: "RequestContext",
    request: InitProducerIdRequest,
    proceed: Proceed[InitProducerIdRequest, InitProducerIdResponse],
) -> "Reply[InitProducerIdResponse]":
    """Check the right to the transactional id.

    Without one, check for IDEMPOTENT_WRITE on the cluster, or the right to write to any topic (KIP-679).
    """
    if request.transactional_id is not None:
        rights.check(ResourceType.TRANSACTIONAL_ID, request.transactional_id)
    elif not rights.allows_cluster(audits_denial=False) and not rights.allows_any(ResourceType.TOPIC):
        raise make_authorization_error(ResourceType.CLUSTER)
    return proceed(request)


def describe_producers(
    rights: Rights,
    services: GuardServices,
    context: "RequestContext",
    request: DescribeProducersRequest,
    proceed: Proceed[DescribeProducersRequest, DescribeProducersResponse],
) -> "Reply[DescribeProducersResponse]":
    """Describe the producers of the topics that the client may read, in the order of the request.

    An invalid name needs no right, because its error precedes the check.
    """

    def describe(allowed: list[_Topic], refused: list[_Topic]) -> "Reply[DescribeProducersResponse]":
        if not refused:
            return proceed(request)
        denied = {topic.name for topic in refused}
        error = make_authorization_error(ResourceType.TOPIC)

        def make_row(topic: _Topic | DescribeProducersResponseTopicResponse) -> DescribeProducersResponseTopicResponse:
            if isinstance(topic, DescribeProducersResponseTopicResponse):
                return topic
            one = DescribeProducersRequest(topics=[topic])
            return describe_producers_error(one, context.api_version, error).topics[0]

        def merge(response: DescribeProducersResponse) -> DescribeProducersResponse:
            described = iter(response.topics)
            topics = [topic if topic.name in denied else next(described) for topic in request.topics]
            return DescribeProducersResponse(topics=rows(make_row, topics))

        if not allowed:
            return merge(DescribeProducersResponse())
        return map_reply(proceed(DescribeProducersRequest(topics=allowed)), merge)

    return divide(services, rights, ResourceType.TOPIC, request.topics, _find_valid_name, describe)


def _find_valid_name(topic: _Topic) -> str | None:
    try:
        check_topic_name(topic.name)
    except KafkaError:
        return None
    return topic.name
