"""Log directories of brokers, and the replicas in them."""

from collections.abc import Iterable
from typing import NamedTuple

from odradek.protocol.messages.describe_log_dirs import (
    DescribeLogDirsRequest,
    DescribeLogDirsRequestDescribableLogDirTopic,
    DescribeLogDirsResponse,
)
from odradek.tools.kafka.cluster import Cluster, check, name_error
from odradek.tools.kafka.connection.connection_errors import NoResponseError
from odradek.tools.kafka.connection.wire_client import WireClient
from odradek.tools.kafka.problems import report_problem


class LogReplica(NamedTuple):
    """A replica on a disk.

    lag: records that a follower has not copied, or that a future replica lacks of the current one
    is_future: a copy that will replace the replica in another log directory
    """

    broker: int
    log_dir: str
    topic: str
    partition: int
    size_bytes: int
    lag: int
    is_future: bool


class LogDir(NamedTuple):
    """A log directory; the sizes of its disk are None if the broker does not report them."""

    broker: int
    path: str
    error: str | None
    total_bytes: int | None
    usable_bytes: int | None
    is_cordoned: bool
    replicas: list[LogReplica]


def fetch_log_dirs(
    cluster: Cluster,
    brokers: Iterable[int] | None = None,
    partitions: dict[str, list[int]] | None = None,
    problems: list[str] | None = None,
) -> list[LogDir]:
    """Return the log directories of brokers, with all replicas or only those of some partitions.

    With `problems` a broker that does not answer is added to them, otherwise raises NoResponseError.
    """
    asked = None
    if partitions is not None:
        asked = [
            DescribeLogDirsRequestDescribableLogDirTopic(topic=topic, partitions=indexes)
            for topic, indexes in partitions.items()
        ]
    request = DescribeLogDirsRequest(topics=asked)
    found = []
    for broker in cluster.node_ids() if brokers is None else brokers:
        try:
            response = cluster.ask_broker(broker, request, DescribeLogDirsResponse)
        except NoResponseError as error:
            report_problem(error, f"log directories of broker {broker}", problems)
            continue
        found += _make_log_dirs(broker, response)
    return found


def fetch_log_dirs_of(
    client: WireClient, broker: int, asked: list[DescribeLogDirsRequestDescribableLogDirTopic] | None = None
) -> list[LogDir]:
    """Return the log directories of the broker of a connection, with all replicas or only those `asked` for."""
    return _make_log_dirs(broker, client.send(DescribeLogDirsRequest(topics=asked), DescribeLogDirsResponse))


def _make_log_dirs(broker: int, response: DescribeLogDirsResponse) -> list[LogDir]:
    check(response.error_code, None, f"log directories of broker {broker}")
    found = []
    for each in response.results:
        replicas = [
            LogReplica(
                broker,
                each.log_dir,
                topic.name,
                one.partition_index,
                one.partition_size,
                one.offset_lag,
                one.is_future_key,
            )
            for topic in each.topics
            for one in topic.partitions
        ]
        found.append(
            LogDir(
                broker,
                each.log_dir,
                name_error(each.error_code) if each.error_code else None,
                each.total_bytes if each.total_bytes >= 0 else None,
                each.usable_bytes if each.usable_bytes >= 0 else None,
                each.is_cordoned,
                sorted(replicas),
            )
        )
    return found
