"""A loop that sends requests in batches: a batch that fails affects no other."""

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock, SchedulerStopped

from odradek.server.brokers.batch_loop import BatchLoop


class Sender:
    """Items that are pending. A batch fails with the next exception in `failures`, in its request or later."""

    def __init__(self):
        self.clock = Clock()
        self.pending = []
        self.sent = []
        self.answers = []
        self.reported = []
        self.loop = BatchLoop(self.clock, self.send_batch, lambda failure: self.reported.append(failure.value))

    def add(self, item):
        self.pending.append(item)
        self.loop.wake()

    async def send_batch(self):
        batch, self.pending = self.pending, []
        if not batch:
            return False
        self.sent.append(batch)
        answer = Deferred()
        self.answers.append(answer)
        await answer
        return True


@pytest.fixture
def sender():
    return Sender()


def test_what_is_added_during_a_request_is_the_next_batch(sender):
    sender.add("a")
    sender.add("b")
    sender.clock.advance(0)
    sender.add("c")
    sender.add("d")
    sender.clock.advance(0)
    assert sender.sent == [["a", "b"]]
    sender.answers[0].callback(None)
    assert sender.sent == [["a", "b"], ["c", "d"]]


def test_what_is_added_during_a_request_that_fails_is_sent(sender):
    sender.add("a")
    sender.clock.advance(0)
    sender.add("b")
    error = RuntimeError("unexpected")
    sender.answers[0].errback(error)
    assert sender.reported == [error]
    sender.clock.advance(0)
    assert sender.sent == [["a"], ["b"]]
    sender.answers[1].callback(None)
    sender.add("c")
    sender.clock.advance(0)
    assert sender.sent == [["a"], ["b"], ["c"]]


def test_a_loop_whose_broker_stops_ends(sender):
    sender.add("a")
    sender.clock.advance(0)
    sender.add("b")
    sender.answers[0].errback(SchedulerStopped())
    assert not sender.clock.getDelayedCalls()
    assert sender.sent == [["a"]]
