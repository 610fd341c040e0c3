"""DescribeTopicPartitions 0: topics and their partitions in pages (KIP-966).

Topics are sorted by name, partitions by index. A page has at most as many partitions as the request and
`max.request.partition.size.limit` allow, but not less than one if there is one. The cursor is the first partition of
the page; its topic must be one of the requested topics.
"""

from collections.abc import Container, Generator, Iterable
from functools import partial
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponseCursor,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from odradek.protocol.schema import rows
from odradek.replication.metadata.image import PartitionMetadata, offline_replicas
from odradek.replication.metadata.topic_names import is_internal
from odradek.server.authorized_operations import list_topic_operations
from odradek.server.handlers.topics.metadata import find_missing_topic_error
from odradek.server.security.authorization.operations import ResourceType
from odradek.server.work.slices import ROWS_PER_STEP, SMALL_REQUEST_STEPS

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from odradek.replication.metadata.image import ClusterMetadata
    from odradek.server.config import BrokerConfig
    from odradek.server.request import RequestContext
    from odradek.server.security.authorization.rights import Rights
    from odradek.server.work.first_metadata import FirstMetadata
    from odradek.server.work.slices import Slices

NO_LEADER: Final = -1
_NAMES_SORTED_PER_STEP: Final = 1000


class TopicPartitionServices(Protocol):
    """The parts of a broker that DescribeTopicPartitions needs."""

    config: "BrokerConfig"
    metadata: "ClusterMetadata"
    slices: "Slices"

    @property
    def first_metadata(self) -> "FirstMetadata | None": ...


def describe_topic_partitions(
    services: TopicPartitionServices, context: "RequestContext", request: DescribeTopicPartitionsRequest
) -> "Deferred[DescribeTopicPartitionsResponse]":
    """Return one page.

    Raises KafkaError INVALID_REQUEST for an invalid cursor, LEADER_NOT_AVAILABLE if there is no metadata yet.
    """
    first = services.first_metadata
    if first is not None:
        return first.wait().addCallback(lambda _: describe_topic_partitions(services, context, request))
    return services.slices.run(_describe_page(services, request, context.rights), SMALL_REQUEST_STEPS)


def _describe_page(
    services: TopicPartitionServices, request: DescribeTopicPartitionsRequest, rights: "Rights | None"
) -> Generator[None, None, DescribeTopicPartitionsResponse]:
    cursor, image = request.cursor, services.metadata
    names = yield from _sort_names(services, request)
    hidden: list[str] = []
    if rights is not None and request.topics:
        names, hidden = yield from rights.divide(ResourceType.TOPIC, list(names), str)
    limit = max(min(services.config.max_request_partition_size_limit, request.response_partition_limit), 1)
    response = DescribeTopicPartitionsResponse()
    for name in names:
        if rights is not None and not rights.allows(ResourceType.TOPIC, name, audits_denial=False):
            yield
            continue
        start = cursor.partition_index if cursor is not None and name == cursor.topic_name else 0
        if limit == 0:
            response.next_cursor = DescribeTopicPartitionsResponseCursor(topic_name=name, partition_index=0)
            break
        topic = image.topics.get(name)
        if topic is None:
            if request.topics:
                response.topics.append(_make_missing_row(name, rights))
                yield
            continue
        page = topic.partitions[start : start + limit]
        brokers = dict(image.brokers)
        response.topics.append(
            DescribeTopicPartitionsResponseTopic(
                name=name,
                topic_id=topic.topic_id,
                is_internal=topic.is_internal,
                partitions=rows(partial(_make_partition_row, brokers), list(enumerate(page, start))),
                topic_authorized_operations=list_topic_operations(rights, name),
            )
        )
        limit -= len(page)
        if start + len(page) < len(topic.partitions):
            response.next_cursor = DescribeTopicPartitionsResponseCursor(
                topic_name=name, partition_index=start + len(page)
            )
            break
        yield
    found = response.topics
    response.topics = rows(
        lambda number: found[number] if number < len(found) else _make_refused_row(hidden[number - len(found)]),
        range(len(found) + len(hidden)),
    )
    return response


def describe_topic_partitions_error(
    request: DescribeTopicPartitionsRequest, version: int, error: KafkaError
) -> DescribeTopicPartitionsResponse:
    """Return `error` for every topic of the request."""
    return DescribeTopicPartitionsResponse(
        topics=rows(
            lambda topic: DescribeTopicPartitionsResponseTopic(error_code=error.code, name=topic.name), request.topics
        )
    )


def _sort_names(
    services: TopicPartitionServices, request: DescribeTopicPartitionsRequest
) -> Generator[None, None, Iterable[str]]:
    """Return the names of the topics from the cursor on, sorted, in steps. Raises KafkaError INVALID_REQUEST."""
    cursor = request.cursor
    after = "" if cursor is None else cursor.topic_name
    names: Iterable[str] = list(services.metadata.topics)
    if request.topics:
        requested: dict[str, None] = {}
        for number, topic in enumerate(request.topics, 1):
            requested[topic.name] = None
            if number % ROWS_PER_STEP == 0:
                yield
        if cursor is not None and after not in requested:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"The cursor's topic {after} is not one of the requested topics."
            )
        names = requested
    if cursor is not None and cursor.partition_index < 0:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"The cursor's partition {cursor.partition_index} is negative.")
    remaining = iter(names)
    parts = []
    while part := list(islice(remaining, _NAMES_SORTED_PER_STEP)):
        parts.append(sorted(name for name in part if name >= after))
        yield
    return merge(*parts)


def _make_refused_row(name: str) -> DescribeTopicPartitionsResponseTopic:
    """Return the row of a topic that the client may not describe, whether it exists or not."""
    return DescribeTopicPartitionsResponseTopic(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=name)


def _make_missing_row(name: str, rights: "Rights | None") -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        error_code=find_missing_topic_error(name),
        name=name,
        is_internal=is_internal(name),
        topic_authorized_operations=list_topic_operations(rights, name),
    )


def _make_partition_row(
    brokers: Container[int], numbered: tuple[int, PartitionMetadata]
) -> DescribeTopicPartitionsResponsePartition:
    index, partition = numbered
    has_leader = partition.leader in brokers
    return DescribeTopicPartitionsResponsePartition(
        error_code=ErrorCode.NONE if has_leader else ErrorCode.LEADER_NOT_AVAILABLE,
        partition_index=index,
        leader_id=partition.leader if has_leader else NO_LEADER,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=list(partition.isr),
        eligible_leader_replicas=[],
        last_known_elr=[],
        offline_replicas=offline_replicas(partition, brokers),
    )
