"""Slices: long work pauses after each slice, and all work shares the slices."""

import gc
import weakref

import pytest
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock, SchedulerStopped

from odradek.server.work.slices import Slices

STEP_S = 0.001


class Work:
    def __init__(self):
        self.clock = Clock()
        self.now_s = 0.0
        self.log = []
        self.slices = Slices(self.clock, lambda: self.now_s, slice_s=3 * STEP_S)

    def steps(self, name, count):
        try:
            for _ in range(count):
                self.now_s += STEP_S
                self.log.append(name)
                yield
        except GeneratorExit:
            self.log.append(f"{name} closed")
            raise
        return name

    def iterate(self):
        """Run one reactor iteration. Return the steps done in it."""
        self.log.clear()
        # `advance` would also make the calls that these calls schedule.
        calls, self.clock.calls = self.clock.calls, []
        for call in calls:
            call.func(*call.args)
        return "".join(self.log)


@pytest.fixture
def work():
    return Work()


def test_short_work_ends_at_once(work):
    results = []
    work.slices.run(work.steps("a", 2)).addCallback(results.append)
    assert results == ["a"]
    assert not work.clock.getDelayedCalls()


def test_long_work_pauses_after_each_slice(work):
    results = []
    work.slices.run(work.steps("a", 7)).addCallback(results.append)
    assert work.log == ["a"] * 3
    assert [work.iterate(), work.iterate()] == ["aaa", "a"]
    assert results == ["a"]


def test_all_work_shares_a_slice(work):
    for name in "abcd":
        work.slices.run(work.steps(name, 8))
    assert work.log == ["a"] * 3, "the others wait for the next iteration"
    assert [len(work.iterate()) for _ in range(3)] == [3, 3, 3]
    assert set(work.iterate() + work.iterate()) == set("abcd")


def test_events_and_the_timers_after_them_share_a_slice():
    """Otherwise long work would delay other requests by two slices between two polls."""
    work, polls = Work(), [0]
    work.slices = Slices(work.clock, lambda: work.now_s, 3 * STEP_S, lambda: polls[0])
    work.slices.run(work.steps("a", 20))
    assert work.log == ["a"] * 3, "work that an event begins"
    assert work.iterate() == "a", "each call does a step"
    for _ in range(3):
        polls[0] += 1
        assert work.iterate() == "aaa"


def test_a_small_request_does_not_wait_for_large_ones(work):
    work.slices.run(work.steps("a", 9))
    results = []
    work.slices.run(work.steps("b", 3), at_once=4).addCallback(results.append)
    assert results == ["b"]
    work.slices.run(work.steps("c", 9), at_once=4)
    assert "".join(work.log) == "aaabbbcccc"


def test_new_work_shares_the_slice_with_unfinished_work(work):
    work.slices.run(work.steps("a", 9))
    for began in "bcd":
        work.clock.callLater(0, lambda name=began: work.slices.run(work.steps(name, 9)))
        assert len(work.iterate()) <= 3 + 1, "an iteration runs at least one step"


def test_short_work_shares_the_slice_too(work):
    for name in "abc":
        work.slices.run(work.steps(name, 1))
    results = []
    work.slices.run(work.steps("d", 1)).addCallback(results.append)
    assert "".join(work.log) == "abc"
    assert work.iterate() == "d"
    assert results == ["d"]
    work.slices.run(work.steps("e", 1))
    assert work.log[-1] == "e", "the iteration has a new slice"


def test_work_within_a_step_is_part_of_the_step(work):
    def outer():
        work.slices.run(work.steps("b", 2))
        yield
        work.log.append("a")

    work.slices.run(outer())
    assert "".join(work.log) == "bba"


def test_an_error_reaches_the_caller(work):
    def failing():
        for _ in range(5):
            work.now_s += STEP_S
            yield
        raise ValueError("broken")

    failures = []
    work.slices.run(failing()).addErrback(lambda failure: failures.append(failure.value))
    work.iterate()
    assert [str(error) for error in failures] == ["broken"]


def test_cancelled_work_is_closed(work):
    failures = []
    running = work.slices.run(work.steps("a", 9))
    running.addErrback(lambda failure: failures.append(failure.type))
    running.cancel()
    assert work.log[-1] == "a closed"
    assert failures == [CancelledError]
    assert work.iterate() == ""
    assert not work.clock.getDelayedCalls()


def test_stop_ends_unfinished_work(work):
    failures = []
    work.slices.run(work.steps("a", 9)).addErrback(lambda failure: failures.append(failure.type))
    work.slices.stop()
    assert failures == [SchedulerStopped]
    assert not work.clock.getDelayedCalls()


@pytest.mark.parametrize("count", [2, 3, 4])
def test_stop_ends_all_unfinished_work(work, count):
    failures = []
    waited_for = Deferred()

    def waits():
        yield waited_for

    for name in range(count):
        work.slices.run(work.steps(str(name), 9)).addErrback(lambda failure: failures.append(failure.type))
    work.slices.run_later(waits()).addErrback(lambda failure: failures.append(failure.type))
    work.iterate()
    work.iterate()
    work.slices.stop()
    assert failures == [SchedulerStopped] * count
    waited_for.callback(None)
    assert failures == [SchedulerStopped] * (count + 1)
    assert not work.clock.getDelayedCalls()


def test_work_may_cancel_other_work_at_stop(work):
    failures = []
    second = []

    def end_second(failure):
        failures.append(failure.type)
        second[0].cancel()

    work.slices.run(work.steps("a", 9)).addErrback(end_second)
    second.append(work.slices.run(work.steps("b", 9)))
    second[0].addErrback(lambda failure: failures.append(failure.type))
    work.slices.stop()
    assert failures == [SchedulerStopped, CancelledError]


class Held:
    pass


@pytest.mark.parametrize("has_cause", [False, True])
def test_failed_work_is_freed_without_a_collection(work, has_cause):
    def steps():
        held = Held()
        freed.append(weakref.ref(held))
        yield from work.steps("a", 5)
        try:
            raise ValueError("broken")
        except ValueError as error:
            if has_cause:
                raise RuntimeError("failed") from error
            raise

    freed, failures = [], []
    gc.collect()
    gc.disable()
    try:
        work.slices.run(steps()).addErrback(lambda failure: failures.append(failure.type))
        while not failures:
            work.iterate()
        assert freed[0]() is None
    finally:
        gc.enable()
    assert failures == [RuntimeError if has_cause else ValueError]
