"""The store with an ensemble of three ZooKeeper servers, of which one fails."""

import pytest
from twisted.internet.defer import Deferred

from odradek.replication.metadata.store import SessionEvent
from odradek.server.cluster_tools.zookeeper_server import ZooKeeperEnsemble
from odradek.server.stores.tests.zookeeper import TestReactor, open_store


@pytest.fixture(scope="module")
def ensemble():
    with ZooKeeperEnsemble(3, tick_ms=500) as ensemble:
        yield ensemble


def connected_server(ensemble, store):
    port = store._client.kazoo._connection._socket.getpeername()[1]
    [server] = [server for server in ensemble.servers if server.port == port]
    return server


def leader(ensemble, reactor):
    """The leader, when there is one: a server that was paused also reports to lead until it notices the other one."""
    leaders = []

    def is_one():
        leaders[:] = [server for server in ensemble.servers if server.is_leader()]
        return len(leaders) == 1

    reactor.run_until(is_one)
    return leaders[0]


@pytest.mark.parametrize("failure", ["kill", "pause", "kill the leader"])
def test_the_session_continues_on_another_server(ensemble, failure):
    reactor = TestReactor()
    store = open_store(f"{ensemble.connect}/{failure.replace(' ', '-')}", reactor, session_timeout_ms=10_000)
    session_id = store.session_id
    events: list[SessionEvent] = []
    store.add_session_listener(events.append)
    reactor.run(store.create("/e", ephemeral=True))
    server = connected_server(ensemble, store)
    if failure == "kill the leader":
        server = leader(ensemble, reactor)
    if failure == "pause":
        server.pause()
    else:
        server.kill()

    async def write_chain():
        for version in range(50):
            await store.set("/e", b"%d" % version, version)

    chain = Deferred.fromCoroutine(write_chain())
    reactor.run_until(lambda: chain.called)
    if failure == "pause":
        server.resume()
    else:
        server.start()
    stat = reactor.run(store.exists("/e"))
    assert (stat.version, stat.ephemeral_owner, store.session_id) == (50, session_id, session_id)
    assert events == [SessionEvent.DISCONNECTED, SessionEvent.CONNECTED] * (len(events) // 2)
    reactor.run(store.close())
