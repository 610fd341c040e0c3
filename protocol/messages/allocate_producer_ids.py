"""AllocateProducerIds (key 67)."""

from odradek.protocol.schema import Message
from odradek.protocol.types import Int16, Int32, Int64


class AllocateProducerIdsRequest(Message, key=67, versions="0", flexible=0):
    """A broker reserves a block of producer ids (KIP-730)."""

    broker_id: Int32
    broker_epoch: Int64 = -1


class AllocateProducerIdsResponse(Message, key=67, versions="0", flexible=0):
    """The reserved block."""

    throttle_time_ms: Int32
    error_code: Int16
    producer_id_start: Int64
    producer_id_len: Int32
