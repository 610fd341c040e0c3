"""Produce (key 0)."""

from odradek.protocol.schema import Message, Struct, field
from odradek.protocol.types import Int16, Int32, Int64, Records, Uuid


class ProduceRequestPartitionProduceData(Struct):
    index: Int32
    records: Records | None


class ProduceRequestTopicProduceData(Struct):
    name: str = field(until=12)
    topic_id: Uuid = field(since=13)
    partition_data: list[ProduceRequestPartitionProduceData]


class ProduceRequest(Message, key=0, versions="3-13", flexible=9):
    """Append record batches to partitions."""

    transactional_id: str | None = None
    acks: Int16
    timeout_ms: Int32
    topic_data: list[ProduceRequestTopicProduceData]


class ProduceResponseBatchIndexAndErrorMessage(Struct):
    batch_index: Int32
    batch_index_error_message: str | None = None


class ProduceResponseLeaderIdAndEpoch(Struct):
    leader_id: Int32 = -1
    leader_epoch: Int32 = -1


class ProduceResponsePartitionProduceResponse(Struct):
    index: Int32
    error_code: Int16
    base_offset: Int64
    log_append_time_ms: Int64 = -1
    log_start_offset: Int64 = field(since=5, default=-1)
    record_errors: list[ProduceResponseBatchIndexAndErrorMessage] = field(since=8)
    error_message: str | None = field(since=8, default=None)
    current_leader: ProduceResponseLeaderIdAndEpoch = field(since=10, tag=0)


class ProduceResponseTopicProduceResponse(Struct):
    name: str = field(until=12)
    topic_id: Uuid = field(since=13)
    partition_responses: list[ProduceResponsePartitionProduceResponse]


class ProduceResponseNodeEndpoint(Struct):
    node_id: Int32
    host: str
    port: Int32
    rack: str | None = None


class ProduceResponse(Message, key=0, versions="3-13", flexible=9):
    """Base offset or error for each partition."""

    responses: list[ProduceResponseTopicProduceResponse]
    throttle_time_ms: Int32
    node_endpoints: list[ProduceResponseNodeEndpoint] = field(since=10, tag=0)
