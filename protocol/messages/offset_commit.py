"""OffsetCommit (key 8)."""

from odradek.protocol.schema import Message, Struct, field
from odradek.protocol.types import Int16, Int32, Int64, Uuid


class OffsetCommitRequestPartition(Struct):
    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Int32 = field(since=6, default=-1)
    committed_metadata: str | None


class OffsetCommitRequestTopic(Struct):
    name: str = field(until=9)
    topic_id: Uuid = field(since=10)
    partitions: list[OffsetCommitRequestPartition]


class OffsetCommitRequest(Message, key=8, versions="2-10", flexible=8):
    """Commit a group's offsets."""

    group_id: str
    generation_id_or_member_epoch: Int32 = -1
    member_id: str
    group_instance_id: str | None = field(since=7, default=None)
    retention_time_ms: Int64 = field(until=4, default=-1)
    topics: list[OffsetCommitRequestTopic]


class OffsetCommitResponsePartition(Struct):
    partition_index: Int32
    error_code: Int16


class OffsetCommitResponseTopic(Struct):
    name: str = field(until=9)
    topic_id: Uuid = field(since=10)
    partitions: list[OffsetCommitResponsePartition]


class OffsetCommitResponse(Message, key=8, versions="2-10", flexible=8):
    """Result for each partition."""

    throttle_time_ms: Int32 = field(since=3)
    topics: list[OffsetCommitResponseTopic]
