"""Conversion of OffsetCommit, OffsetFetch and OffsetDelete between their API versions and a shard.

Versions of these APIs identify topics by name or by id, and a request contains one or several groups. This module
converts a request of any version to the newest form, rejects topics and partitions that do not exist or are not
authorized, and converts the shard's response to the version of the request. For each group a handler calls:

    remaining, rejected = split_commit(request, version, topics, may_read)
    the response is `rejected` if nothing remains, else `merge_commit(rejected, <the shard's response to `remaining`>)`
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
"""Return whether the client is authorized to read or describe the topic with this name."""


class TopicResolver(Protocol):
    """The topics in the metadata."""

    def topic_id(self, name: str) -> bytes:
        """Return the topic's id; ZERO_UUID if there is no such topic."""
        ...

    def topic_name(self, topic_id: bytes) -> str | None:
        """Return the topic's name; None if no topic has that id."""
        ...

    def partition_count(self, name: str) -> int:
        """Return the number of the topic's partitions; 0 if there is no such topic."""
        ...


# -- commit --------------------------------------------------------------------------------------------------------


def split_commit(
    request: OffsetCommitRequest, api_version: int, topics: TopicResolver, may_read: MayAccess
) -> tuple[OffsetCommitRequest | None, OffsetCommitResponse]:
    """Return the part of a commit for the shard, or None if there is none, and the response to the rejected rest.

    In the shard's part every topic has name and id. `request` is changed and must not be used afterwards.
    """
    uses_ids = api_version >= TOPIC_IDS_SINCE
    remaining: list[OffsetCommitRequestTopic] = []
    rejected = OffsetCommitResponse(topics=[])
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
        invalid = topic.partitions
        if error is ErrorCode.NONE:
            count = topics.partition_count(topic.name)
            exists = [0 <= item.partition_index < count for item in topic.partitions]
            valid = list(compress(topic.partitions, exists))
            invalid = list(compress(topic.partitions, map(not_, exists)))
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if valid:
                remaining.append(
                    OffsetCommitRequestTopic(name=topic.name, topic_id=topic.topic_id, partitions=valid)
                )
        if invalid:
            topic_response = OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=[])
            rejected.topics.append(topic_response)
            topic_response.partitions.extend(
                OffsetCommitResponsePartition(partition_index=item.partition_index, error_code=error)
                for item in invalid
            )
    request.topics = remaining
    return (request if remaining else None), rejected


def merge_commit(rejected: OffsetCommitResponse, response: OffsetCommitResponse) -> OffsetCommitResponse:
    """Merge the responses to the rejected part and to the shard's part; a topic in both is listed once."""
    if not rejected.topics:
        return response
    rejected_topics = {(topic.name, topic.topic_id): topic for topic in rejected.topics}
    for topic in response.topics:
        rejected_topic = rejected_topics.get((topic.name, topic.topic_id))
        if rejected_topic is None:
            rejected.topics.append(topic)
        else:
            rejected_topic.partitions.extend(topic.partitions)
    return rejected


# -- fetch ---------------------------------------------------------------------------------------------------------


def fetch_groups(request: OffsetFetchRequest, api_version: int) -> list[OffsetFetchRequestGroup]:
    """Return the groups in a request of any version."""
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
    """Return the part of a group's fetch for the shard, and the response to the rejected rest."""
    if group.topics is None:
        return group, []
    uses_ids = api_version >= TOPIC_IDS_SINCE
    remaining: list[OffsetFetchRequestTopics] = []
    rejected: list[OffsetFetchResponseTopics] = []
    for topic in group.topics:
        if uses_ids:
            topic.name = topics.topic_name(topic.topic_id) or ""
        if uses_ids and not topic.name:
            rejected.append(_rejected_fetch(topic, ErrorCode.UNKNOWN_TOPIC_ID))
        elif not may_describe(topic.name):
            rejected.append(_rejected_fetch(topic, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        else:
            remaining.append(topic)
    shard_request = OffsetFetchRequestGroup(
        group_id=group.group_id, member_id=group.member_id, member_epoch=group.member_epoch, topics=remaining
    )
    return shard_request, rejected


def _rejected_fetch(topic: OffsetFetchRequestTopics, error: ErrorCode) -> OffsetFetchResponseTopics:
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
    shard_request: OffsetFetchRequestGroup,
    rejected: list[OffsetFetchResponseTopics],
    response: OffsetFetchResponseGroup,
    api_version: int,
    topics: TopicResolver,
    may_describe: MayAccess,
) -> OffsetFetchResponseGroup:
    """Return the group's complete response. If all topics were requested, unauthorized ones are omitted."""
    if response.error_code:
        return response
    if shard_request.topics is not None:
        response.topics = [*response.topics, *rejected]
        return response
    authorized = [topic for topic in response.topics if may_describe(topic.name)]
    if api_version >= TOPIC_IDS_SINCE:
        for topic in authorized:
            topic.topic_id = topics.topic_id(topic.name)
        authorized = [topic for topic in authorized if topic.topic_id != ZERO_UUID]
    response.topics = authorized
    return response


def fetch_response(groups: list[OffsetFetchResponseGroup], api_version: int) -> OffsetFetchResponse:
    """Return the response in the form of a version: before version 8 it contains the topics of a single group."""
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
    """Return the part of an OffsetDelete for the shard, and the response to the rejected rest.

    The shard's part may be without topics; the shard still checks the group.
    """
    remaining: list[OffsetDeleteRequestTopic] = []
    rejected = OffsetDeleteResponse(topics=[])
    for topic in request.topics:
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        exists = [False] * len(topic.partitions)
        if not may_read(topic.name):
            error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        else:
            count = topics.partition_count(topic.name)
            exists = [0 <= item.partition_index < count for item in topic.partitions]
        valid = list(compress(topic.partitions, exists))
        invalid = list(compress(topic.partitions, map(not_, exists)))
        if valid:
            remaining.append(OffsetDeleteRequestTopic(name=topic.name, partitions=valid))
        if invalid:
            topic_response = OffsetDeleteResponseTopic(name=topic.name, partitions=[])
            rejected.topics.append(topic_response)
            topic_response.partitions.extend(
                OffsetDeleteResponsePartition(partition_index=item.partition_index, error_code=error)
                for item in invalid
            )
    return OffsetDeleteRequest(group_id=request.group_id, topics=remaining), rejected


def merge_delete(rejected: OffsetDeleteResponse, response: OffsetDeleteResponse) -> OffsetDeleteResponse:
    """Merge the responses to the rejected part and to the shard's part. An error of the whole group replaces both."""
    if response.error_code or not rejected.topics:
        return response
    rejected_topics = {topic.name: topic for topic in rejected.topics}
    for topic in response.topics:
        rejected_topic = rejected_topics.get(topic.name)
        if rejected_topic is None:
            rejected.topics.append(topic)
        else:
            rejected_topic.partitions.extend(topic.partitions)
    return rejected
