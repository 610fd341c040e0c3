"""LeaveGroup (key 13)."""

from odradek.protocol.schema import Message, Struct, field
from odradek.protocol.types import Int16, Int32


class LeaveGroupRequestMemberIdentity(Struct):
    member_id: str
    group_instance_id: str | None = None
    reason: str | None = field(since=5, default=None)


class LeaveGroupRequest(Message, key=13, versions="0-5", flexible=4):
    """Remove members from a group (batched: KIP-345)."""

    group_id: str
    member_id: str = field(until=2)
    members: list[LeaveGroupRequestMemberIdentity] = field(since=3)


class LeaveGroupResponseMemberResponse(Struct):
    member_id: str
    group_instance_id: str | None
    error_code: Int16


class LeaveGroupResponse(Message, key=13, versions="0-5", flexible=4):
    """Result for each member."""

    throttle_time_ms: Int32 = field(since=1)
    error_code: Int16
    members: list[LeaveGroupResponseMemberResponse] = field(since=3)
