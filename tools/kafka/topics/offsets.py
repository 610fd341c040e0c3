"""Offsets of partitions, from their leaders."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.list_offsets import (
    ListOffsetsRequest,
    ListOffsetsRequestListOffsetsPartition,
    ListOffsetsRequestListOffsetsTopic,
    ListOffsetsResponse,
)
from odradek.tools.kafka.cluster import Cluster, RequestError, make_error
from odradek.tools.kafka.connection.connection_errors import NoResponseError
from odradek.tools.kafka.problems import report_problem

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
READ_COMMITTED: Final = 1

TopicPartition = tuple[str, int]


class FoundOffset(NamedTuple):
    """An offset with the timestamp of its record; both are -1 if there is none."""

    offset: int
    timestamp_ms: int


def parse_partition(text: str) -> TopicPartition:
    """Parse `topic:partition`. Raises ValueError."""
    topic, colon, partition = text.rpartition(":")
    if not colon or not topic or not partition.isdecimal():
        raise ValueError(f"{text} is not topic:partition")
    return topic, int(partition)


def find_leaders(cluster: Cluster, topics: Iterable[str]) -> dict[TopicPartition, int]:
    """Return the leader of each partition of topics, -1 without one. Raises RequestError for an unknown topic."""
    return {
        (topic.name or "", partition.partition_index): partition.leader_id
        for topic in cluster.fetch_topics(sorted(set(topics)))
        for partition in topic.partitions
    }


def check_partitions(partitions: Iterable[TopicPartition], leaders: Mapping[TopicPartition, int]) -> None:
    """Raise RequestError for the first of the partitions that does not exist."""
    for topic, partition in partitions:
        if (topic, partition) not in leaders:
            count = sum(name == topic for name, _ in leaders)
            raise RequestError(
                "UNKNOWN_TOPIC_OR_PARTITION", f"topic {topic} has no partition {partition}, only 0 to {count - 1}"
            )


def group_by_leader(
    partitions: Iterable[TopicPartition], leaders: Mapping[TopicPartition, int]
) -> dict[int, dict[str, list[int]]]:
    """Return the partitions of each leader, by topic; without those that have no leader."""
    grouped: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for topic, partition in partitions:
        if leaders[topic, partition] >= 0:
            grouped[leaders[topic, partition]][topic].append(partition)
    return grouped


def fetch_offsets(
    cluster: Cluster,
    partitions: Mapping[TopicPartition, int],
    leaders: Mapping[TopicPartition, int] | None = None,
    isolation_level: int = 0,
    problems: list[str] | None = None,
) -> dict[TopicPartition, FoundOffset]:
    """Return the offset of the first record at or after a timestamp in each partition, or at a special position.

    Partitions without a leader are missing in the result. With `problems` so are those whose topic was deleted
    meanwhile, and those whose leader does not answer or returns an error, which is added to the list; otherwise it is
    raised as RequestError or NoResponseError.
    """
    if leaders is None:
        leaders = find_leaders(cluster, [topic for topic, _ in partitions])
        check_partitions(partitions, leaders)
    found: dict[TopicPartition, FoundOffset] = {}
    for leader, topics in group_by_leader(partitions, leaders).items():
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=isolation_level,
            timeout_ms=30_000,
            topics=[
                ListOffsetsRequestListOffsetsTopic(
                    name=topic,
                    partitions=[
                        ListOffsetsRequestListOffsetsPartition(
                            partition_index=partition, timestamp=partitions[topic, partition]
                        )
                        for partition in indexes
                    ],
                )
                for topic, indexes in topics.items()
            ],
        )
        try:
            response = cluster.ask_broker(leader, request, ListOffsetsResponse)
        except (NoResponseError, RequestError) as error:
            report_problem(error, f"offsets of the partitions that broker {leader} leads", problems)
            continue
        for each in response.topics:
            for partition in each.partitions:
                if partition.error_code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.LEADER_NOT_AVAILABLE):
                    continue
                if partition.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and problems is not None:
                    continue
                if partition.error_code:
                    name = f"{each.name}-{partition.partition_index}"
                    report_problem(make_error(partition.error_code, None, name), "", problems)
                    continue
                found[each.name, partition.partition_index] = FoundOffset(partition.offset, partition.timestamp)
    return found


def fetch_end_offsets(
    cluster: Cluster, leaders: Mapping[TopicPartition, int], problems: list[str] | None = None
) -> dict[TopicPartition, int]:
    """Return the offset after the last record of each partition. `problems` as above."""
    found = fetch_offsets(cluster, dict.fromkeys(leaders, LATEST), leaders, problems=problems)
    return {partition: one.offset for partition, one in found.items()}


def fetch_log_ranges(
    cluster: Cluster, leaders: Mapping[TopicPartition, int], problems: list[str] | None = None
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Return the first offset of each partition and the offset after its last record. `problems` as above."""

    def fetch(partitions: Iterable[TopicPartition], position: int) -> dict[TopicPartition, int]:
        found = fetch_offsets(cluster, dict.fromkeys(partitions, position), leaders, problems=problems)
        return {partition: one.offset for partition, one in found.items()}

    first = fetch(leaders, EARLIEST)
    # A leader that does not answer is not waited for twice.
    return first, fetch(first, LATEST)
