"""Producer ids are unique, whatever happens to the allocation of blocks."""

from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, TypeVar

import pytest

from odradek.coordinator.transactions.producer_ids import ProducerIdManager
from odradek.protocol.errors import ErrorCode, KafkaError

T = TypeVar("T")


class Pause:
    """An awaitable that suspends its coroutine once."""

    def __await__(self) -> Generator[None, None, None]:
        yield


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that does not suspend again. Return its result."""
    with pytest.raises(StopIteration) as stopped:
        coroutine.send(None)
    return stopped.value.value


def allocate_from(outcomes: list[range | Exception]) -> Callable[[int], Awaitable[range]]:
    """An `allocate_block` that removes and returns the next of `outcomes`, or raises it."""

    async def allocate(least_id: int) -> range:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return allocate


def test_ids_continue_from_block_to_block():
    manager = ProducerIdManager(allocate_from([range(2), range(5, 7)]))
    assert [run(manager.next_id()) for _ in range(4)] == [0, 1, 5, 6]


def test_a_failed_allocation_is_retried():
    manager = ProducerIdManager(allocate_from([OSError("disk"), range(3, 4)]))
    with pytest.raises(OSError, match="disk"):
        manager.next_id().send(None)
    assert run(manager.next_id()) == 3


def test_take_does_not_wait():
    manager = ProducerIdManager(allocate_from([range(3, 5), range(9, 10)]), run)
    assert [manager.take() for _ in range(3)] == [3, 4, 9]

    started: list[Coroutine[Any, Any, None]] = []
    slow = ProducerIdManager(allocate_from([]), started.append)
    for _ in range(2):
        with pytest.raises(KafkaError) as caught:
            slow.take()
        assert caught.value.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert len(started) == 1, "one block is fetched at a time"
    started[0].close()


def test_take_uses_a_block_after_its_prefetch_has_ended():
    async def allocate(least_id):
        await Pause()
        return range(3, 5)

    manager = ProducerIdManager(allocate, lambda fetch: pytest.fail("take does not allocate during a prefetch"))
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


def test_take_retries_a_failed_allocation():
    manager = ProducerIdManager(allocate_from([OSError("no store"), range(5, 6)]), run)
    with pytest.raises(KafkaError):
        manager.take()
    assert manager.take() == 5


def test_ids_below_the_least_one_are_skipped():
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


def test_callers_that_wait_for_the_store_together_share_a_block():
    allocated = []

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
    outcomes: list[range | Exception] = [KafkaError(ErrorCode.KAFKA_STORAGE_ERROR), range(3, 5), range(9, 10)]
    manager = ProducerIdManager(allocate_from(outcomes))
    run(manager.prefetch())
    with pytest.raises(KafkaError):
        manager.take()
    for _ in range(2):
        run(manager.prefetch())
    assert [manager.take(), manager.take()] == [3, 4]
    assert outcomes == [range(9, 10)]
    manager.begin_at(9)
    run(manager.prefetch())
    assert manager.take() == 9


def test_a_failure_that_lasts_is_logged_once(caplog):
    gone = KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "no controller")
    refused = KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the controller refused")
    manager = ProducerIdManager(allocate_from([gone, gone, refused, gone, range(1), gone, gone]))
    for _ in range(5):
        run(manager.prefetch())
    assert caplog.text.count("cannot allocate producer ids") == 3
    manager.take()
    for _ in range(2):
        run(manager.prefetch())
    assert caplog.text.count("cannot allocate producer ids") == 4
