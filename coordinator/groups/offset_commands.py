"""OffsetCommit, OffsetFetch and OffsetDelete inside one shard (KIP-211, KIP-447, KIP-496).

The caller has checked that the topics exist and are authorized (`offset_wire`).
"""

import logging
from collections.abc import Callable
from functools import lru_cache, partial
from typing import NamedTuple

from odradek.coordinator.groups.classic import rebalance
from odradek.coordinator.groups.classic.group import (
    COMPLETING_REBALANCE,
    DEAD,
    EMPTY,
    PREPARING_REBALANCE,
    STABLE,
    Group,
)
from odradek.coordinator.groups.offsets import CommittedOffset, OffsetStore
from odradek.coordinator.groups.records import OffsetCommitValue, OffsetRecords, offset_tombstones
from odradek.coordinator.groups.responses import INVALID_OFFSET, offset_commit_error, offset_delete_error
from odradek.coordinator.groups.settings import GroupSettings
from odradek.coordinator.groups.shard_state import ShardState
from odradek.coordinator.partitioning import utf16_length
from odradek.coordinator.request_context import RequestContext
from odradek.coordinator.result import CoordinatorRecord, CoordinatorResult, ReplyWhenWritten, Token
from odradek.coordinator.steps import ITEMS_PER_STEP, Steps, run_to_end
from odradek.properties import INT64_MAX
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from odradek.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from odradek.protocol.messages.offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from odradek.protocol.types import ZERO_UUID

logger = logging.getLogger(__name__)

GROUP_NOT_FOUND_SINCE = 9
NO_RETENTION = -1


# -- commit --------------------------------------------------------------------------------------------------------


class PreparedCommit(NamedTuple):
    """The records of an OffsetCommit, and the response after their write. The group is not checked yet."""

    records: list[CoordinatorRecord]
    response: OffsetCommitResponse


def prepare_commit(settings: GroupSettings, request: OffsetCommitRequest, now_ms: int) -> Steps[PreparedCommit]:
    """Build the records of an OffsetCommit, whose topics have name and id, in steps."""
    expire_ms = -1
    if request.retention_time_ms != NO_RETENTION:
        expire_ms = min(now_ms + request.retention_time_ms, INT64_MAX)
    records: list[CoordinatorRecord] = []
    response = OffsetCommitResponse(topics=[])
    max_metadata_length = settings.offset_metadata_max_length
    for topic in request.topics:
        topic_response = OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=[])
        response.topics.append(topic_response)
        encode = OffsetRecords(request.group_id, topic.name).commit
        for count, item in enumerate(topic.partitions, 1):
            if item.committed_metadata and utf16_length(item.committed_metadata) > max_metadata_length:
                row = _commit_result(item.partition_index, ErrorCode.OFFSET_METADATA_TOO_LARGE)
                topic_response.partitions.append(row)
            else:
                value = _commit_value(item, topic.topic_id, expire_ms, now_ms)
                records.append(encode(item.partition_index, value))
                topic_response.partitions.append(_commit_result(item.partition_index))
            if count % ITEMS_PER_STEP == 0:
                yield
        yield
    return PreparedCommit(records, response)


def commit_offsets(
    state: ShardState,
    request: OffsetCommitRequest,
    context: RequestContext,
    token: Token,
    now_ms: int,
    prepared: PreparedCommit | None = None,
) -> CoordinatorResult:
    """Handle an OffsetCommit, whose topics have name and id. `prepared`: the result of `prepare_commit`, if it ran."""
    result = CoordinatorResult()
    try:
        _check_commit(state, request, context)
    except KafkaError as error:
        result.reply(token, offset_commit_error(request, error.code))
        return result
    result.records, response = prepared or run_to_end(prepare_commit(state.settings, request, now_ms))
    if result.records:
        result.completions.append(ReplyWhenWritten(token, response, partial(offset_commit_error, request)))
    else:
        result.reply(token, response)
    return result


@lru_cache(maxsize=1024)
def _commit_result(partition: int, error: ErrorCode = ErrorCode.NONE) -> OffsetCommitResponsePartition:
    """Return a row of a response. Responses share it, so it must not be changed."""
    return OffsetCommitResponsePartition(partition_index=partition, error_code=error)


def _commit_value(
    item: OffsetCommitRequestPartition, topic_id: bytes, expire_ms: int, now_ms: int
) -> OffsetCommitValue:
    return OffsetCommitValue(
        offset=item.committed_offset,
        leader_epoch=item.committed_leader_epoch if item.committed_leader_epoch >= 0 else -1,
        metadata=item.committed_metadata or "",
        commit_timestamp=now_ms,
        expire_timestamp=expire_ms,
        topic_id=topic_id,
    )


def _check_commit(state: ShardState, request: OffsetCommitRequest, context: RequestContext) -> None:
    """Raise KafkaError if the commit is not allowed. A valid commit of a member counts as a heartbeat."""
    group = state.groups.get(request.group_id)
    generation_id = request.generation_id_or_member_epoch
    if group is None:
        # A commit without a generation is from a consumer without group management; its first offset creates the group.
        if generation_id < 0:
            return
        is_new_client = context.api_version >= GROUP_NOT_FOUND_SINCE
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND if is_new_client else ErrorCode.ILLEGAL_GENERATION)
    if group.state is DEAD:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    if generation_id < 0 and group.state is EMPTY:
        return
    if generation_id >= 0 or request.member_id or request.group_instance_id is not None:
        group.check_member(request.member_id, request.group_instance_id)
        if generation_id != group.generation_id:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
    else:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
    if group.state is COMPLETING_REBALANCE:
        raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
    if group.state in (STABLE, PREPARING_REBALANCE):
        rebalance.refresh_session(state, group, group.members[request.member_id])


# -- fetch ---------------------------------------------------------------------------------------------------------


def fetch_offsets(
    offsets: OffsetStore,
    request: OffsetFetchRequestGroup,
    *,
    require_stable: bool,
    topic_id: Callable[[str], bytes],
) -> OffsetFetchResponseGroup:
    """Return the replicated offsets of the requested topics, or of all if `topics` is None; -1 for none.

    `topic_id` returns the id of the topic that currently has a name, ZERO_UUID if there is none: offsets of a deleted
    topic with the same name may still be stored.
    """
    group_id = request.group_id
    if request.topics is None:
        stored = offsets.replicated_of_group(group_id)
        requested = [(topic, ZERO_UUID, partitions) for topic, partitions in stored.items()]
    else:
        requested = [(topic.name, topic.topic_id, topic.partition_indexes) for topic in request.topics]
    response = OffsetFetchResponseGroup(group_id=group_id, topics=[])
    for name, requested_id, partitions in requested:
        topic_response = OffsetFetchResponseTopics(name=name, topic_id=requested_id, partitions=[])
        current_id = requested_id if requested_id != ZERO_UUID else topic_id(name)
        response.topics.append(topic_response)
        for partition in partitions:
            error = ErrorCode.NONE
            committed = offsets.replicated(group_id, name, partition)
            if require_stable and offsets.is_unstable(group_id, name, partition):
                error, committed = ErrorCode.UNSTABLE_OFFSET_COMMIT, None
            elif committed is not None and _is_other_topic(committed.value.topic_id, current_id):
                committed = None
            if committed is not None or error or request.topics is not None:
                topic_response.partitions.append(_fetch_result(partition, committed, error))
    if request.topics is None:
        response.topics = [topic for topic in response.topics if topic.partitions]
    return response


def _is_other_topic(committed_id: bytes, current_id: bytes) -> bool:
    """Return whether an offset was committed for an earlier topic of the same name. ZERO_UUID matches any topic."""
    return committed_id != ZERO_UUID and current_id != ZERO_UUID and committed_id != current_id


def _fetch_result(partition: int, committed: CommittedOffset | None, error: ErrorCode) -> OffsetFetchResponsePartitions:
    if committed is None:
        return OffsetFetchResponsePartitions(
            partition_index=partition, committed_offset=INVALID_OFFSET, metadata="", error_code=error
        )
    return OffsetFetchResponsePartitions(
        partition_index=partition,
        committed_offset=committed.value.offset,
        committed_leader_epoch=committed.value.leader_epoch,
        metadata=committed.value.metadata,
        error_code=error,
    )


# -- delete --------------------------------------------------------------------------------------------------------


def delete_offsets(state: ShardState, request: OffsetDeleteRequest, token: Token) -> CoordinatorResult:
    """Handle an OffsetDelete: delete offsets of topics to which no live member subscribes."""
    result = CoordinatorResult()
    try:
        group = _group_for_delete(state, request)
    except KafkaError as error:
        result.reply(token, offset_delete_error(error.code))
        return result
    response = OffsetDeleteResponse(topics=[])
    for topic in request.topics:
        is_subscribed = group.is_subscribed_to(topic.name)
        records = OffsetRecords(group.group_id, topic.name)
        error_code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if is_subscribed else ErrorCode.NONE
        topic_response = OffsetDeleteResponseTopic(name=topic.name, partitions=[])
        response.topics.append(topic_response)
        for item in topic.partitions:
            partition = item.partition_index
            topic_response.partitions.append(
                OffsetDeleteResponsePartition(partition_index=partition, error_code=error_code)
            )
            if not is_subscribed and state.offsets.needs_tombstone(group.group_id, topic.name, partition):
                result.records.append(records.tombstone(partition))
    if result.records:
        result.completions.append(ReplyWhenWritten(token, response, offset_delete_error))
    else:
        result.reply(token, response)
    return result


def _group_for_delete(state: ShardState, request: OffsetDeleteRequest) -> Group:
    group = state.group(request.group_id)
    if group.state is DEAD:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
    if group.state is not EMPTY and not group.is_consumer_type:
        raise KafkaError(ErrorCode.NON_EMPTY_GROUP)
    return group


def all_offset_tombstones(state: ShardState, group_id: str, result: CoordinatorResult) -> None:
    """Add the tombstones of all offsets of a group, including those of open transactions."""
    result.records.extend(offset_tombstones(group_id, state.offsets.all_of_group(group_id)))
