"""UpdateMetadata (key 6)."""

from odradek.protocol.schema import Message, Struct, field
from odradek.protocol.types import Int8, Int16, Int32, Int64, Uuid


class UpdateMetadataRequestUpdateMetadataPartitionState(Struct):
    partition_index: Int32
    controller_epoch: Int32
    leader: Int32
    leader_epoch: Int32
    isr: list[Int32]
    zk_version: Int32
    replicas: list[Int32]
    offline_replicas: list[Int32]


class UpdateMetadataRequestUpdateMetadataTopicState(Struct):
    topic_name: str
    topic_id: Uuid
    partition_states: list[UpdateMetadataRequestUpdateMetadataPartitionState]


class UpdateMetadataRequestUpdateMetadataEndpoint(Struct):
    port: Int32
    host: str
    listener: str
    security_protocol: Int16


class UpdateMetadataRequestUpdateMetadataBroker(Struct):
    id: Int32
    endpoints: list[UpdateMetadataRequestUpdateMetadataEndpoint]
    rack: str | None


class UpdateMetadataRequest(Message, key=6, versions="7-8", flexible=6):
    """The controller publishes brokers and partitions to the metadata cache of a broker (ZooKeeper mode)."""

    controller_id: Int32
    is_kraft_controller: bool = field(since=8)
    type: Int8 = field(since=8, tag=0)
    controller_epoch: Int32
    broker_epoch: Int64 = -1
    topic_states: list[UpdateMetadataRequestUpdateMetadataTopicState]
    live_brokers: list[UpdateMetadataRequestUpdateMetadataBroker]


class UpdateMetadataResponse(Message, key=6, versions="7-8", flexible=6):
    """Result of the update."""

    error_code: Int16
