"""Blocks of producer ids: reserved in the store and recorded in the log directories, or from the controller."""

from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from odradek.coordinator.transactions.producer_ids import ProducerIdManager
from odradek.log.storage import checkpoints
from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.log.tests.managers import opened
from odradek.log.tests.threads import Threads
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from odradek.replication.metadata.memory_store import MemoryMetadataStore
from odradek.replication.metadata.producer_id_blocks import next_block_start
from odradek.replication.metadata.store import run_now
from odradek.replication.remote import BrokerUnavailableError
from odradek.server.coordinators.producer_id_blocks import ProducerIdBlocks, RemoteProducerIds


class Machine:
    def __init__(self):
        self.fs = MemoryFileSystem()
        self.threads = Threads()
        self.clock = Clock()
        self.store = MemoryMetadataStore()
        logs = opened(self.fs, ["/data"], run_in_thread=self.threads)
        blocks = ProducerIdBlocks(self.store, 1, logs, self.clock)
        self.manager = ProducerIdManager(blocks.allocate, Deferred.fromCoroutine, blocks.ready)

    def ask(self, count):
        """Request ids at the same time. Return the list of ids and failures, which `run` fills."""
        answers: list[Any] = []
        for _ in range(count):
            Deferred.fromCoroutine(self.manager.next_id()).addBoth(answers.append)
        return answers

    def run(self):
        while self.threads.waiting or self.clock.getDelayedCalls():
            self.threads.run()
            self.clock.advance(0)


def test_no_id_is_assigned_before_its_block_is_recorded():
    machine = Machine()
    answers = machine.ask(1)
    assert answers == []
    assert run_now(next_block_start(machine.store)) == 1000
    machine.run()
    assert answers == [0]
    assert checkpoints.read_next_producer_id(machine.fs, "/data") == 1000


def test_requests_at_the_same_time_share_a_block():
    machine = Machine()
    answers = machine.ask(3000)
    machine.run()
    assert sorted(answers) == list(range(3000))
    assert run_now(next_block_start(machine.store)) == 3000


def test_requests_fail_while_the_disk_has_no_room_for_the_record():
    machine = Machine()
    machine.fs.is_full = True
    answers = machine.ask(2)
    machine.run()
    assert [failure.check(KafkaError) for failure in answers] == [KafkaError] * 2
    machine.fs.is_full = False
    answers = machine.ask(2)
    machine.run()
    first = answers[0]
    assert answers == [first, first + 1]
    assert checkpoints.read_next_producer_id(machine.fs, "/data") > first + 1


# From the controller


class Controller:
    """A stand-in for the controller, whose answers the test gives."""

    def __init__(self):
        self.requests = []
        self.answers: list[Deferred[Any]] = []

    async def send(self, request, response_type):
        self.requests.append(request)
        answer: Deferred[Any] = Deferred()
        self.answers.append(answer)
        return await answer

    def answer(self, start=0, size=1000, error=ErrorCode.NONE):
        self.answers.pop(0).callback(
            AllocateProducerIdsResponse(producer_id_start=start, producer_id_len=size, error_code=error)
        )


class Member:
    """A broker of a cluster."""

    def __init__(self):
        self.controller = Controller()
        self.clock = Clock()
        self.epoch = 11
        blocks = RemoteProducerIds(self.controller, 1, lambda: self.epoch, self.clock)
        self.manager = ProducerIdManager(blocks.allocate, Deferred.fromCoroutine, blocks.ready)

    def ask(self):
        answers: list[Any] = []
        Deferred.fromCoroutine(self.manager.next_id()).addErrback(lambda failure: failure.value).addCallback(
            answers.append
        )
        return answers


def test_a_member_of_a_cluster_requests_blocks_from_the_controller():
    member = Member()
    first, second = member.ask(), member.ask()
    assert member.controller.requests == [AllocateProducerIdsRequest(broker_id=1, broker_epoch=11)]
    member.controller.answer(start=5000, size=2)
    member.clock.advance(0)
    assert (first, second) == ([5000], [5001])
    member.epoch = 12
    third = member.ask()
    member.controller.answer(start=9000)
    assert third == [9000]
    assert member.controller.requests[1].broker_epoch == 12


@pytest.mark.parametrize(
    "fail",
    [
        lambda controller: controller.answer(error=ErrorCode.STALE_BROKER_EPOCH),
        lambda controller: controller.answer(error=999),
        lambda controller: controller.answer(size=0),
        lambda controller: controller.answers.pop(0).errback(BrokerUnavailableError("gone")),
    ],
)
def test_a_failed_allocation_makes_clients_retry(fail):
    member = Member()
    answers = member.ask()
    fail(member.controller)
    assert answers[0].code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    again = member.ask()
    member.controller.answer(start=3)
    assert again == [3]


def test_ids_below_those_in_the_logs_are_skipped():
    member = Member()
    member.manager.begin_at(2500)
    answers = member.ask()
    for start in (0, 1000, 2000):
        member.controller.answer(start=start)
    assert answers == [2500]


def test_a_controller_whose_ids_are_much_too_low_is_not_asked_for_ever():
    member = Member()
    member.manager.begin_at(10**12)
    answers = member.ask()
    for number in range(100):
        member.controller.answer(start=number * 1000)
    assert answers[0].code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert "ids up to 1000000000000 are in the logs" in str(answers[0])
    assert not member.controller.answers
