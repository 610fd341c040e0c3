"""DescribeLogDirs 1-5: what lies in the log directories (KIP-113), and how much room there is (KIP-827).

null topics mean all. A directory that is offline has KAFKA_STORAGE_ERROR and nothing else. A leader's offset lag is 0;
there are no moves between directories (future replicas) and no cordoned directories.
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
    """Every directory, with those of the partitions asked for that are in it."""
    return services.slices.run(_describe(services, request))


def _describe(
    services: LogDirServices, request: DescribeLogDirsRequest
) -> Generator[None, None, DescribeLogDirsResponse]:
    asked: Iterator[tuple[str, int]] | None = None
    if request.topics is not None:
        # A topic without partitions gives a key too, so that many of them take several steps.
        asked = ((topic.topic, index) for topic in request.topics for index in topic.partitions or (-1,))
    response = DescribeLogDirsResponse()
    for directory in (yield from services.logs.describe_directories(asked)):
        response.results.append((yield from _result(directory)))
    return response


def describe_log_dirs_error(
    request: DescribeLogDirsRequest, version: int, error: KafkaError
) -> DescribeLogDirsResponse:
    """The error for the request as a whole."""
    return DescribeLogDirsResponse(error_code=error.code)


def _result(
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
