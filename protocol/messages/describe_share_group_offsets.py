"""DescribeShareGroupOffsets (key 90). Odradek serves no share groups; its tools describe them in other clusters."""

from odradek.protocol.schema import Message, Struct, field
from odradek.protocol.types import Int16, Int32, Int64, Uuid


class DescribeShareGroupOffsetsRequestTopic(Struct):
    topic_name: str
    partitions: list[Int32]


class DescribeShareGroupOffsetsRequestGroup(Struct):
    group_id: str
    topics: list[DescribeShareGroupOffsetsRequestTopic] | None


class DescribeShareGroupOffsetsRequest(Message, key=90, versions="0-1", flexible=0):
    """Return the start offsets of share groups (KIP-932); those of all topics with None."""

    groups: list[DescribeShareGroupOffsetsRequestGroup]


class DescribeShareGroupOffsetsResponsePartition(Struct):
    partition_index: Int32
    start_offset: Int64
    leader_epoch: Int32
    lag: Int64 = field(since=1, default=-1)
    error_code: Int16
    error_message: str | None = None


class DescribeShareGroupOffsetsResponseTopic(Struct):
    topic_name: str
    topic_id: Uuid
    partitions: list[DescribeShareGroupOffsetsResponsePartition]


class DescribeShareGroupOffsetsResponseGroup(Struct):
    group_id: str
    topics: list[DescribeShareGroupOffsetsResponseTopic]
    error_code: Int16
    error_message: str | None = None


class DescribeShareGroupOffsetsResponse(Message, key=90, versions="0-1", flexible=0):
    """Start offset and lag of each partition."""

    throttle_time_ms: Int32
    groups: list[DescribeShareGroupOffsetsResponseGroup]
