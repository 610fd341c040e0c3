"""Sessions of the store with a real ZooKeeper: connection loss, restart, expiry, and requests in flight."""

import logging
import random
import time

import pytest
from kazoo.protocol.connection import _CONNECTION_DROP
from twisted.internet.defer import Deferred

from odradek.replication.metadata.store import (
    BadVersionError,
    Create,
    SessionEvent,
    SessionExpiredError,
    SetData,
    StoreUnavailableError,
    WatchEvent,
    WatchKind,
)
from odradek.server.cluster_tools.zookeeper_server import ZooKeeperEnsemble, find_port
from odradek.server.stores.tests.zookeeper import TestReactor, expire, make_settings, open_store
from odradek.server.stores.zookeeper import outcomes
from odradek.server.stores.zookeeper.store import ZooKeeperStore


@pytest.fixture(scope="module")
def ensemble():
    with ZooKeeperEnsemble() as ensemble:
        yield ensemble


@pytest.fixture
def server(ensemble):
    [server] = ensemble.servers
    yield server
    if not server.is_running:
        server.start()


@pytest.fixture
def reactor():
    return TestReactor()


@pytest.fixture
def store(server, reactor, request):
    # The session outlives the time that a server which has just started, and the client, need on a busy machine.
    store = open_store(f"{server.connect}/{request.node.name}", reactor, session_timeout_ms=10_000)
    yield store
    reactor.run(store.close())


@pytest.fixture
def events(store):
    events: list[SessionEvent] = []
    store.add_session_listener(events.append)
    return events


def outcome(deferred):
    """Return the result, or the exception, of a Deferred that has fired."""
    results: list[object] = []
    deferred.addBoth(results.append)
    [result] = results
    return getattr(result, "value", result)


def test_requests_wait_for_zookeeper_and_are_executed_afterwards(server, store, reactor, events, caplog):
    reactor.run(store.create("/a", b"0"))
    session_id = store.session_id
    server.kill()
    reactor.run_until(lambda: bool(events))
    assert events == [SessionEvent.DISCONNECTED]
    waiting = [
        Deferred.fromCoroutine(store.set("/a", b"1", 0)),
        Deferred.fromCoroutine(store.create("/b", ephemeral=True)),
        Deferred.fromCoroutine(store.get("/a")),
    ]
    server.start()
    reactor.run_until(lambda: all(each.called for each in waiting))
    assert events == [SessionEvent.DISCONNECTED, SessionEvent.CONNECTED]
    assert store.session_id == session_id
    assert outcome(waiting[2]).data == b"1"
    assert reactor.run(store.get("/b")).stat.ephemeral_owner == session_id
    assert [each.getMessage().partition(" z")[0].partition(" s")[0] for each in caplog.records] == [
        "ZooKeeper is unreachable; data traffic continues with the last known leaders, changes wait",
        "ZooKeeper is reachable again",
    ]


def test_a_chain_of_conditional_writes_continues_after_a_crash_of_zookeeper(server, store, reactor):
    """Each write expects the version that the one before has left, so none is lost or executed twice."""
    done: list[int] = []

    async def write_chain():
        for version in range(300):
            await store.set("/n", b"%d" % version, version)
            done.append(version)

    reactor.run(store.create("/n"))
    chain = Deferred.fromCoroutine(write_chain())
    for crash in range(2):
        reactor.run_until(lambda least=100 * crash + 50: len(done) > least)
        server.kill()
        server.start()
    reactor.run_until(lambda: chain.called)
    assert outcome(chain) is None
    assert reactor.run(store.exists("/n")).version == 300


def drop_connection(store):
    """Close the connection after the requests sent so far, whose responses are lost if they have not arrived."""
    kazoo = store._client.kazoo
    kazoo._call(_CONNECTION_DROP, kazoo.handler.async_result())


def test_writes_whose_responses_are_lost_are_executed_once(server, store, reactor, events, monkeypatch):
    checked: list[bool] = []
    has_succeeded = outcomes.has_succeeded

    def record(*arguments):
        checked.append(has_succeeded(*arguments))
        return checked[-1]

    def interrupt(coroutine):
        written = Deferred.fromCoroutine(coroutine)
        drop_connection(store)
        reactor.run_until(lambda: written.called)
        return outcome(written)

    monkeypatch.setattr(outcomes, "has_succeeded", record)
    for number in range(8):
        path = f"/{number}"
        assert interrupt(store.create(path, b"0")) == path
        assert interrupt(store.set(path, b"1", 0)).version == 1
        assert interrupt(store.create(f"{path}/e", b"x", ephemeral=True)) == f"{path}/e"
        assert interrupt(store.delete(f"{path}/e", 0)) is None
        results = interrupt(
            store.transaction([Create(f"{path}/f", ephemeral=True), SetData(f"{path}/f", b"x", 0), SetData(path, b"2")])
        )
        assert (results[0], results[1].version, results[2].version) == (f"{path}/f", 1, 2)
        assert isinstance(interrupt(store.set(path, b"3", 0)), BadVersionError), "rejected at both attempts"
    assert checked.count(True) > 10, "the first attempts succeeded"
    assert SessionEvent.EXPIRED not in events


def test_each_version_of_a_node_has_one_writer_despite_connection_losses(server, reactor):
    """Two clients write the same node; their connections are lost at random. No reader sees it go back."""
    randomness = random.Random(1)
    stores = [open_store(f"{server.connect}/contended", reactor) for _ in range(2)]
    winners: dict[int, bytes] = {}
    is_over = False

    async def write(number, store):
        newest = attempt = 0
        while not is_over:
            node = await store.get("/n")
            assert node.stat.version >= newest
            newest = node.stat.version
            attempt += 1
            data = b"%d-%d" % (number, attempt)
            try:
                stat = await store.set("/n", data, node.stat.version)
            except BadVersionError:
                continue
            assert stat.version not in winners
            winners[stat.version] = data

    reactor.run(stores[0].create("/n"))
    writers = [Deferred.fromCoroutine(write(number, store)) for number, store in enumerate(stores)]
    for _ in range(20):
        least = len(winners) + randomness.randrange(20)
        reactor.run_until(lambda least=least: len(winners) > least)
        drop_connection(randomness.choice(stores))
    is_over = True
    reactor.run_until(lambda: all(writer.called for writer in writers))
    assert [outcome(writer) for writer in writers] == [None, None]
    node = reactor.run(stores[0].get("/n"))
    assert node.data == winners[node.stat.version]
    for store in stores:
        reactor.run(store.close())


def test_watches_survive_a_connection_loss(server, store, reactor, events):
    other = open_store(f"{server.connect}/{store._chroot[1:]}", reactor)
    for path in ("/changed", "/deleted", "/parent", "/parent/gone", "/same", "/gone"):
        reactor.run(store.create(path))
    seen: list[WatchEvent] = []
    for path in ("/changed", "/deleted", "/same"):
        reactor.run(store.get(path, seen.append))
    reactor.run(store.exists("/created", seen.append))
    reactor.run(store.exists("/missing", seen.append))
    for path in ("/parent", "/gone", "/same"):
        reactor.run(store.get_children(path, seen.append))
    _kazoo_of(store).handler.refuse_connections()
    drop_connection(store)
    reactor.run_until(lambda: SessionEvent.DISCONNECTED in events)
    reactor.run(other.set("/changed", b"1"))
    reactor.run(other.delete("/deleted"))
    reactor.run(other.create("/created"))
    reactor.run(other.delete("/parent/gone"))
    reactor.run(other.delete("/gone"))
    assert seen == []
    _kazoo_of(store).handler._refuses = False
    reading = Deferred.fromCoroutine(store.get("/changed"))
    reactor.run_until(lambda: reading.called)
    assert len(seen) == 5, "before the result of a later read"
    assert set(seen) == {
        WatchEvent(WatchKind.CHANGED, "/changed"),
        WatchEvent(WatchKind.DELETED, "/deleted"),
        WatchEvent(WatchKind.CREATED, "/created"),
        WatchEvent(WatchKind.CHILDREN, "/parent"),
        WatchEvent(WatchKind.DELETED, "/gone"),
    }
    # The other watches are set on the new connection.
    reactor.run(other.create("/missing"))
    reactor.run(other.create("/same/child"))
    reactor.run(other.set("/same", b"1"))
    reactor.run_until(lambda: len(seen) == 8)
    assert set(seen[5:]) == {
        WatchEvent(WatchKind.CREATED, "/missing"),
        WatchEvent(WatchKind.CHILDREN, "/same"),
        WatchEvent(WatchKind.CHANGED, "/same"),
    }
    reactor.run(other.close())


def _kazoo_of(store):
    return store._client.kazoo


def test_expiry_informs_listeners_first_and_then_fails_requests(server, store, reactor, caplog):
    caplog.set_level(logging.INFO)
    order: list[object] = []
    reactor.run(store.create("/e", ephemeral=True))
    seen: list[WatchEvent] = []
    reactor.run(store.get("/e", seen.append))
    first = store.session_id
    expire(server.connect, store)

    def on_event(event):
        order.append(event)
        if event is SessionEvent.DISCONNECTED:
            for _ in range(2):
                Deferred.fromCoroutine(store.create("/late")).addErrback(lambda failure: order.append(failure.type))

    store.add_session_listener(on_event)
    reactor.run_until(lambda: len(order) == 4)
    assert order == [SessionEvent.DISCONNECTED, SessionEvent.EXPIRED, SessionExpiredError, SessionExpiredError]
    with pytest.raises(SessionExpiredError):
        reactor.run(store.get("/e"))
    reactor.run(store.renew())
    assert store.session_id != first
    assert reactor.run(store.exists("/late")) is None
    assert reactor.run(store.exists("/e")) is None
    reactor.run(store.create("/e", ephemeral=True))
    assert reactor.run(store.get("/e")).stat.ephemeral_owner == store.session_id
    assert seen == [], "the new session has no watches"
    assert len(order) == 4
    second = store.session_id
    reactor.run(store.renew())
    assert store.session_id == second, "a session that has not expired is kept"


def test_nothing_is_sent_between_an_expiry_and_renew(server, store, reactor):
    """The reactor is busy while kazoo loses the session, and would begin a new one."""
    expire(server.connect, store)
    kazoo = _kazoo_of(store)
    deadline = time.monotonic() + 30
    while kazoo.state != "LOST":
        assert time.monotonic() < deadline
    waiting = Deferred.fromCoroutine(store.create("/from-the-old-session", ephemeral=True))
    reactor.run_until(lambda: waiting.called)
    assert isinstance(outcome(waiting), SessionExpiredError)
    reactor.run(store.renew())
    assert reactor.run(store.exists("/from-the-old-session")) is None


def test_renew_fails_while_zookeeper_is_down_and_can_be_repeated(server, store, reactor):
    store._settings = store._settings._replace(connection_timeout_ms=300)
    expire(server.connect, store)
    events: list[SessionEvent] = []
    store.add_session_listener(events.append)
    reactor.run_until(lambda: SessionEvent.EXPIRED in events)
    server.kill()
    with pytest.raises(StoreUnavailableError, match="within 300 ms"):
        reactor.run(store.renew())
    with pytest.raises(SessionExpiredError):
        reactor.run(store.exists("/"))
    store._settings = store._settings._replace(connection_timeout_ms=20_000)
    server.start()
    reactor.run(store.renew())
    assert reactor.run(store.exists("/")) is not None


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("127.0.0.1:PORT", "Connection refused"),
        ("no-such-host.invalid:2181", "no server of it answers"),
    ],
)
def test_a_start_without_zookeeper_fails_with_the_remedy(reactor, address, reason):
    address = address.replace("PORT", str(find_port()))
    store = ZooKeeperStore(make_settings(f"{address}/kafka", connection_timeout_ms=1000), reactor)
    with pytest.raises(StoreUnavailableError) as refused:
        reactor.run(store.connect())
    assert str(refused.value) == (
        f"cannot connect to ZooKeeper within 1000 ms (zookeeper.connect={address}/kafka): {reason}; start ZooKeeper, "
        "or correct zookeeper.connect"
    )
    reactor.run(store.close())


def test_a_long_wait_for_zookeeper_is_logged(reactor, caplog, monkeypatch):
    # A second is enough for the first attempt to connect, whose error is logged, also on a busy machine.
    monkeypatch.setattr("odradek.server.stores.zookeeper.store._REPORT_WAIT_S", 1.0)
    address = f"127.0.0.1:{find_port()}"
    store = ZooKeeperStore(make_settings(address, connection_timeout_ms=1200), reactor)
    with pytest.raises(StoreUnavailableError):
        reactor.run(store.connect())
    line = f"waiting for ZooKeeper zookeeper.connect={address} timeout_ms=1200 reason=Connection refused"
    assert caplog.messages == [line]
    reactor.run(store.close())


def test_a_server_that_does_not_answer_is_noticed(server, reactor):
    store = open_store(server.connect, reactor)
    events: list[SessionEvent] = []
    store.add_session_listener(events.append)
    server.pause()
    waiting = Deferred.fromCoroutine(store.exists("/"))
    reactor.run_until(lambda: events == [SessionEvent.DISCONNECTED])
    server.resume()
    reactor.run_until(lambda: waiting.called)
    # ZooKeeper may find the session expired as soon as it continues.
    if events[1:] == [SessionEvent.CONNECTED]:
        assert outcome(waiting).version == 0
    else:
        assert events[1:] == [SessionEvent.EXPIRED]
        assert isinstance(outcome(waiting), SessionExpiredError)
    reactor.run(store.close())
