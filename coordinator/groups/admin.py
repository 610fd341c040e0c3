"""DescribeGroups, ListGroups and DeleteGroups inside one shard (KIP-229, KIP-518, KIP-848, KIP-1043)."""

import logging
from collections import Counter
from typing import NamedTuple

from odradek.coordinator.groups.classic.group import DEAD, EMPTY, STABLE, Group, GroupState
from odradek.coordinator.groups.offset_commands import all_offset_tombstones
from odradek.coordinator.groups.records import group_metadata_tombstone
from odradek.coordinator.groups.responses import delete_groups_error
from odradek.coordinator.groups.shard_state import ShardState
from odradek.coordinator.request_context import RequestContext
from odradek.coordinator.result import CoordinatorResult, ReplyWhenWritten, Token
from odradek.coordinator.steps import Steps, pieces
from odradek.protocol.errors import ErrorCode, shorten
from odradek.protocol.messages.delete_groups import (
    DeleteGroupsResponse,
    DeleteGroupsResponseDeletableGroupResult,
)
from odradek.protocol.messages.describe_groups import (
    DescribeGroupsResponseDescribedGroup,
    DescribeGroupsResponseDescribedGroupMember,
)
from odradek.protocol.messages.list_groups import ListGroupsResponseListedGroup

logger = logging.getLogger(__name__)

GROUP_NOT_FOUND_SINCE = 6
GROUP_TYPE = "classic"


class GroupCounts(NamedTuple):
    """Numbers of groups by state, and of their committed offsets."""

    states: Counter[GroupState]
    offsets: int


def count_groups(state: ShardState) -> Steps[GroupCounts]:
    """Count the groups of the shard, and their offsets."""
    states: Counter[GroupState] = Counter()
    offsets = 0
    for groups in pieces(state.groups.values()):
        states.update(group.state for group in groups)
        offsets += sum(state.offsets.count(group.group_id) for group in groups)
        yield
    return GroupCounts(states, offsets)


def describe_groups(
    state: ShardState, group_ids: list[str], context: RequestContext
) -> list[DescribeGroupsResponseDescribedGroup]:
    """Return each group's state and members, with protocol and subscriptions only if the group is stable."""
    described = []
    for group_id in group_ids:
        group = state.replicated_group(group_id)
        described.append(_absent(group_id, context) if group is None else _describe(group))
    return described


def _absent(group_id: str, context: RequestContext) -> DescribeGroupsResponseDescribedGroup:
    if context.api_version < GROUP_NOT_FOUND_SINCE:
        return DescribeGroupsResponseDescribedGroup(group_id=group_id, group_state=DEAD.value)
    return DescribeGroupsResponseDescribedGroup(
        group_id=group_id,
        group_state=DEAD.value,
        error_code=ErrorCode.GROUP_ID_NOT_FOUND,
        error_message=shorten(f"Group {group_id} not found."),
    )


def _describe(group: Group) -> DescribeGroupsResponseDescribedGroup:
    protocol_name = group.protocol_name if group.state is STABLE else None
    return DescribeGroupsResponseDescribedGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=protocol_name or "",
        members=[
            DescribeGroupsResponseDescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=b"" if protocol_name is None else member.metadata(protocol_name),
                member_assignment=member.assignment,
            )
            for member in group.members.values()
        ],
    )


def list_groups(
    state: ShardState, states_filter: list[str], types_filter: list[str]
) -> Steps[list[ListGroupsResponseListedGroup]]:
    """Return the groups with one of the states and types, ignoring case; an empty filter matches all.

    Each group is listed with its state at the time of its step, and omitted if it was deleted before.
    """
    states = {text.lower().strip() for text in states_filter}
    if types_filter and GROUP_TYPE not in {text.lower() for text in types_filter}:
        return []
    listed: list[ListGroupsResponseListedGroup] = []
    for groups in pieces(state.replicated_groups()):
        listed.extend(
            ListGroupsResponseListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type or "",
                group_state=group.state.value,
                group_type=GROUP_TYPE,
            )
            for group in groups
            if state.replicated_group(group.group_id) is group and group.state is not DEAD
            if not states or group.state.value.lower() in states
        )
        yield
    return listed


def delete_groups(state: ShardState, group_ids: list[str], token: Token) -> CoordinatorResult:
    """Handle DeleteGroups: delete groups without members, with all their offsets."""
    result = CoordinatorResult()
    response = DeleteGroupsResponse(results=[])
    for group_id in group_ids:
        error = _deletion_error(state.groups.get(group_id))
        if error is ErrorCode.NONE:
            logger.info("deleting group group=%s", group_id)
            all_offset_tombstones(state, group_id, result)
            result.records.append(group_metadata_tombstone(group_id))
        response.results.append(DeleteGroupsResponseDeletableGroupResult(group_id=group_id, error_code=error))
    if result.records:
        result.completions.append(
            ReplyWhenWritten(token, response, lambda error: delete_groups_error(group_ids, error))
        )
    else:
        result.reply(token, response)
    return result


def _deletion_error(group: Group | None) -> ErrorCode:
    if group is None or group.state is DEAD:
        return ErrorCode.GROUP_ID_NOT_FOUND
    return ErrorCode.NONE if group.state is EMPTY else ErrorCode.NON_EMPTY_GROUP
