"""Heartbeat (key 12)."""

from odradek.protocol.schema import Message, field
from odradek.protocol.types import Int16, Int32


class HeartbeatRequest(Message, key=12, versions="0-4", flexible=4):
    """Extend a member's session."""

    group_id: str
    generation_id: Int32
    member_id: str
    group_instance_id: str | None = field(since=3, default=None)


class HeartbeatResponse(Message, key=12, versions="0-4", flexible=4):
    """Success, or REBALANCE_IN_PROGRESS while the member has to rejoin."""

    throttle_time_ms: Int32 = field(since=1)
    error_code: Int16
