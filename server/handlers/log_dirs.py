"""DescribeLogDirs 1-5: the partitions in each log directory (KIP-113), and its total and usable space (KIP-827).

Null topics mean all topics. An offline directory has the error KAFKA_STORAGE_ERROR and no partitions. The offset lag of
a leader is 0; there are no moves between directories (future replicas) and no cordoned directories.
"""

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Protocol

from odradek.log.management.log_directories import DirectoryDescription
from odradek.protocol.errors import KafkaError
from odradek.protocol.messages.describe_log_dirs import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResponseDescribeLogDirsPartition,
    DescribeLogDirsResponseDescribeLogDirsResult,
    DescribeLogDirsResponseDescribeLogDirsTopic,
)
from odradek.server.work.slices import ROWS_PER_STEP

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from odradek.log.log_manager import LogManager
    from odradek.server.request import RequestContext
    from odradek.server.work.slices import Slices


class LogDirServices(Protocol):
    """The parts of a broker that DescribeLogDirs needs."""

    logs: "LogManager"
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
                partition_index=log.partition, partition_size=log.size_bytes
            )
        )
    return DescribeLogDirsResponseDescribeLogDirsResult(
        error_code=directory.error_code,
        log_dir=directory.path,
        topics=list(topics.values()),
        total_bytes=directory.total_bytes,
        usable_bytes=directory.usable_bytes,
    )
