"""Groups: their state, members, committed offsets and lag."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.describe_groups import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    DescribeGroupsResponseDescribedGroup,
)
from odradek.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from odradek.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
)
from odradek.protocol.types import DecodeError
from odradek.tools.kafka.cluster import Cluster, RequestError, check, make_error, unknown_name
from odradek.tools.kafka.groups.consumer_protocol import read_assignment
from odradek.tools.kafka.groups.group_types import SHARE, Group, ListedGroup, Member, PartitionLag
from odradek.tools.kafka.topics.offsets import TopicPartition, fetch_end_offsets

if TYPE_CHECKING:
    from odradek.tools.kafka.groups.share_groups import ShareOffset

__all__ = [
    "GROUP_KEY",
    "Group",
    "ListedGroup",
    "Member",
    "PartitionLag",
    "commit_offsets",
    "compute_lags",
    "decode_assignment",
    "describe_groups",
    "exists",
    "fetch_committed",
    "list_groups",
    "unknown_group",
]

GROUP_KEY: Final = 0
_OFFSET_VERSION: Final = 9
"""The newest version of OffsetFetch and OffsetCommit in which topics have names."""

_CONSUMER: Final = "consumer"
_DEAD: Final = "Dead"


def list_groups(
    cluster: Cluster, states: Sequence[str] = (), types: Sequence[str] = (), problems: list[str] | None = None
) -> list[ListedGroup]:
    """Return the groups of all coordinators, sorted by name; with `problems` without those that do not answer."""
    found = []
    if types:
        cluster.any_broker().require_version(ListGroupsRequest, 5, "a type")
    request = ListGroupsRequest(states_filter=list(states), types_filter=list(types))
    for broker, response in cluster.ask_each_broker(request, ListGroupsResponse, problems):
        check(response.error_code, None, f"groups of broker {broker}")
        found += [
            ListedGroup(one.group_id, one.group_state, one.group_type.lower(), one.protocol_type, broker)
            for one in response.groups
        ]
    return sorted(found)


def unknown_group(cluster: Cluster, name: str) -> RequestError:
    """Return the error of a group that does not exist."""
    listed = {one.group: one for one in list_groups(cluster)}
    if name in listed:
        kind = f"{listed[name].type} group".lstrip()
        return RequestError("GROUP_ID_NOT_FOUND", f"group {name} is a {kind}, which this command does not support")
    return unknown_name("GROUP_ID_NOT_FOUND", f"group {name} does not exist", name, listed)


def describe_groups(cluster: Cluster, names: Sequence[str]) -> list[Group]:
    """Return groups; those that do not exist have the state Dead. Raises RequestError."""

    def make_request(asked: list[str]) -> DescribeGroupsRequest:
        return DescribeGroupsRequest(groups=asked)

    described: dict[str, Group] = {}
    for broker, response in cluster.ask_coordinators(names, GROUP_KEY, make_request, DescribeGroupsResponse):
        others = []
        for one in response.groups:
            if one.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
                others.append(one.group_id)
                continue
            check(one.error_code, one.error_message, f"group {one.group_id}")
            if one.group_state == _DEAD:
                others.append(one.group_id)
            described[one.group_id] = _make_classic(one, broker)
        described.update(_describe_other_types(cluster, broker, others))
        for name in others:
            described.setdefault(name, Group(name, _DEAD, "", "", broker, []))
    for name in names:
        if name not in described:
            raise RequestError("GROUP_ID_NOT_FOUND", f"the coordinator does not return group {name}")
    return [described[name] for name in names]


def _describe_other_types(cluster: Cluster, broker: int, names: Sequence[str]) -> dict[str, Group]:
    """Return those of the groups that are no classic groups."""
    found = _describe_consumer_groups(cluster, broker, names)
    if len(found) < len(names):
        # Imported here because most clusters have no groups of these types.
        from odradek.tools.kafka.groups.share_groups import describe_share_groups
        from odradek.tools.kafka.groups.streams_groups import describe_streams_groups

        for describe in (describe_share_groups, describe_streams_groups):
            found.update(describe(cluster, broker, [name for name in names if name not in found]))
    return found


def exists(group: Group) -> bool:
    """True unless a described group does not exist."""
    return group.state != _DEAD


def fetch_committed(cluster: Cluster, names: Sequence[str]) -> dict[str, dict[TopicPartition, int]]:
    """Return the committed offsets of groups. Raises RequestError."""
    found: dict[str, dict[TopicPartition, int]] = {name: {} for name in names}

    def make_request(asked: list[str]) -> OffsetFetchRequest:
        groups = [OffsetFetchRequestGroup(group_id=name, topics=None) for name in asked]
        return OffsetFetchRequest(group_id="", topics=None, groups=groups)

    responses = cluster.ask_coordinators(names, GROUP_KEY, make_request, OffsetFetchResponse, _OFFSET_VERSION)
    for _, response in responses:
        for group in response.groups:
            if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND or group.group_id not in found:
                continue
            check(group.error_code, None, f"offsets of group {group.group_id}")
            for topic in group.topics:
                for one in topic.partitions:
                    check(one.error_code, None, f"offset of group {group.group_id} in {topic.name}")
                    if one.committed_offset >= 0:
                        found[group.group_id][topic.name, one.partition_index] = one.committed_offset
    return found


def commit_offsets(cluster: Cluster, group: str, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Commit offsets of a group without members; return the error code of each partition."""
    from odradek.protocol.messages import offset_commit as messages

    topics: dict[str, list[messages.OffsetCommitRequestPartition]] = {}
    for (topic, index), offset in sorted(offsets.items()):
        topics.setdefault(topic, []).append(
            messages.OffsetCommitRequestPartition(partition_index=index, committed_offset=offset, committed_metadata="")
        )
    request = messages.OffsetCommitRequest(
        group_id=group,
        member_id="",
        topics=[messages.OffsetCommitRequestTopic(name=topic, partitions=each) for topic, each in topics.items()],
    )
    response = cluster.ask_coordinator(group, GROUP_KEY, request, messages.OffsetCommitResponse, _OFFSET_VERSION)
    return {(topic.name, one.partition_index): one.error_code for topic in response.topics for one in topic.partitions}


def compute_lags(
    cluster: Cluster, groups: Iterable[Group], problems: list[str] | None = None
) -> dict[str, list[PartitionLag]]:
    """Return the partitions of each group with their lag. Topics that were deleted have no end offset.

    With `problems` nor have partitions whose leader does not answer (`offsets.fetch_offsets`).
    """
    listed = list(groups)
    share_groups = [group.group for group in listed if group.type == SHARE]
    shared = _fetch_share_offsets(cluster, share_groups) if share_groups else {}
    committed = fetch_committed(cluster, [group.group for group in listed if group.type != SHARE])
    owners = {
        group.group: {partition: member for member in group.members for partition in member.partitions}
        for group in listed
        if group.type != SHARE
    }
    wanted = {key for name, offsets in committed.items() for key in (*offsets, *owners[name])}
    ends = _fetch_end_offsets(cluster, wanted.union(*shared.values()), problems)
    lags = {
        name: [
            _make_lag(key, committed[name].get(key), ends.get(key), owners[name].get(key))
            for key in sorted({*committed[name], *owners[name]})
        ]
        for name in owners
    }
    for name, offsets in shared.items():
        lags[name] = [
            PartitionLag(*key, one.start_offset, ends.get(key), one.lag, None) for key, one in sorted(offsets.items())
        ]
    return lags


def _fetch_end_offsets(
    cluster: Cluster, partitions: Collection[TopicPartition], problems: list[str] | None
) -> Mapping[TopicPartition, int]:
    topics = sorted({topic for topic, _ in partitions})
    leaders = {
        (topic.name or "", one.partition_index): one.leader_id
        for topic in (cluster.fetch_metadata(topics).topics if topics else ())
        for one in topic.partitions
    }
    return fetch_end_offsets(cluster, {key: leaders[key] for key in partitions if key in leaders}, problems)


def _fetch_share_offsets(cluster: Cluster, names: Sequence[str]) -> dict[str, "dict[TopicPartition, ShareOffset]"]:
    # Imported here because most clusters have no share groups.
    from odradek.tools.kafka.groups.share_groups import fetch_share_offsets

    return fetch_share_offsets(cluster, names)


def _make_lag(key: TopicPartition, committed: int | None, end: int | None, member: Member | None) -> PartitionLag:
    lag = None if committed is None or end is None else max(end - committed, 0)
    return PartitionLag(*key, committed, end, lag, member)


def _make_classic(one: DescribeGroupsResponseDescribedGroup, broker: int) -> Group:
    members = [
        Member(
            member.member_id,
            member.group_instance_id,
            member.client_id,
            member.client_host,
            decode_assignment(bytes(member.member_assignment)) if one.protocol_type == _CONSUMER else [],
        )
        for member in one.members
    ]
    return Group(one.group_id, one.group_state, "classic", one.protocol_data, broker, members)


def _describe_consumer_groups(cluster: Cluster, broker: int, names: Sequence[str]) -> dict[str, Group]:
    """Return those of the groups that use the consumer group protocol (KIP-848)."""
    from odradek.protocol.messages import consumer_group_describe as messages

    client = cluster.broker(broker)
    if not names or not client.serves(messages.ConsumerGroupDescribeRequest):
        return {}
    request = messages.ConsumerGroupDescribeRequest(group_ids=list(names))
    found = {}
    for one in client.send(request, messages.ConsumerGroupDescribeResponse).groups:
        # Kafka 3.7 to 3.9 list the API, and return UNSUPPORTED_VERSION while the protocol is off.
        if one.error_code in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
            continue
        if one.error_code:
            raise make_error(one.error_code, one.error_message, f"group {one.group_id}")
        members = [
            Member(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                [
                    (topic.topic_name, partition)
                    for topic in member.assignment.topic_partitions
                    for partition in topic.partitions
                ],
            )
            for member in one.members
        ]
        found[one.group_id] = Group(one.group_id, one.group_state, _CONSUMER, one.assignor_name, broker, members)
    return found


def decode_assignment(data: bytes) -> list[TopicPartition]:
    """Return the partitions in a ConsumerProtocolAssignment; none if the bytes are something else."""
    try:
        assignment = read_assignment(data)
    except DecodeError:
        return []
    topics = () if assignment is None else assignment.assigned_partitions
    return [(one.topic, partition) for one in topics for partition in one.partitions]
