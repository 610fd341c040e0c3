"""The wait of requests for metadata on a broker that has just started."""

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from odradek.protocol.errors import ErrorCode
from odradek.replication.metadata.image import NO_CONTROLLER, ClusterMetadata, PartitionMetadata, TopicMetadata
from odradek.server.work.first_metadata import MAX_WAIT_S, FirstMetadata

TOPIC = TopicMetadata("t", bytes(15) + b"\1", (PartitionMetadata(1, 0, (1,), (1,)),))


class Executor:
    def start(self, work):
        Deferred.fromCoroutine(work)

    async def pause(self):
        pass


class Broker:
    def __init__(self):
        self.clock = Clock()
        self.cache = ClusterMetadata()
        self.first = FirstMetadata(self.cache, self.clock, Executor())
        self.first.expect(has_topics=True)

    def ask(self):
        """Return the list of the results of a request: None, or an error code."""
        results = []
        self.first.wait().addCallbacks(results.append, lambda failure: results.append(failure.value.code))
        return results


@pytest.fixture
def broker():
    return Broker()


def test_an_isolated_broker_never_answers_from_its_empty_cache(broker):
    assert broker.cache.controller_id == NO_CONTROLLER
    for _ in range(3):
        results = broker.ask()
        broker.clock.advance(MAX_WAIT_S - 0.1)
        assert results == []
        broker.clock.advance(0.1)
        assert results == [ErrorCode.LEADER_NOT_AVAILABLE]
        assert broker.first.is_awaited
    results = broker.ask()
    broker.cache.controller_id = 2
    broker.cache.put_topic(TOPIC)
    broker.cache.publish()
    assert results == [None]
    assert not broker.first.is_awaited
    assert not broker.clock.getDelayedCalls()


def test_a_controller_that_sends_no_topics_is_awaited_for_a_limited_time(broker):
    results = broker.ask()
    broker.cache.controller_id = 2
    broker.cache.publish()
    assert results == []
    broker.clock.advance(MAX_WAIT_S)
    assert results == [None]
    assert not broker.first.is_awaited


def test_an_isolated_broker_can_stop(broker):
    broker.clock.advance(3 * MAX_WAIT_S)
    broker.first.stop()
    assert not broker.clock.getDelayedCalls()
