"""Requests at a connection loss, with a fake kazoo client: order, repetition and outcome of interrupted writes."""

import itertools
from types import SimpleNamespace
from typing import cast

import pytest
from kazoo import exceptions
from kazoo.protocol.states import ZnodeStat
from twisted.internet.defer import Deferred

from odradek.replication.metadata.store import (
    BadVersionError,
    Create,
    Delete,
    Node,
    NodeExistsError,
    NodeStat,
    NoNodeError,
    Operation,
    SessionEvent,
    SessionExpiredError,
    SetData,
    StoreUnavailableError,
    WatchEvent,
    WatchKind,
)
from odradek.server.stores.tests.zookeeper import TestReactor, make_settings
from odradek.server.stores.zookeeper.client import Kazoo, PendingResult, ZooKeeperClient
from odradek.server.stores.zookeeper.outcomes import changed_paths, has_succeeded
from odradek.server.stores.zookeeper.store import ZooKeeperStore

SESSION = 77


class FakeKazoo:
    """Records requests; the test answers them."""

    def __init__(self, reactor):
        self.reactor = reactor
        self.requests: list[tuple[str, PendingResult]] = []

    def _request(self, text):
        result = PendingResult(self.reactor)
        self.requests.append((text, result))
        return result

    def get_async(self, path, watch):
        return self._request(f"get {path}")

    def get_many_async(self, paths):
        return self._request(f"get {' '.join(paths)}")

    def exists_async(self, path, watch):
        return self._request(f"exists {path}")

    def get_children_async(self, path, watch, include_data):
        return self._request(f"children {path}")

    def transaction(self):
        request = SimpleNamespace(operations=[])
        request.commit_async = lambda: self._request(
            ", ".join(f"{type(one).__name__} {one.path}" for one in request.operations)
        )
        return request


class FakeClient(ZooKeeperClient):
    def __init__(self, settings, reactor, states):
        self.fake = FakeKazoo(reactor)
        self.kazoo = cast(Kazoo, self.fake)
        self.is_stopped = False
        self.refusal = ""

    def start(self):
        pass

    def stop(self, done):
        self.is_stopped = True
        done()


class Bench:
    """A connected store, its fake client, and what its listeners were called with."""

    def __init__(self, **settings):
        self.reactor = TestReactor()
        self.store = ZooKeeperStore(make_settings("zoo:2181", **settings), self.reactor, FakeClient)
        self.seen: list[object] = []
        connecting = Deferred.fromCoroutine(self.store.connect())
        self.last_client = self.store._client
        self.store.on_connected(self.client, SESSION)
        assert connecting.called
        self.store.add_session_listener(self.seen.append)

    @property
    def client(self):
        return self.store._client or self.last_client

    @property
    def requests(self):
        return [text for text, _ in self.client.fake.requests]

    def begin(self, coroutine):
        deferred = Deferred.fromCoroutine(coroutine)
        deferred.addBoth(lambda result: self.seen.append(getattr(result, "value", result)))
        return deferred

    def answer(self, value=None):
        """Answer the first request, with an exception or a result."""
        _, result = self.client.fake.requests.pop(0)
        if isinstance(value, Exception):
            result.set_exception(value)
        else:
            result.set(value)
        answered = []
        self.reactor.callFromThread(answered.append, None)
        self.reactor.run_until(lambda: bool(answered))

    def lose_connection(self):
        """Fail all requests in flight, as kazoo does, and disconnect."""
        for _ in range(len(self.requests)):
            self.answer(exceptions.ConnectionLoss())
        self.store.on_disconnected(self.client)

    def reconnect(self):
        self.store.on_connected(self.client, SESSION)


@pytest.fixture
def bench():
    return Bench()


def stat(version=0, *, changed=5, owner=0, children_changed=5):
    return ZnodeStat(1, changed, 0, 0, version, 0, 0, owner, 0, 0, children_changed)


def test_at_most_so_many_requests_are_in_flight():
    bench = Bench(max_in_flight=2)
    for path in ("/a", "/b", "/c"):
        bench.begin(bench.store.exists(path))
    assert bench.requests == ["exists /a", "exists /b"]
    bench.answer(None)
    assert bench.requests == ["exists /b", "exists /c"]


def test_many_nodes_are_read_with_one_request(bench):
    bench.begin(bench.store.get_many(["/a", "/b"]))
    assert bench.requests == ["get /a /b"]
    bench.lose_connection()
    bench.reconnect()
    bench.answer([(b"1", stat()), None])
    nodes = cast(list[Node | None], bench.seen[-1])
    assert [node and node.data for node in nodes] == [b"1", None]
    bench.begin(bench.store.get_many(["/a"]))
    bench.answer(exceptions.MarshallingError())
    assert isinstance(bench.seen[-1], StoreUnavailableError)


def test_denied_access_to_one_of_many_nodes_is_reported_with_its_path(bench):
    bench.begin(bench.store.get_many(["/a", "/b", "/c"]))
    bench.answer([(b"1", stat()), exceptions.NoAuthError(), None])
    assert isinstance(bench.seen[-1], StoreUnavailableError)
    assert str(bench.seen[-1]).startswith("ZooKeeper denies access to /b; ")


def test_old_servers_need_a_request_for_each_node():
    bench = Bench(max_in_flight=2)
    reading = bench.begin(bench.store.get_many(["/a", "/b", "/c"]))
    bench.answer(exceptions.UnimplementedError())
    for _ in range(2):
        assert bench.requests == ["get /a", "get /b"]
        bench.answer((b"1", stat()))
        bench.answer(exceptions.NoNodeError())
        assert bench.requests == ["get /c"]
        bench.lose_connection()
        bench.reconnect()
        bench.answer((None, stat()))
        assert reading.called
        nodes = cast(list[Node | None], bench.seen[-1])
        assert [node and node.data for node in nodes] == [b"1", None, None]
        assert nodes[1] is None
        bench.seen.clear()
        reading = bench.begin(bench.store.get_many(["/a", "/b", "/c"]))


def test_watched_nodes_are_read_one_by_one(bench):
    bench.begin(bench.store.get_many(["/a", "/b"], bench.seen.append))
    assert bench.requests == ["get /a", "get /b"]


def test_a_change_of_one_of_many_nodes_fires_before_the_others_are_read(bench):
    """The watch was recorded after the last read, so that its event was lost."""
    bench.begin(bench.store.get_many(["/a", "/b"], bench.seen.append))
    (_, first), (_, second) = bench.client.fake.requests
    second.set((b"", stat()))
    bench.reactor.callFromThread(bench.store._on_watch, SimpleNamespace(type="CHANGED", path="/b"))
    first.set((b"", stat()))
    bench.reactor.run_until(lambda: len(bench.seen) == 2)
    assert bench.seen[0] == WatchEvent(WatchKind.CHANGED, "/b")


def test_the_end_of_the_session_ends_all_reads(bench):
    bench.begin(bench.store.get_many(["/a", "/b"]))
    bench.store.on_lost(bench.client)
    assert [type(one) for one in bench.seen] == [SessionEvent, SessionExpiredError]


def test_interrupted_requests_are_sent_again_before_those_that_wait(bench):
    bench.begin(bench.store.exists("/a"))
    bench.begin(bench.store.exists("/b"))
    bench.lose_connection()
    bench.begin(bench.store.exists("/c"))
    assert bench.requests == []
    bench.reconnect()
    assert bench.requests == ["exists /a", "exists /b", "exists /c"]
    bench.lose_connection()
    bench.reconnect()
    assert bench.requests == ["exists /a", "exists /b", "exists /c"]
    assert bench.seen == [SessionEvent.DISCONNECTED, SessionEvent.CONNECTED] * 2


def test_watches_are_set_before_other_requests_are_sent():
    bench = Bench(max_in_flight=1)
    bench.begin(bench.store.get("/a", bench.seen.append))
    bench.answer((b"old", stat(changed=5)))
    bench.begin(bench.store.get_children("/b", bench.seen.append))
    bench.answer((["x"], stat(children_changed=6)))
    bench.begin(bench.store.exists("/missing", bench.seen.append))
    bench.answer(None)
    bench.seen.clear()
    bench.lose_connection()
    bench.begin(bench.store.get("/a"))
    bench.reconnect()
    sent = []
    for result in (stat(changed=8), stat(changed=9), (["x"], stat(children_changed=6))):
        sent += bench.requests
        bench.answer(result)
    assert sent == ["exists /a", "exists /missing", "children /b"]
    assert bench.requests == ["get /a"]
    assert bench.seen == [
        SessionEvent.DISCONNECTED,
        SessionEvent.CONNECTED,
        WatchEvent(WatchKind.CHANGED, "/a"),
        WatchEvent(WatchKind.CREATED, "/missing"),
    ]


def test_a_read_that_was_sent_before_watches_are_set_is_repeated(bench):
    """A read that is begun before the reactor has noticed the loss; kazoo sends it first on the next connection."""
    bench.begin(bench.store.get("/a", bench.seen.append))
    bench.answer((b"old", stat(changed=5)))
    bench.seen.clear()
    bench.begin(bench.store.get("/a"))
    bench.store.on_disconnected(bench.client)
    bench.reconnect()
    assert bench.requests == ["get /a", "exists /a"]
    bench.answer((b"new", stat(1, changed=8)))
    bench.answer(stat(1, changed=8))
    assert bench.requests == ["get /a"]
    bench.answer((b"new", stat(1, changed=8)))
    [_, _, event, node] = bench.seen
    assert event == WatchEvent(WatchKind.CHANGED, "/a")
    assert node.data == b"new"


def test_an_expiry_ends_all_requests_after_the_listeners(bench):
    bench.begin(bench.store.exists("/in-flight"))
    bench.lose_connection()
    bench.begin(bench.store.exists("/waiting"))
    bench.store.on_lost(bench.client)
    assert bench.seen[:2] == [SessionEvent.DISCONNECTED, SessionEvent.EXPIRED]
    assert [type(each) for each in bench.seen[2:]] == [SessionExpiredError, SessionExpiredError]
    assert bench.client.is_stopped
    bench.reconnect()
    assert bench.seen[2:] and len(bench.seen) == 4, "states of the old client are ignored"
    bench.begin(bench.store.exists("/late"))
    assert isinstance(bench.seen.pop(), SessionExpiredError)


def test_a_listener_may_renew_at_once(bench):
    bench.begin(bench.store.exists("/old"))
    old = bench.client
    bench.store.add_session_listener(lambda event: Deferred.fromCoroutine(bench.store.renew()) and None)
    bench.store.on_lost(old)
    assert bench.client is not old
    bench.store.on_connected(bench.client, SESSION + 1)
    assert bench.store.session_id == SESSION + 1
    bench.begin(bench.store.exists("/new"))
    assert bench.requests == ["exists /new"]
    assert [type(each) for each in bench.seen] == [SessionEvent, SessionExpiredError]


INTERRUPTED = [
    # (the write, the error of its repetition, the node that is read back, the result)
    ("create", exceptions.NodeExistsError(), (b"x", stat()), "/a"),
    ("create", exceptions.NodeExistsError(), (b"other", stat()), NodeExistsError),
    ("create", exceptions.NodeExistsError(), (b"x", stat(1)), NodeExistsError),
    ("create", exceptions.NodeExistsError(), (b"x", stat(owner=SESSION)), NodeExistsError),
    ("create", exceptions.NodeExistsError(), exceptions.NoNodeError(), NodeExistsError),
    ("ephemeral", exceptions.NodeExistsError(), (b"x", stat(owner=SESSION)), "/a"),
    ("ephemeral", exceptions.NodeExistsError(), (b"x", stat(owner=78)), NodeExistsError),
    ("set", exceptions.BadVersionError(), (b"x", stat(4)), 4),
    ("set", exceptions.BadVersionError(), (b"x", stat(5)), BadVersionError),
    ("set", exceptions.BadVersionError(), (b"other", stat(4)), BadVersionError),
    ("set", exceptions.NoNodeError(), exceptions.NoNodeError(), NoNodeError),
    ("delete", exceptions.NoNodeError(), exceptions.NoNodeError(), None),
    ("delete", exceptions.NoNodeError(), (b"x", stat()), NoNodeError),
]


def write(store, kind):
    if kind == "set":
        return store.set("/a", b"x", 3)
    if kind == "delete":
        return store.delete("/a")
    return store.create("/a", b"x", ephemeral=kind == "ephemeral")


@pytest.mark.parametrize(("kind", "error", "node", "expected"), INTERRUPTED)
def test_an_interrupted_write_that_is_rejected_is_compared_with_the_node(bench, kind, error, node, expected):
    writing = bench.begin(write(bench.store, kind))
    bench.lose_connection()
    bench.reconnect()
    assert len(bench.requests) == 1
    bench.answer([error])
    assert bench.requests == ["get /a"]
    bench.answer(node)
    assert writing.called
    result = bench.seen[-1]
    if isinstance(expected, type):
        assert type(result) is expected
    else:
        assert (result.version if isinstance(result, NodeStat) else result) == expected


@pytest.mark.parametrize("error", [exceptions.NodeExistsError(), exceptions.NoNodeError()])
def test_a_write_that_was_not_interrupted_is_not_compared(bench, error):
    bench.begin(bench.store.create("/a", b"x"))
    bench.answer([error])
    assert bench.requests == []
    assert type(bench.seen[-1]) in (NodeExistsError, NoNodeError)


def test_an_interrupted_sequential_create_is_not_compared(bench):
    bench.begin(bench.store.create("/a/n_", b"x", sequential=True))
    bench.lose_connection()
    bench.reconnect()
    bench.answer([exceptions.NoNodeError()])
    assert bench.requests == []
    assert type(bench.seen[-1]) is NoNodeError


def test_an_unexpected_error_of_zookeeper_is_reported_with_the_path(bench):
    bench.begin(bench.store.get("/a"))
    bench.answer(exceptions.MarshallingError())
    assert isinstance(bench.seen[-1], StoreUnavailableError)
    assert "ZooKeeper failed to execute a request for /a: MarshallingError" in str(bench.seen[-1])


def test_denied_access_is_reported_with_the_path_and_a_remedy(bench):
    bench.begin(bench.store.get("/a"))
    bench.answer(exceptions.NoAuthError())
    assert isinstance(bench.seen[-1], StoreUnavailableError)
    assert "ZooKeeper denies access to /a; " in str(bench.seen[-1])
    assert "setAcl" in str(bench.seen[-1])


def node(data, version, owner=0):
    return Node(data, NodeStat(1, 2, 0, 0, version, 0, owner, 0))


def test_a_transaction_has_succeeded_if_it_left_all_nodes():
    registration: list[Operation] = [Delete("/1"), Create("/1", ephemeral=True), SetData("/1", b"new", 0)]
    assert changed_paths(registration) == ["/1"]
    assert has_succeeded(registration, {"/1": node(b"new", 1, SESSION)}, SESSION)
    assert not has_succeeded(registration, {"/1": node(b"new", 1, SESSION - 1)}, SESSION)
    assert not has_succeeded(registration, {"/1": None}, SESSION)
    two: list[Operation] = [SetData("/a", b"1", 4), SetData("/a", b"2"), SetData("/b", b"3")]
    for versions in itertools.product((5, 6, 7), (0, 9)):
        nodes = {"/a": node(b"2", versions[0]), "/b": node(b"3", versions[1])}
        assert has_succeeded(two, nodes, SESSION) is (versions[0] == 6)
    assert changed_paths([Create("/n_", sequential=True), SetData("/b", b"3")]) == []
