"""JoinGroup (key 11)."""

from odradek.protocol.schema import Message, Struct, field
from odradek.protocol.types import Int16, Int32


class JoinGroupRequestProtocol(Struct):
    name: str
    metadata: bytes


class JoinGroupRequest(Message, key=11, versions="0-9", flexible=6):
    """Join a group or its next generation."""

    group_id: str
    session_timeout_ms: Int32
    rebalance_timeout_ms: Int32 = field(since=1, default=-1)
    member_id: str
    group_instance_id: str | None = field(since=5, default=None)
    protocol_type: str
    protocols: list[JoinGroupRequestProtocol]
    reason: str | None = field(since=8, default=None)


class JoinGroupResponseMember(Struct):
    member_id: str
    group_instance_id: str | None = field(since=5, default=None)
    metadata: bytes


class JoinGroupResponse(Message, key=11, versions="0-9", flexible=6):
    """The new generation; for the group's leader also the members and their subscriptions."""

    throttle_time_ms: Int32 = field(since=2)
    error_code: Int16
    generation_id: Int32 = -1
    protocol_type: str | None = field(since=7, default=None)
    protocol_name: str | None = field(nullable_since=7)
    leader: str
    skip_assignment: bool = field(since=9)
    member_id: str
    members: list[JoinGroupResponseMember]
