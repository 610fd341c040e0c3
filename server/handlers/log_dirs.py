"""DescribeLogDirs 1-5: what lies in the log directories (KIP-113), and how much room there is (KIP-827).

null topics mean all. A directory that is offline has KAFKA_STORAGE_ERROR and nothing else. A leader's offset lag is 0;
there are no moves between directories (future replicas) and no cordoned directories.
"""

from typing import TYPE_CHECKING

from odradek.log.log_manager import DirectoryDescription
from odradek.protocol.errors import KafkaError
from odradek.protocol.messages.describe_log_dirs import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResponseDescribeLogDirsPartition,
    DescribeLogDirsResponseDescribeLogDirsResult,
    DescribeLogDirsResponseDescribeLogDirsTopic,
)

if TYPE_CHECKING:
    from odradek.server.request import RequestContext
    from odradek.server.services import Services


def describe_log_dirs(
    services: "Services", context: "RequestContext", request: DescribeLogDirsRequest
) -> DescribeLogDirsResponse:
    """Every directory, with those of the partitions asked for that are in it."""
    asked = None
    if request.topics is not None:
        asked = {(topic.topic, index) for topic in request.topics for index in topic.partitions}
    return DescribeLogDirsResponse(
        results=[_result(directory) for directory in services.logs.describe_directories(asked)]
    )


def describe_log_dirs_error(
    request: DescribeLogDirsRequest, version: int, error: KafkaError
) -> DescribeLogDirsResponse:
    """The error for the request as a whole."""
    return DescribeLogDirsResponse(error_code=error.code)


def _result(directory: DirectoryDescription) -> DescribeLogDirsResponseDescribeLogDirsResult:
    topics: dict[str, DescribeLogDirsResponseDescribeLogDirsTopic] = {}
    for log in directory.logs:
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
