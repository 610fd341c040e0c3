"""ListOffsets 1-11 and OffsetForLeaderEpoch 2-4: offsets in a log, by timestamp and by leader epoch.

Negative timestamps are special positions: -1 latest, -2 earliest, -3 largest timestamp (from version 7 on, KIP-734), -4
earliest local (8, KIP-405), -5 latest tiered (9, KIP-1005), -6 earliest pending upload (11, KIP-1023). A repeated
partition is INVALID_REQUEST. Latest is the high watermark; with read_committed the last stable offset; for another
replica, and for a debugging client, the log end. Debugging clients may ask any replica, others the leader.
"""

from collections.abc import Generator
from typing import TYPE_CHECKING, Final, Protocol

from odradek.protocol.batches.streaming import Step
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.list_offsets import (
    ListOffsetsRequest,
    ListOffsetsRequestListOffsetsPartition,
    ListOffsetsResponse,
    ListOffsetsResponseListOffsetsPartitionResponse,
    ListOffsetsResponseListOffsetsTopicResponse,
)
from odradek.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochRequestOffsetForLeaderPartition,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderEpochResponseEpochEndOffset,
    OffsetForLeaderEpochResponseOffsetForLeaderTopicResult,
)
from odradek.protocol.schema import rows
from odradek.replication.replicas.offset_lookup import MAX_TIMESTAMP, check_timestamp_supported
from odradek.server.work.slices import ROWS_PER_STEP, SMALL_REQUEST_STEPS, Work

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from odradek.replication.replicas.replica_manager import ReplicaManager
    from odradek.server.request import RequestContext
    from odradek.server.work.record_work import RecordWork
    from odradek.server.work.slices import Slices

CONSUMER: Final = -1
DEBUGGING_CLIENT: Final = -2
OFFSET_NOT_AVAILABLE_SINCE: Final = 5
_LOOKUPS_PER_STEP: Final = 64
"""Lookups of an end of a log in one step: a few microseconds each. A search by timestamp takes at least one step."""


class ListOffsetsServices(Protocol):
    """The parts of a broker that ListOffsets and OffsetForLeaderEpoch need."""

    record_work: "RecordWork"
    replicas: "ReplicaManager"
    slices: "Slices"


def list_offsets(
    services: ListOffsetsServices, context: "RequestContext", request: ListOffsetsRequest
) -> "Deferred[ListOffsetsResponse]":
    """Return an offset of each partition; each has its own error. The search ends if the connection is lost.

    The ends of logs are looked up without a place in `record_work`: only a long search waits for other long work.
    """
    return services.record_work.run_lookups(_list_offsets(services, context, request, context.api_version))


def _list_offsets(
    services: ListOffsetsServices, context: "RequestContext", request: ListOffsetsRequest, version: int
) -> Work[ListOffsetsResponse]:
    isolation_level = request.isolation_level if request.replica_id == CONSUMER else None
    leader_only = request.replica_id != DEBUGGING_CLIENT
    repeated = yield from _find_repeated(request)
    topics = []
    cost = 0
    for topic in request.topics:
        rows: list[ListOffsetsResponseListOffsetsPartitionResponse] = []
        refused: set[int] = set()
        for requested in topic.partitions:
            if cost >= _LOOKUPS_PER_STEP:
                yield None
                cost = 0
            is_search = requested.timestamp >= 0 or requested.timestamp == MAX_TIMESTAMP
            cost += _LOOKUPS_PER_STEP if is_search else 1
            index = requested.partition_index
            try:
                if (topic.name, index) in repeated:
                    if index in refused:
                        continue
                    refused.add(index)
                    raise KafkaError(ErrorCode.INVALID_REQUEST)
                search = _look_up(services, topic.name, requested, version, isolation_level, leader_only)
                rows.append((yield from services.record_work.steps(search, context)))
            except KafkaError as error:
                rows.append(_make_error_row(index, error, version))
        topics.append(ListOffsetsResponseListOffsetsTopicResponse(name=topic.name, partitions=rows))
        cost += 1
        if cost >= _LOOKUPS_PER_STEP:
            yield None
            cost = 0
    return ListOffsetsResponse(topics=topics)


def _find_repeated(request: ListOffsetsRequest) -> Generator[None, None, set[tuple[str, int]]]:
    """Find the partitions that are in the request more than once, in steps."""
    named: set[tuple[str, int]] = set()
    repeated: set[tuple[str, int]] = set()
    count = 0
    for topic in request.topics:
        count += 1
        for requested in topic.partitions:
            partition = topic.name, requested.partition_index
            (repeated if partition in named else named).add(partition)
            count += 1
            if count % ROWS_PER_STEP == 0:
                yield
        if count % ROWS_PER_STEP == 0:
            yield
    # Freeing a large set at once takes long.
    while named:
        for _ in range(min(len(named), ROWS_PER_STEP)):
            named.pop()
        if named:
            yield
    return repeated


def list_offsets_error(request: ListOffsetsRequest, version: int, error: KafkaError) -> ListOffsetsResponse:
    """Return `error` for every partition."""
    return ListOffsetsResponse(
        topics=rows(
            lambda topic: ListOffsetsResponseListOffsetsTopicResponse(
                name=topic.name,
                partitions=rows(lambda data: _make_error_row(data.partition_index, error, version), topic.partitions),
            ),
            request.topics,
        )
    )


def _look_up(
    services: ListOffsetsServices,
    topic: str,
    requested: ListOffsetsRequestListOffsetsPartition,
    version: int,
    isolation_level: int | None,
    leader_only: bool,
) -> Generator[Step, None, ListOffsetsResponseListOffsetsPartitionResponse]:
    check_timestamp_supported(requested.timestamp, version)
    found = yield from services.replicas.get(topic, requested.partition_index).list_offset(
        requested.timestamp,
        isolation_level=isolation_level,
        current_leader_epoch=requested.current_leader_epoch,
        leader_only=leader_only,
    )
    return ListOffsetsResponseListOffsetsPartitionResponse(
        partition_index=requested.partition_index,
        timestamp=found.timestamp,
        offset=found.offset,
        leader_epoch=found.leader_epoch,
    )


def _make_error_row(index: int, error: KafkaError, version: int) -> ListOffsetsResponseListOffsetsPartitionResponse:
    code = error.code
    if code == ErrorCode.OFFSET_NOT_AVAILABLE and version < OFFSET_NOT_AVAILABLE_SINCE:
        code = ErrorCode.LEADER_NOT_AVAILABLE
    return ListOffsetsResponseListOffsetsPartitionResponse(partition_index=index, error_code=code)


def offset_for_leader_epoch(
    services: ListOffsetsServices, context: "RequestContext", request: OffsetForLeaderEpochRequest
) -> "Deferred[OffsetForLeaderEpochResponse]":
    """Return the end offset of each leader epoch, by which a consumer detects that its position was truncated."""

    def look_up() -> Generator[None, None, OffsetForLeaderEpochResponse]:
        response = OffsetForLeaderEpochResponse()
        for topic in request.topics:
            result = OffsetForLeaderEpochResponseOffsetForLeaderTopicResult(topic=topic.topic)
            response.topics.append(result)
            for requested in topic.partitions:
                result.partitions.append(_find_epoch_end(services, topic.topic, requested))
                yield
            yield
        return response

    return services.slices.run(look_up(), SMALL_REQUEST_STEPS)


def offset_for_leader_epoch_error(
    request: OffsetForLeaderEpochRequest, version: int, error: KafkaError
) -> OffsetForLeaderEpochResponse:
    """Return `error` for every partition."""
    return OffsetForLeaderEpochResponse(
        topics=rows(
            lambda topic: OffsetForLeaderEpochResponseOffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=rows(
                    lambda requested: OffsetForLeaderEpochResponseEpochEndOffset(
                        partition=requested.partition, error_code=error.code
                    ),
                    topic.partitions,
                ),
            ),
            request.topics,
        )
    )


def _find_epoch_end(
    services: ListOffsetsServices, topic: str, requested: OffsetForLeaderEpochRequestOffsetForLeaderPartition
) -> OffsetForLeaderEpochResponseEpochEndOffset:
    try:
        epoch, end_offset = services.replicas.get(topic, requested.partition).offset_for_leader_epoch(
            requested.leader_epoch, requested.current_leader_epoch
        )
    except KafkaError as error:
        return OffsetForLeaderEpochResponseEpochEndOffset(partition=requested.partition, error_code=error.code)
    return OffsetForLeaderEpochResponseEpochEndOffset(
        partition=requested.partition, leader_epoch=epoch, end_offset=end_offset
    )
