"""The controller's event loop."""

import pytest

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.events import EventKind, EventLoop, ImmediateExecutor
from odradek.replication.metadata.store import SessionExpiredError, run_now
from odradek.replication.tests.support import Step, SteppedExecutor

KIND = EventKind.ADMIN_REQUEST


@pytest.fixture
def executor():
    return SteppedExecutor()


@pytest.fixture
def loop(executor):
    return EventLoop(executor)


def work(done, name, steps=0):
    async def run():
        done.append(f"{name} begins")
        for _ in range(steps):
            await Step()
        done.append(f"{name} ends")
        return name

    return run


def test_events_are_processed_one_at_a_time_and_in_order(executor, loop):
    done = []
    steps = {"a": 3, "b": 0, "c": 1}
    submitted = [
        executor.start(loop.submit(KIND, name, work(done, name, count))) for name, count in steps.items()
    ]
    assert done == ["a begins"]
    executor.finish()
    assert done == ["a begins", "a ends", "b begins", "b ends", "c begins", "c ends"]
    assert [one.outcome() for one in submitted] == ["a", "b", "c"]


def test_an_event_that_fails_fails_its_submitter_only(executor, loop):
    async def fail():
        await Step()
        raise KafkaError(ErrorCode.INVALID_REQUEST, "no")

    failing = executor.start(loop.submit(KIND, "fails", fail))
    following = executor.start(loop.submit(KIND, "follows", work([], "b")))
    executor.finish()
    with pytest.raises(KafkaError, match="no"):
        failing.outcome()
    assert following.outcome() == "b"


def test_the_error_of_an_event_without_a_waiting_submitter_is_logged(loop, caplog):
    async def fail():
        raise ValueError("a defect")

    done = []
    loop.post(EventKind.TOPICS, "topics changed", fail)
    loop.post(EventKind.TOPICS, "topics changed", work(done, "b"))
    assert "topics changed" in caplog.text
    assert "a defect" in caplog.text
    assert done == ["b begins", "b ends"]


def test_dropped_events_fail_and_the_one_in_progress_ends(executor, loop):
    done = []
    first = executor.start(loop.submit(KIND, "a", work(done, "a", 1)))
    second = executor.start(loop.submit(KIND, "b", work(done, "b")))
    loop.drop(KafkaError(ErrorCode.NOT_CONTROLLER, "expired"))
    executor.finish()
    assert first.outcome() == "a"
    with pytest.raises(KafkaError, match="expired"):
        second.outcome()
    assert done == ["a begins", "a ends"]


def test_a_stopped_loop_processes_nothing(executor, loop):
    done = []
    executor.start(loop.submit(KIND, "a", work(done, "a", 1)))
    waiting = executor.start(loop.submit(KIND, "b", work(done, "b")))
    loop.stop()
    later = executor.start(loop.submit(KIND, "c", work(done, "c")))
    executor.finish()
    assert done == ["a begins", "a ends"]
    assert not (waiting.is_over or later.is_over)


def test_the_end_of_the_store_during_a_stop_is_no_error(executor, loop, caplog):
    def end(error):
        async def run():
            await Step()
            raise error

        return run

    loop.post(EventKind.TOPICS, "topics changed", end(SessionExpiredError("the metadata store is closed")))
    loop.stop()
    executor.finish()
    assert not caplog.records
    other = EventLoop(executor)
    other.post(EventKind.TOPICS, "topics changed", end(ValueError("a defect")))
    other.stop()
    executor.finish()
    assert "a defect" in caplog.text


def test_without_a_reactor_events_end_at_once_and_must_not_wait():
    loop, done = EventLoop(ImmediateExecutor()), []
    assert run_now(loop.submit(KIND, "a", work(done, "a"))) == "a"
    with pytest.raises(RuntimeError, match="suspended"):
        run_now(loop.submit(KIND, "b", work(done, "b", 1)))
    assert run_now(loop.submit(KIND, "c", work(done, "c"))) == "c"


def test_an_event_that_submits_an_event_raises_an_error():
    loop = EventLoop(ImmediateExecutor())

    async def nested():
        return await loop.submit(KIND, "inner", work([], "inner"))

    with pytest.raises(RuntimeError, match="wait for itself"):
        run_now(loop.submit(KIND, "outer", nested))
