"""No producer id twice, whatever happens to the allocation of blocks."""

import pytest

from odradek.coordinator.transactions.producer_ids import ProducerIdManager
from odradek.protocol.errors import ErrorCode, KafkaError


def run(coroutine):
    with pytest.raises(StopIteration) as stopped:
        coroutine.send(None)
    return stopped.value.value


def test_ids_go_on_from_block_to_block():
    blocks = iter([range(2), range(5, 7)])

    async def allocate(least_id):
        return next(blocks)

    manager = ProducerIdManager(allocate)
    assert [run(manager.next_id()) for _ in range(4)] == [0, 1, 5, 6]


def test_a_failed_allocation_is_tried_again():
    outcomes = [OSError("disk"), range(3, 4)]

    async def allocate(least_id):
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    manager = ProducerIdManager(allocate)
    with pytest.raises(OSError, match="disk"):
        manager.next_id().send(None)
    assert run(manager.next_id()) == 3


def test_taking_one_does_not_wait():
    blocks = [range(3, 5), range(9, 10)]
    started = []

    async def allocate(least_id):
        return blocks.pop(0)

    def run_at_once(coroutine):
        with pytest.raises(StopIteration):
            coroutine.send(None)

    manager = ProducerIdManager(allocate, run_at_once)
    assert [manager.take() for _ in range(3)] == [3, 4, 9]

    slow = ProducerIdManager(allocate, started.append)
    for _ in range(2):
        with pytest.raises(KafkaError) as caught:
            slow.take()
        assert caught.value.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert len(started) == 1, "one block is fetched at a time"
    started[0].close()


def test_a_prefetch_waits_for_a_block_that_is_taken_from_afterwards():
    class Commit:
        def __await__(self):
            yield

    async def allocate(least_id):
        await Commit()
        return range(3, 5)

    manager = ProducerIdManager(allocate, pytest.fail)
    assert manager.is_empty
    prefetch = manager.prefetch()
    prefetch.send(None)
    with pytest.raises(KafkaError):
        manager.take()
    run(prefetch)
    assert not manager.is_empty
    run(manager.prefetch())
    assert [manager.take(), manager.take()] == [3, 4]
    assert manager.is_empty


def test_a_failed_block_is_asked_for_again():
    answers = [OSError("no store"), range(5, 6)]

    async def allocate(least_id):
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def run_at_once(coroutine):
        with pytest.raises(StopIteration):
            coroutine.send(None)

    manager = ProducerIdManager(allocate, run_at_once)
    with pytest.raises(KafkaError):
        manager.take()
    assert manager.take() == 5


def test_ids_below_the_least_one_are_passed_over():
    asked = []

    async def allocate(least_id):
        asked.append(least_id)
        return range(max(least_id, 10 * len(asked)), 10 * len(asked) + 10)

    manager = ProducerIdManager(allocate)
    manager.begin_at(13)
    assert run(manager.next_id()) == 13
    manager.begin_at(5)
    assert manager.take() == 14
    manager.begin_at(17)
    assert manager.take() == 17
    manager.begin_at(24)
    assert run(manager.next_id()) == 24
    assert asked == [13, 24]


def test_those_who_wait_for_the_store_together_share_a_block():
    allocated = []

    class Pause:
        def __await__(self):
            yield

    async def allocate(least_id):
        allocated.append(range(10 * len(allocated), 10 * len(allocated) + 10))
        return allocated[-1]

    manager = ProducerIdManager(allocate, ready=Pause)
    waiting = [manager.next_id() for _ in range(5)]
    for one in waiting:
        one.send(None)
    assert [run(one) for one in waiting] == [0, 1, 2, 3, 4]
    assert len(allocated) == 1


def test_a_block_is_fetched_ahead_only_if_no_id_is_left():
    answers = [KafkaError(ErrorCode.KAFKA_STORAGE_ERROR), range(3, 5), range(9, 10)]

    async def allocate(least_id):
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    manager = ProducerIdManager(allocate)
    run(manager.prefetch())
    with pytest.raises(KafkaError):
        manager.take()
    for _ in range(2):
        run(manager.prefetch())
    assert [manager.take(), manager.take()] == [3, 4]
    assert answers == [range(9, 10)]
    manager.begin_at(9)
    run(manager.prefetch())
    assert manager.take() == 9
