"""AlterPartition (key 56)."""

from odradek.protocol.schema import Message, Struct, field
from odradek.protocol.types import Int8, Int16, Int32, Int64, Uuid


class AlterPartitionRequestBrokerState(Struct):
    broker_id: Int32 = field(since=3)
    broker_epoch: Int64 = field(since=3, default=-1)


class AlterPartitionRequestPartitionData(Struct):
    partition_index: Int32
    leader_epoch: Int32
    new_isr: list[Int32] = field(until=2)
    new_isr_with_epochs: list[AlterPartitionRequestBrokerState] = field(since=3)
    leader_recovery_state: Int8
    partition_epoch: Int32


class AlterPartitionRequestTopicData(Struct):
    topic_id: Uuid
    partitions: list[AlterPartitionRequestPartitionData]


class AlterPartitionRequest(Message, key=56, versions="2-3", flexible=0):
    """A leader changes the ISR of its partitions (KIP-497, KIP-704, KIP-841, KIP-903)."""

    broker_id: Int32
    broker_epoch: Int64 = -1
    topics: list[AlterPartitionRequestTopicData]


class AlterPartitionResponsePartitionData(Struct):
    partition_index: Int32
    error_code: Int16
    leader_id: Int32
    leader_epoch: Int32
    isr: list[Int32]
    leader_recovery_state: Int8
    partition_epoch: Int32


class AlterPartitionResponseTopicData(Struct):
    topic_id: Uuid
    partitions: list[AlterPartitionResponsePartitionData]


class AlterPartitionResponse(Message, key=56, versions="2-3", flexible=0):
    """New state of each partition, or its error."""

    throttle_time_ms: Int32
    error_code: Int16
    topics: list[AlterPartitionResponseTopicData]
