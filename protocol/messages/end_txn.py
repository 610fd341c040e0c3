"""EndTxn (key 26)."""

from odradek.protocol.schema import Message, field
from odradek.protocol.types import Int16, Int32, Int64


class EndTxnRequest(Message, key=26, versions="0-5", flexible=3):
    """Commits or aborts a transaction (KIP-98); from version 5 on with a new epoch for the next (KIP-890)."""

    transactional_id: str
    producer_id: Int64
    producer_epoch: Int16
    committed: bool


class EndTxnResponse(Message, key=26, versions="0-5", flexible=3):
    """Whether the outcome is decided, and who the producer is from now on."""

    throttle_time_ms: Int32
    error_code: Int16
    producer_id: Int64 = field(since=5, default=-1)
    producer_epoch: Int16 = field(since=5, default=-1)
