"""The store in a real ZooKeeper: the contract of stores, data, order, sessions."""

import itertools

import pytest
from kazoo.client import KazooClient
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from odradek.replication.metadata.store import (
    Create,
    SessionExpiredError,
    SetData,
    TransactionTooLargeError,
)
from odradek.replication.tests.store_contract import StoreContract
from odradek.server.cluster_tools.zookeeper_server import ZooKeeperEnsemble
from odradek.server.stores.tests.zookeeper import BlockingStore, TestReactor, open_store

chroots = itertools.count()


@pytest.fixture(scope="module")
def ensemble():
    with ZooKeeperEnsemble() as ensemble:
        yield ensemble


@pytest.fixture
def reactor():
    return TestReactor()


@pytest.fixture
def chroot():
    return f"/deep/test-{next(chroots)}"


class TestZooKeeperStore(StoreContract):
    @pytest.fixture
    def store(self, ensemble, reactor, chroot):
        store = open_store(ensemble.connect + chroot, reactor)
        yield BlockingStore(store, reactor)
        reactor.run(store.close())


@pytest.fixture
def kazoo(ensemble):
    """kazoo's own client, without a chroot."""
    client = KazooClient(ensemble.connect, timeout=4)
    client.start()
    yield client
    client.stop()
    client.close()


@pytest.fixture
def store(ensemble, reactor, chroot):
    store = open_store(ensemble.connect + chroot, reactor)
    yield store
    reactor.run(store.close())


def test_null_data_is_null_in_zookeeper(store, reactor, kazoo, chroot):
    reactor.run(store.create("/created"))
    reactor.run(store.transaction([Create("/in-transaction"), Create("/set", b"x"), SetData("/set", None)]))
    reactor.run(store.ensure_path("/deep/er"))
    for path in ("/created", "/in-transaction", "/set", "/deep", "/deep/er", ""):
        assert kazoo.get(chroot + path)[0] is None, path
    reactor.run(store.create("/empty", b""))
    assert kazoo.get(f"{chroot}/empty")[0] == b""


def test_stats_are_those_of_zookeeper(store, reactor, kazoo, chroot):
    reactor.run(store.create("/e", b"1", ephemeral=True))
    stat = kazoo.get(f"{chroot}/e")[1]
    node = reactor.run(store.get("/e"))
    assert node.stat == (stat.czxid, stat.mzxid, stat.ctime, stat.mtime, 0, 0, store.session_id, 0)


def test_nodes_have_no_access_control(store, reactor, kazoo, chroot):
    reactor.run(store.create("/a"))
    [acl] = kazoo.get_acls(f"{chroot}/a")[0]
    assert (acl.perms, acl.id.scheme, acl.id.id) == (31, "world", "anyone")


def test_results_and_watch_events_are_in_the_order_of_zookeeper(store, reactor, ensemble, chroot):
    """A read that returns a change ends after the watch event of the change, and an earlier read before it."""
    other = open_store(ensemble.connect + chroot, reactor)
    reactor.run(store.create("/a", b"0"))
    for number in range(200):
        order: list[object] = []

        async def read(order=order):
            order.append((await store.get("/a", lambda event: order.append("event"))).data)

        async def read_again(order=order):
            order.append((await store.get("/a")).data)

        async def write(data=b"%d" % (number + 1)):
            await other.set("/a", data)

        before, after = b"%d" % number, b"%d" % (number + 1)
        reactor.run(read())
        Deferred.fromCoroutine(write())
        while after not in order:
            Deferred.fromCoroutine(read_again())
            reactor.run(read_again())
        assert order.index("event") == order.count(before)
        assert order.index("event") < order.index(after)
    reactor.run(other.close())


def test_a_transaction_above_the_limit_of_zookeeper_is_refused(store, reactor):
    with pytest.raises(TransactionTooLargeError, match="1 MB"):
        reactor.run(store.transaction([Create("/a", bytes(600_000)), Create("/b", bytes(600_000))]))
    assert reactor.run(store.exists("/a")) is None


@pytest.mark.parametrize("name_length", [1, 249])
def test_a_transaction_that_passes_the_check_of_its_size_is_accepted(store, reactor, name_length):
    """Most of its bytes are those of operations or paths, not of data."""
    session_id = store.session_id
    operations = [Create("/a")]
    with pytest.raises(TransactionTooLargeError):
        while True:
            store.check_size(operations)
            first = len(operations)
            names = [f"{number}".rjust(name_length, "n") for number in range(first, first + 100)]
            operations += [Create(f"/a/{name}", b"") for name in names]
    with pytest.raises(TransactionTooLargeError):
        reactor.run(store.transaction(operations))
    del operations[-100:]
    assert len(reactor.run(store.transaction(operations))) == len(operations)
    assert len(reactor.run(store.get_children("/a"))) == len(operations) - 1
    assert store.session_id == session_id


def test_requests_in_flight_are_limited(ensemble, reactor, chroot):
    store = open_store(ensemble.connect + chroot, reactor, max_in_flight=1)
    reads = [Deferred.fromCoroutine(store.exists(f"/{number}")) for number in range(50)]
    reactor.run_until(lambda: all(read.called for read in reads))
    reactor.run(store.close())


def test_closing_ends_the_session(ensemble, reactor, chroot, kazoo):
    store = open_store(ensemble.connect + chroot, reactor)
    reactor.run(store.create("/e", ephemeral=True))
    waiting = Deferred.fromCoroutine(store.get("/e"))
    reactor.run(store.close())
    failures: list[Failure] = []
    waiting.addErrback(failures.append)
    assert [failure.type for failure in failures] == [SessionExpiredError]
    assert kazoo.exists(f"{chroot}/e") is None
    with pytest.raises(SessionExpiredError):
        reactor.run(store.renew())
