"""A broker that stops: its requests to the controller, and the limits of its wait."""

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from odradek.protocol.messages.controlled_shutdown import (
    ControlledShutdownResponse,
    ControlledShutdownResponseRemainingPartition,
)
from odradek.replication.metadata.image import BrokerMetadata, ClusterMetadata, PartitionMetadata, TopicMetadata
from odradek.replication.metadata.store import SessionEvent
from odradek.replication.remote import BrokerUnavailableError
from odradek.server.config import BrokerConfig
from odradek.server.membership.controlled_shutdown import ControlledShutdown

ME, OTHER = 1, 2
LIMIT_S = 45
"""30 s, and three pauses of 5 s."""
LIMIT_WITHOUT_ZOOKEEPER_S = 5


class Stopping:
    """Broker 1 with one other broker, and its requests to the controller."""

    def __init__(self, **properties):
        self.clock = Clock()
        self.requests = []
        metadata = self.metadata = ClusterMetadata()
        for broker_id in (ME, OTHER):
            metadata.put_broker(BrokerMetadata(broker_id, ()))
        metadata.put_topic(TopicMetadata("t", bytes(16), (PartitionMetadata(ME, 0, (ME, OTHER), (ME, OTHER)),)))
        named = {name.replace("_", "."): value for name, value in properties.items()}
        config = BrokerConfig({"broker.id": str(ME), **named})
        self.shutdown = ControlledShutdown(config, metadata, self, lambda: 7, self.clock, self.delay)

    def delay(self, delay_ms):
        over: Deferred[None] = Deferred()
        self.clock.callLater(delay_ms / 1000, over.callback, None)
        return over

    async def send(self, request, response_type):
        assert (request.broker_id, request.broker_epoch) == (ME, 7)
        answered: Deferred[ControlledShutdownResponse] = Deferred()
        self.requests.append(answered)
        return await answered

    def begin(self):
        ended: list[object] = []
        Deferred.fromCoroutine(self.shutdown.run()).addBoth(ended.append)
        return ended


@pytest.fixture
def stopping():
    return Stopping()


def test_it_ends_with_the_last_leadership(stopping):
    ended = stopping.begin()
    row = ControlledShutdownResponseRemainingPartition(topic_name="t", partition_index=0)
    stopping.requests[0].callback(ControlledShutdownResponse(remaining_partitions=[row]))
    assert not ended
    stopping.clock.advance(5)
    stopping.requests[1].callback(ControlledShutdownResponse())
    assert ended == [None]
    assert not stopping.clock.getDelayedCalls()


@pytest.mark.parametrize(
    "outcome", [BrokerUnavailableError("no controller"), ControlledShutdownResponse(error_code=9_999)]
)
def test_a_failed_request_is_repeated_a_limited_number_of_times(stopping, outcome, caplog):
    ended = stopping.begin()
    for attempt in range(3):
        fire = stopping.requests[attempt]
        (fire.errback if isinstance(outcome, Exception) else fire.callback)(outcome)
        stopping.clock.advance(5)
    assert ended == [None]
    assert len([record for record in caplog.records if "is not complete attempt=" in record.getMessage()]) == 3


def test_a_failed_request_of_the_last_broker_is_not_reported(stopping, caplog):
    """The controller was the other broker, and has just ended."""
    ended = stopping.begin()
    stopping.metadata.remove_broker(OTHER)
    stopping.requests[0].errback(BrokerUnavailableError("no controller"))
    assert ended == [None]
    assert not caplog.records


def test_a_controller_that_does_not_answer_delays_the_stop_up_to_a_limit(stopping):
    ended = stopping.begin()
    stopping.clock.advance(LIMIT_S - 1)
    assert not ended
    stopping.clock.advance(1)
    assert ended == [None]


def test_without_zookeeper_the_limit_is_short(stopping):
    """The controller cannot change leaders either, unless only this broker has lost its connection."""
    stopping.shutdown.on_session(SessionEvent.DISCONNECTED)
    ended = stopping.begin()
    stopping.clock.advance(LIMIT_WITHOUT_ZOOKEEPER_S)
    assert ended == [None]


def test_a_connection_to_zookeeper_that_is_lost_meanwhile_shortens_the_wait(stopping):
    ended = stopping.begin()
    stopping.clock.advance(10)
    stopping.shutdown.on_session(SessionEvent.DISCONNECTED)
    stopping.clock.advance(LIMIT_WITHOUT_ZOOKEEPER_S - 1)
    assert not ended
    stopping.clock.advance(1)
    assert ended == [None]
    stopping.shutdown.on_session(SessionEvent.DISCONNECTED)


def test_after_the_reconnection_the_limit_is_the_usual_one(stopping):
    stopping.shutdown.on_session(SessionEvent.DISCONNECTED)
    stopping.shutdown.on_session(SessionEvent.CONNECTED)
    ended = stopping.begin()
    stopping.clock.advance(LIMIT_S - 1)
    assert not ended


def test_it_can_be_disabled():
    stopping = Stopping(controlled_shutdown_enable="false")
    assert stopping.begin() == [None]
    assert not stopping.requests
