"""The schedule of background work: steps are short, every job gets a turn, and a failure affects no other work."""

import weakref
from functools import partial

from odradek.log.background.tasks import STEP_S, Schedule, Sweep


class Clock:
    """A clock that advances only by `work`."""

    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s

    def work(self, steps):
        self.now_s += steps * STEP_S


def test_due_actions_share_many_runs():
    clock, done = Clock(), []
    schedule = Schedule(clock)

    def act(number):
        done.append(number)
        clock.work(0.3)

    for number in range(100):
        schedule.once(0, partial(act, number))
    runs = 0
    while len(done) < 100:
        before = len(done)
        assert schedule.run_due(5) == 0
        assert 0 < len(done) - before <= 4
        runs += 1
    assert done == list(range(100))


def test_a_long_job_does_not_hold_up_other_work():
    clock, done = Clock(), []
    schedule = Schedule(clock)

    def job(name):
        def step(now_ms):
            done.append(name)
            clock.work(2)
            return True

        return step

    schedule.add(job("a"), 1000, 0)
    schedule.add(job("b"), 1000, 0)
    schedule.once(0, lambda: done.append("once"))
    for now_ms in range(1, 7):
        assert schedule.run_due(now_ms) == 0
    assert sorted(done[:3]) == ["a", "b", "once"]
    assert done.count("a") == done.count("b") == 3


def test_a_failure_does_not_stop_other_work():
    clock, done = Clock(), []
    schedule = Schedule(clock)

    def fail(*_):
        raise RuntimeError("a defect")

    def job(now_ms):
        done.append("job")
        return False

    schedule.once(0, fail)
    schedule.once(0, lambda: done.append("once"))
    schedule.add(fail, 100, 0)
    schedule.add(job, 100, 0)
    assert schedule.run_due(0) == 100
    assert sorted(done) == ["job", "once"]
    clock.now_s = 0.1
    schedule.run_due(0)
    assert done.count("job") == 2


def test_a_sweep_continues_after_an_item_that_fails():
    visited = []

    def visit(item, now_ms):
        visited.append(item)
        if item % 2:
            raise RuntimeError("a defect")

    sweep = Sweep(lambda: list(range(6)), visit, 4)
    assert sweep(0)
    assert not sweep(0)
    assert visited == list(range(6))


def test_a_sweep_of_slow_visits_takes_many_steps():
    clock, visited = Clock(), []

    def visit(item, now_ms):
        visited.append(item)
        clock.work(0.6)

    sweep = Sweep(lambda: list(range(10)), visit, 200, clock)
    assert sweep(0)
    assert visited == [0, 1]
    while sweep(0):
        pass
    assert visited == list(range(10))


def test_a_sweep_keeps_no_reference_to_visited_items():
    class Item:
        pass

    items = [Item() for _ in range(4)]
    alive = [weakref.ref(item) for item in items]
    sweep = Sweep(lambda: list(items), lambda item, now_ms: None, 2)
    sweep(0)
    items.clear()
    assert [one() is None for one in alive] == [True, True, False, False]
    sweep(0)
    assert [one() is None for one in alive] == [True] * 4
