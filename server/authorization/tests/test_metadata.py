"""Rights in Metadata, DescribeCluster and DescribeTopicPartitions."""

from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from odradek.protocol import codec
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.describe_cluster import DescribeClusterRequest
from odradek.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsRequestTopicRequest,
)
from odradek.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from odradek.protocol.types import ZERO_UUID
from odradek.replication.controller.admin.tests.test_topic_admin import create, new
from odradek.replication.tests.support import Cluster
from odradek.server.apis import APIS
from odradek.server.authorization.stage import AuthorizationStage
from odradek.server.authorization.tests.support import ListedRights, cluster, topic
from odradek.server.authorized_operations import NOT_REQUESTED
from odradek.server.config import BrokerConfig
from odradek.server.handlers.topics import metadata as metadata_module
from odradek.server.handlers.topics.metadata import describe_cluster, metadata
from odradek.server.handlers.topics.topic_partitions import describe_topic_partitions
from odradek.server.image_cache import ImageCache
from odradek.server.request import EncodedBody, RequestContext
from odradek.server.work.slices import Slices

E = ErrorCode
REFUSED = E.TOPIC_AUTHORIZATION_FAILED
METADATA, DESCRIBE_CLUSTER, DESCRIBE_PARTITIONS = 3, 60, 75
DESCRIBED = 1 << 8
"""The bit field of a client that may only describe."""


class World:
    """A broker with the topics open and hidden, and clients with listed rights."""

    def __init__(self):
        self.rights = ListedRights()
        self.clock = Clock()
        self.cluster = Cluster()
        for name in ("open", "hidden"):
            create(self.cluster, new(name, 2))
        slices = Slices(self.clock, self.clock.seconds)
        self.created = []
        self.services = SimpleNamespace(
            config=BrokerConfig({"max.request.partition.size.limit": "2000"}),
            metadata=self.cluster.image,
            metadata_bodies=ImageCache(self.cluster.image, slices),
            slices=slices,
            first_metadata=None,
            auto_creation=SimpleNamespace(auto_create=self._create),
        )
        self.ids = {name: self.cluster.image.topics[name].topic_id for name in ("open", "hidden")}

    async def _create(self, names):
        self.created += names
        return {}

    def ask(self, key, handler, request, version=None, host="host"):
        """Return the response, decoded if the handler encodes it."""
        api = APIS[key]
        version = api.last_version if version is None else version
        context = RequestContext(host, "PLAINTEXT")
        context.api_version = version
        answer = AuthorizationStage(self.rights)(api, version, handler)(self.services, context, request)
        if isinstance(answer, Deferred):
            outcome: list[Any] = []
            answer.addBoth(outcome.append)
            (answer,) = outcome
        return codec.decode(MetadataResponse, version, answer.body) if isinstance(answer, EncodedBody) else answer

    def describe(self, *topics, version=None, **request):
        rows = [
            MetadataRequestTopic(topic_id=one) if isinstance(one, bytes) else MetadataRequestTopic(name=one)
            for one in topics
        ]
        return self.ask(METADATA, metadata, MetadataRequest(topics=rows, **request), version)


@pytest.fixture
def world():
    return World()


def codes(response):
    return {topic.name: topic.error_code for topic in response.topics}


def test_a_hidden_topic_has_the_same_row_as_an_absent_one(world):
    world.rights.grant(topic("DESCRIBE"))
    response = world.describe("open", "hidden", "absent", allow_auto_topic_creation=False)
    shown, *others = response.topics
    assert (shown.name, shown.error_code, len(shown.partitions)) == ("open", 0, 2)
    assert [(row.name, row.error_code, row.topic_id, row.is_internal, row.partitions) for row in others] == [
        ("hidden", REFUSED, ZERO_UUID, False, []),
        ("absent", REFUSED, ZERO_UUID, False, []),
    ]


def test_the_rows_of_many_refused_topics_are_made_while_they_are_encoded(world, monkeypatch):
    """To make those of 100,000 topics in one step would take 70 ms."""
    made = []
    for name in ("_make_hidden_row", "_make_uncreatable_row"):
        make = getattr(metadata_module, name)

        def count(*arguments, make=make, **named):
            made.append(arguments)
            return make(*arguments, **named)

        monkeypatch.setattr(metadata_module, name, count)
    absent = [f"absent-{number}" for number in range(100)]
    world.rights.grant(topic("DESCRIBE"), *(topic("DESCRIBE", name) for name in absent))
    # More would not be completed at once.
    response = world.describe("open", "hidden", *absent)
    assert made == []
    names = [row.name for row in response.topics]
    assert names == ["open", *absent, "hidden"]
    assert len(made) == 101
    assert codes(response) == {"open": 0, "hidden": REFUSED, **dict.fromkeys(absent, REFUSED)}


def test_a_hidden_topic_given_by_id_has_no_name(world):
    world.rights.grant(topic("DESCRIBE"))
    response = world.describe(*world.ids.values(), b"?" * 16, include_topic_authorized_operations=True)
    assert {(row.name, row.topic_id): row.error_code for row in response.topics} == {
        ("open", world.ids["open"]): 0,
        (None, world.ids["hidden"]): REFUSED,
        (None, b"?" * 16): E.UNKNOWN_TOPIC_ID,
    }
    operations = {row.topic_id: row.topic_authorized_operations for row in response.topics}
    assert operations == {
        world.ids["open"]: DESCRIBED,
        world.ids["hidden"]: NOT_REQUESTED,
        b"?" * 16: NOT_REQUESTED,
    }


@pytest.mark.parametrize("right", [cluster("CREATE"), topic("CREATE", "new")])
def test_a_topic_is_created_by_a_client_that_may_create_it(world, right):
    world.rights.grant(topic("DESCRIBE", "new"), topic("DESCRIBE", "other"))
    assert codes(world.describe("new", "hidden")) == {"new": REFUSED, "hidden": REFUSED}
    assert world.created == []
    world.rights.grant(right)
    world.describe("new", "hidden")
    assert world.created == ["new"]


def test_the_right_to_create_does_not_disclose_a_topic(world):
    world.rights.grant(cluster("CREATE"))
    assert codes(world.describe("hidden", "absent")) == {"hidden": REFUSED, "absent": REFUSED}
    assert world.created == []


def test_all_topics_are_filtered_silently_and_cached_for_clients_with_the_same_rights(world):
    world.rights.grant(topic("DESCRIBE"))
    request = MetadataRequest(topics=None)
    assert codes(world.ask(METADATA, metadata, request)) == {"open": 0}
    assert world.rights.audited == []
    world.rights.asked.clear()
    assert codes(world.ask(METADATA, metadata, request)) == {"open": 0}
    assert world.rights.asked == []
    world.ask(METADATA, metadata, request, host="another host")
    assert world.rights.asked != []
    world.rights.grant(topic("DESCRIBE", "hidden"))
    assert codes(world.ask(METADATA, metadata, request)) == {"open": 0, "hidden": 0}


@pytest.mark.parametrize(
    ("allowed", "operations"),
    [([], 0), ([cluster("ALTER")], 0), ([cluster("DESCRIBE"), cluster("ALTER")], 1 << 8 | 1 << 7)],
)
def test_operations_on_the_cluster(world, allowed, operations):
    world.rights.grant(*allowed)
    response = world.describe(version=10, include_cluster_authorized_operations=True)
    assert response.cluster_authorized_operations == operations
    request = DescribeClusterRequest(include_cluster_authorized_operations=True)
    response = world.ask(DESCRIBE_CLUSTER, describe_cluster, request)
    assert response.cluster_authorized_operations == operations


def test_operations_on_the_cluster_that_are_not_requested(world):
    response = world.ask(DESCRIBE_CLUSTER, describe_cluster, DescribeClusterRequest())
    assert response.cluster_authorized_operations == NOT_REQUESTED
    assert world.rights.asked == []


def describe_partitions(world, *names, limit=2000):
    topics = [DescribeTopicPartitionsRequestTopicRequest(name=name) for name in names]
    request = DescribeTopicPartitionsRequest(topics=topics, response_partition_limit=limit)
    return world.ask(DESCRIBE_PARTITIONS, describe_topic_partitions, request)


def test_hidden_topics_are_the_last_of_a_page(world):
    world.rights.grant(topic("DESCRIBE"), topic("DESCRIBE", "zebra"))
    response = describe_partitions(world, "zebra", "hidden", "open", "absent")
    assert [(row.name, row.error_code, row.topic_id != ZERO_UUID) for row in response.topics] == [
        ("open", 0, True),
        ("zebra", E.UNKNOWN_TOPIC_OR_PARTITION, False),
        ("absent", REFUSED, False),
        ("hidden", REFUSED, False),
    ]
    assert [row.topic_authorized_operations for row in response.topics] == [DESCRIBED] * 2 + [NOT_REQUESTED] * 2


def test_hidden_topics_are_in_each_page(world):
    world.rights.grant(topic("DESCRIBE"))
    response = describe_partitions(world, "open", "zebra", limit=1)
    assert codes(response) == {"open": 0, "zebra": REFUSED}
    assert (response.next_cursor.topic_name, response.next_cursor.partition_index) == ("open", 1)


def test_a_page_of_all_topics_omits_hidden_ones(world):
    world.rights.grant(topic("DESCRIBE"))
    assert codes(describe_partitions(world)) == {"open": 0}
    assert world.rights.audited == []
