"""Requests as plain clients send them, by kafka-python's protocol classes over a raw connection."""

import uuid
from collections.abc import Iterable
from functools import partial
from typing import Any

from kafka.protocol.consumer import (
    FetchRequest,
    FetchResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from kafka.protocol.metadata import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)

from compat_tests.bad_frames import Connection
from compat_tests.clients.common import wait_until


def wait_for_topics(broker: Any, names: Iterable[str]) -> None:
    """Wait for topics: Apache Kafka acknowledges a creation before its brokers have the metadata."""
    with Connection(broker.port) as probe:
        for name in names:
            wait_until(partial(_exists, probe, name))


def _exists(connection: Connection, topic: str) -> bool:
    return not metadata(connection, topic)[0]


def metadata(connection: Connection, topic: str) -> tuple[int, uuid.UUID | None]:
    """Return (error code, topic id)."""
    asked = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
    (answer,) = connection.ask(asked, MetadataResponse, 12).topics
    return answer.error_code or max((p.error_code for p in answer.partitions), default=0), answer.topic_id


def end_offset(connection: Connection, topic: str) -> int:
    return list_offset(connection, topic, -1)[1]


def list_offset(
    connection: Connection,
    topic: str,
    timestamp: int,
    *,
    version: int = 7,
    leader_epoch: int = -1,
    partition: int = 0,
) -> tuple[int, int]:
    """Return (error code, offset)."""
    of_topic = ListOffsetsRequest.ListOffsetsTopic
    asked = of_topic.ListOffsetsPartition(
        partition_index=partition, current_leader_epoch=leader_epoch, timestamp=timestamp
    )
    request = ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[of_topic(name=topic, partitions=[asked])])
    (answer,) = connection.ask(request, ListOffsetsResponse, version).topics[0].partitions
    return answer.error_code, answer.offset


def ask_for_coordinator(connection: Connection) -> None:
    """Wait until the offsets topic exists."""

    def exists() -> bool:
        if join(connection, "bad-input-any")[0] in (0, 79) and not metadata(connection, "__consumer_offsets")[0]:
            return True
        connection.ask(FindCoordinatorRequest(key="bad-input-any", key_type=0), FindCoordinatorResponse, 1)
        return False

    wait_until(exists)


def fetch(
    connection: Connection,
    topic: str | uuid.UUID,
    offset: int = 0,
    *,
    version: int = 12,
    partition: int = 0,
    leader_epoch: int = -1,
    session: tuple[int, int] = (0, -1),
    max_bytes: int = 1_000_000,
) -> tuple[int, int | None, int]:
    """Return (error code, error code of the partition or None if it is missing, high watermark)."""
    of_topic = FetchRequest.FetchTopic
    asked = of_topic.FetchPartition(
        partition=partition,
        current_leader_epoch=leader_epoch,
        fetch_offset=offset,
        last_fetched_epoch=-1,
        log_start_offset=-1,
        partition_max_bytes=max_bytes,
    )
    name: dict[str, Any] = {"topic_id": topic} if isinstance(topic, uuid.UUID) else {"topic": topic}
    request = FetchRequest(
        replica_id=-1,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=max_bytes,
        isolation_level=0,
        session_id=session[0],
        session_epoch=session[1],
        topics=[of_topic(partitions=[asked], **name)],
        forgotten_topics_data=[],
        rack_id="",
    )
    answer = connection.ask(request, FetchResponse, version)
    if not answer.responses:
        return answer.error_code, None, -1
    (response,) = answer.responses[0].partitions
    return answer.error_code, response.error_code, response.high_watermark


def join(
    connection: Connection,
    group: str,
    member: str = "",
    *,
    version: int = 5,
    session_timeout_ms: int = 10_000,
    protocol_type: str = "consumer",
    protocols: tuple[str, ...] = ("range",),
    instance: str | None = None,
) -> tuple[int, str, int]:
    """Return (error code, member id, generation)."""
    of = JoinGroupRequest.JoinGroupRequestProtocol
    request = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=10_000,
        member_id=member,
        group_instance_id=instance,
        protocol_type=protocol_type,
        protocols=[of(name=name, metadata=b"") for name in protocols],
    )
    answer = connection.ask(request, JoinGroupResponse, version)
    return answer.error_code, answer.member_id, answer.generation_id


def heartbeat(connection: Connection, group: str, member: str, generation: int) -> int:
    request = HeartbeatRequest(group_id=group, generation_id=generation, member_id=member, group_instance_id=None)
    return connection.ask(request, HeartbeatResponse, 3).error_code


def sync(connection: Connection, group: str, member: str, generation: int) -> int:
    assigned = SyncGroupRequest.SyncGroupRequestAssignment(member_id=member, assignment=b"all")
    request = SyncGroupRequest(group_id=group, generation_id=generation, member_id=member, assignments=[assigned])
    return connection.ask(request, SyncGroupResponse, 2).error_code


def commit(
    connection: Connection,
    group: str,
    member: str,
    generation: int,
    topic: str,
    text: str = "",
    partition: int = 0,
) -> int:
    of_topic = OffsetCommitRequest.OffsetCommitRequestTopic
    asked = of_topic.OffsetCommitRequestPartition(
        partition_index=partition, committed_offset=1, committed_leader_epoch=-1, committed_metadata=text
    )
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member,
        group_instance_id=None,
        topics=[of_topic(name=topic, partitions=[asked])],
    )
    (answer,) = connection.ask(request, OffsetCommitResponse, 7).topics[0].partitions
    return answer.error_code


def leave(connection: Connection, group: str, member: str) -> tuple[int, int]:
    identity = LeaveGroupRequest.MemberIdentity(member_id=member, group_instance_id=None)
    answer = connection.ask(LeaveGroupRequest(group_id=group, members=[identity]), LeaveGroupResponse, 3)
    return answer.error_code, answer.members[0].error_code if answer.members else 0
