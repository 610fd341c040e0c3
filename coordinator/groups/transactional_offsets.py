"""TxnOffsetCommit inside one shard: offsets that become visible when their transaction commits (KIP-98, KIP-447).

The caller has checked that the topics exist and are authorized, and that the producer's transaction contains this
partition of `__consumer_offsets`.
"""

from collections.abc import Mapping
from functools import lru_cache

from odradek.coordinator.groups.classic.group import DEAD, EMPTY
from odradek.coordinator.groups.records import OffsetCommitValue, OffsetRecords
from odradek.coordinator.groups.responses import txn_offset_commit_error
from odradek.coordinator.groups.shard_state import ShardState
from odradek.coordinator.partitioning import utf16_length
from odradek.coordinator.request_context import RequestContext
from odradek.coordinator.result import CoordinatorResult, ReplyWhenWritten, Token, TransactionalProducer
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from odradek.protocol.types import ZERO_UUID


def commit_offsets(
    state: ShardState,
    request: TxnOffsetCommitRequest,
    context: RequestContext,
    token: Token,
    now_ms: int,
    topic_ids: Mapping[str, bytes],
) -> CoordinatorResult:
    """Handle a TxnOffsetCommit. The offsets are pending until the transaction's marker is written."""
    result = CoordinatorResult()

    def on_error(error: ErrorCode) -> TxnOffsetCommitResponse:
        return txn_offset_commit_error(request, error, context.api_version)

    try:
        _check(state, request)
    except KafkaError as error:
        result.reply(token, on_error(error.code))
        return result
    response = TxnOffsetCommitResponse(topics=[])
    max_metadata_length = state.settings.offset_metadata_max_length
    for topic in request.topics:
        topic_response = TxnOffsetCommitResponseTopic(name=topic.name, partitions=[])
        response.topics.append(topic_response)
        encode = OffsetRecords(request.group_id, topic.name).commit
        topic_id = topic_ids.get(topic.name, ZERO_UUID)
        for item in topic.partitions:
            if item.committed_metadata and utf16_length(item.committed_metadata) > max_metadata_length:
                row = _commit_result(item.partition_index, ErrorCode.OFFSET_METADATA_TOO_LARGE)
                topic_response.partitions.append(row)
            else:
                value = OffsetCommitValue(
                    offset=item.committed_offset,
                    leader_epoch=item.committed_leader_epoch if item.committed_leader_epoch >= 0 else -1,
                    metadata=item.committed_metadata or "",
                    commit_timestamp=now_ms,
                    topic_id=topic_id,
                )
                result.records.append(encode(item.partition_index, value))
                topic_response.partitions.append(_commit_result(item.partition_index))
    if result.records:
        result.producer = TransactionalProducer(request.producer_id, request.producer_epoch)
        result.completions.append(ReplyWhenWritten(token, response, on_error))
    else:
        result.reply(token, response)
    return result


@lru_cache(maxsize=1024)
def _commit_result(partition: int, error: ErrorCode = ErrorCode.NONE) -> TxnOffsetCommitResponsePartition:
    """Return a row of a response. Responses share it, so it must not be changed."""
    return TxnOffsetCommitResponsePartition(partition_index=partition, error_code=error)


def _check(state: ShardState, request: TxnOffsetCommitRequest) -> None:
    """Raise KafkaError if the commit is not allowed.

    Unlike OffsetCommit, it checks the member only if the request contains one, ignores the group's state, and does not
    count as a heartbeat.
    """
    group = state.groups.get(request.group_id)
    if group is None:
        # A commit without a generation is from a producer without group metadata; its first offset creates the group.
        if request.generation_id >= 0:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
        return
    if group.state is DEAD:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    if request.generation_id < 0 and group.state is EMPTY:
        return
    if request.generation_id >= 0 or request.member_id or request.group_instance_id is not None:
        group.check_member(request.member_id, request.group_instance_id)
        if request.generation_id != group.generation_id:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
