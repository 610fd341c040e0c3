"""OffsetCommit, OffsetFetch and OffsetDelete inside one shard (KIP-211, KIP-447, KIP-496).

Which topics exist and may be seen has been settled before (`offset_requests`).
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
    """The records of an OffsetCommit, and the response once they are written. The group is not checked yet."""

    records: list[CoordinatorRecord]
    response: OffsetCommitResponse


def prepare_commit(settings: GroupSettings, request: OffsetCommitRequest, now_ms: int) -> Steps[PreparedCommit]:
    """Make the records of an OffsetCommit whose topics carry both name and id: most of the work of a large one."""
    expire_ms = -1
    if request.retention_time_ms != NO_RETENTION:
        expire_ms = min(now_ms + request.retention_time_ms, INT64_MAX)
    records: list[CoordinatorRecord] = []
    response = OffsetCommitResponse(topics=[])
    most_metadata = settings.offset_metadata_max_length
    for topic in request.topics:
        answered = OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=[])
        response.topics.append(answered)
        encode = OffsetRecords(request.group_id, topic.name).commit
        for count, item in enumerate(topic.partitions, 1):
            if item.committed_metadata and utf16_length(item.committed_metadata) > most_metadata:
                answered.partitions.append(_commit_result(item.partition_index, ErrorCode.OFFSET_METADATA_TOO_LARGE))
            else:
                value = _commit_value(item, topic.topic_id, expire_ms, now_ms)
                records.append(encode(item.partition_index, value))
                answered.partitions.append(_commit_result(item.partition_index))
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
    """Decide an OffsetCommit whose topics carry both name and id; `prepared` is given for a large one."""
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
    """One row of a response. It is shared by responses, and not to be changed."""
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
    """Raise the error of a commit; a valid one counts as a heartbeat."""
    group = state.groups.get(request.group_id)
    generation_id = request.generation_id_or_member_epoch
    if group is None:
        # Without a generation, the group is only a name for offsets, and its first offset creates it.
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
    """Replicated offsets of the topics asked for by name, or of all where `topics` is None; -1 for none.

    `topic_id` gives the id of the topic that has a name now, ZERO_UUID if there is none: the offsets of its
    predecessor may still be there.
    """
    group_id = request.group_id
    if request.topics is None:
        held = offsets.replicated_of_group(group_id)
        wanted = [(topic, ZERO_UUID, partitions) for topic, partitions in held.items()]
    else:
        wanted = [(topic.name, topic.topic_id, topic.partition_indexes) for topic in request.topics]
    response = OffsetFetchResponseGroup(group_id=group_id, topics=[])
    for name, asked_id, partitions in wanted:
        answered = OffsetFetchResponseTopics(name=name, topic_id=asked_id, partitions=[])
        present_id = asked_id if asked_id != ZERO_UUID else topic_id(name)
        response.topics.append(answered)
        for partition in partitions:
            error = ErrorCode.NONE
            found = offsets.replicated(group_id, name, partition)
            if require_stable and offsets.is_unstable(group_id, name, partition):
                error, found = ErrorCode.UNSTABLE_OFFSET_COMMIT, None
            elif found is not None and _is_other_topic(found.value.topic_id, present_id):
                found = None
            if found is not None or error or request.topics is not None:
                answered.partitions.append(_fetched(partition, found, error))
    if request.topics is None:
        response.topics = [topic for topic in response.topics if topic.partitions]
    return response


def _is_other_topic(committed_id: bytes, present_id: bytes) -> bool:
    """Whether the offset was committed for an earlier topic of the same name; unknown ids match everything."""
    return committed_id != ZERO_UUID and present_id != ZERO_UUID and committed_id != present_id


def _fetched(partition: int, found: CommittedOffset | None, error: ErrorCode) -> OffsetFetchResponsePartitions:
    if found is None:
        return OffsetFetchResponsePartitions(
            partition_index=partition, committed_offset=INVALID_OFFSET, metadata="", error_code=error
        )
    return OffsetFetchResponsePartitions(
        partition_index=partition,
        committed_offset=found.value.offset,
        committed_leader_epoch=found.value.leader_epoch,
        metadata=found.value.metadata,
        error_code=error,
    )


# -- delete --------------------------------------------------------------------------------------------------------


def delete_offsets(state: ShardState, request: OffsetDeleteRequest, token: Token) -> CoordinatorResult:
    """Decide an OffsetDelete: offsets of topics that no live member subscribes to may go."""
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
        answered = OffsetDeleteResponseTopic(name=topic.name, partitions=[])
        response.topics.append(answered)
        for item in topic.partitions:
            partition = item.partition_index
            answered.partitions.append(
                OffsetDeleteResponsePartition(partition_index=partition, error_code=error_code)
            )
            if not is_subscribed and state.offsets.is_held(group.group_id, topic.name, partition):
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
    """Delete every offset of a group, those of open transactions too."""
    result.records.extend(offset_tombstones(group_id, state.offsets.held_of_group(group_id)))
