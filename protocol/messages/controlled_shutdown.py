"""ControlledShutdown (key 7)."""

from odradek.protocol.schema import Message, Struct
from odradek.protocol.types import Int16, Int32, Int64


class ControlledShutdownRequest(Message, key=7, versions="3", flexible=3):
    """A broker announces its stop: the controller moves its leaderships (ZooKeeper mode)."""

    broker_id: Int32
    broker_epoch: Int64 = -1


class ControlledShutdownResponseRemainingPartition(Struct):
    topic_name: str
    partition_index: Int32


class ControlledShutdownResponse(Message, key=7, versions="3", flexible=3):
    """The partitions that the broker still leads."""

    error_code: Int16
    remaining_partitions: list[ControlledShutdownResponseRemainingPartition]
