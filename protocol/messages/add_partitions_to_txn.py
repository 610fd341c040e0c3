"""AddPartitionsToTxn (key 24)."""

from odradek.protocol.schema import Message, Struct, field
from odradek.protocol.types import Int16, Int32, Int64


class AddPartitionsToTxnRequestAddPartitionsToTxnTopic(Struct):
    name: str
    partitions: list[Int32]


class AddPartitionsToTxnRequestAddPartitionsToTxnTransaction(Struct):
    transactional_id: str
    producer_id: Int64
    producer_epoch: Int16
    verify_only: bool
    topics: list[AddPartitionsToTxnRequestAddPartitionsToTxnTopic]


class AddPartitionsToTxnRequest(Message, key=24, versions="0-5", flexible=3):
    """Add partitions to transactions, or only verify them; brokers send batches (KIP-98, KIP-890)."""

    transactions: list[AddPartitionsToTxnRequestAddPartitionsToTxnTransaction] = field(since=4)
    v3_and_below_transactional_id: str = field(until=3)
    v3_and_below_producer_id: Int64 = field(until=3)
    v3_and_below_producer_epoch: Int16 = field(until=3)
    v3_and_below_topics: list[AddPartitionsToTxnRequestAddPartitionsToTxnTopic] = field(until=3)


class AddPartitionsToTxnResponseAddPartitionsToTxnPartitionResult(Struct):
    partition_index: Int32
    partition_error_code: Int16


class AddPartitionsToTxnResponseAddPartitionsToTxnTopicResult(Struct):
    name: str
    results_by_partition: list[AddPartitionsToTxnResponseAddPartitionsToTxnPartitionResult]


class AddPartitionsToTxnResponseAddPartitionsToTxnResult(Struct):
    transactional_id: str
    topic_results: list[AddPartitionsToTxnResponseAddPartitionsToTxnTopicResult]


class AddPartitionsToTxnResponse(Message, key=24, versions="0-5", flexible=3):
    """Result for each partition."""

    throttle_time_ms: Int32
    error_code: Int16 = field(since=4)
    results_by_transaction: list[AddPartitionsToTxnResponseAddPartitionsToTxnResult] = field(since=4)
    results_by_topic_v3_and_below: list[AddPartitionsToTxnResponseAddPartitionsToTxnTopicResult] = field(
        until=3
    )
