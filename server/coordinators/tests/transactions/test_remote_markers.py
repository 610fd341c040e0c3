"""Transaction markers in a cluster: to each leader, in batches, with errors by partition."""

from types import SimpleNamespace
from typing import Any

import pytest

from odradek.coordinator.result import TransactionOutcome
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.write_txn_markers import (
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
    WriteTxnMarkersResponseWritableTxnMarkerPartitionResult,
    WriteTxnMarkersResponseWritableTxnMarkerResult,
    WriteTxnMarkersResponseWritableTxnMarkerTopicResult,
)
from odradek.replication.metadata.image import (
    BrokerMetadata,
    ClusterMetadata,
    Endpoint,
    PartitionMetadata,
    TopicMetadata,
)
from odradek.replication.metadata.store import SessionExpiredError
from odradek.server.brokers.channel import TcpBrokerChannels
from odradek.server.brokers.channel_pool import ChannelPool
from odradek.server.coordinators.remote_markers import MAX_BATCH_PARTITIONS, ClusterMarkerSender
from odradek.server.tests.broker_network import FakeNetwork

ME, OTHER, THIRD = 1, 2, 3
NONE, NOT_LEADER = ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER


def registered(broker_id, epoch=1):
    return BrokerMetadata(broker_id, (Endpoint("PLAINTEXT", "PLAINTEXT", f"host{broker_id}", 9092),), epoch=epoch)


class World:
    def __init__(self):
        self.network = FakeNetwork()
        self.metadata = ClusterMetadata()
        for broker_id in (ME, OTHER, THIRD):
            self.metadata.put_broker(registered(broker_id))
        channels = TcpBrokerChannels(
            "PLAINTEXT", connect=self.network.connect, clock=self.network.clock, slices=self.network.slices
        )
        pool = ChannelPool(self.metadata, channels, client_id="1", timeout_ms=3000)
        self.written = []
        local: Any = SimpleNamespace(write=lambda name, marker, done: self.written.append((name, marker, done)))
        self.sender = ClusterMarkerSender(
            local,
            broker_id=ME,
            metadata=self.metadata,
            channels=pool,
            clock=self.network.clock,
            slices=self.network.slices,
            is_deleted=self.is_deleted,
        )
        self.results = []
        self.in_store = set()

    async def is_deleted(self, topic, index):
        if topic == "unreadable":
            raise SessionExpiredError("the session has expired")
        if topic == "unexpected":
            raise_error()
        return (topic, index) not in self.in_store

    def lead(self, topic, *leaders):
        partitions = tuple(PartitionMetadata(leader, 5, (ME, OTHER, THIRD), (leader,)) for leader in leaders)
        self.metadata.put_topic(TopicMetadata(topic, topic.encode().ljust(16), partitions))
        self.metadata.publish()

    def send(self, producer_id, *names, commit=True, coordinator_epoch=9, version=1):
        outcome = TransactionOutcome(f"x{producer_id}", producer_id, 3, coordinator_epoch, commit, version, names)
        for _ in self.sender.send(outcome, lambda name, error: self.results.append((producer_id, name, error))):
            pass

    def turn(self):
        self.network.clock.advance(0)

    def connect(self, versions=(1, 1)):
        self.turn()
        link = self.network.accept()
        link.answer_versions((WriteTxnMarkersRequest.api_key, *versions))
        return link

    def answer(self, link, *rows):
        """Answer WriteTxnMarkers with rows of producer id, topic, index and error. Return the request."""
        self.turn()
        request = link.answer(response(*rows))
        self.turn()
        return request


def response(*rows):
    return WriteTxnMarkersResponse(
        markers=[
            WriteTxnMarkersResponseWritableTxnMarkerResult(
                producer_id=producer_id,
                topics=[
                    WriteTxnMarkersResponseWritableTxnMarkerTopicResult(
                        name=topic,
                        partitions=[
                            WriteTxnMarkersResponseWritableTxnMarkerPartitionResult(
                                partition_index=index, error_code=error
                            )
                        ],
                    )
                ],
            )
            for producer_id, topic, index, error in rows
        ]
    )


def sent(request):
    """(producer id, partitions) of each marker of a request."""
    return [
        (entry.producer_id, [(topic.name, index) for topic in entry.topics for index in topic.partition_indexes])
        for entry in request.message.markers
    ]


@pytest.fixture
def world():
    return World()


def test_partitions_of_this_broker_are_written_locally(world):
    world.lead("t", ME)
    world.send(7, ("t", 0))
    ((name, marker, done),) = world.written
    assert (name, marker.producer_id, marker.coordinator_epoch) == (("t", 0), 7, 9)
    done(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert world.results == [(7, ("t", 0), ErrorCode.NOT_ENOUGH_REPLICAS)]
    world.turn()
    assert not world.network.links


def test_a_marker_for_another_leader_is_sent_to_it(world):
    world.lead("t", OTHER)
    world.send(7, ("t", 0), commit=False)
    link = world.connect()
    assert link.address == ("host2", 9092)
    request = world.answer(link, (7, "t", 0, NONE))
    (entry,) = request.message.markers
    assert (entry.producer_id, entry.producer_epoch, entry.coordinator_epoch) == (7, 3, 9)
    assert entry.transaction_result is False
    assert (request.version, request.client_id) == (1, "1")
    assert world.results == [(7, ("t", 0), NONE)]


def test_brokers_of_later_releases_get_the_transaction_version(world):
    world.lead("t", OTHER)
    world.send(7, ("t", 0), version=2)
    request = world.answer(world.connect(versions=(1, 2)), (7, "t", 0, NONE))
    assert request.version == 2
    assert request.message.markers[0].transaction_version == 2


def test_all_pending_markers_of_a_leader_are_one_request(world):
    world.lead("t", OTHER, THIRD, OTHER)
    world.lead("u", OTHER)
    world.send(7, ("t", 0), ("t", 1), ("t", 2))
    world.send(8, ("u", 0))
    world.turn()
    received = {}
    for link in world.network.links:
        link.accept()
        link.answer_versions((27, 1, 1))
        received[link.address] = sent(link.take())
    assert received == {
        ("host2", 9092): [(7, [("t", 0), ("t", 2)]), (8, [("u", 0)])],
        ("host3", 9092): [(7, [("t", 1)])],
    }


def test_one_request_per_leader_is_in_flight(world):
    world.lead("t", OTHER)
    world.send(7, ("t", 0))
    link = world.connect()
    first = link.take()
    world.send(8, ("t", 0))
    world.send(9, ("t", 0))
    world.turn()
    assert link.is_silent
    link.answer(response((7, "t", 0, NONE)), first)
    assert sent(world.answer(link, (8, "t", 0, NONE), (9, "t", 0, NONE))) == [(8, [("t", 0)]), (9, [("t", 0)])]
    assert world.results == [(number, ("t", 0), NONE) for number in (7, 8, 9)]


def test_two_markers_of_a_producer_are_in_different_requests(world):
    world.lead("t", OTHER, OTHER)
    world.send(7, ("t", 0), coordinator_epoch=9)
    world.send(7, ("t", 0), ("t", 1), coordinator_epoch=10)
    link = world.connect()
    assert sent(world.answer(link, (7, "t", 0, ErrorCode.TRANSACTION_COORDINATOR_FENCED))) == [(7, [("t", 0)])]
    assert sent(world.answer(link, (7, "t", 0, NONE), (7, "t", 1, NONE))) == [(7, [("t", 0), ("t", 1)])]
    assert [error for _, _, error in world.results] == [ErrorCode.TRANSACTION_COORDINATOR_FENCED, NONE, NONE]


def test_a_marker_that_was_added_twice_is_sent_once(world):
    world.lead("t", OTHER)
    world.send(7, ("t", 0))
    world.send(7, ("t", 0))
    assert sent(world.answer(world.connect(), (7, "t", 0, NONE))) == [(7, [("t", 0)])]
    assert world.results == [(7, ("t", 0), NONE)] * 2


def test_many_markers_are_several_requests(world):
    world.lead("t", *[OTHER] * (MAX_BATCH_PARTITIONS - 1))
    world.send(7, *[("t", index) for index in range(MAX_BATCH_PARTITIONS - 1)])
    for producer_id in (8, 9, 10):
        world.send(producer_id, ("t", 0))
    link = world.connect()
    world.turn()
    assert [producer_id for producer_id, _ in sent(world.answer(link))] == [7, 8]
    assert [producer_id for producer_id, _ in sent(world.answer(link))] == [9, 10]


def test_each_partition_has_its_own_error(world):
    world.lead("t", OTHER, OTHER, OTHER)
    world.send(7, ("t", 0), ("t", 1), ("t", 2))
    world.answer(world.connect(), (7, "t", 0, NONE), (7, "t", 1, NOT_LEADER))
    assert world.results == [
        (7, ("t", 0), NONE),
        (7, ("t", 1), NOT_LEADER),
        (7, ("t", 2), ErrorCode.UNKNOWN_SERVER_ERROR),
    ]


def test_an_error_code_of_a_later_release_is_an_unknown_error(world):
    world.lead("t", OTHER)
    world.send(7, ("t", 0))
    world.answer(world.connect(), (7, "t", 0, 999))
    assert world.results == [(7, ("t", 0), ErrorCode.UNKNOWN_SERVER_ERROR)]


def test_a_deleted_partition_needs_no_marker_and_one_without_leader_fails(world):
    world.lead("t", -1)
    world.lead("u", 99)
    world.send(7, ("t", 0), ("u", 0), ("deleted", 0), ("t", 1))
    assert world.results == [
        (7, ("t", 0), NOT_LEADER),
        (7, ("u", 0), NOT_LEADER),
        (7, ("deleted", 0), NONE),
        (7, ("t", 1), NONE),
    ]


def test_a_partition_that_only_the_cache_lacks_gets_its_marker_later(world):
    """A broker loads its shards before the first UpdateMetadata: a commit was complete without any marker."""
    world.in_store.add(("t", 0))
    world.send(7, ("t", 0), ("unreadable", 0))
    assert world.results == [(7, ("t", 0), NOT_LEADER), (7, ("unreadable", 0), NOT_LEADER)]


def test_a_marker_whose_partition_cannot_be_looked_up_is_sent_later(world, caplog):
    """A marker without a result is never sent again, and its transaction never ends."""
    world.send(7, ("unexpected", 0))
    assert world.results == [(7, ("unexpected", 0), NOT_LEADER)]
    assert "please report it" in caplog.text


@pytest.mark.parametrize("loss", ["refused", "lost", "restarted", "gone"])
def test_markers_fail_when_their_leader_is_not_available(world, loss):
    world.lead("t", OTHER)
    world.send(7, ("t", 0))
    if loss == "refused":
        world.turn()
        world.network.links[-1].refuse()
    else:
        link = world.connect()
        if loss == "lost":
            link.lose()
        elif loss == "restarted":
            world.metadata.put_broker(registered(OTHER, epoch=2))
        else:
            world.metadata.remove_broker(OTHER)
        world.metadata.publish()
    world.turn()
    assert world.results == [(7, ("t", 0), NOT_LEADER)]


def test_after_a_failure_markers_go_to_the_new_leader(world):
    world.lead("t", OTHER)
    world.send(7, ("t", 0))
    world.connect().lose()
    world.turn()
    world.lead("t", THIRD)
    world.send(7, ("t", 0))
    link = world.connect()
    assert link.address == ("host3", 9092)
    world.answer(link, (7, "t", 0, NONE))
    assert world.results[-1] == (7, ("t", 0), NONE)


def test_the_leader_may_be_gone_before_the_request_is_sent(world):
    world.lead("t", OTHER)
    world.send(7, ("t", 0))
    world.metadata.remove_broker(OTHER)
    world.metadata.publish()
    world.turn()
    assert world.results == [(7, ("t", 0), NOT_LEADER)]
    assert not world.network.links


def test_a_result_that_cannot_be_handled_affects_no_other(world, caplog):
    world.lead("t", OTHER, OTHER)
    world.send(7, ("t", 0), ("t", 1))
    record = world.results.append

    def fail_once(result):
        world.results = SimpleNamespace(append=record)
        raise RuntimeError("unexpected")

    results, world.results = world.results, SimpleNamespace(append=fail_once)
    link = world.connect()
    world.answer(link, (7, "t", 0, NONE), (7, "t", 1, NONE))
    assert results == [(7, ("t", 1), NONE)]
    assert "unexpected" in caplog.text
    world.send(8, ("t", 0))
    world.answer(link, (8, "t", 0, NONE))
    assert results[1:] == [(8, ("t", 0), NONE)]


def test_markers_of_a_request_that_cannot_be_sent_fail_and_later_ones_are_sent(world, monkeypatch, caplog):
    world.lead("t", OTHER)
    world.send(7, ("t", 0))
    with monkeypatch.context() as patch:
        patch.setattr(TcpBrokerChannels, "open", lambda *_, **__: raise_error())
        world.turn()
    world.turn()
    assert world.results == [(7, ("t", 0), NOT_LEADER)]
    assert "unexpected" in caplog.text
    world.send(8, ("t", 0))
    world.answer(world.connect(), (8, "t", 0, NONE))
    assert world.results[1:] == [(8, ("t", 0), NONE)]


def raise_error():
    raise RuntimeError("unexpected")


def test_a_stopping_broker_ends_the_loop(world):
    world.lead("t", OTHER)
    world.send(7, ("t", 0))
    world.network.slices.stop()
    world.turn()
    assert not world.network.links
