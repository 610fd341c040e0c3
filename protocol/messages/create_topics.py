"""CreateTopics (key 19)."""

from odradek.protocol.schema import Message, Struct, field
from odradek.protocol.types import Int8, Int16, Int32, Uuid


class CreateTopicsRequestCreatableReplicaAssignment(Struct):
    partition_index: Int32
    broker_ids: list[Int32]


class CreateTopicsRequestCreatableTopicConfig(Struct):
    name: str
    value: str | None


class CreateTopicsRequestCreatableTopic(Struct):
    name: str
    num_partitions: Int32
    replication_factor: Int16
    assignments: list[CreateTopicsRequestCreatableReplicaAssignment]
    configs: list[CreateTopicsRequestCreatableTopicConfig]


class CreateTopicsRequest(Message, key=19, versions="2-7", flexible=5):
    """Create topics."""

    topics: list[CreateTopicsRequestCreatableTopic]
    timeout_ms: Int32 = 60000
    validate_only: bool


class CreateTopicsResponseCreatableTopicConfigs(Struct):
    name: str
    value: str | None
    read_only: bool
    config_source: Int8 = -1
    is_sensitive: bool


class CreateTopicsResponseCreatableTopicResult(Struct):
    name: str
    topic_id: Uuid = field(since=7)
    error_code: Int16
    error_message: str | None
    topic_config_error_code: Int16 = field(since=5, tag=0)
    num_partitions: Int32 = field(since=5, default=-1)
    replication_factor: Int16 = field(since=5, default=-1)
    configs: list[CreateTopicsResponseCreatableTopicConfigs] | None = field(since=5)


class CreateTopicsResponse(Message, key=19, versions="2-7", flexible=5):
    """Result for each topic, with its configuration."""

    throttle_time_ms: Int32
    topics: list[CreateTopicsResponseCreatableTopicResult]
