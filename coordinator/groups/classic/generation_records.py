"""Records of a classic group: generations with their assignment, and generations without members."""

from collections.abc import Iterable

from odradek.coordinator.groups.classic.group import EMPTY, STABLE, Group
from odradek.coordinator.groups.classic.member import EMPTY_ASSIGNMENT, Member
from odradek.coordinator.groups.records import (
    GroupMetadataValue,
    GroupMetadataValueMemberMetadata,
    group_metadata_record,
)
from odradek.coordinator.result import CoordinatorRecord
from odradek.protocol.messages.join_group import JoinGroupRequestProtocol


def creation_record(group_id: str, now_ms: int) -> CoordinatorRecord:
    """Return the first record of a group, which has no generation yet."""
    return _empty_record(group_id, "", 0, now_ms)


def empty_record(group: Group, now_ms: int) -> CoordinatorRecord:
    """Return the record of the next generation of a group that has no members left."""
    return _empty_record(group.group_id, group.protocol_type or "", group.generation_id + 1, now_ms)


def _empty_record(group_id: str, protocol_type: str, generation_id: int, now_ms: int) -> CoordinatorRecord:
    value = GroupMetadataValue(
        protocol_type=protocol_type,
        generation=generation_id,
        protocol=None,
        leader=None,
        current_state_timestamp=now_ms,
        members=[],
    )
    return group_metadata_record(group_id, value)


def assignment_record(group: Group, assignment: dict[str, bytes]) -> CoordinatorRecord:
    """Return the record of the current generation with `assignment`, by member id; it is empty for other members."""
    assigned = [
        (member, assignment.get(member.member_id, EMPTY_ASSIGNMENT)) for member in group.members.values()
    ]
    return _generation_record(group, assigned, group.leader_id)


def replacement_record(group: Group, old_member_id: str, replacement: Member) -> CoordinatorRecord:
    """Return the record of the current generation with a member replaced. The group is not changed."""
    assigned = [(member, member.assignment) for member in group.members_with(old_member_id, replacement)]
    leader_id = replacement.member_id if group.leader_id == old_member_id else group.leader_id
    return _generation_record(group, assigned, leader_id)


def _generation_record(
    group: Group, assigned: Iterable[tuple[Member, bytes]], leader_id: str | None
) -> CoordinatorRecord:
    assert group.protocol_name is not None
    members = [
        GroupMetadataValueMemberMetadata(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout=member.rebalance_timeout_ms,
            session_timeout=member.session_timeout_ms,
            subscription=member.metadata(group.protocol_name),
            assignment=assignment,
        )
        for member, assignment in assigned
    ]
    value = GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation_id,
        protocol=group.protocol_name,
        leader=leader_id,
        current_state_timestamp=-1 if group.state_since_ms is None else group.state_since_ms,
        members=members,
    )
    return group_metadata_record(group.group_id, value)


def group_from_record(group_id: str, value: GroupMetadataValue) -> Group:
    """Return the group that a record describes: Stable if it has members, otherwise Empty.

    If the leader is not a member, because the record is damaged, the first member becomes the leader.
    """
    is_leader_member = any(item.member_id == value.leader for item in value.members)
    group = Group(
        group_id,
        state=STABLE if value.members else EMPTY,
        generation_id=value.generation,
        protocol_type=value.protocol_type or None,
        protocol_name=value.protocol,
        leader_id=value.leader if is_leader_member else None,
        state_since_ms=None if value.current_state_timestamp == -1 else value.current_state_timestamp,
    )
    for item in value.members:
        no_rebalance_timeout = item.rebalance_timeout == -1  # version 0 has none
        group.add(
            Member(
                member_id=item.member_id,
                group_instance_id=item.group_instance_id,
                client_id=item.client_id,
                client_host=item.client_host,
                rebalance_timeout_ms=item.session_timeout if no_rebalance_timeout else item.rebalance_timeout,
                session_timeout_ms=item.session_timeout,
                protocol_type=value.protocol_type,
                protocols=[JoinGroupRequestProtocol(name=value.protocol or "", metadata=item.subscription)],
                assignment=item.assignment,
            )
        )
    group.subscribed_topics = group.compute_subscribed_topics()
    group.stored = value
    return group
