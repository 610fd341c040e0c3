"""AddOffsetsToTxn (key 25)."""

from odradek.protocol.schema import Message
from odradek.protocol.types import Int16, Int32, Int64


class AddOffsetsToTxnRequest(Message, key=25, versions="0-4", flexible=3):
    """Add a group's offsets to a transaction (KIP-98)."""

    transactional_id: str
    producer_id: Int64
    producer_epoch: Int16
    group_id: str


class AddOffsetsToTxnResponse(Message, key=25, versions="0-4", flexible=3):
    """Result of adding the offsets."""

    throttle_time_ms: Int32
    error_code: Int16
