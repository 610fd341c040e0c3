"""DescribeTransactions (key 65)."""

from odradek.protocol.schema import Message, Struct
from odradek.protocol.types import Int16, Int32, Int64


class DescribeTransactionsRequest(Message, key=65, versions="0", flexible=0):
    """Describe the state of transactions (KIP-664)."""

    transactional_ids: list[str]


class DescribeTransactionsResponseTopicData(Struct):
    topic: str
    partitions: list[Int32]


class DescribeTransactionsResponseTransactionState(Struct):
    error_code: Int16
    transactional_id: str
    transaction_state: str
    transaction_timeout_ms: Int32
    transaction_start_time_ms: Int64
    producer_id: Int64
    producer_epoch: Int16
    topics: list[DescribeTransactionsResponseTopicData]


class DescribeTransactionsResponse(Message, key=65, versions="0", flexible=0):
    """State of the transactions."""

    throttle_time_ms: Int32
    transaction_states: list[DescribeTransactionsResponseTransactionState]
