"""A member of a streams group (KIP-1071), on the wire: the jars of these tests have no Kafka Streams."""

from odradek.protocol.schema import Message, Struct
from odradek.protocol.types import Int8, Int16, Int32, Int64, UInt16
from odradek.tools.kafka.cluster import Cluster, check
from odradek.tools.kafka.groups.description import GROUP_KEY

_LEAVE = -1


class _KeyValue(Struct):
    key: str
    value: str


class _TopicInfo(Struct):
    name: str
    partitions: Int32
    replication_factor: Int16
    topic_configs: list[_KeyValue]


class _CopartitionGroup(Struct):
    source_topics: list[Int16]
    source_topic_regex: list[Int16]
    repartition_source_topics: list[Int16]


class _Subtopology(Struct):
    subtopology_id: str
    source_topics: list[str]
    source_topic_regex: list[str]
    state_changelog_topics: list[_TopicInfo]
    repartition_sink_topics: list[str]
    repartition_source_topics: list[_TopicInfo]
    copartition_groups: list[_CopartitionGroup]


class _Topology(Struct):
    epoch: Int32
    subtopologies: list[_Subtopology]


class _TaskIds(Struct):
    subtopology_id: str
    partitions: list[Int32]


class _Endpoint(Struct):
    host: str
    port: UInt16


class _TaskOffset(Struct):
    subtopology_id: str
    partition: Int32
    offset: Int64


class _HeartbeatRequest(Message, key=88, versions="0", flexible=0):
    group_id: str
    member_id: str
    member_epoch: Int32
    endpoint_information_epoch: Int32
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: Int32 = -1
    topology: _Topology | None = None
    active_tasks: list[_TaskIds] | None = None
    standby_tasks: list[_TaskIds] | None = None
    warmup_tasks: list[_TaskIds] | None = None
    process_id: str | None = None
    user_endpoint: _Endpoint | None = None
    client_tags: list[_KeyValue] | None = None
    task_offsets: list[_TaskOffset] | None = None
    task_end_offsets: list[_TaskOffset] | None = None
    shutdown_application: bool = False


class _Status(Struct):
    status_code: Int8
    status_detail: str


class _TopicPartitions(Struct):
    topic: str
    partitions: list[Int32]


class _EndpointToPartitions(Struct):
    user_endpoint: _Endpoint
    active_partitions: list[_TopicPartitions]
    standby_partitions: list[_TopicPartitions]


class _HeartbeatResponse(Message, key=88, versions="0", flexible=0):
    throttle_time_ms: Int32
    error_code: Int16
    error_message: str | None = None
    member_id: str
    member_epoch: Int32
    heartbeat_interval_ms: Int32
    acceptable_recovery_lag: Int32
    task_offset_interval_ms: Int32
    status: list[_Status] | None
    active_tasks: list[_TaskIds] | None = None
    standby_tasks: list[_TaskIds] | None = None
    warmup_tasks: list[_TaskIds] | None = None
    endpoint_information_epoch: Int32
    partitions_by_user_endpoint: list[_EndpointToPartitions] | None = None


class StreamsMember:
    """A member of a group whose one subtopology, "0", reads topics."""

    def __init__(self, cluster: Cluster, group: str, topics: list[str]) -> None:
        self._cluster = cluster
        self._group = group
        self._id = f"member-of-{group}"
        self._epoch = 0
        subtopology = _Subtopology(
            subtopology_id="0", source_topics=topics, source_topic_regex=[], state_changelog_topics=[],
            repartition_sink_topics=[], repartition_source_topics=[], copartition_groups=[],
        )  # fmt: skip
        self.has_tasks = self._send(
            rebalance_timeout_ms=60_000, topology=_Topology(epoch=0, subtopologies=[subtopology]), active_tasks=[],
            standby_tasks=[], warmup_tasks=[], process_id="process", client_tags=[],
        )  # fmt: skip

    def heartbeat(self) -> bool:
        """Return whether the member has tasks."""
        self.has_tasks = self._send() or self.has_tasks
        return self.has_tasks

    def leave(self) -> None:
        self._epoch = _LEAVE
        self._send()

    def _send(self, **fields: object) -> bool:
        request = _HeartbeatRequest(
            group_id=self._group, member_id=self._id, member_epoch=self._epoch, endpoint_information_epoch=0, **fields
        )
        response = self._cluster.ask_coordinator(self._group, GROUP_KEY, request, _HeartbeatResponse)
        check(response.error_code, response.error_message)
        self._epoch = response.member_epoch
        return bool(response.active_tasks)
