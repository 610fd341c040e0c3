"""OffsetDelete (key 47)."""

from odradek.protocol.schema import Message, Struct
from odradek.protocol.types import Int16, Int32


class OffsetDeleteRequestPartition(Struct):
    partition_index: Int32


class OffsetDeleteRequestTopic(Struct):
    name: str
    partitions: list[OffsetDeleteRequestPartition]


class OffsetDeleteRequest(Message, key=47, versions="0"):
    """Delete committed offsets of a group (KIP-496)."""

    group_id: str
    topics: list[OffsetDeleteRequestTopic]


class OffsetDeleteResponsePartition(Struct):
    partition_index: Int32
    error_code: Int16


class OffsetDeleteResponseTopic(Struct):
    name: str
    partitions: list[OffsetDeleteResponsePartition]


class OffsetDeleteResponse(Message, key=47, versions="0"):
    """Result for each partition."""

    error_code: Int16
    throttle_time_ms: Int32
    topics: list[OffsetDeleteResponseTopic]
