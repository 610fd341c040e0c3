"""OffsetCommit, OffsetFetch and OffsetDelete between the wire and a shard.

The versions of these APIs differ in whether topics go by name or id, and in how many groups a request is about. Here
every version is brought into the newest shape, what does not exist or may not be seen is answered, and the shard's
answer is put back into the shape of the version. A server handler does, for each group:

    remaining, refused = split_commit(request, version, topics, may_read)
    if nothing remains: answer `refused`; else answer `merge_commit(refused, <the shard's response to `remaining`>)`
"""

from collections.abc import Callable
from itertools import compress
from operator import not_
from typing import Protocol

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from odradek.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from odradek.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from odradek.protocol.schema import rows
from odradek.protocol.types import ZERO_UUID

TOPIC_IDS_SINCE = 10
GROUPS_LISTED_SINCE = 8

MayAccess = Callable[[str], bool]
"""Whether the client may read or describe the topic of this name."""


class TopicResolver(Protocol):
    """What has to be known of the cluster's topics."""

    def topic_id(self, name: str) -> bytes:
        """The topic's id, or ZERO_UUID if there is no such topic."""
        ...

    def topic_name(self, topic_id: bytes) -> str | None:
        """The topic's name, or None if no topic has that id."""
        ...

    def partition_count(self, name: str) -> int:
        """The number of the topic's partitions, or 0 if there is no such topic."""
        ...


# -- commit --------------------------------------------------------------------------------------------------------


def split_commit(
    request: OffsetCommitRequest, api_version: int, topics: TopicResolver, may_read: MayAccess
) -> tuple[OffsetCommitRequest | None, OffsetCommitResponse]:
    """The part of a commit that is for the shard, None if there is none, and the answer to the rest.

    The shard's part has name and id for every topic. The message handed in is used up.
    """
    uses_ids = api_version >= TOPIC_IDS_SINCE
    remaining: list[OffsetCommitRequestTopic] = []
    refused = OffsetCommitResponse(topics=[])
    for topic in request.topics:
        if uses_ids:
            topic.name = topics.topic_name(topic.topic_id) or ""
        error = ErrorCode.NONE
        if uses_ids and not topic.name:
            error = ErrorCode.UNKNOWN_TOPIC_ID
        elif not may_read(topic.name):
            error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        else:
            if not uses_ids:
                topic.topic_id = topics.topic_id(topic.name)
            if topic.topic_id == ZERO_UUID:
                error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        bad = topic.partitions
        if error is ErrorCode.NONE:
            count = topics.partition_count(topic.name)
            exists = [0 <= item.partition_index < count for item in topic.partitions]
            good = list(compress(topic.partitions, exists))
            bad = list(compress(topic.partitions, map(not_, exists)))
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if good:
                remaining.append(
                    OffsetCommitRequestTopic(name=topic.name, topic_id=topic.topic_id, partitions=good)
                )
        if bad:
            answered = OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=[])
            refused.topics.append(answered)
            answered.partitions.extend(
                OffsetCommitResponsePartition(partition_index=item.partition_index, error_code=error) for item in bad
            )
    request.topics = remaining
    return (request if remaining else None), refused


def merge_commit(refused: OffsetCommitResponse, response: OffsetCommitResponse) -> OffsetCommitResponse:
    """One response from the parts, a topic that is in both once."""
    if not refused.topics:
        return response
    known = {(topic.name, topic.topic_id): topic for topic in refused.topics}
    for topic in response.topics:
        place = known.get((topic.name, topic.topic_id))
        if place is None:
            refused.topics.append(topic)
        else:
            place.partitions.extend(topic.partitions)
    return refused


# -- fetch ---------------------------------------------------------------------------------------------------------


def fetch_groups(request: OffsetFetchRequest, api_version: int) -> list[OffsetFetchRequestGroup]:
    """The groups that a request of any version asks about."""
    if api_version >= GROUPS_LISTED_SINCE:
        return request.groups
    topics = None
    if request.topics is not None:
        topics = rows(
            lambda topic: OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes),
            request.topics,
        )
    return [OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)]


def split_fetch(
    group: OffsetFetchRequestGroup, api_version: int, topics: TopicResolver, may_describe: MayAccess
) -> tuple[OffsetFetchRequestGroup, list[OffsetFetchResponseTopics]]:
    """The part of a group's fetch that is for the shard, and the answer to the rest."""
    if group.topics is None:
        return group, []
    uses_ids = api_version >= TOPIC_IDS_SINCE
    remaining: list[OffsetFetchRequestTopics] = []
    refused: list[OffsetFetchResponseTopics] = []
    for topic in group.topics:
        if uses_ids:
            topic.name = topics.topic_name(topic.topic_id) or ""
        if uses_ids and not topic.name:
            refused.append(_refused_fetch(topic, ErrorCode.UNKNOWN_TOPIC_ID))
        elif not may_describe(topic.name):
            refused.append(_refused_fetch(topic, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        else:
            remaining.append(topic)
    asked = OffsetFetchRequestGroup(
        group_id=group.group_id, member_id=group.member_id, member_epoch=group.member_epoch, topics=remaining
    )
    return asked, refused


def _refused_fetch(topic: OffsetFetchRequestTopics, error: ErrorCode) -> OffsetFetchResponseTopics:
    return OffsetFetchResponseTopics(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            OffsetFetchResponsePartitions(
                partition_index=index, committed_offset=-1, metadata="", error_code=error
            )
            for index in topic.partition_indexes
        ],
    )


def merge_fetch(
    asked: OffsetFetchRequestGroup,
    refused: list[OffsetFetchResponseTopics],
    response: OffsetFetchResponseGroup,
    api_version: int,
    topics: TopicResolver,
    may_describe: MayAccess,
) -> OffsetFetchResponseGroup:
    """The group's whole answer; where all topics were asked for, those that may not be seen are left out."""
    if response.error_code:
        return response
    if asked.topics is not None:
        response.topics = [*response.topics, *refused]
        return response
    visible = [topic for topic in response.topics if may_describe(topic.name)]
    if api_version >= TOPIC_IDS_SINCE:
        for topic in visible:
            topic.topic_id = topics.topic_id(topic.name)
        visible = [topic for topic in visible if topic.topic_id != ZERO_UUID]
    response.topics = visible
    return response


def fetch_response(groups: list[OffsetFetchResponseGroup], api_version: int) -> OffsetFetchResponse:
    """The response of any version; before version 8 it has the one group's topics at the top."""
    if api_version >= GROUPS_LISTED_SINCE:
        return OffsetFetchResponse(groups=groups)
    (group,) = groups
    return OffsetFetchResponse(
        error_code=group.error_code,
        topics=rows(
            lambda topic: OffsetFetchResponseTopic(
                name=topic.name, partitions=rows(_row_before_groups_listed, topic.partitions)
            ),
            group.topics,
        ),
    )


def _row_before_groups_listed(row: OffsetFetchResponsePartitions) -> OffsetFetchResponsePartition:
    return OffsetFetchResponsePartition(
        partition_index=row.partition_index,
        committed_offset=row.committed_offset,
        committed_leader_epoch=row.committed_leader_epoch,
        metadata=row.metadata,
        error_code=row.error_code,
    )


# -- delete --------------------------------------------------------------------------------------------------------


def split_delete(
    request: OffsetDeleteRequest, topics: TopicResolver, may_read: MayAccess
) -> tuple[OffsetDeleteRequest, OffsetDeleteResponse]:
    """The part of an OffsetDelete that is for the shard, which is asked even with no topics, and the rest's answer."""
    remaining: list[OffsetDeleteRequestTopic] = []
    refused = OffsetDeleteResponse(topics=[])
    for topic in request.topics:
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        exists = [False] * len(topic.partitions)
        if not may_read(topic.name):
            error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        else:
            count = topics.partition_count(topic.name)
            exists = [0 <= item.partition_index < count for item in topic.partitions]
        good = list(compress(topic.partitions, exists))
        bad = list(compress(topic.partitions, map(not_, exists)))
        if good:
            remaining.append(OffsetDeleteRequestTopic(name=topic.name, partitions=good))
        if bad:
            answered = OffsetDeleteResponseTopic(name=topic.name, partitions=[])
            refused.topics.append(answered)
            answered.partitions.extend(
                OffsetDeleteResponsePartition(partition_index=item.partition_index, error_code=error) for item in bad
            )
    return OffsetDeleteRequest(group_id=request.group_id, topics=remaining), refused


def merge_delete(refused: OffsetDeleteResponse, response: OffsetDeleteResponse) -> OffsetDeleteResponse:
    """One response from the parts; where the group as a whole was refused, that is all that is said."""
    if response.error_code or not refused.topics:
        return response
    known = {topic.name: topic for topic in refused.topics}
    for topic in response.topics:
        place = known.get(topic.name)
        if place is None:
            refused.topics.append(topic)
        else:
            place.partitions.extend(topic.partitions)
    return refused
