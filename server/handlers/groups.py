"""The classic group protocol: JoinGroup 0-9, SyncGroup 0-5, Heartbeat 0-4, LeaveGroup 0-5, DescribeGroups 0-6,
ListGroups 0-5, DeleteGroups 0-2.

The coordinator decides; here a request is brought to the shard of its group and the parts of an answer are put
together. KIP-62 (rebalance timeout), KIP-345 (static members), KIP-394 (member id required), KIP-430 (authorized
operations), KIP-518 and KIP-848 (filters of ListGroups), KIP-814 (skip assignment).
"""

from functools import partial
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred

from odradek.coordinator import responses
from odradek.coordinator.group_shard import GroupShard
from odradek.coordinator.result import Result
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from odradek.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from odradek.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from odradek.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from odradek.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from odradek.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from odradek.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from odradek.server.authorized_operations import GROUP_OPERATIONS
from odradek.server.waits import wait_for_all

if TYPE_CHECKING:
    from odradek.server.request import RequestContext
    from odradek.server.services import Services


def join_group(services: "Services", context: "RequestContext", request: JoinGroupRequest) -> Any:
    """Parked until the generation begins, unless it can be answered at once."""
    return services.groups.run(
        request.group_id, lambda shard, token, now_ms: shard.join_group(request, context, token, now_ms)
    )


def join_group_error(request: JoinGroupRequest, version: int, error: KafkaError) -> JoinGroupResponse:
    """The error, and the member id that was sent."""
    return responses.join_error(error.code, request.member_id)


def sync_group(services: "Services", context: "RequestContext", request: SyncGroupRequest) -> Any:
    """Parked until the leader's assignment is written."""
    return services.groups.run(
        request.group_id, lambda shard, token, now_ms: shard.sync_group(request, context, token, now_ms)
    )


def sync_group_error(request: SyncGroupRequest, version: int, error: KafkaError) -> SyncGroupResponse:
    """The error and no assignment."""
    return responses.sync_error(error.code)


def heartbeat(services: "Services", context: "RequestContext", request: HeartbeatRequest) -> Any:
    """Answered at once."""
    return services.groups.run(
        request.group_id, lambda shard, token, now_ms: shard.heartbeat(request, context, token, now_ms)
    )


def heartbeat_error(request: HeartbeatRequest, version: int, error: KafkaError) -> HeartbeatResponse:
    """The error."""
    return responses.heartbeat_response(error.code)


def leave_group(services: "Services", context: "RequestContext", request: LeaveGroupRequest) -> Any:
    """One member up to version 2, several after."""
    return services.groups.run(
        request.group_id, lambda shard, token, now_ms: shard.leave_group(request, context, token, now_ms)
    )


def leave_group_error(request: LeaveGroupRequest, version: int, error: KafkaError) -> LeaveGroupResponse:
    """The error for the request as a whole."""
    return responses.leave_error(error.code)


def describe_groups(
    services: "Services", context: "RequestContext", request: DescribeGroupsRequest
) -> DescribeGroupsResponse:
    """Each group from its shard, in the order asked for."""
    described = []
    for group_id in request.groups:
        shard = services.groups.shard(services.groups.index_of(group_id))
        described += shard.describe_groups([group_id], context)
    if request.include_authorized_operations:
        for group in described:
            if group.error_code == ErrorCode.NONE:
                group.authorized_operations = GROUP_OPERATIONS
    return DescribeGroupsResponse(groups=described)


def describe_groups_error(
    request: DescribeGroupsRequest, version: int, error: KafkaError
) -> DescribeGroupsResponse:
    """The error at every group."""
    return DescribeGroupsResponse(groups=responses.describe_groups_error(request.groups, error.code))


def list_groups(services: "Services", context: "RequestContext", request: ListGroupsRequest) -> ListGroupsResponse:
    """The groups of all shards; one that is still loading fails the request."""
    groups = []
    for shard in services.groups.shards():
        groups += shard.list_groups(request.states_filter, request.types_filter)
    return ListGroupsResponse(groups=groups)


def list_groups_error(request: ListGroupsRequest, version: int, error: KafkaError) -> ListGroupsResponse:
    """The error and no groups."""
    return ListGroupsResponse(error_code=error.code)


def delete_groups(services: "Services", context: "RequestContext", request: DeleteGroupsRequest) -> Any:
    """Each shard deletes its part; the answer comes when all have."""
    by_index: dict[int, list[str]] = {}
    for group_id in dict.fromkeys(request.groups_names):
        by_index.setdefault(services.groups.index_of(group_id), []).append(group_id)
    outcomes = []
    for index, group_ids in by_index.items():
        delete = partial(_delete_groups, group_ids, context)
        outcomes.append(services.groups.run_on(index, delete))
    return together(outcomes, _deleted)


def _delete_groups(
    group_ids: list[str], context: "RequestContext", shard: GroupShard, token: Any, now_ms: int
) -> Result:
    return shard.delete_groups(group_ids, context, token, now_ms)


def _deleted(parts: list[DeleteGroupsResponse]) -> DeleteGroupsResponse:
    return DeleteGroupsResponse(results=[row for part in parts for row in part.results])


def delete_groups_error(request: DeleteGroupsRequest, version: int, error: KafkaError) -> DeleteGroupsResponse:
    """The error at every group."""
    return responses.delete_groups_error(list(dict.fromkeys(request.groups_names)), error.code)


def together(outcomes: list[Any], combine: Any) -> Any:
    """One outcome of several, each a response or a Deferred of one."""
    if not any(isinstance(outcome, Deferred) for outcome in outcomes):
        return combine(outcomes)
    waiting = [outcome if isinstance(outcome, Deferred) else _done(outcome) for outcome in outcomes]
    return wait_for_all(waiting).addCallback(combine)


def _done(response: Any) -> "Deferred[Any]":
    deferred: Deferred[Any] = Deferred()
    deferred.callback(response)
    return deferred
