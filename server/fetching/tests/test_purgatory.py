"""A waiting request is completed exactly once: by an event, by its timeout, or by the end of the connection."""

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import CancelledError
from twisted.internet.task import Clock, SchedulerStopped

from odradek.server.fetching.purgatory import CompletionQueue, DelayedOperation, LateCompletions, PartitionWatch
from odradek.server.network.writers.write_coalescer import WriteCoalescer
from odradek.server.tests.background import run_iteration
from odradek.server.work.slices import SLICE_S, Slices


class Partition:
    """A stand-in for a partition: only its watchers are used."""

    def __init__(self):
        self.watchers = {}
        self.log_end_watchers = {}

    def happen(self):
        for watcher in list(self.watchers):
            watcher.wake()


@pytest.fixture
def setting():
    partitions: list[Any] = [Partition(), Partition()]
    answers: list[Any] = []
    clock, ready = Clock(), []
    operation = DelayedOperation(lambda: ready[-1] if ready else None, lambda: "late")
    operation.wait(clock, 500, partitions).addBoth(answers.append)
    return clock, partitions, ready, answers, operation


def test_a_sufficient_event_completes_an_operation_once(setting):
    clock, partitions, ready, answers, _ = setting
    partitions[0].happen()
    assert answers == []
    ready.append("data")
    partitions[1].happen()
    partitions[0].happen()
    clock.advance(1)
    assert answers == ["data"]
    assert partitions[0].watchers == partitions[1].watchers == {}
    assert clock.getDelayedCalls() == []


def test_the_timeout_completes_an_operation(setting):
    clock, partitions, ready, answers, _ = setting
    clock.advance(0.499)
    assert answers == []
    clock.advance(0.001)
    ready.append("data")
    partitions[0].happen()
    assert answers == ["late"]


def test_a_cancelled_operation_leaves_no_watcher_and_no_timer(setting):
    clock, partitions, ready, answers, operation = setting
    operation.deferred.cancel()
    assert answers[0].check(CancelledError)
    ready.append("data")
    partitions[0].happen()
    clock.advance(1)
    assert len(answers) == 1
    assert partitions[0].watchers == {}
    assert clock.getDelayedCalls() == []


def test_an_error_of_an_attempt_is_the_result(setting):
    clock, partitions, _, answers, operation = setting
    operation._try_complete = lambda: 1 / 0
    partitions[0].happen()
    assert answers[0].check(ZeroDivisionError)
    assert clock.getDelayedCalls() == []


@pytest.mark.parametrize("timeout_ms", [0, -1, -(2**31)])
def test_a_timeout_that_is_not_positive_expires_at_once(timeout_ms):
    clock = Clock()
    partition: Any = Partition()
    answers: list[Any] = []
    DelayedOperation(lambda: None, lambda: "late").wait(clock, timeout_ms, [partition]).addBoth(answers.append)
    clock.advance(0)
    assert answers == ["late"]


def test_a_response_is_kept_although_its_attempt_woke_the_operation():
    """A response may have changed a fetch session: it is not made a second time."""
    partition: Any = Partition()
    answers: list[Any] = []
    attempts = []

    def attempt():
        attempts.append(1)
        if len(attempts) == 1:
            partition.happen()
        return f"response {len(attempts)}"

    DelayedOperation(attempt, lambda: "late").wait(Clock(), 500, [partition]).addBoth(answers.append)
    partition.happen()
    assert answers == ["response 1"]
    assert attempts == [1]
    assert partition.watchers == {}


@pytest.mark.parametrize("outcome", [None, ZeroDivisionError()])
def test_an_operation_that_is_woken_by_its_own_attempt_is_completed_once(outcome):
    partition: Any = Partition()
    answers: list[Any] = []
    attempts = []

    def attempt():
        attempts.append(1)
        if len(attempts) > 1:
            return "the first"
        partition.happen()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    DelayedOperation(attempt, lambda: "late").wait(Clock(), 500, [partition]).addBoth(answers.append)
    partition.happen()
    assert answers == ["the first"]
    assert partition.watchers == {}


def test_a_completed_operation_is_freed_without_a_collection():
    clock = Clock()
    gc.disable()
    try:
        operation = DelayedOperation(lambda: "response", lambda: None)
        deferred = operation.wait(clock, 1000, [])
        freed = weakref.ref(deferred)
        operation.wake()
        assert deferred.result == "response"
        del operation, deferred
        assert freed() is None
    finally:
        gc.enable()


LONG_WORK = 100
STEP_S = 0.0005


class Retries:
    """Operations that are woken while many requests do long work."""

    def __init__(self):
        self.clock = Clock()
        self.now_s = 0.0
        self.slices = Slices(self.clock, lambda: self.now_s)
        self.queue = CompletionQueue(self.slices)
        self.retried = []
        self.failures: list[Any] = []
        for _ in range(LONG_WORK):
            self.slices.run(self._long_work()).addErrback(lambda failure: self.failures.append(failure.type))

    def _long_work(self):
        while True:
            self.now_s += STEP_S
            yield

    def wake(self, count, cost_s):
        """Wake operations that are not completed; each retry takes `cost_s`."""
        partition: Any = Partition()
        for _ in range(count):

            def retry():
                self.now_s += cost_s
                self.retried.append(self.now_s)

            DelayedOperation(retry, lambda: "late", self.queue).wait(self.clock, 60_000, [partition])
        partition.happen()

    def iterate(self):
        """Run one reactor iteration. Return the number of operations retried, and its duration in seconds."""
        count, began_s = len(self.retried), self.now_s
        run_iteration(self.clock)
        return len(self.retried) - count, self.now_s - began_s


def test_an_operation_is_retried_at_once_although_long_work_fills_the_slices():
    retries = Retries()
    retries.iterate()
    retries.wake(1, STEP_S / 10)
    assert len(retries.retried) == 1


def test_woken_operations_run_before_long_work_and_leave_it_a_slice():
    retries = Retries()
    retries.iterate()
    retries.wake(100, STEP_S / 10)
    found = [len(retries.retried)]
    while found[-1]:
        count, took_s = retries.iterate()
        assert took_s <= 2 * SLICE_S
        assert took_s >= SLICE_S
        found.append(count)
    assert sum(found) == 100
    assert len(found) <= 8


def test_operations_that_wait_for_their_retry_end_with_the_slices():
    retries = Retries()
    retries.wake(100, STEP_S)
    retries.slices.stop()
    retries.iterate()
    assert len(retries.retried) < 100
    assert retries.failures == [SchedulerStopped] * LONG_WORK


def test_an_operation_may_wait_for_the_end_of_a_log():
    partition: Any = Partition()
    clock, ready = Clock(), []
    operation = DelayedOperation(lambda: ready[-1] if ready else None, lambda: "late")
    operation.watch(PartitionWatch(partition), log_end=True)
    answers: list[Any] = []
    operation.begin(clock, 500).addBoth(answers.append)
    ready.append("data")
    partition.happen()
    assert answers == []
    for watcher in list(partition.log_end_watchers):
        watcher.wake()
    assert answers == ["data"]
    assert partition.watchers == partition.log_end_watchers == {}


def test_late_operations_are_retried_once_at_the_end_of_the_iteration():
    iteration_end = WriteCoalescer()
    retried: list[Any] = []
    late = LateCompletions(SimpleNamespace(add=retried.append), iteration_end)
    first: Any = object()
    second: Any = object()
    late.add(first)
    late.add(second)
    assert retried == []
    iteration_end.flush()
    assert retried == [first, second]
    iteration_end.flush()
    late.add(first)
    iteration_end.flush()
    assert retried == [first, second, first]
