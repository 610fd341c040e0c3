"""Pauses of long work."""

import pytest

from odradek.replication.metadata.store import run_now
from odradek.replication.pauses import in_slices, run_with_pauses


@pytest.fixture
def events() -> list[int | str]:
    return []


def test_a_pause_precedes_each_slice(events: list[int | str]) -> None:
    async def pause() -> None:
        events.append("pause")

    async def visit(count: int) -> None:
        async for item in in_slices(range(count), 3, pause):
            events.append(item)

    run_now(visit(7))
    assert events == ["pause", 0, 1, 2, "pause", 3, 4, 5, "pause", 6]
    events.clear()
    run_now(visit(0))
    assert events == []


def test_pauses_separate_steps(events: list[int | str]) -> None:
    async def pause() -> None:
        events.append("pause")

    def count():
        for number in range(3):
            events.append(number)
            yield
        return "result"

    assert run_now(run_with_pauses(count(), pause)) == "result"
    assert events == [0, "pause", 1, "pause", 2, "pause"]
