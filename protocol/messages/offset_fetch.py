"""OffsetFetch (key 9)."""

from odradek.protocol.schema import Message, Struct, field
from odradek.protocol.types import Int16, Int32, Int64, Uuid


class OffsetFetchRequestTopic(Struct):
    name: str = field(until=7)
    partition_indexes: list[Int32] = field(until=7)


class OffsetFetchRequestTopics(Struct):
    name: str = field(until=9)
    topic_id: Uuid = field(since=10)
    partition_indexes: list[Int32]


class OffsetFetchRequestGroup(Struct):
    group_id: str
    member_id: str | None = field(since=9, default=None)
    member_epoch: Int32 = field(since=9, default=-1)
    topics: list[OffsetFetchRequestTopics] | None


class OffsetFetchRequest(Message, key=9, versions="1-10", flexible=6):
    """Read a group's committed offsets."""

    group_id: str = field(until=7)
    topics: list[OffsetFetchRequestTopic] | None = field(until=7, nullable_since=2)
    groups: list[OffsetFetchRequestGroup] = field(since=8)
    require_stable: bool = field(since=7)


class OffsetFetchResponsePartition(Struct):
    partition_index: Int32 = field(until=7)
    committed_offset: Int64 = field(until=7)
    committed_leader_epoch: Int32 = field(since=5, until=7, default=-1)
    metadata: str | None = field(until=7)
    error_code: Int16 = field(until=7)


class OffsetFetchResponseTopic(Struct):
    name: str = field(until=7)
    partitions: list[OffsetFetchResponsePartition] = field(until=7)


class OffsetFetchResponsePartitions(Struct):
    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Int32 = -1
    metadata: str | None
    error_code: Int16


class OffsetFetchResponseTopics(Struct):
    name: str = field(until=9)
    topic_id: Uuid = field(since=10)
    partitions: list[OffsetFetchResponsePartitions]


class OffsetFetchResponseGroup(Struct):
    group_id: str
    topics: list[OffsetFetchResponseTopics]
    error_code: Int16


class OffsetFetchResponse(Message, key=9, versions="1-10", flexible=6):
    """The committed offsets."""

    throttle_time_ms: Int32 = field(since=3)
    topics: list[OffsetFetchResponseTopic] = field(until=7)
    error_code: Int16 = field(since=2, until=7)
    groups: list[OffsetFetchResponseGroup] = field(since=8)
