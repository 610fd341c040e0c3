"""The layout of a cluster in ZooKeeper, against a broker of Apache Kafka 3.9 in ZooKeeper mode."""

import pytest

from compat_tests.apache_kafka.zookeeper_mode import ZooKeeperModeBroker
from compat_tests.clients.common import wait_until
from odradek.replication.controller.registration import Registration, StartError, prepare_store
from odradek.replication.metadata import znodes
from odradek.replication.metadata.image import BrokerMetadata, Endpoint
from odradek.replication.metadata.loader import load_brokers, load_controller
from odradek.server.cluster_tools.zookeeper_server import ZooKeeperEnsemble
from odradek.server.stores.tests.zookeeper import TestReactor, open_store


@pytest.fixture(scope="module")
def ensemble():
    with ZooKeeperEnsemble() as ensemble:
        yield ensemble


@pytest.fixture(scope="module")
def kafka(ensemble, tmp_path_factory):
    """A broker that joins a cluster which Odradek has laid out, and becomes its controller."""
    reactor = TestReactor()
    store = open_store(f"{ensemble.connect}/ours", reactor)
    reactor.run(prepare_store(store, "b2RyYWRlay1sYXlvdXQtQQ"))
    kafka = ZooKeeperModeBroker(5, f"{ensemble.connect}/ours", tmp_path_factory.mktemp("kafka"))
    kafka.start()
    yield kafka
    kafka.close()
    reactor.run(store.close())


def read_tree(store, reactor):
    nodes: dict[str, bytes | None] = {}

    def walk(path):
        nodes[path] = reactor.run(store.get(path)).data
        for name in reactor.run(store.get_children(path)):
            walk(f"{path}/{name}".replace("//", "/"))

    walk("/")
    return nodes


def test_apache_kafka_lays_out_the_same_nodes(ensemble, tmp_path):
    kafka = ZooKeeperModeBroker(5, f"{ensemble.connect}/theirs", tmp_path)
    reactor = TestReactor()
    try:
        kafka.start()
        theirs, ours = open_store(f"{ensemble.connect}/theirs", reactor), open_store(f"{ensemble.connect}/new", reactor)
        reactor.run(prepare_store(ours, "an-id"))
        # The broker reports its start before its controller has made this node.
        wait_until(lambda: "/feature" in read_tree(theirs, reactor), what="the controller's nodes")
        found, laid_out = read_tree(theirs, reactor), read_tree(ours, reactor)
    finally:
        kafka.close()
    # What the running broker and its controller have added.
    for path in ("/brokers/ids/5", "/controller", "/feature"):
        del found[path]
    for path in ("/cluster/id", "/controller_epoch"):
        assert found.pop(path)
        assert laid_out.pop(path)
    # Not Kafka's.
    del laid_out[znodes.CLIENT_METRICS_CHANGES]
    assert found == laid_out
    reactor.run(theirs.close())
    reactor.run(ours.close())


def test_apache_kafka_joins_a_cluster_that_odradek_laid_out(ensemble, kafka):
    reactor = TestReactor()
    store = open_store(f"{ensemble.connect}/ours", reactor)
    assert "cluster.id=b2RyYWRlay1sYXlvdXQtQQ" in (kafka.data_dir / "meta.properties").read_text()
    # The broker reports its start before it is the controller.
    wait_until(lambda: reactor.run(load_controller(store)) == (5, 1), what="the controller")
    [registered] = reactor.run(load_brokers(store, ["5"]))
    assert registered.endpoints == (Endpoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", kafka.port),)
    reactor.run(store.close())


def test_ids_and_addresses_of_apache_kafka_are_refused(ensemble, kafka):
    reactor = TestReactor()
    store = open_store(f"{ensemble.connect}/ours", reactor)
    registration = Registration(store, lambda: 5)
    with pytest.raises(StartError, match="broker id 5 is in use by another broker"):
        reactor.run(registration.register(BrokerMetadata(5, (), None, -1)))
    same_address = (Endpoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", kafka.port),)
    with pytest.raises(StartError, match=f"broker 5 already advertises 127.0.0.1:{kafka.port}"):
        reactor.run(registration.register(BrokerMetadata(6, same_address, None, -1)))
    reactor.run(store.close())


@pytest.mark.parametrize(("broker_id", "port", "reason"), [(1, 0, "NodeExists"), (2, 7777, "already registered")])
def test_apache_kafka_refuses_ids_and_addresses_of_odradek(ensemble, tmp_path, broker_id, port, reason):
    reactor = TestReactor()
    store = open_store(f"{ensemble.connect}/refusing-{broker_id}", reactor)
    reactor.run(prepare_store(store, "b2RyYWRlay1sYXlvdXQtQQ"))
    endpoint = Endpoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 7777)
    reactor.run(Registration(store, lambda: 5).register(BrokerMetadata(1, (endpoint,), None, -1)))
    kafka = ZooKeeperModeBroker(broker_id, f"{ensemble.connect}/refusing-{broker_id}", tmp_path)
    kafka.properties["advertised.listeners"] = f"PLAINTEXT://127.0.0.1:{port or kafka.port}"
    with pytest.raises(RuntimeError):
        kafka.start()
    assert reason in kafka.log_text()
    kafka.close()
    reactor.run(store.close())
