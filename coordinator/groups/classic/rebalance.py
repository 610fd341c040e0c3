"""Rebalances: their start, the end of the join phase, and the deadlines of groups.

Sources: KIP-62 (rebalance timeout), KIP-134 (initial delay), KIP-345 (static members stay), KIP-394 (pending members);
behaviour as of Apache Kafka 4.3.
"""

import logging

from odradek.coordinator.groups.classic.generation_records import empty_record
from odradek.coordinator.groups.classic.group import (
    COMPLETING_REBALANCE,
    DEAD,
    EMPTY,
    PREPARING_REBALANCE,
    STABLE,
    Group,
)
from odradek.coordinator.groups.classic.member import EMPTY_ASSIGNMENT, Member
from odradek.coordinator.groups.responses import join_error, join_success, reply_to, sync_error, sync_success
from odradek.coordinator.groups.shard_state import ShardState, join_key, session_key, sync_key
from odradek.coordinator.result import Completion, CoordinatorResult
from odradek.protocol.errors import ErrorCode

logger = logging.getLogger(__name__)

MIN_RETRY_MS = 100
"""Minimum time between two attempts to end a join phase, for members with a very short rebalance timeout."""

EMPTY_RETRY_MS = 1_000
"""Pause before the record of a group without members is written again."""


# -- sessions ------------------------------------------------------------------------------------------------------


def refresh_session(state: ShardState, group: Group, member: Member) -> None:
    """Restart the session timeout of a member."""
    schedule_session(state, group, member.member_id, member.session_timeout_ms)


def schedule_session(state: ShardState, group: Group, member_id: str, timeout_ms: int) -> None:
    """Set the session timeout of a member or a pending member."""
    group_id = group.group_id

    def expire(result: CoordinatorResult, now_ms: int) -> None:
        _expire_session(state, group_id, member_id, result, now_ms)

    state.timers.schedule(session_key(group, member_id), timeout_ms, expire)


def _expire_session(state: ShardState, group_id: str, member_id: str, result: CoordinatorResult, now_ms: int) -> None:
    group = state.groups.get(group_id)
    if group is None or group.state is DEAD:
        return
    if member_id in group.pending_members:
        logger.info("pending member expired group=%s member=%s", group_id, member_id)
        group.remove(member_id)
        if group.state is PREPARING_REBALANCE and group.has_all_joined:
            complete_join(state, group, result, now_ms)
        return
    member = group.members.get(member_id)
    if member is None or member.is_held_by_parked_request:
        return
    logger.info("session expired group=%s member=%s instance=%s", group_id, member_id, member.group_instance_id)
    remove_member(state, group, member, result)
    if group.state in (STABLE, COMPLETING_REBALANCE):
        start_or_complete(state, group, f"session of {member_id} expired", result, now_ms)
    elif group.state is PREPARING_REBALANCE and group.has_all_joined:
        complete_join(state, group, result, now_ms)


def remove_member(state: ShardState, group: Group, member: Member, result: CoordinatorResult) -> None:
    """Remove a member. Its parked requests get UNKNOWN_MEMBER_ID, after which a running client rejoins."""
    state.timers.cancel(session_key(group, member))
    reply_to(result, group.take_join(member), join_error(ErrorCode.UNKNOWN_MEMBER_ID))
    reply_to(result, member.take_sync(), sync_error(ErrorCode.UNKNOWN_MEMBER_ID))
    group.remove(member.member_id)


# -- join phase ----------------------------------------------------------------------------------------------------


def start_or_complete(state: ShardState, group: Group, why: str, result: CoordinatorResult, now_ms: int) -> None:
    """Start a rebalance, or end the join phase of the one in progress if all members have joined."""
    if group.can_rebalance:
        start(state, group, why, result, now_ms)
    else:
        complete_join_if_all_joined(state, group, result, now_ms)


def start(state: ShardState, group: Group, why: str, result: CoordinatorResult, now_ms: int) -> None:
    """Start a rebalance, with the initial delay if the group is Empty, otherwise with the rebalance timeout."""
    if group.state is COMPLETING_REBALANCE:
        reset_assignments(state, group, ErrorCode.REBALANCE_IN_PROGRESS, result)
    group.pending_sync.clear()
    state.timers.cancel(sync_key(group))
    is_initial = group.state is EMPTY
    group.change_state(PREPARING_REBALANCE, why, now_ms)
    if is_initial:
        delay_ms = state.settings.initial_rebalance_delay_ms
        remaining_ms = max(group.rebalance_timeout_ms() - delay_ms, 0)
        group.member_joined_since_delay = False
        _schedule_initial_delay(state, group, delay_ms, remaining_ms)
    elif group.has_all_joined:
        complete_join(state, group, result, now_ms)
    else:
        _schedule_join_timeout(state, group)


def complete_join_if_all_joined(state: ShardState, group: Group, result: CoordinatorResult, now_ms: int) -> None:
    """End the join phase if all members have joined, unless the group was Empty: then the initial delay must expire."""
    if group.state is PREPARING_REBALANCE and group.previous_state is not EMPTY and group.has_all_joined:
        complete_join(state, group, result, now_ms)


def _schedule_join_timeout(state: ShardState, group: Group, least_ms: int = 0) -> None:
    group_id = group.group_id

    def expire(result: CoordinatorResult, now_ms: int) -> None:
        expired = state.groups.get(group_id)
        if expired is not None:
            complete_join(state, expired, result, now_ms)

    state.timers.schedule(join_key(group), max(group.rebalance_timeout_ms(), least_ms), expire)


def _schedule_initial_delay(state: ShardState, group: Group, delay_ms: int, remaining_ms: int) -> None:
    """Wait `delay_ms`, then again while members continue to join, at most for `remaining_ms` in total (KIP-134)."""
    group_id = group.group_id

    def expire(result: CoordinatorResult, now_ms: int) -> None:
        expired = state.groups.get(group_id)
        if expired is None:
            return
        if expired.member_joined_since_delay and remaining_ms:
            expired.member_joined_since_delay = False
            next_delay_ms = min(state.settings.initial_rebalance_delay_ms, remaining_ms)
            _schedule_initial_delay(state, expired, next_delay_ms, max(remaining_ms - delay_ms, 0))
        else:
            complete_join(state, expired, result, now_ms)

    state.timers.schedule(join_key(group), delay_ms, expire)


def complete_join(state: ShardState, group: Group, result: CoordinatorResult, now_ms: int) -> None:
    """End the join phase: remove dynamic members that did not rejoin, and start the next generation with the others."""
    state.timers.cancel(join_key(group))
    for member in [item for item in group.members.values() if item.parked_join is None and not item.is_static]:
        logger.info("member did not rejoin in time group=%s member=%s", group.group_id, member.member_id)
        remove_member(state, group, member, result)
    if group.state is DEAD:
        return
    if not group.members:
        result.records.append(empty_record(group, now_ms))
        result.completions.append(_EmptyGeneration(state, group))
        return
    if not group.elect_joined_leader():
        # Only static members are left, and none of them has joined: wait until one joins or their sessions expire.
        logger.info("no static member rejoined, extending the join phase group=%s", group.group_id)
        _schedule_join_timeout(state, group, least_ms=MIN_RETRY_MS)
        return
    group.start_next_generation(now_ms)
    for member in group.members.values():
        is_leader = member.member_id == group.leader_id
        reply_to(result, group.take_join(member), join_success(group, member, with_members=is_leader))
        refresh_session(state, group, member)
        member.is_new = False
        group.pending_sync[member.member_id] = None
    _schedule_sync_timeout(state, group)


class _EmptyGeneration(Completion):
    """Retries a failed write of the record of a group without members. Its replay ends the join phase."""

    __slots__ = ("group", "state")

    def __init__(self, state: ShardState, group: Group) -> None:
        self.state = state
        self.group = group

    def written(self, result: CoordinatorResult, now_ms: int) -> None:
        pass

    def failed(self, result: CoordinatorResult, error: ErrorCode, now_ms: int) -> None:
        if self.group.state is PREPARING_REBALANCE:
            _schedule_join_timeout(self.state, self.group, least_ms=EMPTY_RETRY_MS)


# -- sync phase ----------------------------------------------------------------------------------------------------


def _schedule_sync_timeout(state: ShardState, group: Group) -> None:
    """Schedule the removal of members without a SyncGroup within the rebalance timeout, also in a stable group."""
    group_id, generation_id = group.group_id, group.generation_id

    def expire(result: CoordinatorResult, now_ms: int) -> None:
        expired = state.groups.get(group_id)
        if expired is None or expired.generation_id != generation_id:
            return
        if expired.state not in (COMPLETING_REBALANCE, STABLE) or not expired.pending_sync:
            return
        late = list(expired.pending_sync)
        for member_id in late:
            remove_member(state, expired, expired.members[member_id], result)
        start(state, expired, f"no SyncGroup within the rebalance timeout from {', '.join(late)}", result, now_ms)

    state.timers.schedule(sync_key(group), group.rebalance_timeout_ms(), expire)


def record_sync(state: ShardState, group: Group, member: Member) -> None:
    """Record that the member has sent its SyncGroup for this generation."""
    group.pending_sync.pop(member.member_id, None)
    if not group.pending_sync:
        state.timers.cancel(sync_key(group))


def reset_assignments(state: ShardState, group: Group, error: ErrorCode, result: CoordinatorResult) -> None:
    """Remove all assignments of a failed generation, and reply to parked SyncGroups with the error."""
    for member in group.members.values():
        member.assignment = EMPTY_ASSIGNMENT
        if reply_to(result, member.take_sync(), sync_error(error)):
            refresh_session(state, group, member)


def send_assignments(state: ShardState, group: Group, result: CoordinatorResult, now_ms: int) -> None:
    """Make the stored generation stable after its replication, and reply to parked SyncGroups."""
    assert group.stored is not None
    assignment = {item.member_id: item.assignment for item in group.stored.members}
    for member in group.members.values():
        member.assignment = assignment.get(member.member_id, EMPTY_ASSIGNMENT)
        if reply_to(result, member.take_sync(), sync_success(group, member)):
            refresh_session(state, group, member)
    group.change_state(STABLE, "assignment written", now_ms)
