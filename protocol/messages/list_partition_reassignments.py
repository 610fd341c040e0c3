"""ListPartitionReassignments (key 46)."""

from odradek.protocol.schema import Message, Struct
from odradek.protocol.types import Int16, Int32


class ListPartitionReassignmentsRequestListPartitionReassignmentsTopics(Struct):
    name: str
    partition_indexes: list[Int32]


class ListPartitionReassignmentsRequest(Message, key=46, versions="0", flexible=0):
    """List reassignments in progress (KIP-455)."""

    timeout_ms: Int32 = 60000
    topics: list[ListPartitionReassignmentsRequestListPartitionReassignmentsTopics] | None = None


class ListPartitionReassignmentsResponseOngoingPartitionReassignment(Struct):
    partition_index: Int32
    replicas: list[Int32]
    adding_replicas: list[Int32]
    removing_replicas: list[Int32]


class ListPartitionReassignmentsResponseOngoingTopicReassignment(Struct):
    name: str
    partitions: list[ListPartitionReassignmentsResponseOngoingPartitionReassignment]


class ListPartitionReassignmentsResponse(Message, key=46, versions="0", flexible=0):
    """Replicas of each partition that is being reassigned."""

    throttle_time_ms: Int32
    error_code: Int16
    error_message: str | None
    topics: list[ListPartitionReassignmentsResponseOngoingTopicReassignment]
