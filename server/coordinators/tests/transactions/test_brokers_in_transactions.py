"""Transactions over two brokers: the coordinator of one, the partitions of the other, real codecs between them."""

from typing import Any

import pytest
from twisted.internet.defer import Deferred

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from odradek.protocol.messages.api_versions import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    ApiVersionsResponseApiVersion,
)
from odradek.protocol.messages.write_txn_markers import WriteTxnMarkersRequest
from odradek.replication.metadata.image import (
    BrokerMetadata,
    ClusterMetadata,
    Endpoint,
    PartitionMetadata,
    TopicMetadata,
)
from odradek.server.brokers.channel import TcpBrokerChannels
from odradek.server.brokers.channel_pool import ChannelPool
from odradek.server.coordinators.remote_markers import ClusterMarkerSender, find_response_timeout_ms
from odradek.server.coordinators.remote_verification import RemoteCoordinators
from odradek.server.coordinators.tests.transactions.test_transaction_markers import (
    EPOCH,
    ID,
    OFFSETS,
    STATE,
    Client,
    World,
    follow,
    markers,
)
from odradek.server.coordinators.transaction_verification import ClientSupport, TransactionVerifier, TransactionWriter
from odradek.server.handlers.coordinators.transaction_markers import write_txn_markers
from odradek.server.handlers.coordinators.transactions import add_partitions_to_txn
from odradek.server.request import RequestContext
from odradek.server.tests.broker_network import FakeNetwork

COORDINATOR, DATA = 1, 2
HANDLERS: Any = {WriteTxnMarkersRequest: write_txn_markers, AddPartitionsToTxnRequest: add_partitions_to_txn}
SERVED = ((WriteTxnMarkersRequest.api_key, 1, 1), (AddPartitionsToTxnRequest.api_key, 4, 5))


class Pair:
    """A broker that coordinates transactions, and one that leads the other partitions."""

    def __init__(self):
        self.coordinator, self.data = World(), World()
        self.metadata = ClusterMetadata()
        for broker_id in (COORDINATOR, DATA):
            endpoint = Endpoint("PLAINTEXT", "PLAINTEXT", f"host{broker_id}", 9092)
            self.metadata.put_broker(BrokerMetadata(broker_id, (endpoint,)))
        self.network = FakeNetwork()
        self.network.clock = self.coordinator.clock
        self.network.slices = self.coordinator.slices
        sender: Any = ClusterMarkerSender(
            self.coordinator.markers,
            broker_id=COORDINATOR,
            metadata=self.metadata,
            channels=self.pool(self.coordinator),
            clock=self.coordinator.clock,
            slices=self.coordinator.slices,
            is_deleted=self.is_deleted,
        )
        self.coordinator.transactions._markers = sender
        self.data.config.transaction_partition_verification_enable = True
        self.data.config.node_id = DATA
        services: Any = self.data
        self.verifier = TransactionVerifier(services, RemoteCoordinators(self.pool(self.data), self.data.clock))
        shared: Any = self.metadata
        for world in (self.coordinator, self.data):
            world.metadata = shared
        self.metadata.listeners.append(self.coordinator.transactions.metadata_changed)
        self.state = self.add(self.coordinator, STATE)

    async def is_deleted(self, topic, index):
        return True

    def pool(self, world):
        channels = TcpBrokerChannels(
            "PLAINTEXT", connect=self.network.connect, clock=world.clock, slices=world.slices
        )
        timeout_ms = find_response_timeout_ms(world.config.request_timeout_ms)
        return ChannelPool(self.metadata, channels, client_id="1", timeout_ms=timeout_ms)

    def add(self, world, topic, **options):
        """Add a partition that a broker leads."""
        partition = world.add(topic, **options)
        self.put(topic, COORDINATOR if world is self.coordinator else DATA)
        self.turn()
        return partition

    def put(self, topic, leader):
        """Publish the leader of a topic's partition."""
        metadata = PartitionMetadata(leader, 5, (1, 2), (1, 2))
        self.metadata.put_topic(TopicMetadata(topic, topic.encode().ljust(16)[:16], (metadata,)))
        self.metadata.publish()

    def turn(self, seconds=0.0):
        """Let time pass on both brokers, and serve the requests between them."""
        for _ in range(5):
            for world in (self.coordinator, self.data):
                world.clock.advance(seconds)
            seconds = 0.0
            for link in self.network.links:
                if not link.is_open and not link.is_aborted and not hasattr(link, "protocol"):
                    link.accept()
                if not link.is_silent:
                    self.serve(link)

    def serve(self, link):
        request = link.take()
        if isinstance(request.message, ApiVersionsRequest):
            rows = [
                ApiVersionsResponseApiVersion(api_key=key, min_version=first, max_version=last)
                for key, first, last in SERVED
            ]
            link.answer(ApiVersionsResponse(api_keys=rows), request)
            return
        world = self.coordinator if link.address[0] == f"host{COORDINATOR}" else self.data
        context = RequestContext("host", "PLAINTEXT")
        context.api_version = request.version
        reply = HANDLERS[type(request.message)](world, context, request.message)
        if isinstance(reply, Deferred):
            reply.addCallback(lambda response: link.answer(response, request))
        else:
            link.answer(reply, request)


@pytest.fixture
def pair():
    return Pair()


def begin(pair, *topics):
    client = Client(pair.coordinator)
    client.init()
    client.add(*topics)
    return client


def test_a_commit_marks_the_partitions_of_the_other_broker(pair):
    data = pair.add(pair.data, "t")
    offsets = pair.add(pair.data, OFFSETS)
    here = pair.add(pair.coordinator, "here")
    client = begin(pair, "t", OFFSETS, "here")
    client.end()
    pair.turn()
    for partition in (data, offsets, here):
        assert [(kind, coordinator_epoch) for kind, coordinator_epoch, _ in markers(partition)] == [("COMMIT", 5)]
    assert client.state == "CompleteCommit"


def test_the_transaction_completes_when_the_marker_is_replicated(pair):
    data = pair.add(pair.data, "t", replicas=(1, 2))
    client = begin(pair, "t")
    client.end()
    pair.turn()
    assert markers(data)
    assert client.state == "PrepareCommit"
    follow(data)
    pair.turn()
    assert client.state == "CompleteCommit"


def test_a_marker_is_sent_again_after_a_lost_connection(pair):
    data = pair.add(pair.data, "t", replicas=(1, 2))
    client = begin(pair, "t")
    client.end()
    pair.turn()
    pair.network.links[-1].lose()
    pair.turn(0.1)
    pair.turn(0.1)
    assert len(markers(data)) == 2
    follow(data)
    pair.turn()
    assert client.state == "CompleteCommit"


def test_the_marker_of_a_slow_partition_delays_no_result_and_keeps_the_connection(pair):
    """The other broker waits request.timeout.ms for the replication of all markers in a request."""
    slow, fast = pair.add(pair.data, "slow", replicas=(1, 2)), pair.add(pair.data, "fast")
    client = begin(pair, "slow", "fast")
    client.end()
    pair.turn()
    [link] = pair.network.links
    pair.turn(pair.data.config.request_timeout_ms / 1000)
    pair.turn(0.1)
    assert link.is_open
    assert (len(markers(slow)), len(markers(fast))) == (2, 1)
    follow(slow)
    pair.turn()
    assert client.state == "CompleteCommit"


def test_a_marker_follows_the_partition_to_its_new_leader(pair):
    pair.add(pair.data, "t")
    client = begin(pair, "t")
    pair.data.partitions["t", 0].apply(PartitionMetadata(9, 6, (1, 2), (1, 2)), pair.data.partitions["t", 0].log)
    client.end()
    pair.turn()
    assert client.state == "PrepareCommit"
    here = pair.add(pair.coordinator, "t")
    pair.turn(0.1)
    assert client.state == "CompleteCommit"
    assert len(markers(here)) == 1


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_marker_is_sent_again_as_soon_as_its_partition_has_a_leader_or_is_deleted(pair, is_deleted):
    """The pause between the attempts has become long."""
    data, other = pair.add(pair.data, "t"), pair.add(pair.data, "u")
    client = begin(pair, "t", "u")
    pair.put("t", -1)
    client.end()
    pair.turn(1)
    assert client.state == "PrepareCommit"
    pair.put("u", DATA)
    pair.turn()
    assert client.state == "PrepareCommit"
    if is_deleted:
        pair.metadata.remove_topic("t")
        pair.metadata.publish()
    else:
        pair.put("t", DATA)
    pair.turn()
    assert client.state == "CompleteCommit"
    assert (len(markers(data)), len(markers(other))) == (0 if is_deleted else 1, 1)


def test_a_marker_is_sent_again_as_soon_as_its_leader_is_alive(pair):
    data = pair.add(pair.data, "t")
    client = begin(pair, "t")
    broker = pair.metadata.brokers[DATA]
    pair.metadata.remove_broker(DATA)
    client.end()
    pair.turn(1)
    assert client.state == "PrepareCommit"
    pair.metadata.put_broker(broker)
    pair.metadata.publish()
    pair.turn()
    assert client.state == "CompleteCommit"
    assert len(markers(data)) == 1


def test_markers_of_a_coordinator_that_resigned_are_not_completed(pair):
    data = pair.add(pair.data, "t", replicas=(1, 2))
    client = begin(pair, "t")
    client.end()
    pair.turn()
    pair.state.apply(PartitionMetadata(DATA, 6, (1, 2), (1, 2)), pair.state.log)
    follow(data)
    pair.turn()
    assert client.end()[0].error_code == ErrorCode.NOT_COORDINATOR


def verify(pair, partition, epoch=0, support=ClientSupport.ABORTABLE):
    results: list[Any] = []
    reply: Any = pair.verifier.verify(TransactionWriter("x", ID, epoch, support), {partition: 0})
    reply.addCallback(results.append)
    pair.turn()
    (verified,) = results
    return verified.errors.get(partition, ErrorCode.NONE)


def test_a_partition_of_the_other_brokers_transaction_is_verified(pair):
    data, other = pair.add(pair.data, "t"), pair.add(pair.data, "other")
    begin(pair, "t")
    assert verify(pair, data) is ErrorCode.NONE
    assert verify(pair, other) is not ErrorCode.NONE
    assert verify(pair, data, epoch=EPOCH) is not ErrorCode.NONE


def test_a_partition_is_added_to_the_other_brokers_transaction(pair):
    data = pair.add(pair.data, "t")
    client = begin(pair)
    assert verify(pair, data, support=ClientSupport.ADDS) is ErrorCode.NONE
    assert client.state == "Ongoing"


def test_a_coordinator_that_lost_its_leadership_is_reported(pair):
    data = pair.add(pair.data, "t")
    begin(pair, "t")
    pair.state.apply(PartitionMetadata(DATA, 6, (1, 2), (1, 2)), pair.state.log)
    assert verify(pair, data) is ErrorCode.NOT_COORDINATOR
