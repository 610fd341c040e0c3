"""DescribeGroups (key 15)."""

from odradek.protocol.schema import Message, Struct, field
from odradek.protocol.types import Int16, Int32


class DescribeGroupsRequest(Message, key=15, versions="0-6", flexible=5):
    """Describe the state and members of groups."""

    groups: list[str]
    include_authorized_operations: bool = field(since=3)


class DescribeGroupsResponseDescribedGroupMember(Struct):
    member_id: str
    group_instance_id: str | None = field(since=4, default=None)
    client_id: str
    client_host: str
    member_metadata: bytes
    member_assignment: bytes


class DescribeGroupsResponseDescribedGroup(Struct):
    error_code: Int16
    error_message: str | None = field(since=6, default=None)
    group_id: str
    group_state: str
    protocol_type: str
    protocol_data: str
    members: list[DescribeGroupsResponseDescribedGroupMember]
    authorized_operations: Int32 = field(since=3, default=-2147483648)


class DescribeGroupsResponse(Message, key=15, versions="0-6", flexible=5):
    """State and members of groups."""

    throttle_time_ms: Int32 = field(since=1)
    groups: list[DescribeGroupsResponseDescribedGroup]
