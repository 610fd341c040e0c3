"""A channel to a real broker process, over TCP and Odradek's reactor."""

import socket
import time
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from odradek.protocol.messages.fetch import FetchResponse
from odradek.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from odradek.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from odradek.protocol.records import iter_batches
from odradek.replication.metadata.image import BrokerMetadata, Endpoint
from odradek.replication.remote import BrokerUnavailableError
from odradek.server.brokers.channel import TcpBrokerChannels
from odradek.server.network.reactor import PlainEPollReactor
from odradek.server.tests.wire import TIMEOUT_S, Wire
from odradek.server.work.slices import Slices
from odradek.testing import OdradekBroker


class Caller:
    """A channel on a reactor of its own, which runs while a request waits for its response."""

    def __init__(self, port, timeout_ms=TIMEOUT_S * 1000):
        self.reactor: Any = PlainEPollReactor()
        channels = TcpBrokerChannels(
            "PLAINTEXT",
            connect=self.reactor.connectTCP,
            clock=self.reactor,
            slices=Slices(self.reactor, time.monotonic),
        )
        broker = BrokerMetadata(0, (Endpoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", port),))
        self.channel = channels.open(broker, client_id="9", timeout_ms=timeout_ms)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.channel.close()
        self.iterate(0)

    def iterate(self, timeout_s=0.05):
        self.reactor.runUntilCurrent()
        self.reactor.doIteration(timeout_s)

    def ask_all(self, *requests):
        """Send the requests at once. Return their responses or exceptions."""
        outcomes: list[Any] = []
        for arguments in requests:
            sent: Deferred[Any] = Deferred.fromCoroutine(self.channel.send(*arguments))
            sent.addErrback(lambda failure: failure.value)
            sent.addCallback(outcomes.append)
        deadline = time.monotonic() + TIMEOUT_S
        while len(outcomes) < len(requests):
            assert time.monotonic() < deadline
            self.iterate()
        return outcomes

    def ask(self, *arguments):
        (outcome,) = self.ask_all(arguments)
        return outcome


@pytest.fixture(scope="module")
def port():
    with OdradekBroker() as broker:
        yield int(broker.bootstrap_servers.rpartition(":")[2])


def test_requests_are_answered_in_order(port):
    metadata = (MetadataRequest(topics=[]), MetadataResponse)
    coordinator = (FindCoordinatorRequest(key="g"), FindCoordinatorResponse, 3)
    with Caller(port) as caller:
        responses = caller.ask_all(metadata, coordinator, metadata, coordinator)
    assert [type(one) for one in responses] == [MetadataResponse, FindCoordinatorResponse] * 2
    assert responses[0].brokers[0].port == port


def test_a_large_request_and_its_large_response(port):
    topics = [MetadataRequestTopic(name=f"absent-{number}") for number in range(5000)]
    with Caller(port) as caller:
        response = caller.ask(MetadataRequest(topics=topics, allow_auto_topic_creation=False), MetadataResponse)
    assert [topic.error_code for topic in response.topics] == [3] * 5000


def test_records_of_a_fetch_are_views_of_one_frame(port):
    with Wire(port) as wire:
        wire.create_topic("fetched")
        for _ in range(4):
            wire.produce("fetched", bytes(700_000))
        request = wire.fetch_request("fetched", 0)
        expected = wire.ask(request, 12).responses[0].partitions[0].records
    with Caller(port) as caller:
        response = caller.ask(request, FetchResponse, 12)
    records = response.responses[0].partitions[0].records
    assert type(records) is memoryview
    assert records == expected
    assert len(list(iter_batches(records))) == 4


def test_a_port_without_a_listener_is_unavailable():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with Caller(unused.getsockname()[1]) as caller:
            error = caller.ask(MetadataRequest(), MetadataResponse)
    assert isinstance(error, BrokerUnavailableError)
    assert "refused" in str(error)


def test_a_peer_that_does_not_answer_is_unavailable():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        with Caller(listening.getsockname()[1], timeout_ms=100) as caller:
            error = caller.ask(MetadataRequest(), MetadataResponse, 9)
    assert "no response" in str(error)
