"""AlterPartitionReassignments (key 45)."""

from odradek.protocol.schema import Message, Struct, field
from odradek.protocol.types import Int16, Int32


class AlterPartitionReassignmentsRequestReassignablePartition(Struct):
    partition_index: Int32
    replicas: list[Int32] | None = None


class AlterPartitionReassignmentsRequestReassignableTopic(Struct):
    name: str
    partitions: list[AlterPartitionReassignmentsRequestReassignablePartition]


class AlterPartitionReassignmentsRequest(Message, key=45, versions="0-1", flexible=0):
    """Begin, change or cancel reassignments of partitions (KIP-455, KIP-860)."""

    timeout_ms: Int32 = 60000
    allow_replication_factor_change: bool = field(since=1, default=True)
    topics: list[AlterPartitionReassignmentsRequestReassignableTopic]


class AlterPartitionReassignmentsResponseReassignablePartitionResponse(Struct):
    partition_index: Int32
    error_code: Int16
    error_message: str | None


class AlterPartitionReassignmentsResponseReassignableTopicResponse(Struct):
    name: str
    partitions: list[AlterPartitionReassignmentsResponseReassignablePartitionResponse]


class AlterPartitionReassignmentsResponse(Message, key=45, versions="0-1", flexible=0):
    """Result for each partition."""

    throttle_time_ms: Int32
    allow_replication_factor_change: bool = field(since=1, default=True)
    error_code: Int16
    error_message: str | None
    responses: list[AlterPartitionReassignmentsResponseReassignableTopicResponse]
