"""DescribeProducers (key 61)."""

from odradek.protocol.schema import Message, Struct
from odradek.protocol.types import Int16, Int32, Int64


class DescribeProducersRequestTopicRequest(Struct):
    name: str
    partition_indexes: list[Int32]


class DescribeProducersRequest(Message, key=61, versions="0", flexible=0):
    """Describe the active producers of partitions (KIP-664)."""

    topics: list[DescribeProducersRequestTopicRequest]


class DescribeProducersResponseProducerState(Struct):
    producer_id: Int64
    producer_epoch: Int32
    last_sequence: Int32 = -1
    last_timestamp: Int64 = -1
    coordinator_epoch: Int32
    current_txn_start_offset: Int64 = -1


class DescribeProducersResponsePartitionResponse(Struct):
    partition_index: Int32
    error_code: Int16
    error_message: str | None = None
    active_producers: list[DescribeProducersResponseProducerState]


class DescribeProducersResponseTopicResponse(Struct):
    name: str
    partitions: list[DescribeProducersResponsePartitionResponse]


class DescribeProducersResponse(Message, key=61, versions="0", flexible=0):
    """Active producers of each partition."""

    throttle_time_ms: Int32
    topics: list[DescribeProducersResponseTopicResponse]
