"""The parts of a cluster member that its configuration determines."""

import struct
from typing import Any

from twisted.internet.defer import Deferred

from odradek.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from odradek.replication.metadata.image import BrokerMetadata, Endpoint
from odradek.server.broker import Broker
from odradek.server.config import BrokerConfig
from odradek.server.environment import Environment
from odradek.server.tests.broker_network import FakeNetwork

MIB = 1 << 20


def begin_response(size_bytes, **properties):
    """The connection to another broker, after the first bytes of a response."""
    network = FakeNetwork()
    reactor: Any = network.clock
    reactor.connectTCP = network.connect
    named = {name.replace("_", "."): str(value) for name, value in properties.items()}
    config = BrokerConfig({"zookeeper.connect": "none:2181", "broker.id": "1", **named})
    membership: Any = Broker(config, Environment(reactor))._membership
    other = BrokerMetadata(2, (Endpoint("PLAINTEXT", "PLAINTEXT", "there", 9092),))
    channel = membership._channels.open(other, client_id="1", timeout_ms=1000)
    Deferred.fromCoroutine(channel.send(HeartbeatRequest(), HeartbeatResponse, 4)).addErrback(lambda failure: None)
    link = network.accept()
    link.deliver(struct.pack(">ii", size_bytes, 1))
    return link


def test_a_fetch_response_may_have_the_configured_size():
    """Otherwise followers would close each connection, and never join the ISR."""
    assert begin_response(600 * MIB).is_aborted
    assert not begin_response(600 * MIB, replica_fetch_response_max_bytes=550 * MIB).is_aborted


def test_a_fetch_response_may_have_the_largest_batch_that_a_producer_may_send():
    assert not begin_response(600 * MIB, socket_request_max_bytes=550 * MIB).is_aborted
