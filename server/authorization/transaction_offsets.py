"""TxnOffsetCommit."""

from typing import TYPE_CHECKING

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from odradek.server.authorization.guarding import GuardServices, Proceed, divide, join
from odradek.server.handlers.coordinators.transaction_offsets import txn_offset_commit_error
from odradek.server.security.authorization.operations import ResourceType
from odradek.server.security.authorization.rights import Rights
from odradek.server.work.waits import map_reply

if TYPE_CHECKING:
    from odradek.server.request import Reply, RequestContext

_Topic = TxnOffsetCommitRequestTopic


def txn_offset_commit(
    rights: Rights,
    services: GuardServices,
    context: "RequestContext",
    request: TxnOffsetCommitRequest,
    proceed: Proceed[TxnOffsetCommitRequest, TxnOffsetCommitResponse],
) -> "Reply[TxnOffsetCommitResponse]":
    """Check the rights to the transactional id and the group; commit the offsets of the topics that it may read."""
    rights.check(ResourceType.TRANSACTIONAL_ID, request.transactional_id)
    rights.check(ResourceType.GROUP, request.group_id)

    def commit(allowed: list[_Topic], refused: list[_Topic]) -> "Reply[TxnOffsetCommitResponse]":
        if not refused:
            return proceed(request)
        error = KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        errors = txn_offset_commit_error(_replace_topics(request, refused), context.api_version, error)
        if not allowed:
            return errors
        return map_reply(
            proceed(_replace_topics(request, allowed)),
            lambda response: TxnOffsetCommitResponse(topics=join(errors.topics, response.topics)),
        )

    return divide(services, rights, ResourceType.TOPIC, request.topics, lambda topic: topic.name, commit)


def _replace_topics(request: TxnOffsetCommitRequest, topics: list[_Topic]) -> TxnOffsetCommitRequest:
    return TxnOffsetCommitRequest(
        transactional_id=request.transactional_id,
        group_id=request.group_id,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        generation_id=request.generation_id,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        topics=topics,
    )
