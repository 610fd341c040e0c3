"""Eligible leader replicas (KIP-966): replicas outside the ISR that have all committed records."""

from collections.abc import Iterator, Sequence

from odradek.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsRequestCursor,
    DescribeTopicPartitionsRequestTopicRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponseTopic,
)
from odradek.tools.kafka.cluster import RequestError
from odradek.tools.kafka.connection.wire_client import WireClient

EligibleLeaders = tuple[list[int], list[int]]
"""Replicas that may become the leader, and those that were the last ones to leave before there were none."""


def fetch_eligible_leaders(client: WireClient, names: Sequence[str]) -> dict[str, dict[int, EligibleLeaders]]:
    """Return those of each partition that has any, by topic; nothing if the broker does not serve the request."""
    if not client.serves(DescribeTopicPartitionsRequest):
        return {}
    found: dict[str, dict[int, EligibleLeaders]] = {}
    for topic in _iter_topics(client, names):
        for one in topic.partitions:
            if one.eligible_leader_replicas or one.last_known_elr:
                replicas = (list(one.eligible_leader_replicas or ()), list(one.last_known_elr or ()))
                found.setdefault(topic.name or "", {})[one.partition_index] = replicas
    return found


def _iter_topics(client: WireClient, names: Sequence[str]) -> Iterator[DescribeTopicPartitionsResponseTopic]:
    """Iterate over topics, page by page; a topic may be on several."""
    topics = [DescribeTopicPartitionsRequestTopicRequest(name=name) for name in sorted(names)]
    cursor = None
    while True:
        request = DescribeTopicPartitionsRequest(topics=topics, cursor=cursor)
        response = client.send(request, DescribeTopicPartitionsResponse)
        yield from response.topics
        following = response.next_cursor
        if following is None:
            return
        if cursor is not None and (cursor.topic_name, cursor.partition_index) == (
            following.topic_name,
            following.partition_index,
        ):
            raise RequestError("UNKNOWN_SERVER_ERROR", "the broker repeats a page of DescribeTopicPartitions")
        cursor = DescribeTopicPartitionsRequestCursor(
            topic_name=following.topic_name, partition_index=following.partition_index
        )
