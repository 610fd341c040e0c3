"""Layout of a new cluster and registration of brokers in a real ZooKeeper."""

import itertools

import pytest

from odradek.replication.controller.registration import Registration, StartError, prepare_store
from odradek.replication.metadata import znodes
from odradek.replication.metadata.image import BrokerMetadata, Endpoint
from odradek.replication.metadata.loader import load_brokers
from odradek.replication.metadata.store import SessionEvent
from odradek.server.cluster_tools.zookeeper_server import ZooKeeperEnsemble
from odradek.server.stores.tests.zookeeper import TestReactor, expire, open_store

chroots = itertools.count()


@pytest.fixture(scope="module")
def ensemble():
    with ZooKeeperEnsemble(tick_ms=200) as ensemble:
        yield ensemble


@pytest.fixture
def reactor():
    return TestReactor()


@pytest.fixture
def connect(ensemble, reactor):
    """Function that opens a further store with the test's chroot."""
    chroot = f"/test-{next(chroots)}"
    stores = []

    def open_one():
        stores.append(open_store(ensemble.connect + chroot, reactor))
        return stores[-1]

    yield open_one
    for store in stores:
        reactor.run(store.close())


def broker(broker_id, port=0):
    return BrokerMetadata(broker_id, (Endpoint("PLAINTEXT", "PLAINTEXT", "host", port or 9000 + broker_id),), None, -1)


def test_the_layout_is_that_of_kafka_3_9(connect, reactor):
    """The nodes that Apache Kafka 3.9.1 creates before a controller is elected, and one of ours, all with null data."""
    store = connect()
    assert reactor.run(prepare_store(store, "the-id")) == "the-id"
    nodes: dict[str, bytes | None] = {}

    def walk(path):
        nodes[path] = reactor.run(store.get(path)).data
        for name in reactor.run(store.get_children(path)):
            walk(f"{path}/{name}".replace("//", "/"))

    walk("/")
    with_data = {path: nodes.pop(path) for path in ("/cluster/id", "/controller_epoch")}
    assert with_data == {"/cluster/id": b'{"version":"1","id":"the-id"}', "/controller_epoch": b"0"}
    assert set(nodes) == {
        "/", "/admin", "/admin/delete_topics", "/brokers", "/brokers/ids", "/brokers/seqid", "/brokers/topics",
        "/cluster", "/config", "/config/brokers", "/config/changes", "/config/clients", "/config/ips", "/config/topics",
        "/config/users", "/consumers", "/isr_change_notification", "/latest_producer_id_block",
        "/log_dir_event_notification", znodes.CLIENT_METRICS_CHANGES,
    }  # fmt: skip
    assert set(nodes.values()) == {None}


def test_a_layout_with_fewer_nodes_is_completed(connect, reactor):
    store = connect()
    reactor.run(prepare_store(store, "the-id"))
    reactor.run(store.delete("/latest_producer_id_block"))
    assert reactor.run(prepare_store(store, "another", is_new=True)) == "the-id"
    assert reactor.run(store.get("/latest_producer_id_block")).data is None


def test_a_registration_has_kafkas_form(connect, reactor):
    store = connect()
    reactor.run(prepare_store(store, "the-id"))
    registration = Registration(store, lambda: 5)
    reactor.run(registration.register(broker(7)))
    node = reactor.run(store.get("/brokers/ids/7"))
    assert (node.stat.version, node.stat.ephemeral_owner) == (1, store.session_id)
    assert node.data == (
        b'{"features":{},"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"},'
        b'"endpoints":["PLAINTEXT://host:9007"],"jmx_port":-1,"port":9007,"host":"host","version":5,"timestamp":"5"}'
    )
    assert registration.epoch == node.stat.created_id
    assert reactor.run(load_brokers(store, ["7"])) == [broker(7)._replace(epoch=registration.epoch)]
    reactor.run(registration.register(broker(7)))
    assert reactor.run(store.get("/brokers/ids/7")) == node, "the node of the present session is kept"


def test_ids_and_addresses_are_used_once(connect, reactor):
    first, second = connect(), connect()
    reactor.run(prepare_store(first, "the-id"))
    reactor.run(Registration(first, lambda: 5).register(broker(1)))
    with pytest.raises(StartError) as refused:
        reactor.run(Registration(second, lambda: 5).register(broker(1, port=1234)))
    assert str(refused.value) == (
        "broker id 1 is in use by another broker; change broker.id, or, if this broker has crashed, start it again "
        "when its session has expired (zookeeper.session.timeout.ms)"
    )
    with pytest.raises(StartError) as refused:
        reactor.run(Registration(second, lambda: 5).register(broker(2, port=9001)))
    assert str(refused.value) == "broker 1 already advertises host:9001; change advertised.listeners"
    reactor.run(first.close())
    reactor.run(Registration(second, lambda: 5).register(broker(1)))


def test_a_broker_registers_again_after_its_session_has_expired(ensemble, connect, reactor):
    store = connect()
    reactor.run(prepare_store(store, "the-id"))
    registration = Registration(store, lambda: 5)
    reactor.run(registration.register(broker(1)))
    first_epoch = registration.epoch
    events: list[SessionEvent] = []
    store.add_session_listener(events.append)
    expire(ensemble.connect, store)
    reactor.run_until(lambda: SessionEvent.EXPIRED in events)
    reactor.run(store.renew())
    reactor.run(registration.register(broker(1)))
    assert registration.epoch > first_epoch
    assert reactor.run(store.get("/brokers/ids/1")).stat.ephemeral_owner == store.session_id


def test_a_node_of_an_earlier_session_is_replaced(connect, reactor):
    """The earlier session has ended for this broker, and ZooKeeper still has it."""
    store, earlier = connect(), connect()
    reactor.run(prepare_store(store, "the-id"))
    registration = Registration(earlier, lambda: 5)
    reactor.run(registration.register(broker(1)))
    first_epoch = registration.epoch
    registration._store = store
    reactor.run(registration.register(broker(1)))
    assert registration.epoch > first_epoch
    stat = reactor.run(store.exists("/brokers/ids/1"))
    assert (stat.version, stat.ephemeral_owner) == (1, store.session_id)
