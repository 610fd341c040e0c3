"""Responses of the group APIs, and the error responses to whole requests.

The error responses are also used for requests that reach no shard: wrong coordinator, not authorized, and so on.
"""

from odradek.coordinator.groups.classic.group import Group
from odradek.coordinator.groups.classic.member import Member, Parked
from odradek.coordinator.result import CoordinatorResult, Response
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.delete_groups import (
    DeleteGroupsResponse,
    DeleteGroupsResponseDeletableGroupResult,
)
from odradek.protocol.messages.describe_groups import DescribeGroupsResponseDescribedGroup
from odradek.protocol.messages.heartbeat import HeartbeatResponse
from odradek.protocol.messages.join_group import JoinGroupResponse
from odradek.protocol.messages.leave_group import LeaveGroupResponse
from odradek.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from odradek.protocol.messages.offset_delete import OffsetDeleteResponse
from odradek.protocol.messages.offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from odradek.protocol.messages.sync_group import SyncGroupResponse
from odradek.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from odradek.protocol.schema import rows

NO_LEADER = ""
UNKNOWN_MEMBER = ""
UNKNOWN_GENERATION = -1
INVALID_OFFSET = -1
LOADING_KNOWN_SINCE = 2
"""From this version of TxnOffsetCommit on, producers retry after COORDINATOR_LOAD_IN_PROGRESS."""


def join_error(error: ErrorCode, member_id: str = UNKNOWN_MEMBER) -> JoinGroupResponse:
    """Return the response to a rejected JoinGroup."""
    return JoinGroupResponse(
        error_code=error,
        generation_id=UNKNOWN_GENERATION,
        protocol_name="",
        leader=NO_LEADER,
        member_id=member_id,
    )


def join_error_without_protocol(error: ErrorCode, member_id: str, api_version: int) -> JoinGroupResponse:
    """Return the response to a rejected JoinGroup with a null protocol, as Kafka does from version 7 on (KIP-559)."""
    response = join_error(error, member_id)
    if api_version >= 7:
        response.protocol_name = None
    return response


def join_success(
    group: Group, member: Member, *, leader_id: str | None = None, with_members: bool, skip_assignment: bool = False
) -> JoinGroupResponse:
    """Return the response with the current generation; `leader_id` replaces the leader's id in it."""
    return JoinGroupResponse(
        error_code=ErrorCode.NONE,
        generation_id=group.generation_id,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name or "",
        leader=(group.leader_id if leader_id is None else leader_id) or NO_LEADER,
        skip_assignment=skip_assignment,
        member_id=member.member_id,
        members=group.join_response_members() if with_members else [],
    )


def sync_error(error: ErrorCode) -> SyncGroupResponse:
    """Return the response to a rejected SyncGroup."""
    return SyncGroupResponse(error_code=error)


def sync_success(group: Group, member: Member) -> SyncGroupResponse:
    """Return the response with the member's assignment."""
    return SyncGroupResponse(
        error_code=ErrorCode.NONE,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        assignment=member.assignment,
    )


def heartbeat_response(error: ErrorCode = ErrorCode.NONE) -> HeartbeatResponse:
    """Return the response to a Heartbeat."""
    return HeartbeatResponse(error_code=error)


def leave_error(error: ErrorCode) -> LeaveGroupResponse:
    """Return the response to a LeaveGroup that failed as a whole."""
    return LeaveGroupResponse(error_code=error)


def offset_commit_error(request: OffsetCommitRequest, error: ErrorCode) -> OffsetCommitResponse:
    """Return the response to an OffsetCommit that failed as a whole, with the error for every partition."""
    return OffsetCommitResponse(
        topics=rows(
            lambda topic: OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=rows(
                    lambda item: OffsetCommitResponsePartition(
                        partition_index=item.partition_index, error_code=error
                    ),
                    topic.partitions,
                ),
            ),
            request.topics,
        )
    )


def txn_offset_commit_error(
    request: TxnOffsetCommitRequest, error: ErrorCode, api_version: int
) -> TxnOffsetCommitResponse:
    """Return the response to a TxnOffsetCommit that failed as a whole, with the error for every partition."""
    if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and api_version < LOADING_KNOWN_SINCE:
        error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(partition_index=item.partition_index, error_code=error)
                    for item in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def offset_fetch_error(
    group: OffsetFetchRequestGroup, error: ErrorCode, api_version: int
) -> OffsetFetchResponseGroup:
    """Return the response to an OffsetFetch that failed for the group: in version 1 with the error per partition."""
    if api_version >= 2:
        return OffsetFetchResponseGroup(group_id=group.group_id, error_code=error)
    return OffsetFetchResponseGroup(
        group_id=group.group_id,
        topics=rows(
            lambda topic: OffsetFetchResponseTopics(
                name=topic.name,
                partitions=rows(
                    lambda index: OffsetFetchResponsePartitions(
                        partition_index=index, committed_offset=INVALID_OFFSET, metadata="", error_code=error
                    ),
                    topic.partition_indexes,
                ),
            ),
            group.topics or [],
        ),
    )


def offset_delete_error(error: ErrorCode) -> OffsetDeleteResponse:
    """Return the response to an OffsetDelete that failed as a whole."""
    return OffsetDeleteResponse(error_code=error)


def delete_groups_error(group_ids: list[str], error: ErrorCode) -> DeleteGroupsResponse:
    """Return the response to a DeleteGroups that failed for all groups."""
    return DeleteGroupsResponse(
        results=[
            DeleteGroupsResponseDeletableGroupResult(group_id=group_id, error_code=error) for group_id in group_ids
        ]
    )


def describe_groups_error(group_ids: list[str], error: ErrorCode) -> list[DescribeGroupsResponseDescribedGroup]:
    """Return the response to a DescribeGroups that failed for all groups."""
    return [
        DescribeGroupsResponseDescribedGroup(group_id=group_id, error_code=error) for group_id in group_ids
    ]


def with_error(response: Response, error: ErrorCode) -> Response:
    """Return the response to the same request if it failed with `error`."""
    match response:
        case JoinGroupResponse():
            return join_error(error, response.member_id)
        case SyncGroupResponse():
            return sync_error(error)
        case HeartbeatResponse():
            return heartbeat_response(error)
        case LeaveGroupResponse():
            return leave_error(error)
        case OffsetDeleteResponse():
            return offset_delete_error(error)
        case DeleteGroupsResponse():
            return delete_groups_error([row.group_id for row in response.results], error)
        case OffsetCommitResponse():
            return OffsetCommitResponse(
                topics=[
                    OffsetCommitResponseTopic(
                        name=topic.name,
                        topic_id=topic.topic_id,
                        partitions=[
                            OffsetCommitResponsePartition(partition_index=row.partition_index, error_code=error)
                            for row in topic.partitions
                        ],
                    )
                    for topic in response.topics
                ]
            )
        case TxnOffsetCommitResponse():
            return TxnOffsetCommitResponse(
                topics=[
                    TxnOffsetCommitResponseTopic(
                        name=topic.name,
                        partitions=[
                            TxnOffsetCommitResponsePartition(partition_index=row.partition_index, error_code=error)
                            for row in topic.partitions
                        ],
                    )
                    for topic in response.topics
                ]
            )
        case _:
            raise TypeError(f"{type(response).__name__} has no error response")


def reply_to(result: CoordinatorResult, parked: Parked | None, response: JoinGroupResponse | SyncGroupResponse) -> bool:
    """Reply to a parked request if there is one; return whether there was one."""
    if parked is None:
        return False
    result.reply(parked.token, response)
    return True


def leave_response(response: LeaveGroupResponse, api_version: int) -> LeaveGroupResponse:
    """Return the response in the form of a version: up to version 2 it contains the error of a single member."""
    if api_version >= 3 or response.error_code != ErrorCode.NONE or len(response.members) != 1:
        return response
    return LeaveGroupResponse(error_code=response.members[0].error_code)
