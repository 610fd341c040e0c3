"""The classic group protocol: JoinGroup 0-9, SyncGroup 0-5, Heartbeat 0-4, LeaveGroup 0-5, DescribeGroups 0-6,
ListGroups 0-5, DeleteGroups 0-2.

The handlers pass a request to the shard of its group and combine the parts of a response.
KIP-62 (rebalance timeout), KIP-345 (static members), KIP-394 (member id required), KIP-430 (authorized operations),
KIP-518 and KIP-848 (filters of ListGroups), KIP-814 (skip assignment).
"""

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from twisted.internet.defer import Deferred, succeed

from odradek.coordinator.groups import responses
from odradek.coordinator.groups.shard import GroupShard
from odradek.coordinator.result import CoordinatorResult
from odradek.coordinator.steps import Steps, pieces
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from odradek.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from odradek.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from odradek.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from odradek.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from odradek.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from odradek.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from odradek.server.authorized_operations import list_group_operations
from odradek.server.work.waits import carry_through, wait_for_all

if TYPE_CHECKING:
    from odradek.server.coordinators.context import PendingReply
    from odradek.server.coordinators.groups import GroupCoordinatorRuntime
    from odradek.server.request import Reply, RequestContext
    from odradek.server.work.slices import Slices

_TOMBSTONES_PER_STEP: Final = 64
"""Tombstones of one batch. A group has one for itself and one for each of its offsets."""


class GroupServices(Protocol):
    """The parts of a broker that requests about groups need."""

    slices: "Slices"

    @property
    def groups(self) -> "GroupCoordinatorRuntime": ...


def join_group(
    services: GroupServices, context: "RequestContext", request: JoinGroupRequest
) -> "Reply[JoinGroupResponse]":
    """Join a group. The response waits for the next generation, unless the request fails or changes nothing."""
    return services.groups.run(
        request.group_id, lambda shard, token, now_ms: shard.join_group(request, context, token, now_ms)
    )


def join_group_error(request: JoinGroupRequest, version: int, error: KafkaError) -> JoinGroupResponse:
    """Return `error` and the member id of the request."""
    return responses.join_error_without_protocol(error.code, request.member_id, version)


def sync_group(
    services: GroupServices, context: "RequestContext", request: SyncGroupRequest
) -> "Reply[SyncGroupResponse]":
    """Return the member's assignment, once the leader's SyncGroup is written."""
    return services.groups.run(
        request.group_id, lambda shard, token, now_ms: shard.sync_group(request, context, token, now_ms)
    )


def sync_group_error(request: SyncGroupRequest, version: int, error: KafkaError) -> SyncGroupResponse:
    """Return `error` and no assignment."""
    return responses.sync_error(error.code)


def heartbeat(
    services: GroupServices, context: "RequestContext", request: HeartbeatRequest
) -> "Reply[HeartbeatResponse]":
    """Extend a member's session; the response contains REBALANCE_IN_PROGRESS if the member has to join again."""
    return services.groups.run(
        request.group_id, lambda shard, token, now_ms: shard.heartbeat(request, context, token, now_ms)
    )


def heartbeat_error(request: HeartbeatRequest, version: int, error: KafkaError) -> HeartbeatResponse:
    return responses.heartbeat_response(error.code)


def leave_group(
    services: GroupServices, context: "RequestContext", request: LeaveGroupRequest
) -> "Reply[LeaveGroupResponse]":
    """Remove members from a group: one up to version 2, several from 3 on."""
    return services.groups.run(
        request.group_id, lambda shard, token, now_ms: shard.leave_group(request, context, token, now_ms)
    )


def leave_group_error(request: LeaveGroupRequest, version: int, error: KafkaError) -> LeaveGroupResponse:
    """Return `error` for the whole request."""
    return responses.leave_error(error.code)


def describe_groups(
    services: GroupServices, context: "RequestContext", request: DescribeGroupsRequest
) -> "Deferred[DescribeGroupsResponse]":
    """Return state, protocol and members of each group, in the order of the request."""
    return services.slices.run(_describe_groups(services, context, request))


def _describe_groups(
    services: GroupServices, context: "RequestContext", request: DescribeGroupsRequest
) -> Steps[DescribeGroupsResponse]:
    described = []
    for group_id in request.groups:
        shard = services.groups.shard(services.groups.index_of(group_id))
        described += shard.describe_groups([group_id], context)
        yield
    if request.include_authorized_operations:
        for groups in pieces(described):
            for group in groups:
                if group.error_code == ErrorCode.NONE:
                    group.authorized_operations = list_group_operations(context.rights, group.group_id)
            yield
    return DescribeGroupsResponse(groups=described)


def describe_groups_error(
    request: DescribeGroupsRequest, version: int, error: KafkaError
) -> DescribeGroupsResponse:
    """Return `error` for every group."""
    return DescribeGroupsResponse(groups=responses.describe_groups_error(request.groups, error.code))


def list_groups(
    services: GroupServices, context: "RequestContext", request: ListGroupsRequest
) -> "Deferred[ListGroupsResponse]":
    """Return the groups of all shards that pass the filters. A shard that is still loading fails the request."""
    return services.slices.run(_list_groups(services, request))


def _list_groups(services: GroupServices, request: ListGroupsRequest) -> Steps[ListGroupsResponse]:
    groups = []
    for shard in services.groups.shards():
        groups += yield from shard.list_groups(request.states_filter, request.types_filter)
    return ListGroupsResponse(groups=groups)


def list_groups_error(request: ListGroupsRequest, version: int, error: KafkaError) -> ListGroupsResponse:
    """Return `error` and no groups."""
    return ListGroupsResponse(error_code=error.code)


def delete_groups(
    services: GroupServices, context: "RequestContext", request: DeleteGroupsRequest
) -> "Deferred[DeleteGroupsResponse]":
    """Delete groups in their shards, also if the connection is lost."""
    return carry_through(_delete_groups(services, context, request))


async def _delete_groups(
    services: GroupServices, context: "RequestContext", request: DeleteGroupsRequest
) -> DeleteGroupsResponse:
    waits = await services.slices.run(_begin_deletion(services, context, request))
    parts: list[DeleteGroupsResponse] = await wait_for_all(waits) if waits else []
    return DeleteGroupsResponse(results=[row for part in parts for row in part.results])


def _begin_deletion(
    services: GroupServices, context: "RequestContext", request: DeleteGroupsRequest
) -> "Steps[list[Deferred[DeleteGroupsResponse]]]":
    """Begin to delete a few groups in each step. A group's state in its own step decides."""
    by_index: dict[int, deque[str]] = {}
    for group_ids in pieces(dict.fromkeys(request.groups_names)):
        for group_id in group_ids:
            by_index.setdefault(services.groups.index_of(group_id), deque()).append(group_id)
        yield
    waits: list[Deferred[DeleteGroupsResponse]] = []
    for index, of_shard in by_index.items():
        while of_shard:
            group_ids = _take_some(services.groups.shard(index), of_shard)
            outcome: Reply[DeleteGroupsResponse] = services.groups.run_on(
                index, partial(_delete_in_shard, group_ids, context)
            )
            waits.append(outcome if isinstance(outcome, Deferred) else succeed(outcome))
            yield
    return waits


def _take_some(shard: GroupShard, group_ids: deque[str]) -> list[str]:
    """Remove from `group_ids` at least one group, and as many as have few enough tombstones for one step."""
    taken: list[str] = []
    count = 0
    while group_ids and count < _TOMBSTONES_PER_STEP:
        taken.append(group_ids.popleft())
        count += 1 + shard.count_offsets(taken[-1])
    return taken


def _delete_in_shard(
    group_ids: list[str],
    context: "RequestContext",
    shard: GroupShard,
    token: "PendingReply[DeleteGroupsResponse]",
    now_ms: int,
) -> CoordinatorResult:
    return shard.delete_groups(group_ids, context, token, now_ms)


def delete_groups_error(request: DeleteGroupsRequest, version: int, error: KafkaError) -> DeleteGroupsResponse:
    """Return `error` for every group."""
    return responses.delete_groups_error(list(dict.fromkeys(request.groups_names)), error.code)
