"""ListGroups (key 16)."""

from odradek.protocol.schema import Message, Struct, field
from odradek.protocol.types import Int16, Int32


class ListGroupsRequest(Message, key=16, versions="0-5", flexible=3):
    """List groups by state (KIP-518) and type (KIP-848)."""

    states_filter: list[str] = field(since=4)
    types_filter: list[str] = field(since=5)


class ListGroupsResponseListedGroup(Struct):
    group_id: str
    protocol_type: str
    group_state: str = field(since=4)
    group_type: str = field(since=5)


class ListGroupsResponse(Message, key=16, versions="0-5", flexible=3):
    """The groups that this broker coordinates."""

    throttle_time_ms: Int32 = field(since=1)
    error_code: Int16
    groups: list[ListGroupsResponseListedGroup]
