"""LeaderAndIsr (key 4)."""

from odradek.protocol.schema import Message, Struct, field
from odradek.protocol.types import Int8, Int16, Int32, Int64, Uuid


class LeaderAndIsrRequestLeaderAndIsrPartitionState(Struct):
    partition_index: Int32
    controller_epoch: Int32
    leader: Int32
    leader_epoch: Int32
    isr: list[Int32]
    partition_epoch: Int32
    replicas: list[Int32]
    adding_replicas: list[Int32]
    removing_replicas: list[Int32]
    is_new: bool
    leader_recovery_state: Int8 = field(since=6)


class LeaderAndIsrRequestLeaderAndIsrTopicState(Struct):
    topic_name: str
    topic_id: Uuid
    partition_states: list[LeaderAndIsrRequestLeaderAndIsrPartitionState]


class LeaderAndIsrRequestLeaderAndIsrLiveLeader(Struct):
    broker_id: Int32
    host_name: str
    port: Int32


class LeaderAndIsrRequest(Message, key=4, versions="5-7", flexible=4):
    """The controller gives a broker the role, leader and ISR of its replicas (KIP-516, KIP-704; ZooKeeper mode)."""

    controller_id: Int32
    is_kraft_controller: bool = field(since=7)
    controller_epoch: Int32
    broker_epoch: Int64 = -1
    type: Int8
    topic_states: list[LeaderAndIsrRequestLeaderAndIsrTopicState]
    live_leaders: list[LeaderAndIsrRequestLeaderAndIsrLiveLeader]


class LeaderAndIsrResponseLeaderAndIsrPartitionError(Struct):
    partition_index: Int32
    error_code: Int16


class LeaderAndIsrResponseLeaderAndIsrTopicError(Struct):
    topic_id: Uuid
    partition_errors: list[LeaderAndIsrResponseLeaderAndIsrPartitionError]


class LeaderAndIsrResponse(Message, key=4, versions="5-7", flexible=4):
    """Error of each partition that was not applied."""

    error_code: Int16
    topics: list[LeaderAndIsrResponseLeaderAndIsrTopicError]
