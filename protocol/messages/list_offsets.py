"""ListOffsets (key 2)."""

from odradek.protocol.schema import Message, Struct, field
from odradek.protocol.types import Int8, Int16, Int32, Int64


class ListOffsetsRequestListOffsetsPartition(Struct):
    partition_index: Int32
    current_leader_epoch: Int32 = field(since=4, default=-1)
    timestamp: Int64


class ListOffsetsRequestListOffsetsTopic(Struct):
    name: str
    partitions: list[ListOffsetsRequestListOffsetsPartition]


class ListOffsetsRequest(Message, key=2, versions="1-11", flexible=6):
    """Find the offset of a timestamp or of a special position."""

    replica_id: Int32
    isolation_level: Int8 = field(since=2)
    topics: list[ListOffsetsRequestListOffsetsTopic]
    timeout_ms: Int32 = field(since=10)


class ListOffsetsResponseListOffsetsPartitionResponse(Struct):
    partition_index: Int32
    error_code: Int16
    timestamp: Int64 = -1
    offset: Int64 = -1
    leader_epoch: Int32 = field(since=4, default=-1)


class ListOffsetsResponseListOffsetsTopicResponse(Struct):
    name: str
    partitions: list[ListOffsetsResponseListOffsetsPartitionResponse]


class ListOffsetsResponse(Message, key=2, versions="1-11", flexible=6):
    """Offset and timestamp for each partition."""

    throttle_time_ms: Int32 = field(since=2)
    topics: list[ListOffsetsResponseListOffsetsTopicResponse]
