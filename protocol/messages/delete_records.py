"""DeleteRecords (key 21)."""

from odradek.protocol.schema import Message, Struct
from odradek.protocol.types import Int16, Int32, Int64


class DeleteRecordsRequestDeleteRecordsPartition(Struct):
    partition_index: Int32
    offset: Int64


class DeleteRecordsRequestDeleteRecordsTopic(Struct):
    name: str
    partitions: list[DeleteRecordsRequestDeleteRecordsPartition]


class DeleteRecordsRequest(Message, key=21, versions="0-2", flexible=2):
    """Advance the log start offset of partitions (KIP-107)."""

    topics: list[DeleteRecordsRequestDeleteRecordsTopic]
    timeout_ms: Int32


class DeleteRecordsResponseDeleteRecordsPartitionResult(Struct):
    partition_index: Int32
    low_watermark: Int64
    error_code: Int16


class DeleteRecordsResponseDeleteRecordsTopicResult(Struct):
    name: str
    partitions: list[DeleteRecordsResponseDeleteRecordsPartitionResult]


class DeleteRecordsResponse(Message, key=21, versions="0-2", flexible=2):
    """New log start offset of each partition."""

    throttle_time_ms: Int32
    topics: list[DeleteRecordsResponseDeleteRecordsTopicResult]
