"""ElectLeaders (key 43)."""

from odradek.protocol.schema import Message, Struct, field
from odradek.protocol.types import Int8, Int16, Int32


class ElectLeadersRequestTopicPartitions(Struct):
    topic: str
    partitions: list[Int32]


class ElectLeadersRequest(Message, key=43, versions="0-2", flexible=2):
    """Elect the preferred leader of partitions, or a leader outside the ISR (KIP-460)."""

    election_type: Int8 = field(since=1)
    topic_partitions: list[ElectLeadersRequestTopicPartitions] | None
    timeout_ms: Int32 = 60000


class ElectLeadersResponsePartitionResult(Struct):
    partition_id: Int32
    error_code: Int16
    error_message: str | None


class ElectLeadersResponseReplicaElectionResult(Struct):
    topic: str
    partition_result: list[ElectLeadersResponsePartitionResult]


class ElectLeadersResponse(Message, key=43, versions="0-2", flexible=2):
    """Result for each partition."""

    throttle_time_ms: Int32
    error_code: Int16 = field(since=1)
    replica_election_results: list[ElectLeadersResponseReplicaElectionResult]
