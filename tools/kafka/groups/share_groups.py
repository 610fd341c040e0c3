"""Share groups (KIP-932): members, start offsets and lag."""

from collections.abc import Sequence
from typing import NamedTuple

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
)
from odradek.protocol.messages.share_group_describe import (
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    ShareGroupDescribeResponseMember,
)
from odradek.tools.kafka.cluster import Cluster, check
from odradek.tools.kafka.groups.group_types import SHARE, Group, Member
from odradek.tools.kafka.topics.offsets import TopicPartition

_GROUP_KEY = 0


class ShareOffset(NamedTuple):
    """The first offset of a partition that is not acknowledged, and the records after it; None if it is unknown."""

    start_offset: int | None
    lag: int | None


def describe_share_groups(cluster: Cluster, broker: int, names: Sequence[str]) -> dict[str, Group]:
    """Return those of the groups of a coordinator that are share groups. Raises RequestError."""
    client = cluster.broker(broker)
    if not names or not client.serves(ShareGroupDescribeRequest):
        return {}
    found = {}
    for one in client.send(ShareGroupDescribeRequest(group_ids=list(names)), ShareGroupDescribeResponse).groups:
        # A broker that serves the request returns UNSUPPORTED_VERSION while groups of this type are not enabled.
        if one.error_code in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
            continue
        check(one.error_code, one.error_message, f"group {one.group_id}")
        members = [_make_member(member) for member in one.members]
        found[one.group_id] = Group(one.group_id, one.group_state, SHARE, one.assignor_name, broker, members)
    return found


def _make_member(member: ShareGroupDescribeResponseMember) -> Member:
    partitions = [
        (topic.topic_name, partition) for topic in member.assignment.topic_partitions for partition in topic.partitions
    ]
    return Member(member.member_id, None, member.client_id, member.client_host, partitions)


def fetch_share_offsets(cluster: Cluster, names: Sequence[str]) -> dict[str, dict[TopicPartition, ShareOffset]]:
    """Return the start offsets of share groups. Raises RequestError."""

    def make_request(asked: list[str]) -> DescribeShareGroupOffsetsRequest:
        groups = [DescribeShareGroupOffsetsRequestGroup(group_id=name, topics=None) for name in asked]
        return DescribeShareGroupOffsetsRequest(groups=groups)

    found: dict[str, dict[TopicPartition, ShareOffset]] = {name: {} for name in names}
    for _, response in cluster.ask_coordinators(names, _GROUP_KEY, make_request, DescribeShareGroupOffsetsResponse):
        for group in response.groups:
            check(group.error_code, group.error_message, f"offsets of group {group.group_id}")
            for topic in group.topics:
                for one in topic.partitions:
                    subject = f"offset of group {group.group_id} in {topic.topic_name}-{one.partition_index}"
                    check(one.error_code, one.error_message, subject)
                    found[group.group_id][topic.topic_name, one.partition_index] = ShareOffset(
                        one.start_offset if one.start_offset >= 0 else None, one.lag if one.lag >= 0 else None
                    )
    return found
