"""CreateTopics 2-7, DeleteTopics 1-6, CreatePartitions 0-3, DeleteRecords 0-2.

The controller decides; what it answers is already in the shape of the response. Topics are deleted by id from version 6
on (KIP-516). DeleteRecords moves a partition's log start and answers with its low watermark, once all replicas have
followed (KIP-107).
"""

from typing import TYPE_CHECKING, Any, Final

from twisted.internet.defer import Deferred

from odradek.protocol.errors import ErrorCode, KafkaError
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
from odradek.protocol.messages.delete_records import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsResponseDeleteRecordsPartitionResult,
    DeleteRecordsResponseDeleteRecordsTopicResult,
)
from odradek.protocol.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicsResponseDeletableTopicResult,
)
from odradek.server.purgatory import DelayedOperation

if TYPE_CHECKING:
    from odradek.replication.partition import Partition
    from odradek.server.request import RequestContext
    from odradek.server.services import Services

DELETED_BY_ID_SINCE: Final = 6
_INVALID_LOW_WATERMARK: Final = -1
_Unfinished = tuple["Partition", int, DeleteRecordsResponseDeleteRecordsPartitionResult]


def create_topics(services: "Services", context: "RequestContext", request: CreateTopicsRequest) -> Any:
    """Each topic by itself."""
    return Deferred.fromCoroutine(services.topics.create_topics(request))


def create_topics_error(request: CreateTopicsRequest, version: int, error: KafkaError) -> CreateTopicsResponse:
    """The error at every topic."""
    names = dict.fromkeys(topic.name for topic in request.topics)
    return CreateTopicsResponse(
        topics=[
            CreateTopicsResponseCreatableTopicResult(name=name, error_code=error.code, error_message=error.message)
            for name in names
        ]
    )


def delete_topics(services: "Services", context: "RequestContext", request: DeleteTopicsRequest) -> Any:
    """Each topic by itself."""
    return Deferred.fromCoroutine(services.topics.delete_topics(request, context.api_version))


def delete_topics_error(request: DeleteTopicsRequest, version: int, error: KafkaError) -> DeleteTopicsResponse:
    """The error at every topic."""
    rows = []
    if version >= DELETED_BY_ID_SINCE:
        for topic in request.topics:
            rows.append(DeleteTopicsResponseDeletableTopicResult(name=topic.name, topic_id=topic.topic_id))
    else:
        rows = [DeleteTopicsResponseDeletableTopicResult(name=name) for name in request.topic_names]
    for row in rows:
        row.error_code, row.error_message = error.code, error.message
    return DeleteTopicsResponse(responses=rows)


def create_partitions(services: "Services", context: "RequestContext", request: CreatePartitionsRequest) -> Any:
    """Each topic by itself."""
    return Deferred.fromCoroutine(services.topics.create_partitions(request))


def create_partitions_error(
    request: CreatePartitionsRequest, version: int, error: KafkaError
) -> CreatePartitionsResponse:
    """The error at every topic."""
    return CreatePartitionsResponse(
        results=[
            CreatePartitionsResponseCreatePartitionsTopicResult(
                name=topic.name, error_code=error.code, error_message=error.message
            )
            for topic in request.topics
        ]
    )


def delete_records(services: "Services", context: "RequestContext", request: DeleteRecordsRequest) -> Any:
    """Each partition by itself; the answer waits until the replicas have followed."""
    response = DeleteRecordsResponse()
    unfinished: list[_Unfinished] = []
    for topic in request.topics:
        rows = []
        for asked in topic.partitions:
            row = DeleteRecordsResponseDeleteRecordsPartitionResult(
                partition_index=asked.partition_index, low_watermark=_INVALID_LOW_WATERMARK
            )
            rows.append(row)
            try:
                partition = services.replicas.get(topic.name, asked.partition_index)
                row.low_watermark = partition.delete_records(asked.offset)
                start_offset = partition.leading_log().log_start_offset
            except KafkaError as error:
                row.error_code = error.code
                continue
            if row.low_watermark < start_offset:
                unfinished.append((partition, start_offset, row))
        response.topics.append(DeleteRecordsResponseDeleteRecordsTopicResult(name=topic.name, partitions=rows))
    if not unfinished:
        return response
    return _when_followed(services, request, response, unfinished)


def delete_records_error(request: DeleteRecordsRequest, version: int, error: KafkaError) -> DeleteRecordsResponse:
    """The error at every partition."""
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsResponseDeleteRecordsTopicResult(
                name=topic.name,
                partitions=[
                    DeleteRecordsResponseDeleteRecordsPartitionResult(
                        partition_index=asked.partition_index,
                        low_watermark=_INVALID_LOW_WATERMARK,
                        error_code=error.code,
                    )
                    for asked in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _when_followed(
    services: "Services",
    request: DeleteRecordsRequest,
    response: DeleteRecordsResponse,
    unfinished: list[_Unfinished],
) -> "Deferred[DeleteRecordsResponse]":
    def settled() -> DeleteRecordsResponse | None:
        for entry in list(unfinished):
            partition, offset, row = entry
            if not partition.is_leader:
                row.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            elif partition.low_watermark < offset:
                continue
            row.low_watermark = partition.low_watermark
            unfinished.remove(entry)
        return None if unfinished else response

    def timed_out() -> DeleteRecordsResponse:
        for _, _, row in unfinished:
            row.error_code = ErrorCode.REQUEST_TIMED_OUT
        return response

    operation = DelayedOperation(settled, timed_out)
    return operation.wait(services.reactor, request.timeout_ms, dict.fromkeys(entry[0] for entry in unfinished))
