"""TxnOffsetCommit (key 28)."""

from odradek.protocol.schema import Message, Struct, field
from odradek.protocol.types import Int16, Int32, Int64


class TxnOffsetCommitRequestPartition(Struct):
    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Int32 = field(since=2, default=-1)
    committed_metadata: str | None


class TxnOffsetCommitRequestTopic(Struct):
    name: str
    partitions: list[TxnOffsetCommitRequestPartition]


class TxnOffsetCommitRequest(Message, key=28, versions="0-5", flexible=3):
    """Commit a group's offsets as part of a transaction (KIP-98, KIP-447)."""

    transactional_id: str
    group_id: str
    producer_id: Int64
    producer_epoch: Int16
    generation_id: Int32 = field(since=3, default=-1)
    member_id: str = field(since=3)
    group_instance_id: str | None = field(since=3, default=None)
    topics: list[TxnOffsetCommitRequestTopic]


class TxnOffsetCommitResponsePartition(Struct):
    partition_index: Int32
    error_code: Int16


class TxnOffsetCommitResponseTopic(Struct):
    name: str
    partitions: list[TxnOffsetCommitResponsePartition]


class TxnOffsetCommitResponse(Message, key=28, versions="0-5", flexible=3):
    """Result for each partition."""

    throttle_time_ms: Int32
    topics: list[TxnOffsetCommitResponseTopic]
