"""ShareGroupDescribe (key 77). Odradek serves no groups of this type; its tools describe them in other clusters."""

from odradek.protocol.schema import Message, Struct
from odradek.protocol.types import Int16, Int32, Uuid


class ShareGroupDescribeRequest(Message, key=77, versions="1", flexible=0):
    """Describe share groups (KIP-932)."""

    group_ids: list[str]
    include_authorized_operations: bool


class ShareGroupDescribeResponseTopicPartitions(Struct):
    topic_id: Uuid
    topic_name: str
    partitions: list[Int32]


class ShareGroupDescribeResponseAssignment(Struct):
    topic_partitions: list[ShareGroupDescribeResponseTopicPartitions]


class ShareGroupDescribeResponseMember(Struct):
    member_id: str
    rack_id: str | None = None
    member_epoch: Int32
    client_id: str
    client_host: str
    subscribed_topic_names: list[str]
    assignment: ShareGroupDescribeResponseAssignment


class ShareGroupDescribeResponseDescribedGroup(Struct):
    error_code: Int16
    error_message: str | None = None
    group_id: str
    group_state: str
    group_epoch: Int32
    assignment_epoch: Int32
    assignor_name: str
    members: list[ShareGroupDescribeResponseMember]
    authorized_operations: Int32 = -2147483648


class ShareGroupDescribeResponse(Message, key=77, versions="1", flexible=0):
    """State and members of the groups."""

    throttle_time_ms: Int32
    groups: list[ShareGroupDescribeResponseDescribedGroup]
