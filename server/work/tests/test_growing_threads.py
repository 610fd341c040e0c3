"""Thread pools that grow to the number of concurrent calls."""

import threading
from typing import Any, cast

import pytest
from twisted.python import threadpool

from odradek.server.work.clock import Reactor
from odradek.server.work.tests.test_request_threads import QueueReactor
from odradek.server.work.threads import GrowingThreads


class PoolReactor(QueueReactor):
    """Reactor whose calls are made by `run`; `stop` stops the pool."""

    def __init__(self) -> None:
        super().__init__()
        self.stop: Any = None

    def addSystemEventTrigger(self, phase: str, event: str, call: Any) -> None:  # noqa: N802
        self.stop = call

    def run_until(self, is_done: Any) -> None:
        while not is_done():
            assert self.has_call.wait(60)
            self.has_call.clear()
            while self.calls:
                function, *arguments = self.calls.pop(0)
                function(*arguments)


def test_a_pool_has_at_most_its_number_of_threads() -> None:
    reactor = PoolReactor()
    threads = GrowingThreads(cast(Reactor, reactor), "read", 3)
    may_end, done, used = threading.Event(), [], set()

    def work() -> None:
        used.add(threading.current_thread())
        assert may_end.wait(60)

    for _ in range(10):
        threads.run(work, done.append)
    may_end.set()
    reactor.run_until(lambda: len(done) == 10)
    assert done == [None] * 10
    assert len(used) <= 3
    reactor.stop()


def test_a_thread_that_cannot_be_started_is_the_error_of_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """`done` is never called before `run` returns, and later work may get a thread."""
    error = RuntimeError("can't start new thread")

    def refuse(*arguments: Any, **options: Any) -> None:
        raise error

    reactor, done = PoolReactor(), []
    threads = GrowingThreads(cast(Reactor, reactor), "read", 3)
    with monkeypatch.context() as patched:
        patched.setattr(threadpool.ThreadPool, "threadFactory", refuse)
        threads.run(lambda: None, done.append)
    assert done == []
    reactor.run_until(lambda: done)
    threads.run(lambda: None, done.append)
    reactor.run_until(lambda: len(done) == 2)
    assert done == [error, None]
    reactor.stop()
