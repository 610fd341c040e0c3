"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords."""

from typing import TYPE_CHECKING

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.delete_records import (
    DeleteRecordsRequest,
    DeleteRecordsRequestDeleteRecordsTopic,
    DeleteRecordsResponse,
    DeleteRecordsResponseDeleteRecordsTopicResult,
)
from odradek.protocol.messages.list_offsets import (
    ListOffsetsRequest,
    ListOffsetsRequestListOffsetsTopic,
    ListOffsetsResponse,
)
from odradek.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochRequestOffsetForLeaderTopic,
    OffsetForLeaderEpochResponse,
)
from odradek.server.authorization.guarding import GuardServices, Proceed, divide, join
from odradek.server.handlers.records.delete_records import delete_records_error
from odradek.server.handlers.records.list_offsets import list_offsets_error, offset_for_leader_epoch_error
from odradek.server.security.authorization.operations import ResourceType
from odradek.server.security.authorization.rights import Rights
from odradek.server.work.waits import map_reply

if TYPE_CHECKING:
    from odradek.server.request import Reply, RequestContext

_ERROR = KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)


def list_offsets(
    rights: Rights,
    services: GuardServices,
    context: "RequestContext",
    request: ListOffsetsRequest,
    proceed: Proceed[ListOffsetsRequest, ListOffsetsResponse],
) -> "Reply[ListOffsetsResponse]":
    """List offsets of the topics that the client may describe; the errors of the others follow them."""

    def find(
        allowed: list[ListOffsetsRequestListOffsetsTopic], refused: list[ListOffsetsRequestListOffsetsTopic]
    ) -> "Reply[ListOffsetsResponse]":
        if not refused:
            return proceed(request)
        errors = list_offsets_error(ListOffsetsRequest(topics=refused), context.api_version, _ERROR)
        if not allowed:
            return errors
        rest = ListOffsetsRequest(
            replica_id=request.replica_id,
            isolation_level=request.isolation_level,
            topics=allowed,
            timeout_ms=request.timeout_ms,
        )
        return map_reply(
            proceed(rest), lambda response: ListOffsetsResponse(topics=join(response.topics, errors.topics))
        )

    return divide(services, rights, ResourceType.TOPIC, request.topics, lambda topic: topic.name, find)


def offset_for_leader_epoch(
    rights: Rights,
    services: GuardServices,
    context: "RequestContext",
    request: OffsetForLeaderEpochRequest,
    proceed: Proceed[OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse],
) -> "Reply[OffsetForLeaderEpochResponse]":
    """Find offsets of the topics that the client may describe. A broker, by CLUSTER_ACTION, may describe all topics."""
    if rights.allows_cluster(audits_denial=False):
        return proceed(request)

    def find(
        allowed: list[OffsetForLeaderEpochRequestOffsetForLeaderTopic],
        refused: list[OffsetForLeaderEpochRequestOffsetForLeaderTopic],
    ) -> "Reply[OffsetForLeaderEpochResponse]":
        if not refused:
            return proceed(request)
        denied = OffsetForLeaderEpochRequest(topics=refused)
        errors = offset_for_leader_epoch_error(denied, context.api_version, _ERROR)
        if not allowed:
            return errors
        rest = OffsetForLeaderEpochRequest(replica_id=request.replica_id, topics=allowed)
        return map_reply(
            proceed(rest), lambda response: OffsetForLeaderEpochResponse(topics=join(response.topics, errors.topics))
        )

    return divide(services, rights, ResourceType.TOPIC, request.topics, lambda topic: topic.topic, find)


def delete_records(
    rights: Rights,
    services: GuardServices,
    context: "RequestContext",
    request: DeleteRecordsRequest,
    proceed: Proceed[DeleteRecordsRequest, DeleteRecordsResponse],
) -> "Reply[DeleteRecordsResponse]":
    """Delete records of the topics that the client may delete from."""

    def delete(
        allowed: list[DeleteRecordsRequestDeleteRecordsTopic], refused: list[DeleteRecordsRequestDeleteRecordsTopic]
    ) -> "Reply[DeleteRecordsResponse]":
        if not refused:
            return proceed(request)
        denied = DeleteRecordsRequest(topics=refused)
        errors: list[DeleteRecordsResponseDeleteRecordsTopicResult] = delete_records_error(
            denied, context.api_version, _ERROR
        ).topics
        if not allowed:
            return DeleteRecordsResponse(topics=errors)
        rest = DeleteRecordsRequest(topics=allowed, timeout_ms=request.timeout_ms)
        return map_reply(proceed(rest), lambda response: DeleteRecordsResponse(topics=join(response.topics, errors)))

    return divide(services, rights, ResourceType.TOPIC, request.topics, lambda topic: topic.name, delete)
