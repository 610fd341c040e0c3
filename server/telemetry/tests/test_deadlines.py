"""Times at which keys expire."""

import random

from odradek.server.telemetry.deadlines import Deadlines


def test_keys_expire_at_their_last_deadline():
    deadlines: Deadlines[str] = Deadlines()
    for key, deadline_ms in (("a", 10), ("b", 20), ("c", 30), ("a", 40), ("c", 5)):
        deadlines.set(key, deadline_ms)
    deadlines.remove("b")
    assert deadlines.take_due(4, 9) == []
    assert deadlines.take_due(5, 9) == ["c"]
    assert deadlines.take_due(39, 9) == []
    assert deadlines.take_due(40, 9) == ["a"]
    assert deadlines.take_due(1000, 9) == []


def test_some_keys_are_taken_at_a_time():
    deadlines: Deadlines[str] = Deadlines()
    for key in "abc":
        deadlines.set(key, 1)
    assert [len(deadlines.take_due(1, 2)) for _ in range(3)] == [2, 1, 0]


def test_changes_agree_with_a_model_and_keep_the_heap_small():
    source = random.Random(5)
    deadlines: Deadlines[str] = Deadlines()
    model: dict[str, int] = {}
    now_ms = 0
    for _ in range(20_000):
        key = str(source.randrange(50))
        if source.random() < 0.3:
            deadlines.remove(key)
            model.pop(key, None)
        else:
            model[key] = now_ms + source.randrange(100_000)
            deadlines.set(key, model[key])
        now_ms += source.randrange(10)
        due = deadlines.take_due(now_ms, 100)
        assert sorted(due) == sorted(key for key, deadline_ms in model.items() if deadline_ms <= now_ms)
        for key in due:
            del model[key]
        assert len(deadlines._heap) <= 2 * len(model) + 1100
