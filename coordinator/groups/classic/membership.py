"""SyncGroup, Heartbeat and LeaveGroup of the classic protocol (KIP-345, KIP-559, KIP-800)."""

import logging

from odradek.coordinator.groups.classic import rebalance
from odradek.coordinator.groups.classic.generation_records import assignment_record
from odradek.coordinator.groups.classic.group import (
    COMPLETING_REBALANCE,
    DEAD,
    EMPTY,
    PREPARING_REBALANCE,
    STABLE,
    Group,
)
from odradek.coordinator.groups.classic.member import Parked
from odradek.coordinator.groups.responses import (
    heartbeat_response,
    leave_error,
    leave_response,
    reply_to,
    sync_error,
    sync_success,
)
from odradek.coordinator.groups.shard_state import ShardState, session_key
from odradek.coordinator.request_context import RequestContext
from odradek.coordinator.result import Completion, CoordinatorResult, ReplyWhenWritten, Token
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.heartbeat import HeartbeatRequest
from odradek.protocol.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupRequestMemberIdentity,
    LeaveGroupResponse,
    LeaveGroupResponseMemberResponse,
)
from odradek.protocol.messages.sync_group import SyncGroupRequest

logger = logging.getLogger(__name__)

MEMBERS_LISTED_SINCE = 3


# -- SyncGroup -----------------------------------------------------------------------------------------------------


def sync_group(
    state: ShardState, request: SyncGroupRequest, context: RequestContext, token: Token, now_ms: int
) -> CoordinatorResult:
    """Handle a SyncGroup: reply with the assignment, or park it until the leader's assignment is written."""
    result = CoordinatorResult()
    try:
        group = _group_for_sync(state, request)
    except KafkaError as error:
        result.reply(token, sync_error(error.code))
        return result
    member = group.members[request.member_id]
    if group.state is PREPARING_REBALANCE:
        result.reply(token, sync_error(ErrorCode.REBALANCE_IN_PROGRESS))
    elif group.state is STABLE:
        rebalance.record_sync(state, group, member)
        result.reply(token, sync_success(group, member))
    else:
        superseded = member.park_sync(Parked(token, context.api_version))
        reply_to(result, superseded, sync_error(ErrorCode.REBALANCE_IN_PROGRESS))
        rebalance.record_sync(state, group, member)
        if member.member_id == group.leader_id and not group.is_stored:
            _write_assignment(state, group, request, result)
    return result


def _group_for_sync(state: ShardState, request: SyncGroupRequest) -> Group:
    """Return the group of a request of its current generation. Raises KafkaError."""
    group = state.group(request.group_id, missing=ErrorCode.UNKNOWN_MEMBER_ID)
    if group.state is EMPTY:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
    if group.state is DEAD:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    group.check_member(request.member_id, request.group_instance_id)
    if request.generation_id != group.generation_id:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
    if _differs(request.protocol_type, group.protocol_type) or _differs(request.protocol_name, group.protocol_name):
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    return group


def _differs(requested: str | None, actual: str | None) -> bool:
    return requested is not None and actual is not None and requested != actual


def _write_assignment(state: ShardState, group: Group, request: SyncGroupRequest, result: CoordinatorResult) -> None:
    """Write the leader's assignment. Members that it does not contain get an empty one."""
    assignment = {item.member_id: item.assignment for item in request.assignments}
    logger.info(
        "assignment received group=%s generation=%d leader=%s members=%d",
        group.group_id, group.generation_id, request.member_id, len(group.members),
    )  # fmt: skip
    result.records.append(assignment_record(group, assignment))
    result.completions.append(_Assignment(state, group))


class _Assignment(Completion):
    """Sends the assignment when its record is replicated; starts another rebalance if the write fails."""

    __slots__ = ("generation_id", "group", "state")

    def __init__(self, state: ShardState, group: Group) -> None:
        self.state = state
        self.group = group
        self.generation_id = group.generation_id

    @property
    def _is_current(self) -> bool:
        return self.group.state is COMPLETING_REBALANCE and self.group.generation_id == self.generation_id

    def written(self, result: CoordinatorResult, now_ms: int) -> None:
        if self._is_current:
            rebalance.send_assignments(self.state, self.group, result, now_ms)

    def failed(self, result: CoordinatorResult, error: ErrorCode, now_ms: int) -> None:
        if self._is_current:
            rebalance.reset_assignments(self.state, self.group, error, result)
            why = f"assignment not written: {error.name}"
            rebalance.start_or_complete(self.state, self.group, why, result, now_ms)

    def timed_out(self, result: CoordinatorResult, error: ErrorCode, now_ms: int) -> None:
        """Start another rebalance; the record of its generation replaces this one in the log."""
        self.failed(result, error, now_ms)


# -- Heartbeat -----------------------------------------------------------------------------------------------------


def heartbeat(state: ShardState, request: HeartbeatRequest, token: Token) -> CoordinatorResult:
    """Handle a Heartbeat: restart the session timeout, and report a rebalance in progress."""
    result = CoordinatorResult()
    try:
        error = _heartbeat(state, request)
    except KafkaError as failure:
        error = failure.code
    result.reply(token, heartbeat_response(error))
    return result


def _heartbeat(state: ShardState, request: HeartbeatRequest) -> ErrorCode:
    group = state.group(request.group_id, missing=ErrorCode.UNKNOWN_MEMBER_ID)
    if group.state is DEAD:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    group.check_member(request.member_id, request.group_instance_id)
    if request.generation_id != group.generation_id:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
    rebalance.refresh_session(state, group, group.members[request.member_id])
    return ErrorCode.REBALANCE_IN_PROGRESS if group.state is PREPARING_REBALANCE else ErrorCode.NONE


# -- LeaveGroup ----------------------------------------------------------------------------------------------------


def leave_group(
    state: ShardState, request: LeaveGroupRequest, context: RequestContext, token: Token, now_ms: int
) -> CoordinatorResult:
    """Handle a LeaveGroup: remove each member in the request, or return an error for it."""
    result = CoordinatorResult()
    identities = request.members
    if context.api_version < MEMBERS_LISTED_SINCE:
        identities = [LeaveGroupRequestMemberIdentity(member_id=request.member_id)]
    group = state.groups.get(request.group_id)
    if group is not None and group.state is DEAD:
        result.reply(token, leave_error(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        return result
    response = LeaveGroupResponse(members=[])
    has_left = False
    for identity in identities:
        error = ErrorCode.UNKNOWN_MEMBER_ID if group is None else _leave(state, group, identity, result)
        has_left = has_left or error is ErrorCode.NONE
        response.members.append(
            LeaveGroupResponseMemberResponse(
                member_id=identity.member_id, group_instance_id=identity.group_instance_id, error_code=error
            )
        )
    if group is not None and has_left:
        if group.state in (STABLE, COMPLETING_REBALANCE):
            rebalance.start_or_complete(state, group, "members left", result, now_ms)
        else:
            rebalance.complete_join_if_all_joined(state, group, result, now_ms)
    shaped = leave_response(response, context.api_version)
    if result.records:
        result.completions.append(ReplyWhenWritten(token, shaped, leave_error))
    else:
        result.reply(token, shaped)
    return result


def _leave(
    state: ShardState, group: Group, identity: LeaveGroupRequestMemberIdentity, result: CoordinatorResult
) -> ErrorCode:
    """Remove one member. An administrator identifies a static member by its instance id only."""
    member_id, instance_id = identity.member_id, identity.group_instance_id
    if not member_id:
        if instance_id is None or instance_id not in group.static_members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        member_id = group.static_members[instance_id]
    elif member_id in group.pending_members:
        group.remove(member_id)
        state.timers.cancel(session_key(group, member_id))
        return ErrorCode.NONE
    else:
        error = group.member_error(member_id, instance_id)
        if error:
            return error
    logger.info("member left group=%s member=%s reason=%s", group.group_id, member_id, identity.reason)
    rebalance.remove_member(state, group, group.members[member_id], result)
    return ErrorCode.NONE
