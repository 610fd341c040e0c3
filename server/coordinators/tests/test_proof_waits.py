"""Waits for proofs: of many requests, of several partitions, and of requests that have ended."""

from collections import Counter

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from odradek.server.coordinators.proof_waits import VERIFY_AFTER_MS, ProofWaits

TIMEOUT_MS = 5_000


class World:
    """Partitions with the time before which each has a proof."""

    def __init__(self, timeout_ms=TIMEOUT_MS):
        self.clock = Clock()
        self.clock.advance(1)
        self.proved_ms = Counter()
        # The questions to the metadata store: the partition, and the Deferred of the answer.
        self.verifications = []
        # The number of requests that had ended, for each question.
        self.questions = []
        self.ended = []
        self.waits = ProofWaits(self.clock, self.now_ms, timeout_ms, self.find_proved_ms, self.verify)

    def now_ms(self):
        return int(self.clock.seconds() * 1000)

    def find_proved_ms(self, partition):
        self.questions.append(len(self.ended))
        return self.proved_ms[partition]

    def verify(self, partition):
        self.verifications.append((partition, Deferred()))
        return self.verifications[-1][1]

    def take(self):
        """Return the Deferreds of the questions since the last call, by partition."""
        taken, self.verifications = dict(self.verifications), []
        return taken

    def add(self, name, *partitions):
        wait = self.waits.add(partitions)
        if wait is None:
            self.ended.append((name, None))
        else:
            wait.addCallbacks(lambda missing: self.ended.append((name, missing)), lambda failure: None)
        return wait

    def prove(self, partition):
        """Let followers prove the leadership for all requests that have arrived."""
        self.proved_ms[partition] = self.now_ms() + 1

    def check(self):
        self.clock.advance(0.05)


@pytest.fixture
def world():
    return World()


def test_a_request_waits_for_the_proofs_of_all_its_partitions(world):
    world.prove(1)
    world.add("first", 1)
    world.add("second", 1, 2, 3)
    assert world.ended == [("first", None)]
    world.prove(2)
    world.check()
    assert len(world.ended) == 1
    world.prove(3)
    world.check()
    assert world.ended[1:] == [("second", set())]
    assert world.clock.getDelayedCalls() == []


def test_a_proof_is_for_the_requests_that_arrived_before_it(world):
    world.add("first", 1)
    world.prove(1)
    world.clock.advance(0.01)
    world.add("second", 1)
    world.clock.advance(0.04)
    assert world.ended == [("first", set())]


def test_a_late_request_gets_the_partitions_that_have_no_proof(world):
    world.add("first", 1, 2, 3)
    world.prove(1)
    world.clock.advance(TIMEOUT_MS / 1000 - 0.001)
    assert world.ended == []
    world.check()
    assert world.ended == [("first", {2, 3})]
    world.check()
    assert world.clock.getDelayedCalls() == []


def test_the_metadata_store_gives_a_proof_if_followers_give_none(world):
    world.add("first", 1, 2)
    world.clock.advance(VERIFY_AFTER_MS / 1000 - 0.001)
    assert world.verifications == []
    world.add("second", 2)
    world.check()
    answers = world.take()
    assert answers.keys() == {1, 2}
    world.add("third", 2)
    answers[2].callback(True)
    world.check()
    assert world.ended == [("second", set())]
    answers[1].callback(True)
    world.check()
    assert world.ended[1:] == [("first", set())]
    # The question was about the time at which it was asked.
    world.clock.advance(1)
    answers = world.take()
    assert answers.keys() == {2}
    answers[2].callback(True)
    world.check()
    assert world.ended[2:] == [("third", set())]


def test_the_metadata_store_is_not_asked_at_once_again(world):
    world.add("first", 1)
    for _ in range(50):
        world.check()
    world.take()[1].callback(False)
    world.check()
    assert not world.verifications
    for _ in range(10):
        world.check()
    answers = world.take()
    world.clock.advance(TIMEOUT_MS / 1000)
    assert world.ended == [("first", {1})]
    assert world.clock.getDelayedCalls() == []
    answers[1].callback(True)


@pytest.mark.parametrize("timeout_ms", [500, 1_000])
def test_the_metadata_store_is_asked_before_a_short_timeout(timeout_ms):
    world = World(timeout_ms)
    world.add("first", 1)
    while not world.verifications:
        world.check()
    world.take()[1].callback(True)
    world.check()
    assert world.ended == [("first", set())]


def test_a_check_of_many_requests_asks_for_each_partition_once(world):
    for number in range(1000):
        world.add(number, number % 3)
    world.questions.clear()
    world.check()
    assert len(world.questions) == 3


def test_few_requests_continue_in_one_iteration_in_the_order_of_their_arrival(world):
    for number in range(100):
        world.add(number, 1)
    world.questions.clear()
    world.prove(1)
    world.check()
    assert world.questions == [0, 20, 40, 60, 80]
    assert [number for number, _ in world.ended] == list(range(100))


def test_few_late_requests_continue_in_one_iteration(world):
    for number in range(100):
        world.add(number, 1)
    world.questions.clear()
    world.clock.advance(TIMEOUT_MS / 1000)
    assert sorted(set(world.questions)) == [0, 20, 40, 60, 80]
    assert [number for number, _ in world.ended] == list(range(100))


def test_requests_that_have_ended_are_removed(world):
    for number in range(2000):
        world.add(number, 1, 2).cancel()
    world.check()
    assert world.clock.getDelayedCalls() == [] and world.ended == []
