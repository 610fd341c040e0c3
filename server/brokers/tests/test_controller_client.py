"""Requests to the controller: found in the image, local or remote, and followed when it changes."""

import pytest
from twisted.internet.defer import Deferred

from odradek.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from odradek.protocol.messages.heartbeat import HeartbeatResponse
from odradek.replication.metadata.image import BrokerMetadata, ClusterMetadata, Endpoint
from odradek.replication.remote import BrokerUnavailableError
from odradek.server.brokers.channel import TcpBrokerChannels
from odradek.server.brokers.controller_client import ControllerClient
from odradek.server.tests.broker_network import FakeNetwork

ME = 1
KEY = AllocateProducerIdsRequest.api_key


def broker(broker_id, port=9092, epoch=1):
    return BrokerMetadata(broker_id, (Endpoint("PLAINTEXT", "PLAINTEXT", f"host{broker_id}", port),), epoch=epoch)


class Setting:
    def __init__(self):
        self.network = FakeNetwork()
        self.metadata = ClusterMetadata()
        for broker_id in (1, 2, 3):
            self.metadata.put_broker(broker(broker_id))
        self.local = []
        channels = TcpBrokerChannels(
            "PLAINTEXT", connect=self.network.connect, clock=self.network.clock, slices=self.network.slices
        )
        self.client = ControllerClient(
            ME, self.metadata, channels, {AllocateProducerIdsRequest: self.allocate}, client_id="1", timeout_ms=3000
        )
        self.outcomes = []

    async def allocate(self, request):
        self.local.append(request)
        return AllocateProducerIdsResponse(producer_id_start=5)

    def elect(self, broker_id):
        self.metadata.put_controller(broker_id, 1)
        self.metadata.publish()

    def send(self, response_type=AllocateProducerIdsResponse):
        sent = Deferred.fromCoroutine(self.client.send(AllocateProducerIdsRequest(broker_id=ME), response_type))
        sent.addCallbacks(self.outcomes.append, lambda failure: self.outcomes.append(failure.value))

    def answer(self, link, start):
        link.answer_versions((KEY, 0, 0))
        link.answer(AllocateProducerIdsResponse(producer_id_start=start))

    def last_error(self):
        assert isinstance(self.outcomes[-1], BrokerUnavailableError)
        return str(self.outcomes[-1])


@pytest.fixture
def setting():
    return Setting()


def test_without_a_controller_the_request_fails(setting):
    setting.send()
    assert setting.last_error() == "the metadata has no live controller"
    setting.elect(9)
    setting.send()
    assert setting.last_error() == "the metadata has no live controller"
    assert not setting.network.links


def test_requests_go_to_the_controller_over_one_connection(setting):
    setting.elect(2)
    setting.send()
    link = setting.network.accept()
    assert link.address == ("host2", 9092)
    setting.answer(link, 1000)
    setting.send()
    link.answer(AllocateProducerIdsResponse(producer_id_start=2000))
    assert [outcome.producer_id_start for outcome in setting.outcomes] == [1000, 2000]
    assert len(setting.network.links) == 1


def test_the_own_controller_is_called_directly(setting):
    setting.elect(ME)
    setting.send()
    assert setting.local == [AllocateProducerIdsRequest(broker_id=ME)]
    assert setting.outcomes == [AllocateProducerIdsResponse(producer_id_start=5)]
    assert not setting.network.links


def test_a_response_of_another_type_is_an_error(setting):
    setting.elect(ME)
    setting.send(HeartbeatResponse)
    assert isinstance(setting.outcomes[0], TypeError)


def test_requests_to_a_broker_that_is_no_longer_the_controller_fail_at_once(setting):
    setting.elect(2)
    setting.send()
    link = setting.network.accept()
    setting.elect(3)
    assert setting.last_error() == "channel to broker 2 at host2:9092 is closed"
    assert link.is_aborted
    setting.send()
    assert setting.network.accept().address == ("host3", 9092)


def test_another_change_of_the_metadata_leaves_the_connection_open(setting):
    setting.elect(2)
    setting.send()
    link = setting.network.accept()
    setting.metadata.remove_broker(3)
    setting.metadata.publish()
    setting.answer(link, 1000)
    assert setting.outcomes[0].producer_id_start == 1000


def test_a_controller_that_moves_to_another_address_is_followed(setting):
    setting.elect(2)
    setting.send()
    setting.answer(setting.network.accept(), 1000)
    setting.metadata.put_broker(broker(2, port=9999, epoch=2))
    setting.metadata.publish()
    assert setting.network.links[0].is_aborted
    setting.send()
    assert setting.network.accept().address == ("host2", 9999)


def test_this_broker_becomes_the_controller(setting):
    setting.elect(2)
    setting.send()
    setting.network.accept()
    setting.elect(ME)
    assert setting.last_error()
    setting.send()
    assert len(setting.local) == 1


def test_close_fails_the_requests_without_a_response(setting):
    setting.elect(2)
    setting.send()
    setting.network.accept()
    setting.client.close()
    assert setting.last_error() == "channel to broker 2 at host2:9092 is closed"
