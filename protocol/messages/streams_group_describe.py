"""StreamsGroupDescribe (key 89). Odradek serves no groups of this type; its tools describe them in other clusters."""

from odradek.protocol.schema import Message, Struct
from odradek.protocol.types import Int16, Int32, Int64, UInt16


class StreamsGroupDescribeRequest(Message, key=89, versions="0", flexible=0):
    """Describe streams groups (KIP-1071)."""

    group_ids: list[str]
    include_authorized_operations: bool


class StreamsGroupDescribeResponseKeyValue(Struct):
    key: str
    value: str


class StreamsGroupDescribeResponseTopicInfo(Struct):
    name: str
    partitions: Int32
    replication_factor: Int16
    topic_configs: list[StreamsGroupDescribeResponseKeyValue]


class StreamsGroupDescribeResponseSubtopology(Struct):
    subtopology_id: str
    source_topics: list[str]
    repartition_sink_topics: list[str]
    state_changelog_topics: list[StreamsGroupDescribeResponseTopicInfo]
    repartition_source_topics: list[StreamsGroupDescribeResponseTopicInfo]


class StreamsGroupDescribeResponseTopology(Struct):
    epoch: Int32
    subtopologies: list[StreamsGroupDescribeResponseSubtopology] | None = None


class StreamsGroupDescribeResponseEndpoint(Struct):
    host: str
    port: UInt16


class StreamsGroupDescribeResponseTaskOffset(Struct):
    subtopology_id: str
    partition: Int32
    offset: Int64


class StreamsGroupDescribeResponseTaskIds(Struct):
    subtopology_id: str
    partitions: list[Int32]


class StreamsGroupDescribeResponseAssignment(Struct):
    active_tasks: list[StreamsGroupDescribeResponseTaskIds]
    standby_tasks: list[StreamsGroupDescribeResponseTaskIds]
    warmup_tasks: list[StreamsGroupDescribeResponseTaskIds]


class StreamsGroupDescribeResponseMember(Struct):
    member_id: str
    member_epoch: Int32
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str
    client_host: str
    topology_epoch: Int32
    process_id: str
    user_endpoint: StreamsGroupDescribeResponseEndpoint | None = None
    client_tags: list[StreamsGroupDescribeResponseKeyValue]
    task_offsets: list[StreamsGroupDescribeResponseTaskOffset]
    task_end_offsets: list[StreamsGroupDescribeResponseTaskOffset]
    assignment: StreamsGroupDescribeResponseAssignment
    target_assignment: StreamsGroupDescribeResponseAssignment
    is_classic: bool


class StreamsGroupDescribeResponseDescribedGroup(Struct):
    error_code: Int16
    error_message: str | None = None
    group_id: str
    group_state: str
    group_epoch: Int32
    assignment_epoch: Int32
    topology: StreamsGroupDescribeResponseTopology | None = None
    members: list[StreamsGroupDescribeResponseMember]
    authorized_operations: Int32 = -2147483648


class StreamsGroupDescribeResponse(Message, key=89, versions="0", flexible=0):
    """State, topology and members of the groups."""

    throttle_time_ms: Int32
    groups: list[StreamsGroupDescribeResponseDescribedGroup]
