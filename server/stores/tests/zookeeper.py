"""A reactor in the thread of the tests, and a ZooKeeper store whose coroutines do not suspend."""

import heapq
import itertools
import queue
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from kazoo.client import KazooClient
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from odradek.replication.metadata.store import MetadataStore
from odradek.server.config.properties.zookeeper import parse_connect
from odradek.server.stores.zookeeper.settings import ZooKeeperSettings
from odradek.server.stores.zookeeper.store import ZooKeeperStore

LIMIT_S = 60.0
T = TypeVar("T")


class LaterCall:
    def __init__(self, function: Callable[[], object]) -> None:
        self.function = function
        self.is_active = True

    def active(self) -> bool:
        return self.is_active

    def cancel(self) -> None:
        self.is_active = False


class TestReactor:
    """Calls of other threads and delayed calls, executed while the test waits in `run` or `run_until`."""

    __test__ = False

    def __init__(self) -> None:
        self._calls: queue.Queue[tuple[Callable[..., object], tuple[object, ...]]] = queue.Queue()
        self._later: list[tuple[float, int, LaterCall]] = []
        self._numbers = itertools.count()

    def callFromThread(self, function, /, *arguments):  # noqa: N802
        self._calls.put((function, arguments))

    def callLater(self, delay_s, function, /, *arguments):  # noqa: N802
        call = LaterCall(lambda: function(*arguments))
        heapq.heappush(self._later, (time.monotonic() + delay_s, next(self._numbers), call))
        return call

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return the result of a coroutine, or raise its exception."""
        results: list[T] = []
        failures: list[Failure] = []
        Deferred.fromCoroutine(coroutine).addCallbacks(results.append, failures.append)
        self.run_until(lambda: bool(results or failures))
        for failure in failures:
            failure.raiseException()
        return results[0]

    def run_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < deadline, "the awaited condition has not occurred"
            while self._later and self._later[0][0] <= time.monotonic():
                call = heapq.heappop(self._later)[2]
                if call.active():
                    call.is_active = False
                    call.function()
            try:
                function, arguments = self._calls.get(timeout=0.05)
            except queue.Empty:
                continue
            function(*arguments)


class BlockingStore(MetadataStore):
    """A store whose methods wait for their result, for tests that use `run_now`."""

    def __init__(self, store: MetadataStore, reactor: TestReactor) -> None:
        self._store = store
        self._reactor = reactor

    async def create(self, path, data=None, *, ephemeral=False, sequential=False):
        return self._reactor.run(self._store.create(path, data, ephemeral=ephemeral, sequential=sequential))

    async def get(self, path, watch=None):
        return self._reactor.run(self._store.get(path, watch))

    async def get_many(self, paths, watch=None):
        return self._reactor.run(self._store.get_many(paths, watch))

    async def set(self, path, data, version=-1):
        return self._reactor.run(self._store.set(path, data, version))

    async def delete(self, path, version=-1):
        return self._reactor.run(self._store.delete(path, version))

    async def exists(self, path, watch=None):
        return self._reactor.run(self._store.exists(path, watch))

    async def get_children(self, path, watch=None):
        return self._reactor.run(self._store.get_children(path, watch))

    async def transaction(self, operations):
        return self._reactor.run(self._store.transaction(operations))

    def add_session_listener(self, listener):
        self._store.add_session_listener(listener)

    async def renew(self):
        self._reactor.run(self._store.renew())

    async def close(self):
        self._reactor.run(self._store.close())


def make_settings(connect: str, **changes) -> ZooKeeperSettings:
    hosts, chroot = parse_connect(connect)
    return ZooKeeperSettings(hosts, chroot, 4000, 20_000, 10)._replace(**changes)


def open_store(connect: str, reactor: TestReactor, **changes) -> ZooKeeperStore:
    store = ZooKeeperStore(make_settings(connect, **changes), reactor)
    reactor.run(store.connect())
    return store


def expire(connect: str, store: ZooKeeperStore) -> None:
    """End the store's session at the server: another client resumes it and closes it.

    The server closes the store's connection. The store must not resume its session before the other client has closed
    it, but find it expired.
    """
    assert store._client is not None
    handler = store._client._handler
    handler.refuse_connections()
    client = KazooClient(connect, client_id=store._client.kazoo.client_id)
    client.start()
    client.stop()
    client.close()
    handler._refuses = False
