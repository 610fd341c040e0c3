"""DescribeLogDirs 1-5 and AlterReplicaLogDirs 1-2: log directories and moves of replicas between them (KIP-113).

DescribeLogDirs: null topics mean all topics. An offline directory has the error KAFKA_STORAGE_ERROR and no partitions.
A replica that is being moved is in two directories; the lag of the future replica is that behind the current one, other
lags are 0. Each directory has its total and usable space (KIP-827). There are no cordoned directories.

AlterReplicaLogDirs: the response follows the start of a move. A partition without a replica here gets
REPLICA_NOT_AVAILABLE or UNKNOWN_TOPIC_OR_PARTITION, and the directory is used if the replica is created later: tools
name it before they add the replica. Of several directories for a partition, the last one counts.
"""

from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Protocol

from odradek.log.management.log_directories import DirectoryDescription
from odradek.log.storage.log_directory import FUTURE_SUFFIX, MAX_NAME_LENGTH, marked_name
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirsResponseAlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsResponseAlterReplicaLogDirTopicResult,
)
from odradek.protocol.messages.describe_log_dirs import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResponseDescribeLogDirsPartition,
    DescribeLogDirsResponseDescribeLogDirsResult,
    DescribeLogDirsResponseDescribeLogDirsTopic,
)
from odradek.protocol.schema import rows
from odradek.server.work.slices import ROWS_PER_STEP

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from odradek.log.log_manager import LogManager
    from odradek.replication.replicas.replica_manager import ReplicaManager
    from odradek.server.request import RequestContext
    from odradek.server.work.slices import Slices


class LogDirServices(Protocol):
    """The parts of a broker that requests about log directories need."""

    logs: "LogManager"
    now_ms: Callable[[], int]
    replicas: "ReplicaManager"
    slices: "Slices"


def describe_log_dirs(
    services: LogDirServices, context: "RequestContext", request: DescribeLogDirsRequest
) -> "Deferred[DescribeLogDirsResponse]":
    """Return every log directory, with the requested partitions in it."""
    return services.slices.run(_describe_directories(services, request))


def _describe_directories(
    services: LogDirServices, request: DescribeLogDirsRequest
) -> Generator[None, None, DescribeLogDirsResponse]:
    requested: Iterator[tuple[str, int]] | None = None
    if request.topics is not None:
        # A topic without partitions yields a key too, so that many of them take several steps.
        requested = ((topic.topic, index) for topic in request.topics for index in topic.partitions or (-1,))
    response = DescribeLogDirsResponse()
    for directory in (yield from services.logs.describe_directories(requested)):
        response.results.append((yield from _describe_directory(directory)))
    return response


def describe_log_dirs_error(
    request: DescribeLogDirsRequest, version: int, error: KafkaError
) -> DescribeLogDirsResponse:
    """Return `error` for the whole request."""
    return DescribeLogDirsResponse(error_code=error.code)


def _describe_directory(
    directory: DirectoryDescription,
) -> Generator[None, None, DescribeLogDirsResponseDescribeLogDirsResult]:
    topics: dict[str, DescribeLogDirsResponseDescribeLogDirsTopic] = {}
    for number, log in enumerate(directory.logs, 1):
        if number % ROWS_PER_STEP == 0:
            yield
        topic = topics.setdefault(log.topic, DescribeLogDirsResponseDescribeLogDirsTopic(name=log.topic))
        topic.partitions.append(
            DescribeLogDirsResponseDescribeLogDirsPartition(
                partition_index=log.partition,
                partition_size=log.size_bytes,
                offset_lag=log.offset_lag,
                is_future_key=log.is_future,
            )
        )
    return DescribeLogDirsResponseDescribeLogDirsResult(
        error_code=directory.error_code,
        log_dir=directory.path,
        topics=list(topics.values()),
        total_bytes=directory.total_bytes,
        usable_bytes=directory.usable_bytes,
    )


def alter_replica_log_dirs(
    services: LogDirServices, context: "RequestContext", request: AlterReplicaLogDirsRequest
) -> "Deferred[AlterReplicaLogDirsResponse]":
    """Begin to move replicas to other log directories."""
    return services.slices.run(_move_replicas(services, request))


def alter_replica_log_dirs_error(
    request: AlterReplicaLogDirsRequest, version: int, error: KafkaError
) -> AlterReplicaLogDirsResponse:
    """Return `error` for each partition."""
    indexes: dict[str, dict[int, None]] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            indexes.setdefault(topic.name, {}).update(dict.fromkeys(topic.partitions))

    def make_partition(index: int) -> AlterReplicaLogDirsResponseAlterReplicaLogDirPartitionResult:
        return AlterReplicaLogDirsResponseAlterReplicaLogDirPartitionResult(
            partition_index=index, error_code=error.code
        )

    # A topic without partitions has no row.
    return AlterReplicaLogDirsResponse(
        results=rows(
            lambda name: AlterReplicaLogDirsResponseAlterReplicaLogDirTopicResult(
                topic_name=name, partitions=rows(make_partition, list(indexes[name]))
            ),
            [name for name, of_topic in indexes.items() if of_topic],
        )
    )


def _move_replicas(
    services: LogDirServices, request: AlterReplicaLogDirsRequest
) -> Generator[None, None, AlterReplicaLogDirsResponse]:
    codes: dict[tuple[str, int], ErrorCode] = {}
    for (topic, index), path in _list_paths(request).items():
        codes[topic, index] = _move_replica(services, topic, index, path)
        yield
    return _respond(codes)


def _move_replica(services: LogDirServices, topic: str, index: int, path: str) -> ErrorCode:
    """Begin to move a replica. Return the error as Apache Kafka does, in the order of its checks."""
    logs, replicas = services.logs, services.replicas
    try:
        if len(topic) > MAX_NAME_LENGTH - len(marked_name("", index, bytes(16), FUTURE_SUFFIX)):
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "the topic's name is too long for a future replica")
        directory = logs.directories.get(path)
        if directory is None:
            raise KafkaError(ErrorCode.LOG_DIR_NOT_FOUND, f"{path} is not in log.dirs")
        if directory.failure is not None or replicas.is_offline(topic, index):
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{path} or {topic}-{index} is offline")
        if logs.get(topic, index) is None:
            logs.prefer_directory(topic, index, path)
        replicas.get(topic, index)
        logs.move_log(topic, index, path, services.now_ms())
    except KafkaError as error:
        is_elsewhere = error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.REPLICA_NOT_AVAILABLE if is_elsewhere else error.code
    return ErrorCode.NONE


def _list_paths(request: AlterReplicaLogDirsRequest) -> dict[tuple[str, int], str]:
    """Return the requested directory of each partition."""
    return {
        (topic.name, index): directory.path
        for directory in request.dirs
        for topic in directory.topics
        for index in topic.partitions
    }


def _respond(codes: dict[tuple[str, int], ErrorCode]) -> AlterReplicaLogDirsResponse:
    topics: dict[str, AlterReplicaLogDirsResponseAlterReplicaLogDirTopicResult] = {}
    for (topic, index), code in codes.items():
        result = topics.setdefault(
            topic, AlterReplicaLogDirsResponseAlterReplicaLogDirTopicResult(topic_name=topic)
        )
        result.partitions.append(
            AlterReplicaLogDirsResponseAlterReplicaLogDirPartitionResult(partition_index=index, error_code=code)
        )
    return AlterReplicaLogDirsResponse(results=list(topics.values()))
