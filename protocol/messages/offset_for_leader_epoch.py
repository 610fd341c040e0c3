"""OffsetForLeaderEpoch (key 23)."""

from odradek.protocol.schema import Message, Struct, field
from odradek.protocol.types import Int16, Int32, Int64


class OffsetForLeaderEpochRequestOffsetForLeaderPartition(Struct):
    partition: Int32
    current_leader_epoch: Int32 = -1
    leader_epoch: Int32


class OffsetForLeaderEpochRequestOffsetForLeaderTopic(Struct):
    topic: str
    partitions: list[OffsetForLeaderEpochRequestOffsetForLeaderPartition]


class OffsetForLeaderEpochRequest(Message, key=23, versions="2-4", flexible=4):
    """Find the end offset of a leader epoch (KIP-101, KIP-320)."""

    replica_id: Int32 = field(since=3, default=-2)
    topics: list[OffsetForLeaderEpochRequestOffsetForLeaderTopic]


class OffsetForLeaderEpochResponseEpochEndOffset(Struct):
    error_code: Int16
    partition: Int32
    leader_epoch: Int32 = -1
    end_offset: Int64 = -1


class OffsetForLeaderEpochResponseOffsetForLeaderTopicResult(Struct):
    topic: str
    partitions: list[OffsetForLeaderEpochResponseEpochEndOffset]


class OffsetForLeaderEpochResponse(Message, key=23, versions="2-4", flexible=4):
    """End offset of the epoch in each partition."""

    throttle_time_ms: Int32
    topics: list[OffsetForLeaderEpochResponseOffsetForLeaderTopicResult]
