"""No producer id twice, whatever happens to the allocation of blocks."""

import pytest

from odradek.coordinator.producer_ids import ProducerIdManager


def run(coroutine):
    with pytest.raises(StopIteration) as stopped:
        coroutine.send(None)
    return stopped.value.value


def test_ids_go_on_from_block_to_block():
    blocks = iter([range(2), range(5, 7)])

    async def allocate():
        return next(blocks)

    manager = ProducerIdManager(allocate)
    assert [run(manager.next_id()) for _ in range(4)] == [0, 1, 5, 6]


def test_a_failed_allocation_is_tried_again():
    outcomes = [OSError("disk"), range(3, 4)]

    async def allocate():
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    manager = ProducerIdManager(allocate)
    with pytest.raises(OSError, match="disk"):
        manager.next_id().send(None)
    assert run(manager.next_id()) == 3
