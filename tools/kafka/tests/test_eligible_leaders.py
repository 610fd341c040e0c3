"""Eligible leader replicas, read page by page."""

from typing import Any

from odradek.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponseCursor,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from odradek.tools.kafka.topics.eligible_leaders import fetch_eligible_leaders


def make_page(name, partitions, cursor=None):
    topic = DescribeTopicPartitionsResponseTopic(
        error_code=0,
        name=name,
        partitions=[
            DescribeTopicPartitionsResponsePartition(
                partition_index=index, leader_id=-1, replica_nodes=[1, 2], isr_nodes=[], offline_replicas=[],
                eligible_leader_replicas=elr, last_known_elr=last,
            )
            for index, (elr, last) in partitions.items()
        ],
    )  # fmt: skip
    return DescribeTopicPartitionsResponse(topics=[topic], next_cursor=cursor)


class Client:
    def __init__(self, *pages, is_served=True):
        self.pages = list(pages)
        self.is_served = is_served
        self.cursors = []

    def serves(self, request_type):
        return self.is_served

    def send(self, request, response_type):
        self.cursors.append(request.cursor and (request.cursor.topic_name, request.cursor.partition_index))
        return self.pages.pop(0)


def fetch(client: Any):
    return fetch_eligible_leaders(client, ["b", "a"])


def test_partitions_with_eligible_replicas():
    cursor = DescribeTopicPartitionsResponseCursor(topic_name="a", partition_index=2)
    client = Client(
        make_page("a", {0: ([2], []), 1: (None, None)}, cursor), make_page("a", {2: ([], [1]), 3: ([], [])})
    )
    assert fetch(client) == {"a": {0: ([2], []), 2: ([], [1])}}
    assert client.cursors == [None, ("a", 2)]


def test_a_broker_that_does_not_serve_the_request():
    assert fetch(Client(is_served=False)) == {}
