"""Topics and groups of thousands of partitions: pages of their tables, and requests for those on a page."""

from importlib import import_module
from typing import Any, cast

import pytest

from odradek.protocol.messages.describe_log_dirs import (
    DescribeLogDirsResponse,
    DescribeLogDirsResponseDescribeLogDirsPartition,
    DescribeLogDirsResponseDescribeLogDirsResult,
    DescribeLogDirsResponseDescribeLogDirsTopic,
)
from odradek.protocol.messages.list_offsets import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsResponseListOffsetsPartitionResponse,
    ListOffsetsResponseListOffsetsTopicResponse,
)
from odradek.protocol.messages.metadata import MetadataResponse, MetadataResponsePartition, MetadataResponseTopic
from odradek.tools.console.app import make_app
from odradek.tools.console.console import Console
from odradek.tools.console.pages.topics import MOST_MEASURED
from odradek.tools.console.settings import ROWS_PER_PAGE, ConsoleSettings
from odradek.tools.kafka.groups import description as groups
from odradek.tools.kafka.groups.description import Group, Member, compute_lags
from odradek.tools.kafka.topics.offsets import LATEST

WIDE = 3 * MOST_MEASURED


class FakeCluster:
    """A cluster of one broker with a topic `t`; each partition has as many records and bytes as its index.

    asked: the timestamp or None, and the number of partitions, of each request for offsets and sizes
    """

    def __init__(self, partitions):
        self.partitions = partitions
        self.asked = []

    def close(self):
        """Do nothing."""

    def node_ids(self):
        return [1]

    def fetch_metadata(self, names=None):
        partitions = [
            MetadataResponsePartition(
                error_code=0, partition_index=index, leader_id=1, replica_nodes=[1], isr_nodes=[1], offline_replicas=[]
            )
            for index in range(self.partitions)
        ]
        topic = MetadataResponseTopic(error_code=0, name="t", is_internal=False, partitions=partitions)
        return MetadataResponse(brokers=[], cluster_id="c", controller_id=1, topics=[topic])

    def fetch_topics(self, names):
        return self.fetch_metadata().topics

    def ask_broker(self, node_id, request, response_type):
        if isinstance(request, ListOffsetsRequest):
            asked = request.topics[0].partitions
            self.asked.append((asked[0].timestamp, len(asked)))
            found = [
                ListOffsetsResponseListOffsetsPartitionResponse(
                    partition_index=one.partition_index,
                    error_code=0,
                    offset=one.partition_index if one.timestamp == LATEST else 0,
                )
                for one in asked
            ]
            return ListOffsetsResponse(topics=[ListOffsetsResponseListOffsetsTopicResponse(name="t", partitions=found)])
        indexes = request.topics[0].partitions
        self.asked.append((None, len(indexes)))
        sizes = [
            DescribeLogDirsResponseDescribeLogDirsPartition(
                partition_index=index, partition_size=index, offset_lag=0, is_future_key=False
            )
            for index in indexes
        ]
        topic = DescribeLogDirsResponseDescribeLogDirsTopic(name="t", partitions=sizes)
        log_dir = DescribeLogDirsResponseDescribeLogDirsResult(error_code=0, log_dir="/data", topics=[topic])
        return DescribeLogDirsResponse(error_code=0, results=[log_dir])


@pytest.fixture(autouse=True)
def no_configuration(monkeypatch):
    # The package has a blueprint of this name.
    pages = import_module("odradek.tools.console.pages.topics")
    monkeypatch.setattr(pages, "fetch_configs", lambda cluster, resources: {one: [] for one in resources})


def get(cluster, path):
    console = Console(lambda: cast(Any, cluster), "", ConsoleSettings(allows_changes=True))
    response = make_app(console).test_client().get(path)
    assert response.status_code == 200, response.get_data(as_text=True)
    return response.get_data(as_text=True)


def find_partitions(page):
    return [int(part.partition('"')[0]) for part in page.split("records?partition=")[1:]]


def test_the_partitions_of_a_topic_are_on_pages():
    cluster = FakeCluster(120)
    assert find_partitions(get(cluster, "/topics/t")) == list(range(ROWS_PER_PAGE))
    page = get(cluster, "/topics/t?page=3&sort=-size")
    assert find_partitions(page) == list(range(19, -1, -1))
    assert "7,140 offsets" in page and "page 3 of 3" in page
    assert find_partitions(get(cluster, "/topics/t?search=11")) == [11, *range(110, 120)]


def test_only_partitions_on_the_page_of_a_wide_topic_are_measured():
    cluster = FakeCluster(WIDE)
    page = get(cluster, "/topics/t?page=2&sort=-records")
    assert find_partitions(page) == list(range(ROWS_PER_PAGE, 2 * ROWS_PER_PAGE))
    assert '<td class="num">51 B</td>' in page and "offsets</span>" not in page
    assert [count for _, count in cluster.asked] == [ROWS_PER_PAGE] * 3


@pytest.mark.parametrize("path", ["/topics/t/produce", "/topics/t/tail"])
def test_a_partition_of_many_is_entered(path):
    assert "<option>150</option>" in get(FakeCluster(200), path)
    page = get(FakeCluster(201), path)
    assert '<input name="partition"' in page and "<option>150</option>" not in page


def test_the_page_for_a_record_asks_for_no_offsets():
    cluster = FakeCluster(WIDE)
    get(cluster, "/topics/t/produce")
    assert not cluster.asked


@pytest.fixture
def committed(monkeypatch):
    """A group `g` that has committed offset 0 in all partitions."""
    monkeypatch.setattr(groups, "fetch_committed", lambda cluster, names: {"g": {("t", n): 0 for n in range(WIDE)}})
    pages = import_module("odradek.tools.console.pages.groups")
    monkeypatch.setattr(pages, "describe_groups", lambda cluster, names: [Group("g", "Empty", "classic", "", 1, [])])


def test_the_partitions_of_a_group_are_on_pages(committed):
    page = get(FakeCluster(WIDE), "/group?name=g&sort=-lag")
    assert page.count('<a href="/topics/t">') == ROWS_PER_PAGE
    assert f"page 1 of {WIDE // ROWS_PER_PAGE}" in page and f'data-label="Lag">{WIDE - 1:,}</td>' in page
    assert f"lag {sum(range(WIDE)):,}" in page


def test_the_members_of_a_group_are_on_pages(committed, monkeypatch):
    members = [Member(f"id-{n}", None, f"client-{n:03}", "/10.0.0.1", [("t", n)] * (n % 7)) for n in range(120)]
    pages = import_module("odradek.tools.console.pages.groups")
    monkeypatch.setattr(
        pages, "describe_groups", lambda cluster, names: [Group("g", "Stable", "classic", "", 1, members)]
    )

    def find_clients(arguments):
        page = get(FakeCluster(WIDE), f"/group?name=g{arguments}")
        assert page.count('<a href="/topics/t">') == ROWS_PER_PAGE
        return [int(part[:3]) for part in page.split('<th scope="row">client-')[1:]], page

    clients, page = find_clients("&page=2")
    assert clients == list(range(ROWS_PER_PAGE))
    assert 'href="?name=g&amp;page=2&amp;member_page=3">Last' in page and "51\N{EN DASH}100 of 3,000" in page
    clients, page = find_clients("&member_page=3&member_sort=-client")
    assert clients == list(range(19, -1, -1)) and "101\N{EN DASH}120 of 120" in page
    assert 'href="?name=g&amp;member_page=3&amp;member_sort=-client&amp;page=2">Next' in page
    assert find_clients("&member_search=ID-11")[0] == [11, *range(110, 120)]
    assert {n % 7 for n in find_clients("&member_sort=-partitions")[0]} == {6, 5, 4}


def test_the_lag_of_a_group_needs_one_offset_of_each_partition(committed):
    cluster = FakeCluster(WIDE)
    lags = compute_lags(cast(Any, cluster), [Group("g", "Empty", "classic", "", 1, [])])
    assert [one.lag for one in lags["g"]] == list(range(WIDE))
    assert cluster.asked == [(LATEST, WIDE)]
