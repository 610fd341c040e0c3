"""Streams groups (KIP-1071): their members, and the partitions that their active tasks read."""

from collections.abc import Mapping, Sequence

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.streams_group_describe import (
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
    StreamsGroupDescribeResponseDescribedGroup,
    StreamsGroupDescribeResponseMember,
)
from odradek.tools.kafka.cluster import Cluster, check
from odradek.tools.kafka.groups.group_types import STREAMS, Group, Member
from odradek.tools.kafka.topics.offsets import TopicPartition


def describe_streams_groups(cluster: Cluster, broker: int, names: Sequence[str]) -> dict[str, Group]:
    """Return those of the groups of a coordinator that are streams groups. Raises RequestError."""
    client = cluster.broker(broker)
    if not names or not client.serves(StreamsGroupDescribeRequest):
        return {}
    found = {}
    for one in client.send(StreamsGroupDescribeRequest(group_ids=list(names)), StreamsGroupDescribeResponse).groups:
        # A broker that serves the request returns UNSUPPORTED_VERSION while groups of this type are not enabled.
        if one.error_code in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
            continue
        check(one.error_code, one.error_message, f"group {one.group_id}")
        topics = _find_source_topics(one)
        counts = _count_partitions(cluster, {topic for each in topics.values() for topic in each})
        members = [_make_member(member, topics, counts) for member in one.members]
        found[one.group_id] = Group(one.group_id, one.group_state, STREAMS, "", broker, members)
    return found


def _find_source_topics(group: StreamsGroupDescribeResponseDescribedGroup) -> dict[str, list[str]]:
    """Return the topics that each subtopology reads; none before the topology is configured."""
    subtopologies = None if group.topology is None else group.topology.subtopologies
    return {
        one.subtopology_id: [*one.source_topics, *(topic.name for topic in one.repartition_source_topics)]
        for one in subtopologies or ()
    }


def _count_partitions(cluster: Cluster, topics: set[str]) -> dict[str, int]:
    if not topics:
        return {}
    return {topic.name or "": len(topic.partitions) for topic in cluster.fetch_metadata(sorted(topics)).topics}


def _make_member(
    member: StreamsGroupDescribeResponseMember, topics: Mapping[str, Sequence[str]], counts: Mapping[str, int]
) -> Member:
    """Return a member. A task reads the partition of its number in each source topic that has as many partitions."""
    partitions: list[TopicPartition] = [
        (topic, partition)
        for tasks in member.assignment.active_tasks
        for topic in topics.get(tasks.subtopology_id, ())
        for partition in tasks.partitions
        if partition < counts.get(topic, 0)
    ]
    return Member(member.member_id, member.instance_id, member.client_id, member.client_host, partitions)
