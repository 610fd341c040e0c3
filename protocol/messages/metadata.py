"""Metadata (key 3)."""

from odradek.protocol.schema import Message, Struct, field
from odradek.protocol.types import Int16, Int32, Uuid


class MetadataRequestTopic(Struct):
    topic_id: Uuid = field(since=10)
    name: str | None = field(nullable_since=10)


class MetadataRequest(Message, key=3, versions="0-13", flexible=9):
    """Describe brokers, topics and partitions."""

    topics: list[MetadataRequestTopic] | None = field(nullable_since=1)
    allow_auto_topic_creation: bool = field(since=4, default=True)
    include_cluster_authorized_operations: bool = field(since=8, until=10)
    include_topic_authorized_operations: bool = field(since=8)


class MetadataResponseBroker(Struct):
    node_id: Int32
    host: str
    port: Int32
    rack: str | None = field(since=1, default=None)


class MetadataResponsePartition(Struct):
    error_code: Int16
    partition_index: Int32
    leader_id: Int32
    leader_epoch: Int32 = field(since=7, default=-1)
    replica_nodes: list[Int32]
    isr_nodes: list[Int32]
    offline_replicas: list[Int32] = field(since=5)


class MetadataResponseTopic(Struct):
    error_code: Int16
    name: str | None = field(nullable_since=12)
    topic_id: Uuid = field(since=10)
    is_internal: bool = field(since=1)
    partitions: list[MetadataResponsePartition]
    topic_authorized_operations: Int32 = field(since=8, default=-2147483648)


class MetadataResponse(Message, key=3, versions="0-13", flexible=9):
    """Brokers, topics, partitions and their leaders."""

    throttle_time_ms: Int32 = field(since=3)
    brokers: list[MetadataResponseBroker]
    cluster_id: str | None = field(since=2, default=None)
    controller_id: Int32 = field(since=1, default=-1)
    topics: list[MetadataResponseTopic]
    cluster_authorized_operations: Int32 = field(since=8, until=10, default=-2147483648)
    error_code: Int16 = field(since=13)
