"""FindCoordinator in a cluster: the leader in the metadata cache, on the listener of the client."""

from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.find_coordinator import FindCoordinatorRequest
from odradek.replication.metadata.image import (
    BrokerMetadata,
    ClusterMetadata,
    Endpoint,
    PartitionMetadata,
    TopicMetadata,
)
from odradek.server.handlers.coordinators.find_coordinator import GROUP, TRANSACTION, find_coordinator
from odradek.server.request import RequestContext
from odradek.server.work.slices import Slices

ME, OTHER = 1, 2
TOPICS = {GROUP: "__consumer_offsets", TRANSACTION: "__transaction_state"}


class Creation:
    """Records requests to create topics; a test may add the topic at once, as the controller itself does."""

    def __init__(self):
        self.names = []
        self.create = lambda name: None

    async def auto_create(self, names):
        self.names += names
        for name in names:
            self.create(name)
        return dict.fromkeys(names, KafkaError(ErrorCode.LEADER_NOT_AVAILABLE))


class Broker:
    def __init__(self):
        clock = Clock()
        self.slices = Slices(clock, clock.seconds)
        self.metadata = ClusterMetadata()
        self.auto_creation = Creation()
        for kind, name in TOPICS.items():
            runtime = SimpleNamespace(topic=name, index_of=lambda key: int(key[-1]))
            setattr(self, "groups" if kind == GROUP else "transactions", runtime)

    def add_broker(self, broker_id, *listeners):
        endpoints = tuple(Endpoint(name, "PLAINTEXT", f"{name}{broker_id}", 9000 + broker_id) for name in listeners)
        self.metadata.put_broker(BrokerMetadata(broker_id, endpoints))

    def lead(self, kind, *leaders):
        partitions = tuple(PartitionMetadata(leader, 1, (ME, OTHER), (leader,)) for leader in leaders)
        self.metadata.put_topic(TopicMetadata(TOPICS[kind], bytes([kind + 1]) * 16, partitions))

    def find(self, *keys, kind=GROUP, listener="CLIENTS"):
        context = RequestContext("host", listener)
        context.api_version = 6
        services: Any = self
        found: list[Any] = []
        reply: Deferred[Any] = find_coordinator(
            services, context, FindCoordinatorRequest(key_type=kind, coordinator_keys=list(keys))
        )
        reply.addCallback(found.append)
        return [(row.error_code, row.node_id, row.host, row.port) for row in found[0].coordinators]


NOT_AVAILABLE = (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1, "", -1)


@pytest.fixture
def broker():
    broker = Broker()
    for broker_id in (ME, OTHER):
        broker.add_broker(broker_id, "CLIENTS", "INTERNAL")
    return broker


@pytest.mark.parametrize("kind", [GROUP, TRANSACTION])
def test_the_coordinator_is_the_leader_of_the_keys_partition(broker, kind):
    broker.lead(kind, ME, OTHER)
    assert broker.find("g0", "g1", kind=kind) == [(0, ME, "CLIENTS1", 9001), (0, OTHER, "CLIENTS2", 9002)]
    assert broker.find("g1", kind=kind, listener="INTERNAL") == [(0, OTHER, "INTERNAL2", 9002)]
    assert not broker.auto_creation.names


def test_a_partition_without_a_live_leader_has_no_coordinator(broker):
    broker.lead(GROUP, -1, OTHER)
    broker.metadata.remove_broker(OTHER)
    assert broker.find("g0", "g1", "g2") == [NOT_AVAILABLE] * 3


def test_a_leader_without_the_clients_listener_is_not_available(broker):
    broker.lead(GROUP, OTHER)
    broker.add_broker(OTHER, "INTERNAL")
    assert broker.find("g0") == [NOT_AVAILABLE]


def test_a_missing_topic_is_created_and_its_coordinator_is_not_available_yet(broker):
    assert broker.find("g0") == [NOT_AVAILABLE]
    assert broker.auto_creation.names == [TOPICS[GROUP]]
    assert broker.find("x0", kind=TRANSACTION) == [NOT_AVAILABLE]
    assert broker.auto_creation.names[1:] == [TOPICS[TRANSACTION]]


def test_a_topic_that_is_in_the_cache_after_its_creation_has_a_coordinator(broker):
    broker.auto_creation.create = lambda name: broker.lead(GROUP, ME)
    assert broker.find("g0") == [(0, ME, "CLIENTS1", 9001)]


def test_a_request_without_keys_creates_no_topic(broker):
    """It needs no right."""
    assert broker.find() == []
    assert broker.auto_creation.names == []
