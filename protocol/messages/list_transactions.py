"""ListTransactions (key 66)."""

from odradek.protocol.schema import Message, Struct, field
from odradek.protocol.types import Int16, Int32, Int64


class ListTransactionsRequest(Message, key=66, versions="0-2", flexible=0):
    """List the transactions of a broker (KIP-664, KIP-994, KIP-1152)."""

    state_filters: list[str]
    producer_id_filters: list[Int64]
    duration_filter: Int64 = field(since=1, default=-1)
    transactional_id_pattern: str | None = field(since=2, default=None)


class ListTransactionsResponseTransactionState(Struct):
    transactional_id: str
    producer_id: Int64
    transaction_state: str


class ListTransactionsResponse(Message, key=66, versions="0-2", flexible=0):
    """The transactions that this broker coordinates."""

    throttle_time_ms: Int32
    error_code: Int16
    unknown_state_filters: list[str]
    transaction_states: list[ListTransactionsResponseTransactionState]
