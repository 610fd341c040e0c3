"""ConsumerGroupDescribe (key 69). Odradek serves no groups of this type; its tools describe them in other clusters."""

from odradek.protocol.schema import Message, Struct, field
from odradek.protocol.types import Int8, Int16, Int32, Uuid


class ConsumerGroupDescribeRequest(Message, key=69, versions="0-1", flexible=0):
    """Describe groups of the consumer group protocol (KIP-848)."""

    group_ids: list[str]
    include_authorized_operations: bool


class ConsumerGroupDescribeResponseTopicPartitions(Struct):
    topic_id: Uuid
    topic_name: str
    partitions: list[Int32]


class ConsumerGroupDescribeResponseAssignment(Struct):
    topic_partitions: list[ConsumerGroupDescribeResponseTopicPartitions]


class ConsumerGroupDescribeResponseMember(Struct):
    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    member_epoch: Int32
    client_id: str
    client_host: str
    subscribed_topic_names: list[str]
    subscribed_topic_regex: str | None = None
    assignment: ConsumerGroupDescribeResponseAssignment
    target_assignment: ConsumerGroupDescribeResponseAssignment
    member_type: Int8 = field(since=1, default=-1)


class ConsumerGroupDescribeResponseDescribedGroup(Struct):
    error_code: Int16
    error_message: str | None = None
    group_id: str
    group_state: str
    group_epoch: Int32
    assignment_epoch: Int32
    assignor_name: str
    members: list[ConsumerGroupDescribeResponseMember]
    authorized_operations: Int32 = -2147483648


class ConsumerGroupDescribeResponse(Message, key=69, versions="0-1", flexible=0):
    """State and members of the groups."""

    throttle_time_ms: Int32
    groups: list[ConsumerGroupDescribeResponseDescribedGroup]
