"""SyncGroup (key 14)."""

from odradek.protocol.schema import Message, Struct, field
from odradek.protocol.types import Int16, Int32


class SyncGroupRequestAssignment(Struct):
    member_id: str
    assignment: bytes


class SyncGroupRequest(Message, key=14, versions="0-5", flexible=4):
    """Submit the assignment (group leader), and request the member's own."""

    group_id: str
    generation_id: Int32
    member_id: str
    group_instance_id: str | None = field(since=3, default=None)
    protocol_type: str | None = field(since=5, default=None)
    protocol_name: str | None = field(since=5, default=None)
    assignments: list[SyncGroupRequestAssignment]


class SyncGroupResponse(Message, key=14, versions="0-5", flexible=4):
    """The member's assignment."""

    throttle_time_ms: Int32 = field(since=1)
    error_code: Int16
    protocol_type: str | None = field(since=5, default=None)
    protocol_name: str | None = field(since=5, default=None)
    assignment: bytes
