"""The broker's store on the simulated ZooKeeper: the contract of metadata stores, and sessions with faults."""

from random import Random
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from odradek.replication.metadata.store import (
    SessionEvent,
    SessionExpiredError,
    WatchEvent,
    WatchKind,
)
from odradek.replication.tests import store_contract
from odradek.replication.tests.store_contract import StoreContract
from odradek.server.config import BrokerConfig
from odradek.simulation.machine.broker_process import ProcessReactor, SimulatedEnvironment
from odradek.simulation.machine.zookeeper import ZOOKEEPER_HOST
from odradek.simulation.world import World

TIMEOUT_S = 2.0
TO_ZOOKEEPER = ("broker-1", ZOOKEEPER_HOST)
FROM_ZOOKEEPER = (ZOOKEEPER_HOST, "broker-1")


class Cluster:
    """Sessions of processes without brokers, one for each machine."""

    def __init__(self, seed=1, count=2):
        self.world = World(seed, broker_count=3)
        assert self.world.zookeeper is not None
        self.zookeeper = self.world.zookeeper
        self.reactors = [ProcessReactor(self.world, process, Random(seed)) for process in self.world.brokers]
        self.stores = [self.open(number) for number in range(count)]
        for store in self.stores:
            self.do(store.connect())
        self.events: list[SessionEvent] = []
        self.stores[0].add_session_listener(self.events.append)

    def open(self, number):
        process, reactor = self.world.brokers[number], self.reactors[number]
        properties = {**process.properties, "zookeeper.session.timeout.ms": str(int(TIMEOUT_S * 1000))}
        environment = SimulatedEnvironment(self.world, process, reactor, Random(1))
        return environment.make_zookeeper_store(BrokerConfig(properties))

    def begin(self, coroutine):
        results: list[Any] = []
        deferred: Deferred[Any] = Deferred.fromCoroutine(coroutine)
        deferred.addCallbacks(results.append, results.append)
        return results

    def do(self, coroutine):
        results = self.begin(coroutine)
        assert self.world.run(lambda: bool(results), 60)
        if hasattr(results[0], "value"):
            raise results[0].value
        return results[0]

    def wait(self, until, limit_s=60):
        assert self.world.run(until, limit_s)

    def pass_time(self, seconds):
        passed = self.world.sleep(seconds)
        assert self.world.run(lambda: passed.called, seconds + 1)


class TestContract(StoreContract):
    @pytest.fixture
    def store(self, monkeypatch):
        cluster = Cluster()
        monkeypatch.setattr(store_contract, "run_now", cluster.do)
        return cluster.stores[0]


@pytest.fixture
def cluster():
    cluster = Cluster()
    one, _ = cluster.stores
    cluster.do(one.create("/mine", ephemeral=True))
    return cluster


def exists(cluster, path="/mine"):
    return cluster.do(cluster.stores[1].exists(path)) is not None


def test_a_live_session_survives(cluster):
    cluster.pass_time(20)
    assert exists(cluster)
    assert cluster.events == []


@pytest.mark.parametrize("routes", [[TO_ZOOKEEPER], [FROM_ZOOKEEPER], [TO_ZOOKEEPER, FROM_ZOOKEEPER]])
def test_a_session_that_is_cut_off_expires(cluster, routes):
    cluster.world.network.cut(routes)
    cluster.wait(lambda: cluster.events == [SessionEvent.DISCONNECTED])
    waiting = cluster.begin(cluster.stores[0].exists("/mine"))
    if TO_ZOOKEEPER not in routes:
        # The server still receives heartbeats of connections whose responses are lost.
        return
    cluster.wait(lambda: not exists(cluster))
    assert not waiting
    cluster.world.network.heal()
    cluster.wait(lambda: cluster.events[1:] == [SessionEvent.EXPIRED])
    assert waiting[0].check(SessionExpiredError)
    with pytest.raises(SessionExpiredError):
        cluster.do(cluster.stores[0].exists("/mine"))


def test_a_short_cut_ends_with_the_same_session(cluster):
    session_id = cluster.stores[0].session_id
    cluster.world.network.cut([TO_ZOOKEEPER])
    cluster.wait(lambda: bool(cluster.events))
    cluster.world.network.heal()
    cluster.wait(lambda: cluster.events == [SessionEvent.DISCONNECTED, SessionEvent.CONNECTED], 1)
    assert cluster.stores[0].session_id == session_id
    assert exists(cluster)


def test_a_dead_process_expires(cluster):
    cluster.reactors[0].is_alive = False
    cluster.wait(lambda: not exists(cluster), 3)


def test_a_paused_process_expires_and_learns_it_later(cluster):
    cluster.reactors[0].pause(5)
    cluster.wait(lambda: not exists(cluster), 3)
    assert cluster.events == []
    cluster.wait(lambda: SessionEvent.EXPIRED in cluster.events)


def test_a_renewed_session_is_new(cluster):
    store, first = cluster.stores[0], cluster.stores[0].session_id
    cluster.zookeeper.expire("broker-1")
    cluster.wait(lambda: SessionEvent.EXPIRED in cluster.events)
    cluster.do(store.renew())
    assert store.session_id != first
    cluster.do(store.create("/mine", ephemeral=True))
    assert exists(cluster)


def test_an_outage_expires_no_session(cluster):
    cluster.zookeeper.stop()
    cluster.pass_time(30)
    waiting = cluster.begin(cluster.stores[0].create("/later"))
    cluster.zookeeper.start()
    cluster.wait(lambda: bool(waiting))
    assert waiting == ["/later"]
    assert cluster.events == [SessionEvent.DISCONNECTED, SessionEvent.CONNECTED]
    cluster.pass_time(1)
    assert exists(cluster)


def test_the_outcome_of_a_request_in_flight_is_unknown():
    """The store finds out whether the request was executed, and repeats it if it was not."""
    was_made = set()
    for seed in range(20):
        cluster = Cluster(seed)
        results = cluster.begin(cluster.stores[0].create("/a"))
        cluster.pass_time(seed * 0.0003)
        cluster.zookeeper.break_connections("broker-1")
        if not results:
            was_made.add(exists(cluster, "/a"))
        cluster.wait(lambda results=results: bool(results))
        assert results == ["/a"]
    assert was_made == {False, True}


def test_an_event_of_a_disconnected_session_comes_before_newer_data(cluster):
    one, two = cluster.stores
    order: list[object] = []
    cluster.do(two.create("/a", b"old"))
    cluster.do(one.get("/a", order.append))
    cluster.zookeeper.break_connections("broker-1")
    cluster.do(two.set("/a", b"new"))
    order.append(cluster.do(one.get("/a")).data)
    assert order == [WatchEvent(WatchKind.CHANGED, "/a"), b"new"]


def test_a_client_sees_an_event_before_the_data():
    for seed in range(20):
        cluster = Cluster(seed)
        one, two = cluster.stores
        order = []
        cluster.do(one.create("/a", b"old"))
        cluster.do(one.get("/a", order.append))
        cluster.begin(two.set("/a", b"new"))
        for _ in range(50):
            data = cluster.do(one.get("/a")).data
            assert (data == b"new") == bool(order)
        assert order


def test_a_closed_session_ends_at_once(cluster):
    cluster.do(cluster.stores[0].close())
    assert not exists(cluster)
    assert cluster.events == []


def test_heartbeats_that_are_late_keep_a_session_and_requests_share_the_delay(cluster):
    cluster.zookeeper.lag_s = 0.3 * TIMEOUT_S
    cluster.pass_time(5 * TIMEOUT_S)
    begin_s = cluster.world.clock.seconds()
    results = [cluster.begin(cluster.stores[1].exists("/mine")) for _ in range(20)]
    cluster.wait(lambda: all(results))
    assert 0.3 * TIMEOUT_S < cluster.world.clock.seconds() - begin_s < 1.3 * TIMEOUT_S
    assert cluster.events == []
    cluster.zookeeper.lag_s = 0.0
    assert exists(cluster)


def test_a_session_expires_while_zookeeper_is_too_slow(cluster):
    cluster.zookeeper.lag_s = 1.5 * TIMEOUT_S
    cluster.wait(lambda: SessionEvent.DISCONNECTED in cluster.events)
    cluster.pass_time(5 * TIMEOUT_S)
    cluster.zookeeper.lag_s = 0.0
    cluster.wait(lambda: cluster.events[-1] is SessionEvent.EXPIRED)


def test_a_client_sees_an_event_before_the_data_while_zookeeper_is_slow(cluster):
    one, two = cluster.stores
    order: list[object] = []
    cluster.do(one.create("/a", b"old"))
    cluster.do(one.get("/a", order.append))
    cluster.zookeeper.lag_s = 0.2 * TIMEOUT_S
    cluster.begin(two.set("/a", b"new"))
    while not order:
        assert cluster.do(one.get("/a")).data == b"old" or order
    assert order == [WatchEvent(WatchKind.CHANGED, "/a")]
