"""The timer of waits that follow each other: it expires at the end of the present wait, with few delayed calls."""

import pytest
from twisted.internet.task import Clock

from odradek.server.work.reused_timer import ReusedTimer


class CountingClock(Clock):
    created = 0

    def callLater(self, delay, callable, *args, **kw):  # noqa: N802
        self.created += 1
        return super().callLater(delay, callable, *args, **kw)


@pytest.fixture
def clock():
    return CountingClock()


@pytest.fixture
def timer(clock):
    return ReusedTimer(clock)


def test_it_expires_once_with_the_arguments_of_the_wait(clock, timer):
    expired = []
    timer.start(3.0, expired.append, "a")
    clock.advance(2.9)
    assert not expired
    clock.advance(0.1)
    assert expired == ["a"]
    clock.advance(10.0)
    assert expired == ["a"]
    assert not clock.getDelayedCalls()


def test_a_stopped_wait_does_not_expire(clock, timer):
    expired = []
    timer.start(3.0, expired.append, "a")
    timer.stop()
    clock.advance(10.0)
    assert not expired
    assert not clock.getDelayedCalls()


@pytest.mark.parametrize("second_s", [1.0, 3.0, 5.0])
def test_it_expires_at_the_end_of_the_present_wait(clock, timer, second_s):
    expired = []
    timer.start(3.0, expired.append, "a")
    clock.advance(0.5)
    timer.stop()
    timer.start(second_s, expired.append, "b")
    clock.advance(second_s - 0.1)
    assert not expired
    clock.advance(0.2)
    assert expired == ["b"]


def test_waits_that_end_early_share_a_delayed_call(clock, timer):
    for _ in range(1000):
        timer.start(3.0, pytest.fail)
        clock.advance(0.001)
        timer.stop()
    assert clock.created == 1


def test_a_wait_may_begin_when_the_timer_expires(clock, timer):
    expired = []

    def expire():
        expired.append("a")
        timer.start(2.0, expired.append, "b")

    timer.start(3.0, expire)
    clock.advance(3.0)
    clock.advance(2.0)
    assert expired == ["a", "b"]


def test_release_leaves_no_delayed_call(clock, timer):
    timer.start(3.0, pytest.fail)
    timer.release()
    assert not clock.getDelayedCalls()
    timer.release()
