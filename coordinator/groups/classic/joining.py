"""JoinGroup (KIP-62, KIP-134, KIP-345, KIP-389, KIP-394, KIP-559, KIP-814), versions 0 to 9."""

import logging

from odradek.coordinator.groups.classic import rebalance
from odradek.coordinator.groups.classic.generation_records import creation_record, replacement_record
from odradek.coordinator.groups.classic.group import (
    COMPLETING_REBALANCE,
    DEAD,
    EMPTY,
    PREPARING_REBALANCE,
    STABLE,
    Group,
)
from odradek.coordinator.groups.classic.member import Member, Parked
from odradek.coordinator.groups.responses import (
    join_error,
    join_error_without_protocol,
    join_success,
    reply_to,
    sync_error,
)
from odradek.coordinator.groups.shard_state import ShardState, session_key
from odradek.coordinator.request_context import RequestContext
from odradek.coordinator.result import Completion, CoordinatorResult, Token
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.join_group import JoinGroupRequest
from odradek.protocol.types import MAX_STRING_BYTES

logger = logging.getLogger(__name__)

MEMBER_ID_REQUIRED_SINCE = 4
SKIP_ASSIGNMENT_SINCE = 9
MAX_NAME_BYTES = MAX_STRING_BYTES - 100
"""Maximum length of a client or instance id within a member id, which must fit into a protocol string."""


class _Join:
    """A JoinGroup request in progress, and the result for it."""

    __slots__ = ("context", "now_ms", "parked", "request", "result", "state")

    def __init__(
        self, state: ShardState, request: JoinGroupRequest, context: RequestContext, token: Token, now_ms: int
    ) -> None:
        self.state = state
        self.request = request
        self.context = context
        self.parked = Parked(token, context.api_version)
        self.now_ms = now_ms
        self.result = CoordinatorResult()

    @property
    def rebalance_timeout_ms(self) -> int:
        """The rebalance timeout; in version 0 the session timeout."""
        is_old = self.context.api_version == 0
        return self.request.session_timeout_ms if is_old else self.request.rebalance_timeout_ms

    @property
    def reason(self) -> str:
        return f"client reason: {self.request.reason or 'not provided'}"

    def reject(self, error: ErrorCode, member_id: str = "") -> None:
        self.result.reply(self.parked.token, join_error(error, member_id))


def join_group(
    state: ShardState, request: JoinGroupRequest, context: RequestContext, token: Token, now_ms: int
) -> CoordinatorResult:
    """Handle a JoinGroup after its prechecks: reply to it, or park it until the next generation starts."""
    join = _Join(state, request, context, token, now_ms)
    group = state.groups.get(request.group_id)
    if group is not None:
        _join_group(join, group)
    elif request.member_id:
        join.reject(ErrorCode.UNKNOWN_MEMBER_ID, request.member_id)
    else:
        _join_new_group(join)
    return join.result


def _join_new_group(join: _Join) -> None:
    """Write the record of a new group; then `_GroupCreation` continues its first JoinGroup, which may be rejected."""
    join.result.records.append(creation_record(join.request.group_id, join.now_ms))
    join.result.completions.append(_GroupCreation(join))


def _join_group(join: _Join, group: Group) -> None:
    request = join.request
    if not _has_room(join.state, group, request.member_id):
        group.remove(request.member_id)
        join.state.timers.cancel(session_key(group, request.member_id))
        join.reject(ErrorCode.GROUP_MAX_SIZE_REACHED)
    elif group.state is DEAD:
        join.reject(ErrorCode.COORDINATOR_NOT_AVAILABLE, request.member_id)
    elif not group.supports(request.protocol_type, request.protocols):
        join.reject(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member_id)
    elif request.member_id:
        _join_with_id(join, group)
    else:
        _join_without_id(join, group)


def _has_room(state: ShardState, group: Group, member_id: str) -> bool:
    """Return whether the group has room for this member (KIP-389).

    In PreparingRebalance the parked joins are counted instead of the members: if group.max.size was lowered, the
    members that rejoin last are rejected.
    """
    if group.state in (EMPTY, DEAD):
        return True
    limit = state.settings.max_group_size
    member = group.members.get(member_id)
    if group.state is PREPARING_REBALANCE:
        return (member is not None and member.parked_join is not None) or group.joins_parked < limit
    return member is not None or len(group.members) < limit


# -- members without an id -----------------------------------------------------------------------------------------


def _join_without_id(join: _Join, group: Group) -> None:
    request = join.request
    name = join.context.client_id if request.group_instance_id is None else request.group_instance_id
    member_id = f"{_shorten(name)}-{join.state.random_uuid()}"
    if request.group_instance_id is not None:
        old_member_id = group.static_members.get(request.group_instance_id)
        if old_member_id is None:
            _add_member(join, group, member_id)
        else:
            _rejoin_static_member(join, group, old_member_id, member_id)
    elif join.context.api_version >= MEMBER_ID_REQUIRED_SINCE:
        group.add_pending(member_id)
        rebalance.schedule_session(join.state, group, member_id, request.session_timeout_ms)
        join.reject(ErrorCode.MEMBER_ID_REQUIRED, member_id)
    else:
        _add_member(join, group, member_id)


def _shorten(name: str) -> str:
    """Truncate a client or instance id so that the member id does not become too long."""
    return name.encode()[:MAX_NAME_BYTES].decode(errors="ignore")


def _add_member(join: _Join, group: Group, member_id: str) -> None:
    request = join.request
    member = Member(
        member_id=member_id,
        group_instance_id=request.group_instance_id,
        client_id=join.context.client_id,
        client_host=join.context.client_host,
        rebalance_timeout_ms=join.rebalance_timeout_ms,
        session_timeout_ms=request.session_timeout_ms,
        protocol_type=request.protocol_type,
        protocols=request.protocols,
    )
    member.is_new = True
    if group.state is PREPARING_REBALANCE and group.previous_state is EMPTY:
        group.member_joined_since_delay = True
    group.add(member)
    group.park_join(member, join.parked)
    rebalance.schedule_session(join.state, group, member_id, join.state.settings.new_member_join_timeout_ms)
    why = f"new member {member_id} with instance id {request.group_instance_id}; {join.reason}"
    rebalance.start_or_complete(join.state, group, why, join.result, join.now_ms)


def _rejoin_static_member(join: _Join, group: Group, old_member_id: str, member_id: str) -> None:
    """Give a static member that joins without its member id a new id, and fence the old one."""
    if group.state is STABLE:
        replacement = group.members[old_member_id].with_id(member_id)
        replacement.protocols = join.request.protocols
        replacement.rebalance_timeout_ms = join.rebalance_timeout_ms
        replacement.session_timeout_ms = join.request.session_timeout_ms
        if group.select_protocol_with(old_member_id, replacement) == group.protocol_name:
            join.result.records.append(replacement_record(group, old_member_id, replacement))
            join.result.completions.append(_StaticJoin(join, group, old_member_id, member_id))
            return
    _replace_static_member(join, group, old_member_id, member_id)
    if group.state is STABLE:
        why = f"static member {member_id} rejoined and changed the selected protocol; {join.reason}"
        rebalance.start_or_complete(join.state, group, why, join.result, join.now_ms)
    elif group.state is COMPLETING_REBALANCE:
        # The leader may already have computed an assignment for the old id, in which the new id has no partitions.
        why = f"static member {member_id} rejoined during the assignment; {join.reason}"
        rebalance.start(join.state, group, why, join.result, join.now_ms)
    else:
        rebalance.complete_join_if_all_joined(join.state, group, join.result, join.now_ms)


def _replace_static_member(join: _Join, group: Group, old_member_id: str, member_id: str) -> Member:
    """Give a static member its new id and park its JoinGroup; requests parked under the old id are fenced."""
    instance_id = join.request.group_instance_id
    assert instance_id is not None
    old = group.members[old_member_id]
    fenced = ErrorCode.FENCED_INSTANCE_ID
    parked = group.take_join(old)
    if parked is not None:
        reply_to(join.result, parked, join_error_without_protocol(fenced, old_member_id, parked.api_version))
    reply_to(join.result, old.take_sync(), sync_error(fenced))
    join.state.timers.cancel(session_key(group, old_member_id))
    member = group.replace_static_member(instance_id, old_member_id, member_id)
    _update_member(join, group, member)
    rebalance.refresh_session(join.state, group, member)
    return member


# -- members with an id --------------------------------------------------------------------------------------------


def _join_with_id(join: _Join, group: Group) -> None:
    request = join.request
    if request.member_id in group.pending_members:
        if request.group_instance_id is not None:
            # Only dynamic members get an id before they join. Apache Kafka returns this error as well.
            join.reject(ErrorCode.UNKNOWN_SERVER_ERROR)
        else:
            _add_member(join, group, request.member_id)
        return
    try:
        group.check_member(request.member_id, request.group_instance_id)
    except KafkaError as error:
        response = join_error_without_protocol(error.code, request.member_id, join.parked.api_version)
        join.result.reply(join.parked.token, response)
        return
    member = group.members[request.member_id]
    is_leader = member.member_id == group.leader_id
    is_unchanged = member.protocols == request.protocols
    if group.state is COMPLETING_REBALANCE and is_unchanged:
        # A retry, because the client has not received the first response.
        join.result.reply(join.parked.token, join_success(group, member, with_members=is_leader))
    elif group.state is STABLE and is_unchanged and not is_leader:
        join.result.reply(join.parked.token, join_success(group, member, with_members=False))
    else:
        # The metadata has changed, the group is in a rebalance, or the leader rejoins for another reason, such as new
        # partitions.
        why = f"member {member.member_id} rejoined in {group.state.value}; {join.reason}"
        _update_member(join, group, member)
        rebalance.start_or_complete(join.state, group, why, join.result, join.now_ms)


def _update_member(join: _Join, group: Group, member: Member) -> None:
    """Update a member from its JoinGroup, and park the request. An earlier parked JoinGroup is rejected."""
    group.set_protocols(member, join.request.protocols)
    member.rebalance_timeout_ms = join.rebalance_timeout_ms
    member.session_timeout_ms = join.request.session_timeout_ms
    superseded = group.park_join(member, join.parked)
    reply_to(join.result, superseded, join_error(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))


# -- completions ---------------------------------------------------------------------------------------------------


class _GroupCreation(Completion):
    """Continues the first JoinGroup of a group once the group's record is in the log."""

    __slots__ = ("is_applied", "join")

    def __init__(self, join: _Join) -> None:
        self.join = join
        self.is_applied = False

    def applied(self, result: CoordinatorResult, now_ms: int) -> None:
        self.is_applied = True
        _join_group(self.join, self.join.state.groups[self.join.request.group_id])

    def written(self, result: CoordinatorResult, now_ms: int) -> None:
        pass

    def failed(self, result: CoordinatorResult, error: ErrorCode, now_ms: int) -> None:
        if not self.is_applied:
            result.reply(self.join.parked.token, join_error(error))


class _StaticJoin(Completion):
    """Replies to a static member that rejoined without a rebalance, once the record of its new id is replicated."""

    __slots__ = ("group", "join", "member", "member_id", "old_leader_id", "old_member_id")

    def __init__(self, join: _Join, group: Group, old_member_id: str, member_id: str) -> None:
        self.join = join
        self.group = group
        self.old_member_id = old_member_id
        self.member_id = member_id
        self.old_leader_id = group.leader_id
        self.member: Member | None = None

    def applied(self, result: CoordinatorResult, now_ms: int) -> None:
        self.member = _replace_static_member(self.join, self.group, self.old_member_id, self.member_id)

    def written(self, result: CoordinatorResult, now_ms: int) -> None:
        member = self.member
        parked = None if member is None else self._take_join(member)
        if member is None or parked is None:
            return
        group = self.group
        if parked.api_version >= SKIP_ASSIGNMENT_SINCE:
            is_leader = member.member_id == group.leader_id
            response = join_success(group, member, with_members=is_leader, skip_assignment=is_leader)
        else:
            # The response names the old leader id: an old client that is the leader in its response would send an
            # assignment, which a stable group ignores.
            response = join_success(group, member, leader_id=self.old_leader_id, with_members=False)
        result.reply(parked.token, response)
        # A session deadline that expired while the JoinGroup was parked had no effect, so it is set again.
        rebalance.refresh_session(self.join.state, group, member)

    def failed(self, result: CoordinatorResult, error: ErrorCode, now_ms: int) -> None:
        if self.member is None:
            self._reject(result, self.join.parked, self.group.members[self.old_member_id], error)

    def timed_out(self, result: CoordinatorResult, error: ErrorCode, now_ms: int) -> None:
        """Reply with the error. The new id remains, as in the log, until the client rejoins or the session expires."""
        member = self.member
        parked = None if member is None else self._take_join(member)
        if member is not None and parked is not None:
            self._reject(result, parked, member, error)
            rebalance.refresh_session(self.join.state, self.group, member)

    def _reject(self, result: CoordinatorResult, parked: Parked, member: Member, error: ErrorCode) -> None:
        response = join_success(self.group, member, leader_id=self.old_leader_id, with_members=False)
        response.error_code, response.member_id = error, ""
        result.reply(parked.token, response)

    def _take_join(self, member: Member) -> Parked | None:
        """Take the parked JoinGroup, unless a rebalance or a later rejoin of the member has taken it."""
        is_current = self.group.members.get(member.member_id) is member
        return self.group.take_join(member) if is_current and self.group.state is STABLE else None
