"""Blocks of producer ids, reserved in the store and recorded in the log directories."""

from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from odradek.coordinator.transactions.producer_ids import ProducerIdManager
from odradek.log.storage import checkpoints
from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.log.tests.managers import opened
from odradek.log.tests.threads import Threads
from odradek.protocol.errors import KafkaError
from odradek.replication.metadata.memory_store import MemoryMetadataStore
from odradek.replication.metadata.producer_id_blocks import next_block_start
from odradek.replication.metadata.store import run_now
from odradek.server.coordinators.producer_id_blocks import ProducerIdBlocks


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
