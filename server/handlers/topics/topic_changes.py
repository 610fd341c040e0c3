"""CreateTopics 2-7, DeleteTopics 1-6, CreatePartitions 0-3.

The controller makes the changes and their responses. Topics are deleted by id from version 6 on (KIP-516).
"""

from typing import TYPE_CHECKING, Final, Protocol

from odradek.protocol.errors import KafkaError
from odradek.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsResponseCreatePartitionsTopicResult,
)
from odradek.protocol.messages.create_topics import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    CreateTopicsResponseCreatableTopicResult,
)
from odradek.protocol.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicsResponseDeletableTopicResult,
)
from odradek.server.work.waits import carry_through

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from odradek.replication.controller.admin.topics import SpendMutations, TopicAdmin
    from odradek.server.request import RequestContext

DELETED_BY_ID_SINCE: Final = 6

# From these versions on changes are refused while the quota of mutations is exhausted; before, they only delay later
# requests (KIP-599).
CREATION_STRICT_SINCE: Final = 6
DELETION_STRICT_SINCE: Final = 5
GROWTH_STRICT_SINCE: Final = 3


class TopicServices(Protocol):
    """The parts of a broker that requests about topics need."""

    @property
    def topics(self) -> "TopicAdmin": ...


def create_topics(
    services: TopicServices, context: "RequestContext", request: CreateTopicsRequest
) -> "Deferred[CreateTopicsResponse]":
    """Create topics. Each topic has its own error."""
    return carry_through(services.topics.create_topics(request, _find_spend(context, CREATION_STRICT_SINCE)))


def create_topics_error(request: CreateTopicsRequest, version: int, error: KafkaError) -> CreateTopicsResponse:
    """Return `error` for every topic."""
    names = dict.fromkeys(topic.name for topic in request.topics)
    return CreateTopicsResponse(
        topics=[
            CreateTopicsResponseCreatableTopicResult(name=name, error_code=error.code, error_message=error.message)
            for name in names
        ]
    )


def delete_topics(
    services: TopicServices, context: "RequestContext", request: DeleteTopicsRequest
) -> "Deferred[DeleteTopicsResponse]":
    """Delete topics. Each topic has its own error."""
    spend = _find_spend(context, DELETION_STRICT_SINCE)
    return carry_through(services.topics.delete_topics(request, context.api_version, spend))


def delete_topics_error(request: DeleteTopicsRequest, version: int, error: KafkaError) -> DeleteTopicsResponse:
    """Return `error` for every topic."""
    rows = []
    if version >= DELETED_BY_ID_SINCE:
        for topic in request.topics:
            rows.append(DeleteTopicsResponseDeletableTopicResult(name=topic.name, topic_id=topic.topic_id))
    else:
        rows = [DeleteTopicsResponseDeletableTopicResult(name=name) for name in request.topic_names]
    for row in rows:
        row.error_code, row.error_message = error.code, error.message
    return DeleteTopicsResponse(responses=rows)


def create_partitions(
    services: TopicServices, context: "RequestContext", request: CreatePartitionsRequest
) -> "Deferred[CreatePartitionsResponse]":
    """Add partitions to topics. Each topic has its own error."""
    return carry_through(services.topics.create_partitions(request, _find_spend(context, GROWTH_STRICT_SINCE)))


def create_partitions_error(
    request: CreatePartitionsRequest, version: int, error: KafkaError
) -> CreatePartitionsResponse:
    """Return `error` for every topic."""
    return CreatePartitionsResponse(
        results=[
            CreatePartitionsResponseCreatePartitionsTopicResult(
                name=topic.name, error_code=error.code, error_message=error.message
            )
            for topic in request.topics
        ]
    )


def _find_spend(context: "RequestContext", strict_since: int) -> "SpendMutations | None":
    """Return the function that records partitions to create or delete; None if the client has no quota of them."""
    if context.charge is None:
        return None
    quota = context.charge.make_mutation_quota(is_strict=context.api_version >= strict_since)
    return None if quota is None else quota.record
