"""Flusher: a request that waits for the disk is answered after a sync that began after its append."""

from itertools import pairwise
from typing import Any

from twisted.internet.task import Clock

from odradek.log.background.shared_write import SharedWrite
from odradek.server.fetching.purgatory import CompletionQueue
from odradek.server.tests.background import completions, run_iteration
from odradek.server.work.flusher import Flusher
from odradek.server.work.slices import SLICE_S, Slices


class Logs:
    """Logs whose syncs end when `end` is called."""

    def __init__(self):
        self.under_way = []
        self._writes = {}

    def flush(self, log, done):
        if log not in self._writes:
            self._writes[log] = SharedWrite(lambda: self._write, self._run_in_thread, lambda error: error)
        self._writes[log].request(done)

    def _write(self):
        raise AssertionError("no thread runs the write")

    def _run_in_thread(self, write, done):
        self.under_way.append(done)

    def end(self, error=None):
        self.under_way.pop(0)(error)


class Partition:
    def __init__(self, log="log"):
        self.log = log
        self.syncs = 0

    def synced(self):
        self.syncs += 1


def make(logs=None):
    clock = Clock()
    stand_in: Any = logs or Logs()
    return Flusher(stand_in, clock, completions(clock)), clock


def test_requests_of_one_iteration_share_a_sync_and_later_ones_the_next():
    logs, partition, answers = Logs(), Partition(), []
    flusher, clock = make(logs)

    def ask(name):
        flusher.flush(partition).addCallback(lambda is_synced: answers.append((name, is_synced)))

    ask("first")
    ask("second")
    assert logs.under_way == []
    clock.advance(0)
    ask("third")
    ask("fourth")
    clock.advance(0)
    assert len(logs.under_way) == 1
    logs.end()
    assert answers == [("first", True), ("second", True)]
    assert len(logs.under_way) == 1
    logs.end()
    assert answers[2:] == [("third", True), ("fourth", True)]
    assert logs.under_way == []
    assert clock.getDelayedCalls() == []
    assert partition.syncs == 2


def test_requests_of_several_iterations_during_a_sync_wake_the_partition_once():
    logs, partition = Logs(), Partition()
    flusher, clock = make(logs)
    for _ in range(5):
        flusher.request(partition)
        clock.advance(0)
    logs.end()
    assert partition.syncs == 1
    logs.end()
    assert partition.syncs == 2
    assert logs.under_way == []


def test_a_request_joins_a_sync_and_only_its_partition_is_notified():
    logs, partition, answers = Logs(), Partition(), []
    flusher, clock = make(logs)
    flusher.request(partition)
    flusher.flush(partition).addCallback(answers.append)
    flusher.request(partition)
    clock.advance(0)
    assert len(logs.under_way) == 1
    logs.end()
    assert (answers, partition.syncs, logs.under_way) == ([True], 1, [])


def test_partitions_are_synced_at_the_same_time():
    logs, one, other = Logs(), Partition("one"), Partition("other")
    flusher, clock = make(logs)
    flusher.request(one)
    flusher.request(other)
    clock.advance(0)
    assert len(logs.under_way) == 2


def test_a_failed_sync_fails_only_its_own_requests():
    logs, partition, answers = Logs(), Partition(), []
    flusher, clock = make(logs)
    flusher.flush(partition).addCallback(answers.append)
    clock.advance(0)
    flusher.flush(partition).addCallback(answers.append)
    clock.advance(0)
    logs.end(OSError("disk"))
    assert partition.syncs == 0
    logs.end()
    assert answers == [False, True]


def test_a_partition_that_went_offline_fails():
    partition, answers = Partition(None), []
    flusher, clock = make()
    for _ in range(2):
        flusher.flush(partition).addCallback(answers.append)
    clock.advance(0)
    assert answers == [False, False]


def test_a_client_that_disconnects_does_not_end_the_sync_of_others():
    logs, partition, answers = Logs(), Partition(), []
    flusher, clock = make(logs)
    gone = flusher.flush(partition)
    gone.addErrback(lambda failure: None)
    flusher.flush(partition).addCallback(answers.append)
    gone.cancel()
    clock.advance(0)
    logs.end()
    assert answers == [True]


def test_a_sync_that_fails_to_begin_affects_no_other_partition():
    class Failing(Logs):
        def flush(self, log, done):
            if log == "bad":
                raise RuntimeError("a defect")
            super().flush(log, done)

    logs, bad, good, answers = Failing(), Partition("bad"), Partition(), []
    flusher, clock = make(logs)
    for _ in range(2):
        for partition in (bad, good):
            flusher.flush(partition).addCallback(answers.append)
        clock.advance(0)
        logs.end()
    assert answers == [False, True, False, True]


def test_requests_are_answered_although_their_partition_fails_after_the_sync(caplog):
    class Failing(Partition):
        def synced(self):
            raise RuntimeError("a defect")

    logs, partition, answers = Logs(), Failing(), []
    flusher, clock = make(logs)
    for _ in range(3):
        flusher.flush(partition).addCallback(answers.append)
        clock.advance(0)
    logs.end()
    logs.end()
    assert answers == [True, True, True]
    assert "please report it" in caplog.text


def test_the_requests_of_one_sync_are_completed_in_slices():
    logs, partition, answers, now_s = Logs(), Partition(), [], 0.0

    def tick():
        nonlocal now_s
        now_s += SLICE_S / 20
        return now_s

    stand_in: Any = logs
    clock = Clock()
    flusher: Any = Flusher(stand_in, clock, CompletionQueue(Slices(clock, tick)))
    for number in range(100):
        flusher.flush(partition).addCallback(lambda is_synced, number=number: answers.append((number, is_synced)))
    clock.advance(0)
    logs.end()
    counts = [len(answers)]
    while run_iteration(clock):
        counts.append(len(answers))
    assert answers == [(number, True) for number in range(100)]
    assert counts[0] > 0
    assert max(after - before for before, after in pairwise([0, *counts])) <= 20
