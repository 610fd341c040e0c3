"""EndTxn (key 26)."""

from odradek.protocol.schema import Message, field
from odradek.protocol.types import Int16, Int32, Int64


class EndTxnRequest(Message, key=26, versions="0-5", flexible=3):
    """Commit or abort a transaction (KIP-98); version 5 returns a new epoch for the next one (KIP-890)."""

    transactional_id: str
    producer_id: Int64
    producer_epoch: Int16
    committed: bool


class EndTxnResponse(Message, key=26, versions="0-5", flexible=3):
    """Result, and the producer id and epoch of the next transaction."""

    throttle_time_ms: Int32
    error_code: Int16
    producer_id: Int64 = field(since=5, default=-1)
    producer_epoch: Int16 = field(since=5, default=-1)
