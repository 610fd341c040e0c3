"""Groups and their members: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, DescribeGroups, ListGroups, DeleteGroups."""

from collections.abc import Generator
from typing import TYPE_CHECKING, Protocol, TypeVar

from odradek.coordinator.groups import responses
from odradek.coordinator.groups.prechecks import lacks_protocol
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from odradek.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from odradek.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from odradek.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from odradek.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from odradek.protocol.schema import rows
from odradek.server.authorization.guarding import GuardServices, Proceed, R, divide, finish, join
from odradek.server.security.authorization.operations import ResourceType
from odradek.server.security.authorization.rights import Rights
from odradek.server.work.waits import map_reply

if TYPE_CHECKING:
    from odradek.server.request import Reply, RequestContext


class GroupRequest(Protocol):
    """A request for one group."""

    group_id: str


G = TypeVar("G", bound=GroupRequest)


def one_group(
    rights: Rights, services: GuardServices, context: "RequestContext", request: G, proceed: Proceed[G, R]
) -> "Reply[R]":
    """Check the right to the group of the request."""
    rights.check(ResourceType.GROUP, request.group_id)
    return proceed(request)


def join_group(
    rights: Rights,
    services: GuardServices,
    context: "RequestContext",
    request: JoinGroupRequest,
    proceed: Proceed[JoinGroupRequest, JoinGroupResponse],
) -> "Reply[JoinGroupResponse]":
    """Check the right to the group. As in Kafka, the error response has no member id."""
    if not rights.allows(ResourceType.GROUP, request.group_id):
        code = ErrorCode.GROUP_AUTHORIZATION_FAILED
        return responses.join_error_without_protocol(code, responses.UNKNOWN_MEMBER, context.api_version)
    return proceed(request)


def sync_group(
    rights: Rights,
    services: GuardServices,
    context: "RequestContext",
    request: SyncGroupRequest,
    proceed: Proceed[SyncGroupRequest, SyncGroupResponse],
) -> "Reply[SyncGroupResponse]":
    """Check the right to the group, unless the request is invalid: that error precedes the check in Kafka."""
    if lacks_protocol(request, context.api_version):
        return responses.sync_error(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    return one_group(rights, services, context, request, proceed)


def describe_groups(
    rights: Rights,
    services: GuardServices,
    context: "RequestContext",
    request: DescribeGroupsRequest,
    proceed: Proceed[DescribeGroupsRequest, DescribeGroupsResponse],
) -> "Reply[DescribeGroupsResponse]":
    """Describe the groups that the client may describe; the errors of the others precede them."""

    def describe(allowed: list[str], refused: list[str]) -> "Reply[DescribeGroupsResponse]":
        if not refused:
            return proceed(request)
        error_rows = rows(
            lambda name: responses.describe_groups_error([name], ErrorCode.GROUP_AUTHORIZATION_FAILED)[0], refused
        )
        if not allowed:
            return DescribeGroupsResponse(groups=error_rows)
        rest = DescribeGroupsRequest(
            groups=allowed, include_authorized_operations=request.include_authorized_operations
        )
        return map_reply(
            proceed(rest), lambda response: DescribeGroupsResponse(groups=join(error_rows, response.groups))
        )

    return divide(services, rights, ResourceType.GROUP, request.groups, str, describe)


def list_groups(
    rights: Rights,
    services: GuardServices,
    context: "RequestContext",
    request: ListGroupsRequest,
    proceed: Proceed[ListGroupsRequest, ListGroupsResponse],
) -> "Reply[ListGroupsResponse]":
    """List the groups that the client may describe; all groups if it may describe the cluster."""
    listed = proceed(request)
    if rights.allows_cluster(audits_denial=False):
        return listed

    def select(response: ListGroupsResponse) -> Generator[None, None, ListGroupsResponse]:
        response.groups, _ = yield from rights.divide(
            ResourceType.GROUP, response.groups, lambda group: group.group_id, audits_denial=False
        )
        return response

    return map_reply(listed, lambda response: finish(services, select(response)))


def delete_groups(
    rights: Rights,
    services: GuardServices,
    context: "RequestContext",
    request: DeleteGroupsRequest,
    proceed: Proceed[DeleteGroupsRequest, DeleteGroupsResponse],
) -> "Reply[DeleteGroupsResponse]":
    """Delete the groups that the client may delete."""

    def delete(allowed: list[str], refused: list[str]) -> "Reply[DeleteGroupsResponse]":
        if not refused:
            return proceed(request)
        errors = responses.delete_groups_error(refused, ErrorCode.GROUP_AUTHORIZATION_FAILED)
        if not allowed:
            return errors
        return map_reply(
            proceed(DeleteGroupsRequest(groups_names=allowed)),
            lambda response: DeleteGroupsResponse(results=join(response.results, errors.results)),
        )

    return divide(services, rights, ResourceType.GROUP, dict.fromkeys(request.groups_names), str, delete)
