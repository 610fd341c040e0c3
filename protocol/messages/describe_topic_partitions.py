"""DescribeTopicPartitions (key 75)."""

from odradek.protocol.schema import Message, Struct
from odradek.protocol.types import Int16, Int32, Uuid


class DescribeTopicPartitionsRequestTopicRequest(Struct):
    name: str


class DescribeTopicPartitionsRequestCursor(Struct):
    topic_name: str
    partition_index: Int32


class DescribeTopicPartitionsRequest(Message, key=75, versions="0", flexible=0):
    """List topics and partitions page by page (KIP-966)."""

    topics: list[DescribeTopicPartitionsRequestTopicRequest]
    response_partition_limit: Int32 = 2000
    cursor: DescribeTopicPartitionsRequestCursor | None = None


class DescribeTopicPartitionsResponsePartition(Struct):
    error_code: Int16
    partition_index: Int32
    leader_id: Int32
    leader_epoch: Int32 = -1
    replica_nodes: list[Int32]
    isr_nodes: list[Int32]
    eligible_leader_replicas: list[Int32] | None = None
    last_known_elr: list[Int32] | None = None
    offline_replicas: list[Int32]


class DescribeTopicPartitionsResponseTopic(Struct):
    error_code: Int16
    name: str | None
    topic_id: Uuid
    is_internal: bool
    partitions: list[DescribeTopicPartitionsResponsePartition]
    topic_authorized_operations: Int32 = -2147483648


class DescribeTopicPartitionsResponseCursor(Struct):
    topic_name: str
    partition_index: Int32


class DescribeTopicPartitionsResponse(Message, key=75, versions="0", flexible=0):
    """A page of topics and partitions."""

    throttle_time_ms: Int32
    topics: list[DescribeTopicPartitionsResponseTopic]
    next_cursor: DescribeTopicPartitionsResponseCursor | None = None
