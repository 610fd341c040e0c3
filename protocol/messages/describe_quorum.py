"""DescribeQuorum (key 55)."""

from odradek.protocol.schema import Message, Struct, field
from odradek.protocol.types import Int16, Int32, Int64, UInt16, Uuid


class DescribeQuorumRequestPartitionData(Struct):
    partition_index: Int32


class DescribeQuorumRequestTopicData(Struct):
    topic_name: str
    partitions: list[DescribeQuorumRequestPartitionData]


class DescribeQuorumRequest(Message, key=55, versions="0-2", flexible=0):
    """Describe the voters and observers of the metadata quorum (KIP-595, KIP-836, KIP-853)."""

    topics: list[DescribeQuorumRequestTopicData]


class DescribeQuorumResponseReplicaState(Struct):
    replica_id: Int32
    replica_directory_id: Uuid = field(since=2)
    log_end_offset: Int64
    last_fetch_timestamp: Int64 = field(since=1, default=-1)
    last_caught_up_timestamp: Int64 = field(since=1, default=-1)


class DescribeQuorumResponsePartitionData(Struct):
    partition_index: Int32
    error_code: Int16
    error_message: str | None = field(since=2)
    leader_id: Int32
    leader_epoch: Int32
    high_watermark: Int64
    current_voters: list[DescribeQuorumResponseReplicaState]
    observers: list[DescribeQuorumResponseReplicaState]


class DescribeQuorumResponseTopicData(Struct):
    topic_name: str
    partitions: list[DescribeQuorumResponsePartitionData]


class DescribeQuorumResponseListener(Struct):
    name: str = field(since=2)
    host: str = field(since=2)
    port: UInt16 = field(since=2)


class DescribeQuorumResponseNode(Struct):
    node_id: Int32 = field(since=2)
    listeners: list[DescribeQuorumResponseListener] = field(since=2)


class DescribeQuorumResponse(Message, key=55, versions="0-2", flexible=0):
    """State of the quorum."""

    error_code: Int16
    error_message: str | None = field(since=2)
    topics: list[DescribeQuorumResponseTopicData]
    nodes: list[DescribeQuorumResponseNode] = field(since=2)
