"""StopReplica (key 5)."""

from odradek.protocol.schema import Message, Struct, field
from odradek.protocol.types import Int16, Int32, Int64


class StopReplicaRequestStopReplicaPartitionState(Struct):
    partition_index: Int32
    leader_epoch: Int32 = -1
    delete_partition: bool


class StopReplicaRequestStopReplicaTopicState(Struct):
    topic_name: str
    partition_states: list[StopReplicaRequestStopReplicaPartitionState]


class StopReplicaRequest(Message, key=5, versions="3-4", flexible=2):
    """The controller stops replicas of a broker, or deletes them (KIP-570; ZooKeeper mode)."""

    controller_id: Int32
    is_kraft_controller: bool = field(since=4)
    controller_epoch: Int32
    broker_epoch: Int64 = -1
    topic_states: list[StopReplicaRequestStopReplicaTopicState]


class StopReplicaResponseStopReplicaPartitionError(Struct):
    topic_name: str
    partition_index: Int32
    error_code: Int16


class StopReplicaResponse(Message, key=5, versions="3-4", flexible=2):
    """Error of each partition."""

    error_code: Int16
    partition_errors: list[StopReplicaResponseStopReplicaPartitionError]
