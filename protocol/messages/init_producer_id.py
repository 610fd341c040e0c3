"""InitProducerId (key 22)."""

from odradek.protocol.schema import Message, field
from odradek.protocol.types import Int16, Int32, Int64


class InitProducerIdRequest(Message, key=22, versions="0-6", flexible=2):
    """Allocate a producer id and epoch (KIP-98, KIP-360)."""

    transactional_id: str | None
    transaction_timeout_ms: Int32
    producer_id: Int64 = field(since=3, default=-1)
    producer_epoch: Int16 = field(since=3, default=-1)
    enable2_pc: bool = field(since=6)
    keep_prepared_txn: bool = field(since=6)


class InitProducerIdResponse(Message, key=22, versions="0-6", flexible=2):
    """The producer id and epoch."""

    throttle_time_ms: Int32
    error_code: Int16
    producer_id: Int64 = -1
    producer_epoch: Int16
    ongoing_txn_producer_id: Int64 = field(since=6, default=-1)
    ongoing_txn_producer_epoch: Int16 = field(since=6, default=-1)
