"""ListOffsets 1-11 and OffsetForLeaderEpoch 2-4: positions in a log, by time and by leader epoch.

Negative timestamps are special positions, each known from some version on: -1 latest, -2 earliest, -3 that of the
largest timestamp (7, KIP-734), -4 earliest local (8, KIP-405), -5 latest tiered (9, KIP-1005), -6 earliest pending
upload (11, KIP-1023). A partition named twice is INVALID_REQUEST. Read-committed latest is the last stable offset.
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
OFFSET_NOT_AVAILABLE_SINCE: Final = 5
_LOOKUPS_PER_STEP: Final = 64
"""Partitions of which an end of the log is asked: a few microseconds each. A search by timestamp is a step at least."""


class ListOffsetsServices(Protocol):
    """The parts of a broker that ListOffsets and OffsetForLeaderEpoch need."""

    record_work: "RecordWork"
    replicas: "ReplicaManager"
    slices: "Slices"


def list_offsets(
    services: ListOffsetsServices, context: "RequestContext", request: ListOffsetsRequest
) -> "Deferred[ListOffsetsResponse]":
    """Each partition by itself; one that fails does not touch the others. A client that goes ends the search.

    The ends of logs are looked up without a place in `record_work`: only a long search waits for other long work.
    """
    return services.record_work.run_lookups(_list_offsets(services, context, request, context.api_version))


def _list_offsets(
    services: ListOffsetsServices, context: "RequestContext", request: ListOffsetsRequest, version: int
) -> Work[ListOffsetsResponse]:
    isolation_level = request.isolation_level if request.replica_id == CONSUMER else None
    repeated = yield from _find_repeated(request)
    topics = []
    cost = 0
    for topic in request.topics:
        rows: list[ListOffsetsResponseListOffsetsPartitionResponse] = []
        refused: set[int] = set()
        for asked in topic.partitions:
            if cost >= _LOOKUPS_PER_STEP:
                yield None
                cost = 0
            is_search = asked.timestamp >= 0 or asked.timestamp == MAX_TIMESTAMP
            cost += _LOOKUPS_PER_STEP if is_search else 1
            index = asked.partition_index
            try:
                if (topic.name, index) in repeated:
                    if index in refused:
                        continue
                    refused.add(index)
                    raise KafkaError(ErrorCode.INVALID_REQUEST)
                search = _look_up(services, topic.name, asked, version, isolation_level)
                rows.append((yield from services.record_work.steps(search, context)))
            except KafkaError as error:
                rows.append(_failed_row(index, error, version))
        topics.append(ListOffsetsResponseListOffsetsTopicResponse(name=topic.name, partitions=rows))
        cost += 1
        if cost >= _LOOKUPS_PER_STEP:
            yield None
            cost = 0
    return ListOffsetsResponse(topics=topics)


def _find_repeated(request: ListOffsetsRequest) -> Generator[None, None, set[tuple[str, int]]]:
    """Return the partitions that are named more than once, in steps."""
    named: set[tuple[str, int]] = set()
    repeated: set[tuple[str, int]] = set()
    count = 0
    for topic in request.topics:
        count += 1
        for asked in topic.partitions:
            partition = topic.name, asked.partition_index
            (repeated if partition in named else named).add(partition)
            count += 1
            if count % ROWS_PER_STEP == 0:
                yield
        if count % ROWS_PER_STEP == 0:
            yield
    # All at once would take long.
    while named:
        for _ in range(min(len(named), ROWS_PER_STEP)):
            named.pop()
        if named:
            yield
    return repeated


def list_offsets_error(request: ListOffsetsRequest, version: int, error: KafkaError) -> ListOffsetsResponse:
    """The error at every partition."""
    return ListOffsetsResponse(
        topics=rows(
            lambda topic: ListOffsetsResponseListOffsetsTopicResponse(
                name=topic.name,
                partitions=rows(lambda asked: _failed_row(asked.partition_index, error, version), topic.partitions),
            ),
            request.topics,
        )
    )


def _look_up(
    services: ListOffsetsServices,
    topic: str,
    asked: ListOffsetsRequestListOffsetsPartition,
    version: int,
    isolation_level: int | None,
) -> Generator[Step, None, ListOffsetsResponseListOffsetsPartitionResponse]:
    check_timestamp_supported(asked.timestamp, version)
    found = yield from services.replicas.get(topic, asked.partition_index).list_offset(
        asked.timestamp, isolation_level=isolation_level, current_leader_epoch=asked.current_leader_epoch
    )
    return ListOffsetsResponseListOffsetsPartitionResponse(
        partition_index=asked.partition_index,
        timestamp=found.timestamp,
        offset=found.offset,
        leader_epoch=found.leader_epoch,
    )


def _failed_row(index: int, error: KafkaError, version: int) -> ListOffsetsResponseListOffsetsPartitionResponse:
    code = error.code
    if code == ErrorCode.OFFSET_NOT_AVAILABLE and version < OFFSET_NOT_AVAILABLE_SINCE:
        code = ErrorCode.LEADER_NOT_AVAILABLE
    return ListOffsetsResponseListOffsetsPartitionResponse(partition_index=index, error_code=code)


def offset_for_leader_epoch(
    services: ListOffsetsServices, context: "RequestContext", request: OffsetForLeaderEpochRequest
) -> "Deferred[OffsetForLeaderEpochResponse]":
    """Return where each epoch ends, for a consumer to find out whether its position was truncated away."""

    def look_up() -> Generator[None, None, OffsetForLeaderEpochResponse]:
        response = OffsetForLeaderEpochResponse()
        for topic in request.topics:
            result = OffsetForLeaderEpochResponseOffsetForLeaderTopicResult(topic=topic.topic)
            response.topics.append(result)
            for asked in topic.partitions:
                result.partitions.append(_epoch_end(services, topic.topic, asked))
                yield
            yield
        return response

    return services.slices.run(look_up(), SMALL_REQUEST_STEPS)


def offset_for_leader_epoch_error(
    request: OffsetForLeaderEpochRequest, version: int, error: KafkaError
) -> OffsetForLeaderEpochResponse:
    """The error at every partition."""
    return OffsetForLeaderEpochResponse(
        topics=rows(
            lambda topic: OffsetForLeaderEpochResponseOffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=rows(
                    lambda asked: OffsetForLeaderEpochResponseEpochEndOffset(
                        partition=asked.partition, error_code=error.code
                    ),
                    topic.partitions,
                ),
            ),
            request.topics,
        )
    )


def _epoch_end(
    services: ListOffsetsServices, topic: str, asked: OffsetForLeaderEpochRequestOffsetForLeaderPartition
) -> OffsetForLeaderEpochResponseEpochEndOffset:
    try:
        epoch, end_offset = services.replicas.get(topic, asked.partition).offset_for_leader_epoch(
            asked.leader_epoch, asked.current_leader_epoch
        )
    except KafkaError as error:
        return OffsetForLeaderEpochResponseEpochEndOffset(partition=asked.partition, error_code=error.code)
    return OffsetForLeaderEpochResponseEpochEndOffset(
        partition=asked.partition, leader_epoch=epoch, end_offset=end_offset
    )
