"""Threads for work that blocks, outside of the reactor's own pool."""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from odradek.log.background.tasks import Done
from odradek.server.work.clock import Reactor, call_in_pool

if TYPE_CHECKING:
    from twisted.python.threadpool import ThreadPool


class GrowingThreads:
    """A thread pool that grows to the number of concurrent calls of `run`, up to `most` threads unless it is None.

    The threads end with the reactor, after the work of all calls.

    The reactor's own pool has ten threads for everything. Compaction runs up to log.cleaner.threads functions at once,
    each of which may sleep for minutes to stay below log.cleaner.io.max.bytes.per.second. In the reactor's pool, syncs
    for which acknowledgements wait would be queued behind them.
    """

    def __init__(self, reactor: Reactor, name: str, most: int | None = None) -> None:
        self._reactor = reactor
        self._name = name
        self._most = most
        self._pool: ThreadPool | None = None
        self._count = 0

    def run(self, work: Callable[[], None], done: Done) -> None:
        """Call `work` in a thread, then `done` in the reactor thread with the exception that it raised, or None."""
        self._count += 1
        pool = self._pool or self._start()
        if pool.max < self._count <= (self._most or self._count):
            pool.adjustPoolsize(0, self._count)

        def finish(error: Exception | None) -> None:
            self._count -= 1
            done(error)

        try:
            deferred = call_in_pool(self._reactor, pool, work)
        except RuntimeError as error:
            # No thread can be started. `done` is never called before this function returns.
            self._reactor.callLater(0, finish, error)
            return
        deferred.addCallbacks(lambda _: finish(None), lambda failure: finish(failure.value))

    def _start(self) -> "ThreadPool":
        from twisted.python.threadpool import ThreadPool

        pool = self._pool = ThreadPool(0, 1, self._name)
        pool.start()
        self._reactor.addSystemEventTrigger("during", "shutdown", pool.stop)
        return pool


def run_in_daemon_thread(reactor: Reactor, work: Callable[[], None], done: Done) -> None:
    """Call `work` in a thread of its own, then `done` in the reactor thread with the exception that it raised, or None.

    The end of the process does not wait for this thread, unlike for those of a pool, and ends it.
    """
    from twisted.internet.interfaces import IReactorFromThreads

    call_in_reactor = cast(IReactorFromThreads, reactor).callFromThread

    def run() -> None:
        error: Exception | None = None
        try:
            work()
        except Exception as raised:
            error = raised
        call_in_reactor(done, error)

    try:
        threading.Thread(target=run, daemon=True).start()
    except RuntimeError as error:
        # No thread can be started. `done` is never called before this function returns.
        reactor.callLater(0, done, error)
